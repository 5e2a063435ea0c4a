// SPDX-License-Identifier: Apache-2.0
#include "generator/matrices.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "generator/dtype.h"

namespace flashjit::generator {
namespace {

constexpr int kRows = 2;                         // of a lane
constexpr int kTileRegisters = 4;                // of eight columns
constexpr int kOperandRegisters = 4;             // of A, in a step of kStepBytes
constexpr int kStepBytes = 32;                   // of a row of A: the depth of wgmma and of mma.sync
constexpr int kColumnsOfWord = 128;              // whose two in eight fill the bits of a word
constexpr int kTilesKept = 4;                    // of eight columns, that KeptPairs tells of
constexpr int kAndOfXor = 0xf0 & (0xcc ^ 0xaa);  // the table of a & (b ^ c)

int count_of(int columns) { return (columns + 7) / 8 * kTileRegisters; }
int row_of(int number) { return number % kTileRegisters / 2; }

// "s0, s1, s2": as many from the first one on.
std::string list(std::string_view registers, int first, int count) {
  std::string out;
  for (int i = first; i < first + count; ++i) {
    if (i != first) out += ", ";
    out += registers;
    out += fmt::format_int(i).c_str();
  }
  return out;
}

// An asm statement, line by line.
class Statement {
 public:
  // Operands in their order: %0 and on. A constraint and what it is for: ("f", "scale").
  Statement& out(std::string_view constraint, std::string_view value) { return add(outputs_, constraint, value); }
  Statement& in(std::string_view constraint, std::string_view value) { return add(inputs_, constraint, value); }
  template <class... Parts>
  Statement& line(fmt::format_string<const Parts&...> format, const Parts&... parts) {
    text_.append(std::string_view("        \""));
    fmt::format_to(fmt::appender(text_), format, parts...);
    text_.append(std::string_view(";\\n\\t\"\n"));
    return *this;
  }
  Statement& open(std::string_view registers) {
    fmt::format_to(fmt::appender(text_), "        \"{{{};\\n\\t\"\n", registers);
    open_ = true;
    return *this;
  }
  // Volatile, as the compiler knows neither what it reads nor what it writes.
  std::string text() const {
    return fmt::format("    asm volatile(\n{}{}        : {}\n        : {});\n", fmt::to_string(text_),
                       open_ ? "        \"}\"\n" : "", outputs_, inputs_);
  }

 private:
  Statement& add(std::string& operands, std::string_view constraint, std::string_view value) {
    if (!operands.empty()) operands += ", ";
    operands += fmt::format("\"{}\"({})", constraint, value);
    return *this;
  }
  fmt::memory_buffer text_;
  std::string outputs_, inputs_;
  bool open_ = false;
};

std::string function(std::string_view signature, const std::string& body) {
  return fmt::format("  static __device__ __forceinline__ void {} {{\n{}  }}\n", signature, body);
}
std::string structure(std::string_view type, const std::string& functions) {
  return fmt::format("struct {} {{\n{}}};\n", type, functions);
}

std::string declare(std::string_view type, std::string_view registers, int count) {
  return function("declare()", fmt::format("    asm volatile(\".reg .{} {}<{}>;\");\n", type, registers, count));
}

// x *= factor of its row.
std::string multiply(std::string_view registers, int count) {
  Statement statement;
  for (int i = 0; i < count; ++i) statement.line("mul.f32 {0}{1}, {0}{1}, %{2}", registers, i, row_of(i));
  return function("multiply(const float (&factor)[2])", statement.in("f", "factor[0]").in("f", "factor[1]").text());
}

int elements_of_step(DType dtype) { return kStepBytes / static_cast<int>(size_of(dtype)); }

std::string wgmma(DType of_a, DType of_b, int columns) {
  return fmt::format("wgmma.mma_async.sync.aligned.m64n{}k{}.f32.{}.{}", columns, elements_of_step(of_a),
                     to_string(of_a), to_string(of_b));
}

// Rows by rows of shared memory. adds: to what is there.
std::string products(std::string_view registers, DType dtype, int columns, int steps, bool adds) {
  Statement statement;
  const std::string product = wgmma(dtype, dtype, columns), d = list(registers, 0, columns / 2);
  const char* const majors = is_of_8_bits(dtype) ? "" : ", 0, 0";
  for (int step = 0; step < steps; ++step)
    statement.line("{} {{{}}}, %{}, %{}, {}, 1, 1{}", product, d, step, steps + step, step == 0 && !adds ? 0 : 1,
                   majors);
  for (const char* operand : {"q", "k"})
    for (int step = 0; step < steps; ++step) statement.in("l", fmt::format("{}[{}]", operand, step));
  return statement.text();
}

std::string issue(std::string_view name, std::string_view registers, DType dtype, int columns, int steps) {
  return function(fmt::format("{0}(const uint64 (&q)[{1}], const uint64 (&k)[{1}])", name, steps),
                  products(registers, dtype, columns, steps, false));
}

// The same piece by piece, each of so many steps: the first one, those behind it, and the last one, which may be
// shorter.
std::string issue_pieces(std::string_view name, std::string_view registers, DType dtype, int columns, int steps,
                         int steps_of_piece) {
  const int last = (steps - 1) % steps_of_piece + 1;
  std::string cases;
  const auto add = [&](bool adds, int of_piece) {
    cases += fmt::format("    if constexpr (kAdds == {} && kSteps == {}) {{\n{}    }}\n", adds, of_piece,
                         products(registers, dtype, columns, of_piece, adds));
  };
  add(false, std::min(steps, steps_of_piece));
  if (steps > steps_of_piece) add(true, steps_of_piece);
  if (steps > steps_of_piece && last != steps_of_piece) add(true, last);
  return "  template <bool kAdds, int kSteps>\n" +
         function(fmt::format("{}(const uint64 (&q)[kSteps], const uint64 (&k)[kSteps])", name), cases);
}

std::string clear(const ScoreMatrix& m) {
  Statement statement;
  for (int i = 0; i < m.keys / 2; ++i) statement.line("mov.f32 {}{}, 0f00000000", m.registers, i);
  return function("clear()", statement.text());
}

// One step, by mma.sync.
std::string add(const ScoreMatrix& m) {
  Statement statement;
  statement.open(".reg .b32 k<2>");
  for (int n = 0; n < m.keys / 8; ++n) {
    const std::string d = list(m.registers, kTileRegisters * n, kTileRegisters);
    statement.line("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{k0, k1}}, [%4 + {}]", 8 * m.key_row_bytes * n);
    statement.line(
        "mma.sync.aligned.m16n8k{2}.row.col.f32.{0}.{0}.f32 {{{1}}}, {{%0, %1, %2, %3}}, {{k0, k1}}, {{{1}}}",
        to_string(m.dtype), d, elements_of_step(m.dtype));
  }
  for (int i = 0; i < kOperandRegisters; ++i) statement.in("r", fmt::format("q[{}]", i));
  return function("add(const uint32 (&q)[4], SmemAddress keys)", statement.in("r", "keys").text());
}

int words_of(const ScoreMatrix& m) { return (m.keys + kColumnsOfWord - 1) / kColumnsOfWord; }

// A bit for each of a lane's columns, word after word.
std::string hide(const ScoreMatrix& m) {
  Statement statement;
  statement.open(".reg .pred hidden; .reg .b32 bit");
  const int words = words_of(m);
  for (int i = 0; i < m.keys / 2; ++i) {
    const int column = i / kTileRegisters * 2 + i % 2;
    statement.line("and.b32 bit, %{}, {}", row_of(i) * words + column / 32, 1u << column % 32);
    statement.line("setp.ne.b32 hidden, bit, 0");
    statement.line("selp.f32 {0}{1}, 0fFF800000, {0}{1}, hidden", m.registers, i);
  }
  for (int row = 0; row < kRows; ++row)
    for (int word = 0; word < words; ++word) statement.in("r", fmt::format("hidden[{}][{}]", row, word));
  return function(fmt::format("hide(const uint32 (&hidden)[2][{}])", words), statement.text());
}

// Score by score through a register of the compiler's, which ptxas leaves out. The upper and the lower row of a lane
// change them, each told how far a column is from the lane's first one.
std::string transform(std::string_view registers, int columns) {
  std::string body = "    float x;\n";
  for (int i = 0; i < columns / 2; ++i) {
    const int offset = i / kTileRegisters * 8 + i % 2;
    body += fmt::format(
        "    asm volatile(\"mov.f32 %0, {0}{1};\" : \"=f\"(x));\n"
        "    x = {2}(x, {3});\n"
        "    asm volatile(\"mov.f32 {0}{1}, %0;\" ::\"f\"(x));\n",
        registers, i, row_of(i) == 0 ? "upper" : "lower", offset);
  }
  return "  template <class Upper, class Lower>\n" + function("transform(Upper upper, Lower lower)", body);
}

std::string maximum(const ScoreMatrix& m) {
  Statement statement;
  statement.open(".reg .f32 pair");
  for (int n = 0; n < m.keys / 8; ++n)
    for (int row = 0; row < kRows; ++row) {
      const int first = kTileRegisters * n + 2 * row;
      if (n == 0) {
        statement.line("max.f32 %{0}, {1}{2}, {1}{3}", row, m.registers, first, first + 1);
      } else {
        statement.line("max.f32 pair, {0}{1}, {0}{2}", m.registers, first, first + 1);
        statement.line("max.f32 %{0}, %{0}, pair", row);
      }
    }
  return function("maximum(float (&seen)[2])", statement.out("=f", "seen[0]").out("=f", "seen[1]").text());
}

std::string subtract(const ScoreMatrix& m) {
  Statement statement;
  for (int i = 0; i < m.keys / 2; ++i) statement.line("sub.f32 {0}{1}, {0}{1}, %{2}", m.registers, i, row_of(i));
  return function("subtract(const float (&x)[2])", statement.in("f", "x[0]").in("f", "x[1]").text());
}

// 2^(x * scale + shift) of a row in tiles of eight columns, and their sums.
void add_exponentials(Statement& statement, const ScoreMatrix& m, int row, int first_tile, int tiles) {
  for (int n = first_tile; n < first_tile + tiles; ++n)
    for (int e = 0; e < 2; ++e) {
      const std::string x = fmt::format("{}{}", m.registers, kTileRegisters * n + 2 * row + e);
      statement.line("fma.rn.f32 {0}, {0}, %4, %{1}", x, 5 + row);
      statement.line("ex2.approx.ftz.f32 {0}, {0}", x);
      statement.line("add.f32 %{0}, %{0}, {1}", 2 * row + e, x);
    }
}
Statement& with_sums(Statement& statement) {
  for (int i = 0; i < 2 * kRows; ++i) statement.out("+f", fmt::format("sums[{}]", i));
  return statement.in("f", "scale").in("f", "shift[0]").in("f", "shift[1]");
}
std::string with_zero_sums(const std::string& statements) {
  return "    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};\n" + statements +
         "    sum[0] = sums[0] + sums[1];\n    sum[1] = sums[2] + sums[3];\n";
}

std::string exponentiate(const ScoreMatrix& m) {
  Statement statement;
  for (int row = 0; row < kRows; ++row) add_exponentials(statement, m, row, 0, m.keys / 8);
  return function("exponentiate(float scale, const float (&shift)[2], float (&sum)[2])",
                  with_zero_sums(with_sums(statement).text()));
}

// The same, and what stays of them, as pairs of elements, to the registers of P: eight columns of a lane's at a time,
// those of 32 keys.
std::string exponentiate_and_drop(const ScoreMatrix& m) {
  std::string body = "    KeptPairs kept;\n";
  for (int tile = 0; tile < m.keys / 8; tile += kTilesKept)
    for (int row = 0; row < kRows; ++row) {
      Statement exponentials, pairs;
      add_exponentials(exponentials, m, row, tile, kTilesKept);
      pairs.open(".reg .b32 pair");
      for (int t = 0; t < kTilesKept; ++t) {
        const int first = kTileRegisters * (tile + t) + 2 * row;
        pairs.line("cvt.rn.{0}x2.f32 pair, {1}{2}, {1}{3}", to_string(m.dtype), m.registers, first + 1, first);
        pairs.line("lop3.b32 {}{}, pair, %{}, %{}, {}", m.probabilities, first / 2, t, kTilesKept, kAndOfXor);
        pairs.in("r", fmt::format("kept.x[{}]", t));
      }
      body += fmt::format("    kept = {}({});\n", row == 0 ? "upper" : "lower", 8 * tile) +
              with_sums(exponentials).text() + pairs.in("r", "flips").text();
    }
  constexpr std::string_view kSignature =
      "exponentiate(float scale, const float (&shift)[2], float (&sum)[2], Upper upper, Lower lower, uint32 flips)";
  return "  template <class Upper, class Lower>\n" + function(kSignature, with_zero_sums(body));
}

std::string take(const ScoreMatrix& m) {
  Statement statement;
  for (int i = 0; i < m.keys / 2; ++i) statement.line("mov.f32 {}{}, {}{}", m.registers, i, m.takes, i);
  return function("take()", statement.text());
}

// Of wgmma, which operands have their other dimension along memory.
std::string majors_of(const OutputMatrix& m, bool in_registers) {
  if (is_of_8_bits(m.dtype)) return {};
  const std::string of_values = fmt::format(", {}", m.rows_are_columns ? 0 : 1);
  return in_registers ? of_values : fmt::format(", {}", m.transposes ? 1 : 0) + of_values;
}

// Products of so many columns of V, to registers of that name. first_step: of P in registers.
std::string issue(const OutputMatrix& m, std::string_view registers, int columns, int first_step = 0) {
  const bool in_registers = !m.probabilities.empty();
  Statement statement;
  statement.open(".reg .pred adds");
  const int adds = in_registers ? m.steps : 2 * m.steps;
  statement.line("setp.ne.b32 adds, %{}, 0", adds);
  const std::string product = wgmma(m.dtype, m.values, columns), majors = majors_of(m, in_registers);
  const std::string d = list(registers, 0, columns / 2);
  for (int step = 0; step < m.steps; ++step) {
    const int first_register = kOperandRegisters * (first_step + step);
    const std::string p = in_registers ? "{" + list(m.probabilities, first_register, kOperandRegisters) + "}"
                                       : fmt::format("%{}", m.steps + step);
    statement.line("{} {{{}}}, {}, %{}, {}, 1, 1{}", product, d, p, step, step > 0 ? "1" : "adds", majors);
  }
  for (int step = 0; step < m.steps; ++step) statement.in("l", fmt::format("v[{}]", step));
  if (!in_registers)
    for (int step = 0; step < m.steps; ++step) statement.in("l", fmt::format("p[{}]", step));
  return statement.in("r", "adds").text();
}

std::string issue(const OutputMatrix& m) {
  const std::string p = m.probabilities.empty() ? fmt::format("const uint64 (&p)[{}], ", m.steps) : "";
  return function(fmt::format("issue({}const uint64 (&v)[{}], uint32 adds)", p, m.steps),
                  issue(m, m.registers, m.columns));
}

// The same by pieces of keys, and by P of another warpgroup.
std::string issue_by_keys(const OutputMatrix& m) {
  std::string pieces;
  for (int piece = 0; piece < m.pieces; ++piece)
    pieces += fmt::format("    if constexpr (kPiece == {}) {{\n{}    }}\n", piece,
                          issue(m, m.registers, m.columns, piece * m.steps));
  OutputMatrix of_another = m;
  of_another.probabilities = {};
  return "  template <int kPiece>\n" +
         function(fmt::format("issue(const uint64 (&v)[{}], uint32 adds)", m.steps), pieces) + issue(of_another);
}

// The same piece by piece, each with the columns of V from its own first one on.
std::string issue_apart(const OutputMatrix& m) {
  std::string pieces = "    constexpr uint32 adds = 0;\n";
  for (int piece = 0; piece * m.columns_apart < m.columns; ++piece)
    pieces += fmt::format("    if constexpr (kPiece == {}) {{\n{}    }}\n", piece,
                          issue(m, m.apart, std::min(m.columns_apart, m.columns - piece * m.columns_apart)));
  return "  template <int kPiece>\n" + function(fmt::format("issue(const uint64 (&v)[{}])", m.steps), pieces);
}

// Of e4m3 two pairs of columns of sixteen in each: those of a lane in the first and in the second eight.
std::string pack_fours(std::string_view registers, int count) {
  Statement statement;
  statement.open(".reg .b16 lower, upper");
  for (int i = 0; i < count; ++i) {
    const int first = i / kRows * 2 * kTileRegisters + i % kRows * 2;
    for (const auto& [into, of] : {std::pair{"lower", first}, {"upper", first + kTileRegisters}})
      statement.line("cvt.rn.satfinite.e4m3x2.f32 {0}, {1}{2}, {1}{3}", into, registers, of + 1, of);
    statement.line("mov.b32 %{}, {{lower, upper}}", i);
  }
  for (int i = 0; i < count; ++i) statement.out("=r", fmt::format("words[{}]", i));
  return function(fmt::format("pack(uint32 (&words)[{}])", count), statement.text());
}

// Two 16-bit elements of neighbouring columns in each; from names to registers that the compiler sees, or to others.
std::string pack(std::string_view registers, DType dtype, int count) {
  Statement statement;
  for (int i = 0; i < count; ++i)
    statement.line("cvt.rn.{0}x2.f32 %{1}, {2}{3}, {2}{4}", to_string(dtype), i, registers, 2 * i + 1, 2 * i);
  for (int i = 0; i < count; ++i) statement.out("=r", fmt::format("pairs[{}]", i));
  return function(fmt::format("pack(uint32 (&pairs)[{}])", count), statement.text());
}

std::string read_pairs(std::string_view registers, int count) {
  Statement statement;
  for (int i = 0; i < count; ++i) statement.line("mov.b32 %{}, {}{}", i, registers, i);
  for (int i = 0; i < count; ++i) statement.out("=r", fmt::format("pairs[{}]", i));
  return function(fmt::format("read(uint32 (&pairs)[{}])", count), statement.text());
}

std::string clear(std::string_view registers, int count) {
  Statement statement;
  for (int i = 0; i < count; ++i) statement.line("mov.f32 {}{}, 0f00000000", registers, i);
  return function("clear()", statement.text());
}

std::string read(std::string_view registers, int count) {
  Statement statement;
  for (int i = 0; i < count; ++i) statement.line("mov.f32 %{}, {}{}", i, registers, i);
  for (int i = 0; i < count; ++i) statement.out("=f", fmt::format("values[{}]", i));
  return function(fmt::format("read(float (&values)[{}])", count), statement.text());
}

// A piece that stands apart.
std::string add_apart(const OutputMatrix& m) {
  std::string pieces;
  for (int first = 0; first < m.columns; first += m.columns_apart) {
    Statement statement;
    for (int i = 0; i < count_of(std::min(m.columns_apart, m.columns - first)); ++i)
      if (m.weighs)
        statement.line("fma.rn.f32 {0}{1}, {2}{3}, %0, {0}{1}", m.registers, count_of(first) + i, m.apart, i);
      else
        statement.line("add.f32 {0}{1}, {0}{1}, {2}{3}", m.registers, count_of(first) + i, m.apart, i);
    if (m.weighs) statement.in("f", "factor");
    pieces += fmt::format("    if constexpr (kPiece == {}) {{\n{}    }}\n", first / m.columns_apart, statement.text());
  }
  return "  template <int kPiece>\n" + function(m.weighs ? "add(float factor)" : "add()", pieces);
}

// Of e4m3 two pairs of keys of 16 are neighbours: those of a lane in the first and in the second eight.
void keep_four(Statement& statement, const ProbabilityMatrix& m, int i) {
  const int row = i % 2, first = i / 2 * 2 * kTileRegisters + 2 * row;
  const auto pair = [&](const char* into, int of) {
    statement.line("cvt.rn.satfinite.e4m3x2.f32 {0}, {1}{2}, {1}{3}", into, m.scores, of + 1, of);
  };
  pair("lower", first);
  pair("upper", first + kTileRegisters);
  statement.line("mov.b32 {}{}, {{lower, upper}}", m.registers, i);
}

// The words of two rows at a time, by attention/neighbours.cuh.
std::string exchange_neighbours(const ProbabilityMatrix& m, int count) {
  std::string body = "    const Neighbours neighbours(ptx::tid_x());\n    uint32 x, y;\n";
  for (int i = 0; i < count; i += kRows)
    body += fmt::format(
        "    asm volatile(\"mov.b32 %0, {0}{1};\\n\\tmov.b32 %1, {0}{2};\" : \"=r\"(x), \"=r\"(y));\n"
        "    neighbours.exchange(x, y);\n"
        "    asm volatile(\"mov.b32 {0}{1}, %0;\\n\\tmov.b32 {0}{2}, %1;\" ::\"r\"(x), \"r\"(y));\n",
        m.registers, i, i + 1);
  return body;
}

// Sixteen bytes of a thread's at a time, those of a warpgroup one after the other.
std::string send(std::string_view signature, const char* instruction, const char* address, std::string_view registers,
                 int count) {
  constexpr int kBytes = 16 * 128;
  Statement statement;
  for (int i = 0; i < count; i += kTileRegisters)
    statement.line("{} [%0 + {}], {{{}}}", instruction, i / kTileRegisters * kBytes,
                   list(registers, i, kTileRegisters));
  return function(signature, statement.in(address, "at").text());
}

// Pairs of neighbouring queries of a key: P and dP to P and dS, both as pairs of elements.
std::string differentiate(const DerivativeMatrix& m) {
  std::string body = "    float p[2], dp[2];\n    uint32 probabilities, derivatives;\n";
  for (int i = 0; i < m.queries / 4; ++i) {
    const int first = 2 * i;
    body += fmt::format(
        "    asm volatile(\"mov.f32 %0, {0}{2};\\n\\tmov.f32 %1, {0}{3};\\n\\tmov.f32 %2, {1}{2};\\n\\tmov.f32 %3, "
        "{1}{3};\"\n"
        "                 : \"=f\"(p[0]), \"=f\"(p[1]), \"=f\"(dp[0]), \"=f\"(dp[1]));\n"
        "    {4}(p, dp, {5}, probabilities, derivatives);\n"
        "    asm volatile(\"mov.b32 {6}{8}, %0;\\n\\tmov.b32 {7}{8}, %1;\" ::\"r\"(probabilities), "
        "\"r\"(derivatives));\n",
        m.scores, m.gradients, first, first + 1, row_of(first) == 0 ? "upper" : "lower", first / kTileRegisters * 8,
        m.probabilities, m.derivatives, i);
  }
  return "  template <class Upper, class Lower>\n" + function("differentiate(Upper upper, Lower lower)", body);
}

std::string issue_derivatives(std::string_view name, std::string_view registers, int steps, const DerivativeMatrix& m) {
  if (m.steps_of_piece == 0) return issue(name, registers, m.dtype, m.queries, steps);
  return issue_pieces(name, registers, m.dtype, m.queries, steps, m.steps_of_piece);
}

// P in f32 to pairs of elements, where dP is not there.
std::string keep_probabilities(const DerivativeMatrix& m) {
  Statement statement;
  for (int i = 0; i < m.queries / 4; ++i)
    statement.line("cvt.rn.{}x2.f32 {}{}, {}{}, {}{}", to_string(m.dtype), m.probabilities, i, m.scores, 2 * i + 1,
                   m.scores, 2 * i);
  return function("keep_probabilities()", statement.text());
}

// Rows of memory are queries. Sixteen of them at a time.
std::string store_transposed(std::string_view signature, std::string_view registers, const DerivativeMatrix& m) {
  Statement statement;
  for (int step = 0; step < m.queries / 16; ++step)
    statement.line("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0 + {}], {{{}}}", 16 * step * m.row_bytes,
                   list(registers, kOperandRegisters * step, kOperandRegisters));
  return function(signature, statement.in("r", "at").text());
}

}  // namespace

std::string render(const ScoreMatrix& m) {
  std::string functions =
      fmt::format("  static constexpr int kColumns = {};\n", m.keys) + declare("f32", m.registers, m.keys / 2) +
      (m.steps_of_piece > 0 ? issue_pieces("issue", m.registers, m.dtype, m.keys, m.steps, m.steps_of_piece)
                            : issue("issue", m.registers, m.dtype, m.keys, m.steps)) +
      clear(m) + add(m) + hide(m) + maximum(m) + subtract(m) + exponentiate(m);
  if (is_of_8_bits(m.dtype)) functions += multiply(m.registers, m.keys / 2);
  if (m.transforms) functions += transform(m.registers, m.keys);
  if (!m.probabilities.empty()) functions += exponentiate_and_drop(m);
  if (m.packs) functions += pack(m.registers, m.dtype, m.keys / 4);
  if (!m.takes.empty()) functions += take(m);
  return structure(m.type, functions);
}

std::string render(const ProbabilityMatrix& m) {
  const int count = m.keys * static_cast<int>(size_of(m.dtype)) / 8;
  Statement statement;
  if (is_of_8_bits(m.dtype)) {
    statement.open(".reg .b16 lower, upper");
    for (int i = 0; i < count; ++i) keep_four(statement, m, i);
  } else {
    for (int i = 0; i < count; ++i)
      statement.line("cvt.rn.{}x2.f32 {}{}, {}{}, {}{}", to_string(m.dtype), m.registers, i, m.scores, 2 * i + 1,
                     m.scores, 2 * i);
  }
  const std::string neighbours = m.in_order_of_keys ? exchange_neighbours(m, count) : "";
  return structure(m.type, declare("b32", m.registers, count) +
                               function("keep()", m.scores.empty() ? "" : statement.text() + neighbours) +
                               (m.reads ? read_pairs(m.registers, count) : ""));
}

std::string render(const OutputMatrix& m) {
  const int count = count_of(m.columns);
  const bool apart = !m.apart.empty();
  std::string of_products = declare("f32", m.registers, count) + (m.pieces > 0 ? issue_by_keys(m) : issue(m));
  if (apart) {
    const int pieces = (m.columns + m.columns_apart - 1) / m.columns_apart;
    of_products = fmt::format("  static constexpr int kPieces = {}, kColumnsOfPiece = {};\n", pieces, m.columns_apart) +
                  function("declare()", fmt::format("    asm volatile(\".reg .f32 {}<{}>, {}<{}>;\");\n", m.registers,
                                                    count, m.apart, count_of(m.columns_apart))) +
                  issue_apart(m) + add_apart(m);
  }
  return structure(
      m.type,
      of_products + multiply(m.registers, count) +
          (is_of_8_bits(m.packed) ? pack_fours(m.registers, count / 4) : pack(m.registers, m.packed, count / 2)) +
          (m.reads || apart ? clear(m.registers, count) : "") + (m.reads ? read(m.registers, count) : "") +
          (m.stores ? send("store(SmemAddress at)", "st.shared.v4.f32", "r", m.registers, count) : "") +
          (m.adds ? send("add_to(float* at)", "red.global.add.v4.f32", "l", m.registers, count) : ""));
}

std::string render(const DerivativeMatrix& m) {
  std::string declarations;
  for (const auto& [type, registers, count] : {std::tuple{"f32", m.scores, m.queries / 2},
                                               {"f32", m.gradients, m.queries / 2},
                                               {"b32", m.probabilities, m.queries / 4},
                                               {"b32", m.derivatives, m.queries / 4}})
    declarations += fmt::format("    asm volatile(\".reg .{} {}<{}>;\");\n", type, registers, count);
  return structure(m.type, fmt::format("  static constexpr int kQueries = {};\n", m.queries) +
                               function("declare()", declarations) +
                               issue_derivatives("issue_scores", m.scores, m.score_steps, m) +
                               issue_derivatives("issue_gradients", m.gradients, m.gradient_steps, m) +
                               transform(m.scores, m.queries) + differentiate(m) +
                               (m.steps_of_piece > 0 ? keep_probabilities(m) : "") +
                               store_transposed("store_probabilities(SmemAddress at)", m.probabilities, m) +
                               store_transposed("store_derivatives(SmemAddress at)", m.derivatives, m));
}

}  // namespace flashjit::generator
