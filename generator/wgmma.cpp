// SPDX-License-Identifier: Apache-2.0
#include "generator/wgmma.h"

#include <fmt/format.h>

namespace flashjit::generator {
namespace {

constexpr int kOperandsOfLine = 8;

// item(0), item(1), ... with a line_break after every few.
template <class Item>
std::string list(int count, std::string_view line_break, Item item) {
  std::string out;
  for (int i = 0; i < count; ++i) {
    if (i != 0) out += i % kOperandsOfLine == 0 ? fmt::format(",{}", line_break) : ", ";
    out += item(i);
  }
  return out;
}

// One of the two forms: how A is passed, as parameter, as operand of the instruction and as input of the asm statement.
struct Form {
  std::string_view name;
  std::string_view parameter;
  int operands;  // of A
  std::string_view inputs;
  std::string_view transpose_a;  // A from shared memory may be transposed; here it is K-major
};
constexpr Form kFromShared = {"ss", "uint64 a", 1, R"("l"(a))", "0, "};
constexpr Form kFromRegisters = {"rs", "const uint32 (&a)[4]", 4, R"("r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]))", ""};

std::string render_form(const Form& form, std::string_view instruction, int accumulators) {
  const auto operand = [](int i) { return fmt::format("%{}", i); };
  const auto element = [](int i) { return fmt::format("\"+f\"(d[{}])", i); };
  const int first_b = accumulators + form.operands;
  const std::string a = list(form.operands, "", [&](int i) { return operand(accumulators + i); });
  std::string out = fmt::format(
      "  template <bool kTransposeB>\n"
      "  static __device__ __forceinline__ void {}(float (&d)[{}], {}, uint64 b, bool accumulate) {{\n"
      "    asm volatile(\n"
      "        \"{{\\n\\t.reg .pred p;\\n\\tsetp.ne.b32 p, %{}, 0;\\n\\t\"\n",
      form.name, accumulators, form.parameter, first_b + 1);
  out += fmt::format("        \"{} \"\n", instruction);
  out += fmt::format("        \"{{{}}}, \"\n", list(accumulators, " \"\n        \"", operand));
  out += fmt::format("        \"{}, %{}, p, 1, 1, {}%{};\\n\\t}}\"\n", form.operands == 1 ? a : "{" + a + "}", first_b,
                     form.transpose_a, first_b + 2);
  out += fmt::format("        : {}\n", list(accumulators, "\n          ", element));
  out += fmt::format(
      "        : {}, \"l\"(b), \"r\"(static_cast<int>(accumulate)),\n"
      "          \"n\"(static_cast<int>(kTransposeB)));\n",
      form.inputs);
  return out + "  }\n";
}

}  // namespace

std::string wgmma_name(int n) { return fmt::format("WgmmaM64N{}K16", n); }

std::string render_wgmma(DType dtype, int n) {
  const std::string_view type = to_string(dtype);
  const std::string instruction = fmt::format("wgmma.mma_async.sync.aligned.m64n{}k16.f32.{}.{}", n, type, type);
  return fmt::format("// {};   d = a * b, or d += a * b:   PTX ISA 8.0, sm_90a\n", instruction) +
         fmt::format("struct {} {{\n  static constexpr int kN = {};\n", wgmma_name(n), n) +
         "  // A (64 x 16, K-major) and B from shared memory.\n" + render_form(kFromShared, instruction, n / 2) +
         "  // A from registers.\n" + render_form(kFromRegisters, instruction, n / 2) + "};\n";
}

}  // namespace flashjit::generator
