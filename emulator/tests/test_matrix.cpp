// SPDX-License-Identifier: Apache-2.0
// Operations of a warp and of a warpgroup in the emulator: small kernels, and their results against plain loops.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "flashjit/emulator.h"

namespace {

using namespace flashjit::emulator;
using Words = std::vector<std::uint32_t>;
using Bytes = std::vector<std::uint8_t>;

constexpr int kLanes = 32;

// --- Kernels ---------------------------------------------------------------------------------------------------------

// Each thread loads its words into %in0, ..., runs the body, and stores %out0, .... The image is in shared memory, at
// `smem`, before the body begins, visible to the async proxy where the kernel has a fence.
struct Kernel {
  std::string body;
  int threads = kLanes;
  int inputs = 0, outputs = 0;  // words of a thread
  Bytes image;
  std::string fence = "fence.proxy.async;";
  std::string bounds;  // .maxnreg and such
  std::string target = "sm_90a";

  std::string ptx() const {
    const auto size = std::max<std::size_t>(image.size(), 4);
    std::string text = fmt::format(
        ".version 8.7\n.target {}\n.address_size 64\n"
        ".visible .entry kernel(.param .u64 image, .param .u64 inputs, .param .u64 outputs)\n"
        ".maxntid {}, 1, 1\n{}\n{{\n.shared .align 1024 .b8 smem[{}];\n"
        ".reg .pred %p<8>;\n.reg .b32 %r<64>, %in<{}>, %out<{}>;\n.reg .b64 %rd<64>;\n"
        "ld.param.u64 %rd61, [image];\nld.param.u64 %rd62, [inputs];\nld.param.u64 %rd63, [outputs];\n"
        "mov.u32 %r0, %tid.x;\nmov.u32 %r1, smem;\n",
        target, threads, bounds, size, inputs + 1, outputs + 1);
    if (!image.empty())
      text += fmt::format(
          "shl.b32 %r60, %r0, 2;\n"
          "COPY:\nsetp.ge.u32 %p7, %r60, {};\n@%p7 bra COPIED;\n"
          "cvt.u64.u32 %rd60, %r60;\nadd.u64 %rd60, %rd60, %rd61;\nld.global.b32 %r61, [%rd60];\n"
          "add.u32 %r62, %r60, %r1;\nst.shared.b32 [%r62], %r61;\nadd.u32 %r60, %r60, {};\nbra COPY;\n"
          "COPIED:\n{}\nbar.sync 0;\n",
          image.size(), 4 * threads, fence);
    text += fmt::format("mad.wide.u32 %rd62, %r0, {}, %rd62;\nmad.wide.u32 %rd63, %r0, {}, %rd63;\n", 4 * inputs,
                        4 * outputs);
    for (int i = 0; i < inputs; ++i) text += fmt::format("ld.global.b32 %in{}, [%rd62+{}];\n", i, 4 * i);
    text += body;
    for (int i = 0; i < outputs; ++i) text += fmt::format("st.global.b32 [%rd63+{}], %out{};\n", 4 * i, i);
    return text + "ret;\n}\n";
  }
};

struct Run {
  Report report;
  Words outputs;  // of thread 0, of thread 1, ...
  Bytes image;
};

Run run(const Kernel& kernel, Words inputs = {}, std::uint64_t seed = 0) {
  const std::string ptx = kernel.ptx();
  CAPTURE(ptx);
  Run run;
  run.image = kernel.image;
  run.outputs.assign(static_cast<std::size_t>(kernel.threads * kernel.outputs), 0xdeadbeef);
  inputs.resize(static_cast<std::size_t>(kernel.threads * kernel.inputs));
  Memory memory;
  memory.add_read_only("image", run.image.data(), run.image.size());
  memory.add_read_only("inputs", inputs.data(), inputs.size() * 4);
  memory.add("outputs", run.outputs.data(), run.outputs.size() * 4);
  Launch launch;
  launch.block = {static_cast<unsigned>(kernel.threads)};
  launch.seed = seed;
  launch.most_instructions = 1'000'000;
  launch.set_parameters(run.image.data(), inputs.data(), run.outputs.data());
  run.report = Program(ptx).run("kernel", launch, memory);
  return run;
}

Words run_clean(const Kernel& kernel, const Words& inputs = {}, std::uint64_t seed = 0) {
  const Run result = run(kernel, inputs, seed);
  CHECK_MESSAGE(result.report.clean(), to_string(result.report));
  return result.outputs;
}

bool finds(const Report& report, FindingKind kind) {
  return std::any_of(report.findings.begin(), report.findings.end(), [&](const auto& f) { return f.kind == kind; });
}

// The kernel is at fault in this one way only, under every schedule.
void check_finds(const Kernel& kernel, FindingKind kind, const Words& inputs = {}) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const Report report = run(kernel, inputs, seed).report;
    CHECK_MESSAGE(finds(report, kind), to_string(kind), " was not found: ", to_string(report));
    CHECK_MESSAGE(report.findings.size() == 1, to_string(report));
  }
}

Words random_words(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  Words words(count);
  std::generate(words.begin(), words.end(), std::ref(random));
  return words;
}
Bytes bytes_of(const Words& words) {
  Bytes bytes(words.size() * 4);
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

// --- Numbers ---------------------------------------------------------------------------------------------------------

struct Type {
  const char* name;
  int bits, exponent_bits, mantissa_bits;
};
constexpr Type kF16{"f16", 16, 5, 10}, kBf16{"bf16", 16, 8, 7}, kTf32{"tf32", 32, 8, 23}, kE4m3{"e4m3", 8, 4, 3},
    kE5m2{"e5m2", 8, 5, 2}, kF32{"f32", 32, 8, 23};

// The bits of an integer that the format has, by its definition.
std::uint32_t encode(const Type& type, int value) {
  if (value == 0) return 0;
  const unsigned magnitude = static_cast<unsigned>(std::abs(value));
  int exponent = 31;
  while ((magnitude >> exponent) == 0) --exponent;
  const std::uint32_t fraction = magnitude - (1u << exponent);
  const int shift = type.mantissa_bits - exponent;
  REQUIRE((shift >= 0 || fraction % (1u << -shift) == 0));
  const int bias = (1 << (type.exponent_bits - 1)) - 1;
  const std::uint32_t sign = value < 0 ? 1 : 0;
  return sign << (type.bits - 1) | static_cast<std::uint32_t>(exponent + bias) << type.mantissa_bits |
         (shift >= 0 ? fraction << shift : fraction >> -shift);
}

// Rows by columns of integers.
struct Matrix {
  int rows, columns;
  std::vector<int> values;

  Matrix(int rows_, int columns_) : rows(rows_), columns(columns_), values(static_cast<std::size_t>(rows * columns)) {}
  int& at(int row, int column) { return values[static_cast<std::size_t>(row * columns + column)]; }
  int at(int row, int column) const { return values[static_cast<std::size_t>(row * columns + column)]; }
};

Matrix random_matrix(int rows, int columns, unsigned seed) {
  std::mt19937 random(seed);
  Matrix matrix(rows, columns);
  for (int& value : matrix.values) value = static_cast<int>(random() % 9) - 4;
  return matrix;
}

// c + sign * a * b
Matrix product(const Matrix& a, const Matrix& b, Matrix c, int sign = 1) {
  for (int row = 0; row < c.rows; ++row)
    for (int column = 0; column < c.columns; ++column)
      for (int k = 0; k < a.columns; ++k) c.at(row, column) += sign * a.at(row, k) * b.at(k, column);
  return c;
}

// --- Fragments -------------------------------------------------------------------------------------------------------

// Which element a part of a register of a lane is. In a register lie 32 / bits neighbours.
struct Position {
  int row, column;
};
// Of A (PTX ISA, "Matrix fragments"): as the figures for m16n8k16, with one register for 8 rows and 16 bytes of K.
Position position_in_a(int bits, int reg, int lane, int part) {
  const int parts = 32 / bits;
  return {lane / 4 + (reg == 1 || reg == 3 ? 8 : 0), (lane % 4) * parts + part + (reg >= 2 ? 4 * parts : 0)};
}
Position position_in_b(int bits, int reg, int lane, int part) {
  const int parts = 32 / bits;
  return {(lane % 4) * parts + part + reg * 4 * parts, lane / 4};
}
// Of C and D, panels of 8 columns one after the other.
Position position_in_d(int bits, int reg, int lane, int part) {
  if (bits == 32) return {lane / 4 + (reg % 4 >= 2 ? 8 : 0), reg / 4 * 8 + lane % 4 * 2 + reg % 2};
  return {lane / 4 + (reg % 2 != 0 ? 8 : 0), reg / 2 * 8 + lane % 4 * 2 + part};
}

using PositionOf = Position (*)(int bits, int reg, int lane, int part);

// The registers of a thread that hold its part of the matrix, whose rows for the thread's warp begin at first_row.
Words fragment(const Type& type, const Matrix& matrix, PositionOf position, int registers, int thread, int first_row) {
  Words words(static_cast<std::size_t>(registers));
  for (int reg = 0; reg < registers; ++reg)
    for (int part = 0; part < 32 / type.bits; ++part) {
      const Position at = position(type.bits, reg, thread % kLanes, part);
      words[static_cast<std::size_t>(reg)] |= encode(type, matrix.at(first_row + at.row, at.column))
                                              << (part * type.bits);
    }
  return words;
}
void append(Words& words, const Words& more) { words.insert(words.end(), more.begin(), more.end()); }

std::string registers(const char* name, int first, int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(fmt::format("%{}{}", name, first + i));
  return fmt::format("{{{}}}", fmt::join(names, ", "));
}

// --- mma.sync --------------------------------------------------------------------------------------------------------

struct MmaCase {
  Type d, a, b;
  int k;
};

TEST_CASE("mma.sync multiplies matrices of every shape and type") {
  for (const MmaCase& c :
       {MmaCase{kF32, kF16, kF16, 8}, MmaCase{kF32, kF16, kF16, 16}, MmaCase{kF16, kF16, kF16, 8},
        MmaCase{kF16, kF16, kF16, 16}, MmaCase{kF32, kBf16, kBf16, 8}, MmaCase{kF32, kBf16, kBf16, 16},
        MmaCase{kF32, kTf32, kTf32, 4}, MmaCase{kF32, kTf32, kTf32, 8}, MmaCase{kF32, kE4m3, kE4m3, 32},
        MmaCase{kF32, kE5m2, kE4m3, 32}, MmaCase{kF32, kE5m2, kE5m2, 16}}) {
    const Matrix a = random_matrix(16, c.k, 1), b = random_matrix(c.k, 8, 2), sums = random_matrix(16, 8, 3);
    const int of_b = c.k * c.b.bits / 128, of_a = 2 * of_b, of_d = c.d.bits == 32 ? 4 : 2;
    Kernel kernel;
    kernel.inputs = of_a + of_b + of_d;
    kernel.outputs = of_d;
    kernel.body = fmt::format("mma.sync.aligned.m16n8k{}.row.col.{}.{}.{}.{} {}, {}, {}, {};\n", c.k, c.d.name,
                              c.a.name, c.b.name, c.d.name, registers("out", 0, of_d), registers("in", 0, of_a),
                              registers("in", of_a, of_b), registers("in", of_a + of_b, of_d));
    CAPTURE(kernel.body);
    Words inputs, expected;
    for (int lane = 0; lane < kLanes; ++lane) {
      append(inputs, fragment(c.a, a, position_in_a, of_a, lane, 0));
      append(inputs, fragment(c.b, b, position_in_b, of_b, lane, 0));
      append(inputs, fragment(c.d, sums, position_in_d, of_d, lane, 0));
      append(expected, fragment(c.d, product(a, b, sums), position_in_d, of_d, lane, 0));
    }
    CHECK(run_clean(kernel, inputs) == expected);
  }
}

TEST_CASE(
    "mma.sync of 8-bit floats loses what is small beside the largest of 16 products and the accumulator, or has f16") {
  constexpr int kDepth = 32, kLarge = 128;
  for (const auto& [target, place_of_one, expected_sum] : {std::tuple{"sm_89", 3, 0},
                                                           {"sm_89", 15, 0},
                                                           {"sm_89", 16, 1},
                                                           {"sm_89", 20, 1},
                                                           {"sm_120a", 15, 0},
                                                           {"sm_90a", 3, 1},
                                                           {"sm_90a", 20, 1},
                                                           {"sm_100a", 15, 1}}) {
    Matrix a(16, kDepth), b(kDepth, 8), sums(16, 8), expected(16, 8);
    for (int row = 0; row < 16; ++row) a.at(row, 0) = -kLarge, a.at(row, place_of_one) = 1;
    for (int column = 0; column < 8; ++column) b.at(0, column) = kLarge, b.at(place_of_one, column) = 1;
    for (int& sum : sums.values) sum = kLarge * kLarge;
    for (int& sum : expected.values) sum = expected_sum;
    Kernel kernel;
    kernel.target = target;
    kernel.inputs = 10, kernel.outputs = 4;
    kernel.body =
        fmt::format("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {}, {}, {}, {};\n", registers("out", 0, 4),
                    registers("in", 0, 4), registers("in", 4, 2), registers("in", 6, 4));
    Words inputs, outputs;
    for (int lane = 0; lane < kLanes; ++lane) {
      append(inputs, fragment(kE4m3, a, position_in_a, 4, lane, 0));
      append(inputs, fragment(kE4m3, b, position_in_b, 2, lane, 0));
      append(inputs, fragment(kF32, sums, position_in_d, 4, lane, 0));
      append(outputs, fragment(kF32, expected, position_in_d, 4, lane, 0));
    }
    CAPTURE(target);
    CAPTURE(place_of_one);
    CHECK(run_clean(kernel, inputs) == outputs);
  }
}

TEST_CASE("mma.sync of integers wraps, or saturates") {
  for (const bool saturates : {false, true})
    for (const char* const types : {"s8.s8", "s8.u8", "u8.s8", "u8.u8"}) {
      Kernel kernel;
      kernel.inputs = 10;
      kernel.outputs = 4;
      kernel.body = fmt::format("mma.sync.aligned.m16n8k32.row.col{}.s32.{}.s32 {}, {}, {}, {};\n",
                                saturates ? ".satfinite" : "", types, registers("out", 0, 4), registers("in", 0, 4),
                                registers("in", 4, 2), registers("in", 6, 4));
      const auto element = [](std::uint32_t word, int part, bool is_signed) -> std::int64_t {
        const auto byte = static_cast<std::uint8_t>(word >> (8 * part));
        return is_signed ? static_cast<std::int8_t>(byte) : byte;
      };
      Words inputs = random_words(kLanes * 10, 21);
      for (std::size_t i = 0; i < inputs.size(); ++i)  // accumulators at the ends of the range
        if (i % 10 >= 6) inputs[i] = inputs[i] % 2 == 0 ? 0x80000000 : 0x7fffffff;
      const auto input = [&](int lane, int i) { return inputs[static_cast<std::size_t>(lane * 10 + i)]; };
      std::int64_t sums[16][8];
      const auto for_each = [](PositionOf position, int bits, int count, const auto& use) {
        for (int lane = 0; lane < kLanes; ++lane)
          for (int reg = 0; reg < count; ++reg)
            for (int part = 0; part < 32 / bits; ++part) use(position(bits, reg, lane, part), lane, reg, part);
      };
      std::int64_t a[16][32], b[32][8];
      for_each(position_in_a, 8, 4, [&](Position at, int lane, int reg, int part) {
        a[at.row][at.column] = element(input(lane, reg), part, types[0] == 's');
      });
      for_each(position_in_b, 8, 2, [&](Position at, int lane, int reg, int part) {
        b[at.row][at.column] = element(input(lane, 4 + reg), part, types[3] == 's');
      });
      for_each(position_in_d, 32, 4, [&](Position at, int lane, int reg, int) {
        std::int64_t& sum = sums[at.row][at.column];
        sum = static_cast<std::int32_t>(input(lane, 6 + reg));
        for (int k = 0; k < 32; ++k) sum += a[at.row][k] * b[k][at.column];
        if (saturates) sum = std::clamp<std::int64_t>(sum, INT32_MIN, INT32_MAX);
      });
      Words expected(kLanes * 4);
      for_each(position_in_d, 32, 4, [&](Position at, int lane, int reg, int) {
        expected[static_cast<std::size_t>(lane * 4 + reg)] = static_cast<std::uint32_t>(sums[at.row][at.column]);
      });
      CAPTURE(kernel.body);
      CHECK(run_clean(kernel, inputs) == expected);
    }
}

TEST_CASE("mma.sync ignores what tf32 does not have, keeps subnormal numbers and writes the canonical NaN") {
  Kernel kernel;
  kernel.inputs = 7;
  kernel.outputs = 4;
  const auto run_with = [&](std::uint32_t a, std::uint32_t b) {
    kernel.body = fmt::format(
        "mov.b32 %r2, 0;\n"
        "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {{%out0, %out1, %out2, %out3}}, {{%in0, %in1}}, {{%in2}}, "
        "{{%r2, %r2, %r2, %r2}};\n");
    Words inputs;
    for (int lane = 0; lane < kLanes; ++lane)
      append(inputs, {lane % 4 == 0 ? a : 0, 0, lane % 4 == 0 ? b : 0, 0, 0, 0, 0});
    return run_clean(kernel, inputs)[0];
  };
  const std::uint32_t one = 0x3f800000;
  CHECK(run_with(one | 0x1fff, one) == one);
  CHECK(run_with(one | 0x2000, one) == (one | 0x2000));
  CHECK(run_with(0x00002000, one) == 0x00002000);
  CHECK(run_with(0xffc00000, one) == 0x7fffffff);
}

TEST_CASE("mma.sync must be executed by the whole warp") {
  Kernel kernel;
  kernel.outputs = 4;
  kernel.body =
      "mov.b32 %r2, 0;\nmov.b32 %out0, 0;\nmov.b32 %out1, 0;\nmov.b32 %out2, 0;\nmov.b32 %out3, 0;\n"
      "setp.lt.u32 %p0, %r0, 31;\n"
      "@%p0 mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%out0, %out1, %out2, %out3}, {%r2, %r2}, {%r2}, "
      "{%out0, %out1, %out2, %out3};\n";
  check_finds(kernel, FindingKind::unequal_participation);
  kernel.body = replaced(kernel.body, "@%p0 mma", "mma");
  run_clean(kernel);
}

// --- ldmatrix, stmatrix, movmatrix -----------------------------------------------------------------------------------

// Rows of 8 elements of 16 bits, the rows of a matrix one after the other.
std::uint16_t element_of(const Bytes& image, int matrix, int row, int column) {
  std::uint16_t element;
  std::memcpy(&element, &image[static_cast<std::size_t>(((matrix * 8 + row) * 8 + column) * 2)], 2);
  return element;
}

TEST_CASE("ldmatrix gives each lane two neighbours of a row, or of a column") {
  for (const int count : {1, 2, 4})
    for (const bool transposed : {false, true})
      for (const char* const space : {".shared", ".shared::cta", ""}) {
        Kernel kernel;
        kernel.image = bytes_of(random_words(static_cast<std::size_t>(count) * 32, 7));
        kernel.outputs = count;
        const bool generic = *space == '\0';
        // Lanes beyond those that give an address have one that nothing may touch.
        kernel.body = fmt::format(
            "shl.b32 %r2, %r0, 4;\nadd.u32 %r2, %r2, %r1;\nsetp.ge.u32 %p0, %r0, {};\n@%p0 mov.u32 %r2, 1;\n"
            "cvt.u64.u32 %rd0, %r2;\ncvta.shared.u64 %rd0, %rd0;\n"
            "ldmatrix.sync.aligned.m8n8.x{}{}{}.b16 {}, [{}];\n",
            8 * count, count, transposed ? ".trans" : "", space, registers("out", 0, count), generic ? "%rd0" : "%r2");
        CAPTURE(kernel.body);
        Words expected;
        for (int lane = 0; lane < kLanes; ++lane)
          for (int matrix = 0; matrix < count; ++matrix) {
            const int line = lane / 4, first = lane % 4 * 2;
            const std::uint16_t low = transposed ? element_of(kernel.image, matrix, first, line)
                                                 : element_of(kernel.image, matrix, line, first);
            const std::uint16_t high = transposed ? element_of(kernel.image, matrix, first + 1, line)
                                                  : element_of(kernel.image, matrix, line, first + 1);
            expected.push_back(low | static_cast<std::uint32_t>(high) << 16);
          }
        CHECK(run_clean(kernel) == expected);
      }
}

TEST_CASE("stmatrix stores what ldmatrix loads") {
  for (const int count : {1, 2, 4})
    for (const char* const transposed : {"", ".trans"}) {
      Kernel kernel;
      kernel.image = bytes_of(random_words(static_cast<std::size_t>(count) * 32, 8));
      kernel.outputs = count;
      kernel.body = fmt::format(
          "shl.b32 %r2, %r0, 4;\nadd.u32 %r2, %r2, %r1;\nsetp.ge.u32 %p0, %r0, {};\n@%p0 mov.u32 %r2, %r1;\n"
          "ldmatrix.sync.aligned.m8n8.x{}{}.shared.b16 {}, [%r2];\n"
          "xor.b32 %r2, %r2, 112;\n"
          "stmatrix.sync.aligned.m8n8.x{}{}.shared.b16 [%r2], {};\n"
          "bar.warp.sync 0xffffffff;\n"
          "shl.b32 %r2, %r0, 2;\nadd.u32 %r2, %r2, %r1;\n",
          8 * count, count, transposed, registers("out", 0, count), count, transposed, registers("out", 0, count));
      for (int i = 0; i < count; ++i) kernel.body += fmt::format("ld.shared.b32 %out{}, [%r2+{}];\n", i, i * 128);
      CAPTURE(kernel.body);
      Words expected;
      for (int lane = 0; lane < kLanes; ++lane)
        for (int matrix = 0; matrix < count; ++matrix) {
          const int row = lane / 4 ^ 7, column = lane % 4 * 2;  // the rows came back in reverse
          expected.push_back(element_of(kernel.image, matrix, row, column) |
                             static_cast<std::uint32_t>(element_of(kernel.image, matrix, row, column + 1)) << 16);
        }
      CHECK(run_clean(kernel) == expected);
    }
}

TEST_CASE("movmatrix transposes") {
  Kernel kernel;
  kernel.inputs = kernel.outputs = 1;
  kernel.body = "movmatrix.sync.aligned.m8n8.trans.b16 %out0, %in0;\n";
  const Words inputs = random_words(kLanes, 9);
  const Bytes image = bytes_of(inputs);
  Words expected;
  for (int lane = 0; lane < kLanes; ++lane)
    expected.push_back(element_of(image, 0, lane % 4 * 2, lane / 4) |
                       static_cast<std::uint32_t>(element_of(image, 0, lane % 4 * 2 + 1, lane / 4)) << 16);
  CHECK(run_clean(kernel, inputs) == expected);
}

TEST_CASE("ldmatrix checks its addresses") {
  Kernel kernel;
  kernel.image = Bytes(512);
  kernel.outputs = 4;
  const std::string good =
      "shl.b32 %r2, %r0, 4;\nadd.u32 %r2, %r2, %r1;\n"
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%out0, %out1, %out2, %out3}, [%r2];\n";
  kernel.body = good;
  run_clean(kernel);
  kernel.body = replaced(good, "[%r2]", "[%r2+8]");
  check_finds(kernel, FindingKind::misaligned);
  kernel.body = replaced(good, "[%r2]", "[%r2+16]");
  check_finds(kernel, FindingKind::shared_out_of_bounds);
}

TEST_CASE("ldmatrix counts bank conflicts") {
  Kernel kernel;
  kernel.image = Bytes(8 * 128);
  kernel.outputs = 1;
  const auto conflicts = [&](int row_bytes) {
    kernel.body = fmt::format(
        "and.b32 %r2, %r0, 7;\nmad.lo.u32 %r2, %r2, {}, %r1;\n"
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%out0}}, [%r2];\n",
        row_bytes);
    const Report report = run(kernel).report;
    std::uint64_t found = 0;
    for (const InstructionCount& count : report.counters.instructions)
      if (count.opcode.rfind("ldmatrix", 0) == 0) found += count.bank_conflicts;
    return found;
  };
  CHECK(conflicts(16) == 0);
  CHECK(conflicts(32) == 1);
  CHECK(conflicts(64) == 3);
  CHECK(conflicts(128) == 7);
}

// --- Lanes that exchange ---------------------------------------------------------------------------------------------

// A kernel of one warp with one input and two outputs, by lane.
std::array<Words, 2> run_warp(const std::string& body, const Words& inputs) {
  Kernel kernel;
  kernel.inputs = 1;
  kernel.outputs = 2;
  kernel.body = "mov.b32 %out0, 0;\nmov.b32 %out1, 0;\n" + body;
  const Words both = run_clean(kernel, inputs);
  std::array<Words, 2> result;
  for (std::size_t i = 0; i < both.size(); ++i) result[i % 2].push_back(both[i]);
  return result;
}
Words by_lane(const std::function<std::uint32_t(int)>& value) {
  Words words;
  for (int lane = 0; lane < kLanes; ++lane) words.push_back(value(lane));
  return words;
}

TEST_CASE("shfl.sync") {
  const Words in = random_words(kLanes, 4);
  const auto value = [&](int lane) { return in[static_cast<std::size_t>(lane)]; };
  const auto shuffle = [&](const char* mode, int b, int c) {
    return run_warp(
        fmt::format("shfl.sync.{}.b32 %out0|%p0, %in0, {}, {}, 0xffffffff;\nselp.b32 %out1, 1, 0, %p0;\n", mode, b, c),
        in);
  };
  CHECK(shuffle("bfly", 5, 0x1f)[0] == by_lane([&](int lane) { return value(lane ^ 5); }));
  CHECK(shuffle("idx", 7, 0x1f)[0] == by_lane([&](int) { return value(7); }));
  const auto up = shuffle("up", 3, 0);
  CHECK(up[0] == by_lane([&](int lane) { return value(lane >= 3 ? lane - 3 : lane); }));
  CHECK(up[1] == by_lane([](int lane) { return lane >= 3; }));
  const auto down = shuffle("down", 9, 0x1f);
  CHECK(down[0] == by_lane([&](int lane) { return value(lane + 9 < kLanes ? lane + 9 : lane); }));
  CHECK(down[1] == by_lane([](int lane) { return lane + 9 < kLanes; }));
  // Segments of 8 lanes: the mask 0x18 stands above the clamp.
  CHECK(shuffle("idx", 2, 0x181f)[0] == by_lane([&](int lane) { return value(lane / 8 * 8 + 2); }));
  const auto segment_down = shuffle("down", 6, 0x1807);
  CHECK(segment_down[0] == by_lane([&](int lane) { return value(lane % 8 + 6 < 8 ? lane + 6 : lane); }));
  const auto segment_up = shuffle("up", 6, 0x1800);
  CHECK(segment_up[0] == by_lane([&](int lane) { return value(lane % 8 >= 6 ? lane - 6 : lane); }));
  CHECK(segment_up[1] == by_lane([](int lane) { return lane % 8 >= 6; }));
  const auto clamped = shuffle("bfly", 12, 0x1807);  // lanes of a later segment are out of reach
  CHECK(clamped[1] == by_lane([](int lane) { return (lane ^ 12) <= (lane / 8 * 8 + 7); }));
}

TEST_CASE("vote.sync, with every lane and with half of them") {
  const auto vote = [](const std::string& mode, const std::string& input) {
    const std::string body =
        mode == "ballot"
            ? fmt::format("vote.sync.ballot.b32 %out0, {}, 0xffffffff;\n", input)
            : fmt::format("vote.sync.{}.pred %p1, {}, 0xffffffff;\nselp.b32 %out0, 1, 0, %p1;\n", mode, input);
    return [body](std::uint32_t lanes) {
      return run_warp("setp.ne.u32 %p0, %in0, 0;\n" + body, by_lane([&](int lane) { return lanes >> lane & 1; }))[0][9];
    };
  };
  for (const std::uint32_t lanes : {0u, 0xffffffffu, 0x12345678u}) {
    const bool all = lanes == 0xffffffff, any = lanes != 0;
    CHECK(vote("all", "%p0")(lanes) == all);
    CHECK(vote("any", "%p0")(lanes) == any);
    CHECK(vote("uni", "%p0")(lanes) == (all || !any));
    CHECK(vote("ballot", "%p0")(lanes) == lanes);
    CHECK(vote("ballot", "!%p0")(lanes) == ~lanes);
    CHECK(vote("all", "!%p0")(lanes) == !any);
  }
  // The halves of the warp vote apart, at the same instruction.
  const auto halves = run_warp(
      "setp.ge.u32 %p0, %r0, 16;\nselp.b32 %r2, 0xffff0000, 0x0000ffff, %p0;\nsetp.ne.u32 %p1, %in0, 0;\n"
      "vote.sync.ballot.b32 %out0, %p1, %r2;\n",
      by_lane([](int lane) { return 0x12345678u >> lane & 1; }));
  CHECK(halves[0] == by_lane([](int lane) { return lane < 16 ? 0x5678u : 0x12340000u; }));
}

TEST_CASE("match.sync") {
  const Words in = by_lane([](int lane) { return static_cast<std::uint32_t>(lane % 5); });
  const auto expected = by_lane([](int lane) {
    std::uint32_t same = 0;
    for (int other = 0; other < kLanes; ++other)
      if (other % 5 == lane % 5) same |= 1u << other;
    return same;
  });
  CHECK(run_warp("match.any.sync.b32 %out0, %in0, 0xffffffff;\n", in)[0] == expected);
  CHECK(run_warp("cvt.u64.u32 %rd0, %in0;\nmatch.any.sync.b64 %out0, %rd0, 0xffffffff;\n", in)[0] == expected);
  const std::string all = "match.all.sync.b32 %out0|%p0, %in0, 0xffffffff;\nselp.b32 %out1, 1, 0, %p0;\n";
  const auto different = run_warp(all, in), same = run_warp(all, Words(kLanes, 17));
  CHECK(different[0] == Words(kLanes, 0));
  CHECK(different[1] == Words(kLanes, 0));
  CHECK(same[0] == Words(kLanes, 0xffffffff));
  CHECK(same[1] == Words(kLanes, 1));
}

TEST_CASE("redux.sync") {
  const Words in = random_words(kLanes, 6);
  const auto reduce = [&](const char* operation) {
    return run_warp(fmt::format("redux.sync.{} %out0, %in0, 0xffffffff;\n", operation), in)[0][13];
  };
  std::uint32_t sum = 0, bits_and = ~0u, bits_or = 0, bits_xor = 0;
  for (const std::uint32_t word : in) sum += word, bits_and &= word, bits_or |= word, bits_xor ^= word;
  const auto less = [](std::uint32_t a, std::uint32_t b) { return static_cast<int>(a) < static_cast<int>(b); };
  CHECK(reduce("add.u32") == sum);
  CHECK(reduce("add.s32") == sum);
  CHECK(reduce("min.u32") == *std::min_element(in.begin(), in.end()));
  CHECK(reduce("max.u32") == *std::max_element(in.begin(), in.end()));
  CHECK(reduce("min.s32") == *std::min_element(in.begin(), in.end(), less));
  CHECK(reduce("max.s32") == *std::max_element(in.begin(), in.end(), less));
  CHECK(reduce("and.b32") == bits_and);
  CHECK(reduce("or.b32") == bits_or);
  CHECK(reduce("xor.b32") == bits_xor);
}

TEST_CASE("elect.sync chooses the same lane each time, and with another seed perhaps another") {
  Kernel kernel;
  kernel.outputs = 3;
  kernel.body =
      "elect.sync %out0|%p0, 0xffffffff;\nselp.b32 %out1, 1, 0, %p0;\n"
      "elect.sync _|%p1, 0xffffffff;\nselp.b32 %out2, 1, 0, %p1;\n";
  std::vector<std::uint32_t> leaders;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const Words outputs = run_clean(kernel, {}, seed);
    leaders.push_back(outputs[0]);
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
      CHECK(outputs[lane * 3] == leaders.back());
      CHECK(outputs[lane * 3 + 1] == (lane == leaders.back()));
      CHECK(outputs[lane * 3 + 2] == (lane == leaders.back()));
    }
  }
  CHECK(leaders[0] == 0);
  CHECK(std::any_of(leaders.begin(), leaders.end(), [](std::uint32_t leader) { return leader != 0; }));
}

TEST_CASE("activemask and bar.warp.sync") {
  CHECK(run_warp("setp.lt.u32 %p0, %r0, 7;\n@%p0 activemask.b32 %out0;\nbar.warp.sync -1;\n", Words(kLanes))[0] ==
        by_lane([](int lane) { return lane < 7 ? 0x7fu : 0u; }));
}

TEST_CASE("lanes that diverged meet again at a .sync operation") {
  const auto result = run_warp(
      "setp.lt.u32 %p0, %r0, 10;\n@%p0 bra LOW;\n"
      "mov.b32 %r2, 100;\nbra MEET;\nLOW:\nmov.b32 %r2, 1;\nMEET:\n"
      "redux.sync.add.u32 %out0, %r2, 0xffffffff;\n",
      Words(kLanes));
  CHECK(result[0] == Words(kLanes, 10 * 1 + 22 * 100));
}

TEST_CASE("a .sync operation that not all lanes of its mask execute is found") {
  Kernel kernel;
  kernel.outputs = 1;
  kernel.body = "mov.b32 %out0, 0;\nsetp.lt.u32 %p0, %r0, 16;\n";
  const std::string head = kernel.body;
  kernel.body = head + "@%p0 shfl.sync.bfly.b32 %out0, %r0, 1, 0x1f, 0xffffffff;\n";
  check_finds(kernel, FindingKind::unequal_participation);
  kernel.body = head + "@%p0 shfl.sync.bfly.b32 %out0, %r0, 1, 0x1f, 0x0000ffff;\n";
  run_clean(kernel);
  kernel.body = head + "shfl.sync.bfly.b32 %out0, %r0, 1, 0x1f, 0x0000ffff;\n";  // lane 31 is not in its own mask
  check_finds(kernel, FindingKind::unequal_participation);
  kernel.body = head + "@%p0 shfl.sync.bfly.b32 %out0, %r0, 16, 0x1f, 0x0000ffff;\n";  // from lanes that are not there
  check_finds(kernel, FindingKind::unequal_participation);
  kernel.body = head + "@%p0 bra JOIN;\nbar.warp.sync 0xffffffff;\nJOIN:\nvote.sync.any.pred %p1, %p0, 0xffffffff;\n";
  CHECK(finds(run(kernel).report, FindingKind::unequal_participation));
}

// --- wgmma -----------------------------------------------------------------------------------------------------------

struct Swizzle {
  int bytes;            // of a row; 16 is no swizzle
  std::uint64_t field;  // of a descriptor
};
constexpr Swizzle kSwizzles[] = {{16, 0}, {32, 3}, {64, 2}, {128, 1}};

// How a matrix lies in shared memory, with `lines` of MN and `depth` of K elements.
struct Layout {
  Swizzle swizzle;
  bool k_major;
  int element_bytes, lines, depth;

  int row_elements() const { return swizzle.bytes / element_bytes; }
  // Rows of `bytes` with their 16-byte chunks XORed with the row, the rows of a panel one after the other.
  std::uint32_t in_rows(int row, int column, int rows) const {
    const int chunks = swizzle.bytes / 16, per_chunk = 16 / element_bytes;
    const int panel = column / row_elements(), chunk = column % row_elements() / per_chunk;
    const int place = chunk ^ (row / (8 / chunks) % chunks);
    return static_cast<std::uint32_t>(panel * rows * swizzle.bytes + row * swizzle.bytes + place * 16 +
                                      column % per_chunk * element_bytes);
  }
  // Without a swizzle: core matrices of 8 rows of 16 bytes, those along the contiguous direction next to each other.
  std::uint32_t in_core_matrices(int row, int column, int columns) const {
    const int per_chunk = 16 / element_bytes;
    const int core = row / 8 * (columns / per_chunk) + column / per_chunk;
    return static_cast<std::uint32_t>(core * 128 + row % 8 * 16 + column % per_chunk * element_bytes);
  }
  std::uint32_t offset(int line, int k) const {
    const int row = k_major ? line : k, column = k_major ? k : line;
    if (swizzle.bytes == 16) return in_core_matrices(row, column, k_major ? depth : lines);
    return in_rows(row, column, k_major ? lines : depth);
  }
  std::size_t bytes() const { return static_cast<std::size_t>(lines * depth * element_bytes); }
  // The bits of a descriptor above the address.
  std::uint64_t descriptor() const {
    std::uint64_t leading = 0, stride = 0;
    if (swizzle.bytes == 16) {
      const auto eight_rows = static_cast<std::uint64_t>((k_major ? depth : lines) * element_bytes * 8);
      leading = k_major ? 128 : eight_rows;
      stride = k_major ? eight_rows : 128;
    } else {
      stride = static_cast<std::uint64_t>(8 * swizzle.bytes);
      leading = k_major ? 0 : static_cast<std::uint64_t>(depth * swizzle.bytes);
    }
    return swizzle.field << 62 | (stride / 16) << 32 | (leading / 16) << 16;
  }
};

void place(Bytes& image, std::size_t at, const Layout& layout, const Type& type, const Matrix& matrix) {
  for (int line = 0; line < layout.lines; ++line)
    for (int k = 0; k < layout.depth; ++k) {
      const std::uint32_t bits = encode(type, matrix.at(line, k));
      std::memcpy(&image[at + layout.offset(line, k)], &bits, static_cast<std::size_t>(type.bits / 8));
    }
}

struct WgmmaCase {
  Type d = kF32, a = kBf16, b = kBf16;
  int n = 64;
  Swizzle a_swizzle = kSwizzles[3], b_swizzle = kSwizzles[3];
  bool a_k_major = true, b_k_major = true;
  bool a_in_registers = false;
  int k_step = 0;  // of the tile that the swizzle's rows hold
  bool accumulates = true;
  int scale_a = 1, scale_b = 1;
};

constexpr std::size_t kMatrixAlignment = 1024;  // of the pattern of the widest swizzle

// One wgmma, with its data and what is to come out.
struct WgmmaTest {
  Kernel kernel;
  Words inputs, expected;
  std::string operands;  // of the wgmma, after the accumulators
  std::string instruction;
};

std::string make_descriptor(const char* name, std::size_t offset, std::uint64_t fields) {
  return fmt::format(
      "add.u32 %r2, %r1, {1};\nand.b32 %r2, %r2, 0x3ffff;\nshr.u32 %r2, %r2, 4;\ncvt.u64.u32 {0}, %r2;\n"
      "or.b64 {0}, {0}, {2:#x};\n",
      name, offset, fields);
}

int depth_of(const WgmmaCase& c) { return 256 / c.a.bits; }

// The tile that a matrix is a part of: one k step, or as many as a row of the swizzle holds.
Layout layout_of(const WgmmaCase& c, bool is_a) {
  const Swizzle swizzle = is_a ? c.a_swizzle : c.b_swizzle;
  const bool k_major = is_a ? c.a_k_major : c.b_k_major;
  const int bytes = c.a.bits / 8, lines = is_a ? 64 : c.n;
  const int depth = k_major ? std::max(depth_of(c), swizzle.bytes / bytes) : depth_of(c);
  const int width = k_major ? lines : (lines * bytes + swizzle.bytes - 1) / swizzle.bytes * swizzle.bytes / bytes;
  return {swizzle, k_major, bytes, width, depth};
}

Matrix part(const Matrix& matrix, int first_column, int columns) {
  Matrix result(matrix.rows, columns);
  for (int row = 0; row < matrix.rows; ++row)
    for (int column = 0; column < columns; ++column) result.at(row, column) = matrix.at(row, first_column + column);
  return result;
}
Matrix transposed(const Matrix& matrix, int columns) {
  Matrix result(matrix.columns, columns);
  for (int row = 0; row < matrix.columns; ++row)
    for (int column = 0; column < columns; ++column) result.at(row, column) = matrix.at(column, row);
  return result;
}

WgmmaTest make_wgmma(const WgmmaCase& c) {
  const Layout a_layout = layout_of(c, true), b_layout = layout_of(c, false);
  const Matrix a_tile = random_matrix(a_layout.lines, a_layout.depth, 11);
  const Matrix b_tile = random_matrix(b_layout.lines, b_layout.depth, 12), sums = random_matrix(64, c.n, 13);
  const int k = depth_of(c), of_d = c.n * c.d.bits / 64;
  const auto step = [&](const Layout& layout) { return layout.k_major ? c.k_step * k : 0; };
  const Matrix a = part(a_tile, step(a_layout), k);
  const Matrix b = transposed(part(b_tile, step(b_layout), k), c.n);
  const Matrix result = product(a, b, c.accumulates ? sums : Matrix(64, c.n), c.scale_a * c.scale_b);

  WgmmaTest test;
  const std::size_t b_at = (a_layout.bytes() + kMatrixAlignment - 1) / kMatrixAlignment * kMatrixAlignment;
  test.kernel.threads = 128;
  test.kernel.image.assign(b_at + b_layout.bytes(), 0xff);
  place(test.kernel.image, 0, a_layout, c.a, a_tile);
  place(test.kernel.image, b_at, b_layout, c.b, b_tile);
  test.kernel.inputs = of_d + 4;
  test.kernel.outputs = of_d;
  for (int thread = 0; thread < 128; ++thread) {
    const int first_row = thread / kLanes * 16;
    append(test.inputs, fragment(c.a, a, position_in_a, 4, thread, first_row));
    append(test.inputs, fragment(c.d, sums, position_in_d, of_d, thread, first_row));
    append(test.expected, fragment(c.d, result, position_in_d, of_d, thread, first_row));
  }

  const auto step_bytes = [&](const Layout& layout) {
    return static_cast<std::size_t>(step(layout) * layout.element_bytes);
  };
  std::string& body = test.kernel.body;
  for (int i = 0; i < of_d; ++i) body += fmt::format("mov.b32 %out{}, %in{};\n", i, 4 + i);
  body += make_descriptor("%rd0", step_bytes(a_layout), a_layout.descriptor());
  body += make_descriptor("%rd1", b_at + step_bytes(b_layout), b_layout.descriptor());
  body += fmt::format("setp.ne.u32 %p0, {}, 0;\n", c.accumulates ? "%r1" : "0");
  test.operands =
      fmt::format("{}, %rd1, %p0, {}, {}", c.a_in_registers ? registers("in", 0, 4) : "%rd0", c.scale_a, c.scale_b);
  if (c.a.bits == 16 && !c.a_in_registers) test.operands += fmt::format(", {}", c.a_k_major ? 0 : 1);
  if (c.a.bits == 16) test.operands += fmt::format(", {}", c.b_k_major ? 0 : 1);
  test.instruction = fmt::format("wgmma.mma_async.sync.aligned.m64n{}k{}.{}.{}.{} {}, {};\n", c.n, k, c.d.name,
                                 c.a.name, c.b.name, registers("out", 0, of_d), test.operands);
  body += "wgmma.fence.sync.aligned;\n" + test.instruction +
          "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n";
  return test;
}

void check_wgmma(const WgmmaCase& c, std::uint64_t seed = 0) {
  const WgmmaTest test = make_wgmma(c);
  CAPTURE(test.instruction);
  CAPTURE(c.a_swizzle.bytes);
  CAPTURE(c.b_swizzle.bytes);
  CHECK(run_clean(test.kernel, test.inputs, seed) == test.expected);
}

TEST_CASE("wgmma reads matrices in every swizzle and both majors") {
  for (const Swizzle& a : kSwizzles)
    for (const Swizzle& b : kSwizzles)
      for (const bool a_k_major : {true, false})
        for (const bool b_k_major : {true, false}) {
          WgmmaCase c;
          c.a_swizzle = a, c.b_swizzle = b, c.a_k_major = a_k_major, c.b_k_major = b_k_major;
          check_wgmma(c);
        }
}

TEST_CASE("wgmma begins inside a row of the swizzle") {
  for (const Swizzle& swizzle : kSwizzles)
    for (int step = 0; step < swizzle.bytes / 32; ++step) {
      WgmmaCase c;
      c.a_swizzle = c.b_swizzle = swizzle;
      c.k_step = step;
      check_wgmma(c);
    }
}

TEST_CASE("wgmma of every N") {
  for (int n = 8; n <= 256; n += 8)
    for (const bool b_k_major : {true, false}) {
      WgmmaCase c;
      c.n = n, c.b_k_major = b_k_major;
      c.a_in_registers = n % 16 == 0;
      check_wgmma(c, static_cast<std::uint64_t>(n));
    }
}

TEST_CASE("wgmma of every type, with A in shared memory and in registers") {
  const std::vector<std::array<Type, 3>> types = {{kF32, kF16, kF16},   {kF16, kF16, kF16},   {kF32, kBf16, kBf16},
                                                  {kF32, kTf32, kTf32}, {kF32, kE4m3, kE4m3}, {kF32, kE4m3, kE5m2},
                                                  {kF32, kE5m2, kE4m3}, {kF32, kE5m2, kE5m2}, {kF16, kE4m3, kE4m3}};
  for (const auto& [d, a, b] : types)
    for (const bool a_in_registers : {false, true})
      for (const bool accumulates : {false, true}) {
        WgmmaCase c;
        c.d = d, c.a = a, c.b = b, c.n = 24, c.a_in_registers = a_in_registers, c.accumulates = accumulates;
        check_wgmma(c);
      }
}

TEST_CASE("wgmma negates A or B") {
  for (const int scale_a : {1, -1})
    for (const int scale_b : {1, -1}) {
      WgmmaCase c;
      c.scale_a = scale_a, c.scale_b = scale_b;
      check_wgmma(c);
    }
}

// The body of the plain kernel is from registers and shared memory to accumulators; faults are changes of it.
WgmmaTest plain_wgmma(bool a_in_registers = false) {
  WgmmaCase c;
  c.n = 16;
  c.a_in_registers = a_in_registers;
  return make_wgmma(c);
}

constexpr const char* kFence = "wgmma.fence.sync.aligned;\n";
constexpr const char* kCommit = "wgmma.commit_group.sync.aligned;\n";
constexpr const char* kWait = "wgmma.wait_group.sync.aligned 0;\n";

TEST_CASE("operations of wgmma on the same accumulators follow each other under every schedule") {
  WgmmaTest test = plain_wgmma();
  const std::string twice = test.instruction + kCommit + test.instruction;
  test.kernel.body = replaced(test.kernel.body, test.instruction, twice);
  // The same as two launches, the second of which begins with the first's result.
  const Kernel once = plain_wgmma().kernel;
  const Words first = run_clean(once, test.inputs);
  Words inputs = test.inputs;
  for (std::size_t i = 0; i < first.size(); ++i) inputs[i / 8 * 12 + 4 + i % 8] = first[i];
  const Words second = run_clean(once, inputs);
  CHECK(second != first);
  for (std::uint64_t seed = 0; seed < 20; ++seed) CHECK(run_clean(test.kernel, test.inputs, seed) == second);
}

TEST_CASE("wgmma.wait_group leaves the newest groups in flight") {
  WgmmaTest test = plain_wgmma();
  // The second operation has accumulators of its own; the first's may be read while it runs.
  std::string second = test.instruction;
  for (int i = 0; i < 8; ++i) second = replaced(second, fmt::format("%out{}", i), fmt::format("%r{}", 10 + i));
  std::string zeros;
  for (int i = 0; i < 8; ++i) zeros += fmt::format("mov.b32 %r{}, 0;\n", 10 + i);
  test.kernel.body = replaced(test.kernel.body, kFence, zeros + kFence);
  test.kernel.body = replaced(test.kernel.body, kCommit, kCommit + second + kCommit);
  const std::string read = "add.u32 %r20, %out0, 1;\n";
  Kernel waits_for_first = test.kernel;
  waits_for_first.body = replaced(test.kernel.body, kWait, "wgmma.wait_group.sync.aligned 1;\n" + read + kWait);
  for (std::uint64_t seed = 0; seed < 10; ++seed) CHECK(run_clean(waits_for_first, test.inputs, seed) == test.expected);
  test.kernel.body = replaced(test.kernel.body, kWait, "wgmma.wait_group.sync.aligned 2;\n" + read + kWait);
  check_finds(test.kernel, FindingKind::register_in_flight, test.inputs);
}

TEST_CASE("a warp that waits by another wgmma.wait_group than its warpgroup is found") {
  WgmmaTest test = plain_wgmma();
  const std::string apart =
      "setp.ge.u32 %p1, %r0, 96;\n@%p1 bra APART;\n" + std::string(kWait) + "bra MEET;\nAPART:\n" + kWait + "MEET:\n";
  Kernel waits_apart = test.kernel;
  waits_apart.body = replaced(test.kernel.body, kWait, apart);
  check_finds(waits_apart, FindingKind::unequal_participation, test.inputs);
  // Also where there is nothing left to wait for, and where one has a wait more than the others.
  waits_apart.body = replaced(test.kernel.body, kWait, kWait + apart);
  check_finds(waits_apart, FindingKind::unequal_participation, test.inputs);
  waits_apart.body =
      replaced(test.kernel.body, kWait,
               "setp.ge.u32 %p1, %r0, 96;\n@%p1 wgmma.wait_group.sync.aligned 0;\n" + std::string(kWait));
  CHECK(finds(run(waits_apart, test.inputs).report, FindingKind::unequal_participation));
}

TEST_CASE("accumulators and registers of A that are touched before the wait are found") {
  for (const char* const touch : {"add.u32 %r20, %out3, 1;\n", "mov.b32 %out3, 0;\n", "mov.b32 %in1, 0;\n"}) {
    WgmmaTest test = plain_wgmma(true);
    test.kernel.body = replaced(test.kernel.body, kCommit, std::string(kCommit) + touch);
    check_finds(test.kernel, FindingKind::register_in_flight, test.inputs);
  }
  WgmmaTest test = plain_wgmma(true);  // A may be read
  test.kernel.body = replaced(test.kernel.body, kCommit, std::string(kCommit) + "add.u32 %r20, %in1, 1;\n");
  run_clean(test.kernel, test.inputs);
}

TEST_CASE("a first wgmma without a wgmma.fence is found, whatever was written") {
  WgmmaCase overwrites;
  overwrites.n = 16;
  overwrites.accumulates = false;
  WgmmaTest test = make_wgmma(overwrites);
  std::string unwritten = test.instruction;
  for (int i = 0; i < 8; ++i) unwritten = replaced(unwritten, fmt::format("%out{}", i), fmt::format("%r{}", 10 + i));
  test.kernel.body = replaced(test.kernel.body, test.instruction, unwritten);
  run_clean(test.kernel, test.inputs);
  test.kernel.body = replaced(test.kernel.body, kFence, "");
  check_finds(test.kernel, FindingKind::missing_wgmma_fence, test.inputs);
}

TEST_CASE("a missing wgmma.fence is found") {
  WgmmaTest test = plain_wgmma();
  test.kernel.body = replaced(test.kernel.body, kFence, "");
  check_finds(test.kernel, FindingKind::missing_wgmma_fence, test.inputs);
  // A second operation needs none, unless a register was written between.
  test = plain_wgmma(true);
  test.kernel.body += test.instruction + kCommit + kWait;
  run_clean(test.kernel, test.inputs);
  test = plain_wgmma(true);
  test.kernel.body += "mov.b32 %in2, 0;\n" + test.instruction + kCommit + kWait;
  check_finds(test.kernel, FindingKind::missing_wgmma_fence, test.inputs);
}

TEST_CASE("accumulators that nobody wrote are found, and only where the wgmma adds to them") {
  WgmmaTest test = plain_wgmma();
  test.kernel.body = replaced(test.kernel.body, "mov.b32 %out5, %in9;\n", "");
  check_finds(test.kernel, FindingKind::unwritten_register, test.inputs);
  test.kernel.body = replaced(test.kernel.body, "setp.ne.u32 %p0, %r1, 0;", "setp.ne.u32 %p0, 0, 0;");
  run_clean(test.kernel, test.inputs);
}

TEST_CASE("descriptors that leave shared memory or are no descriptors are found") {
  WgmmaTest test = plain_wgmma();
  const auto with_descriptor = [&](const std::string& change) {
    Kernel kernel = test.kernel;
    kernel.body = replaced(kernel.body, kFence, change + kFence);
    return kernel;
  };
  const Kernel outside = with_descriptor("add.u64 %rd1, %rd1, 64;\n");
  check_finds(outside, FindingKind::shared_out_of_bounds, test.inputs);
  // The operation is not executed.
  Words untouched;
  for (std::size_t i = 0; i < test.inputs.size(); ++i)
    if (i % 12 >= 4) untouched.push_back(test.inputs[i]);
  CHECK(run(outside, test.inputs).outputs == untouched);
  check_finds(with_descriptor("or.b64 %rd1, %rd1, 0x0010000000000000;\n"), FindingKind::bad_operand, test.inputs);
  check_finds(with_descriptor("or.b64 %rd0, %rd0, 0x0002000000000000;\n"), FindingKind::bad_operand, test.inputs);
}

TEST_CASE("a warp that does not take part in a wgmma is found") {
  WgmmaTest test = plain_wgmma();
  test.kernel.body =
      replaced(test.kernel.body, kFence, "setp.ge.u32 %p1, %r0, 96;\n@%p1 bra END;\n" + std::string(kFence));
  test.kernel.body += "END:\n";
  check_finds(test.kernel, FindingKind::unequal_participation, test.inputs);

  test = plain_wgmma();
  test.kernel.body = replaced(test.kernel.body, kFence,
                              "setp.ge.u32 %p1, %r0, 96;\n"
                              "@%p1 add.u64 %rd1, %rd1, 2;\n" +
                                  std::string(kFence));
  check_finds(test.kernel, FindingKind::unequal_participation, test.inputs);

  test = plain_wgmma();
  test.kernel.threads = 96;
  CHECK(finds(run(test.kernel, test.inputs).report, FindingKind::unequal_participation));
}

TEST_CASE("a deadlock says which warps have not issued a wgmma") {
  WgmmaTest test = plain_wgmma();
  test.kernel.body =
      replaced(test.kernel.body, kFence, "setp.ge.u32 %p1, %r0, 64;\n@%p1 bar.sync 0;\n" + std::string(kFence)) +
      "bar.sync 0;\n";
  const Report report = run(test.kernel, test.inputs).report;
  CHECK(finds(report, FindingKind::deadlock));
  CHECK(to_string(report).find("wgmma 1 of the warpgroup, which its warps 2, 3 have not issued") != std::string::npos);
}

TEST_CASE("a missing fence.proxy.async before wgmma is found") {
  WgmmaTest test = plain_wgmma();
  test.kernel.fence = "";
  check_finds(test.kernel, FindingKind::missing_proxy_fence, test.inputs);
}

TEST_CASE("shared memory that is overwritten before the wait is found") {
  WgmmaTest test = plain_wgmma();
  const std::string write = "setp.eq.u32 %p1, %r0, 0;\n@%p1 st.shared.b32 [%r1], %r0;\n";
  Kernel early = test.kernel;
  early.body = replaced(early.body, kCommit, kCommit + write);
  check_finds(early, FindingKind::race, test.inputs);
  // Its own wait is enough for what only its own warp reads, rows 0 to 15 of A.
  Kernel late = test.kernel;
  late.body += write;
  run_clean(late, test.inputs);
  // What all warps read needs a barrier after everyone's wait.
  Kernel others = test.kernel;
  others.body += replaced(write, "[%r1]", "[%r1+8192]");
  check_finds(others, FindingKind::race, test.inputs);
  others.body = replaced(others.body, "setp.eq.u32 %p1, %r0, 0;", "bar.sync 0;\nsetp.eq.u32 %p1, %r0, 0;");
  run_clean(others, test.inputs);
}

// --- setmaxnreg ------------------------------------------------------------------------------------------------------

TEST_CASE("setmaxnreg takes registers that others have given back") {
  Kernel kernel;
  kernel.threads = 384;
  kernel.bounds = ".minnctapersm 1";  // 168 registers each
  kernel.body =
      "setp.lt.u32 %p0, %r0, 128;\n@%p0 bra PRODUCER;\nsetmaxnreg.inc.sync.aligned.u32 240;\nbra END;\n"
      "PRODUCER:\nsetmaxnreg.dec.sync.aligned.u32 24;\nEND:\n";
  const std::string good = kernel.body;
  for (std::uint64_t seed = 0; seed < 10; ++seed) run_clean(kernel, {}, seed);
  kernel.body = replaced(good, "u32 24;", "u32 32;");  // leaves too few for both
  CHECK(finds(run(kernel).report, FindingKind::deadlock));
  kernel.body = replaced(good, "inc.sync.aligned.u32 240", "inc.sync.aligned.u32 160");
  check_finds(kernel, FindingKind::bad_operand);
  kernel.body = replaced(good, "dec.sync.aligned.u32 24", "dec.sync.aligned.u32 176");
  CHECK(finds(run(kernel).report, FindingKind::bad_operand));
  kernel.bounds = ".maxnreg 128";
  kernel.body = replaced(good, "inc.sync.aligned.u32 240", "inc.sync.aligned.u32 184");
  CHECK_MESSAGE(finds(run(kernel).report, FindingKind::deadlock), "128 - 24 is less than twice 184 - 128");
  kernel.body = replaced(good, "inc.sync.aligned.u32 240", "inc.sync.aligned.u32 176");
  run_clean(kernel);
}

// --- Refusals --------------------------------------------------------------------------------------------------------

TEST_CASE("forms that do not exist are refused with their line") {
  for (const char* const body :
       {"shfl.sync.sideways.b32 %r2, %r0, 0, 31, -1;", "vote.sync.most.pred %p0, %p1, -1;",
        "redux.sync.add.b32 %r2, %r0, -1;", "ldmatrix.sync.aligned.m8n8.x3.shared.b16 {%r2, %r3, %r4}, [%r1];",
        "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r2}, [%r1];", "setmaxnreg.inc.sync.aligned.u32 20;",
        "setmaxnreg.dec.sync.aligned.u32 36;",
        "mma.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%r2,%r3,%r4,%r5}, {%r2,%r3,%r4,%r5}, {%r2,%r3}, "
        "{%r2,%r3,%r4,%r5};",
        "mma.sync.aligned.m16n8k16.row.col.f16.bf16.bf16.f16 {%r2,%r3}, {%r2,%r3,%r4,%r5}, {%r2,%r3}, {%r2,%r3};",
        "wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16 {%r2,%r3,%r4,%r5}, %rd0, %rd1, %p0, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r2,%r3,%r4}, %rd0, %rd1, %p0, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r2,%r3,%r4,%r5}, %rd0, %rd1, %p0, 1, 2, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%r2,%r3,%r4,%r5}, %rd0, %rd1, %p0, 1, 1, 0, 1;",
        "wgmma.wait_all.sync.aligned;"}) {
    Kernel kernel;
    kernel.body = std::string(body) + "\n";
    CAPTURE(body);
    CHECK_THROWS_AS(Program(kernel.ptx()), ParseError);
  }
}

}  // namespace
