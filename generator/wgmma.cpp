// SPDX-License-Identifier: Apache-2.0
#include "generator/wgmma.h"

#include <fmt/format.h>

namespace flashjit::generator {
namespace {

constexpr int kOperandsOfLine = 8;
constexpr int kRegistersOfStep = 4;  // of A, where it is in registers

// before0after, before1after, ... from the first number on, with a line_break after every few. Called for every
// rendered source, so it formats numbers only.
std::string list(std::string_view before, int first, int count, std::string_view after, std::string_view line_break) {
  std::string out;
  for (int i = 0; i < count; ++i) {
    if (i != 0) out += ",";
    if (i != 0) out += i % kOperandsOfLine == 0 ? line_break : " ";
    out += before;
    out += fmt::format_int(first + i).c_str();
    out += after;
  }
  return out;
}

// Operands of the asm statement by number: first the accumulators, then A, then B, then whether it adds.
class Statement {
 public:
  Statement(DType dtype, const WgmmaProduct& product)
      : product_(product),
        accumulators_(product.columns / 2),
        a_count_(product.steps * (product.a_in_registers ? kRegistersOfStep : 1)),
        instruction_(
            fmt::format("wgmma.mma_async.sync.aligned.m64n{0}k16.f32.{1}.{1}", product.columns, to_string(dtype))),
        d_(list("%", 0, accumulators_, "", " \"\n        \"")) {}

  const std::string& instruction() const { return instruction_; }
  std::string parameters() const {
    return fmt::format("float (&d)[{}], const {} (&a)[{}], const uint64 (&b)[{}]{}", accumulators_,
                       product_.a_in_registers ? "uint32" : "uint64", a_count_, product_.steps,
                       product_.adds ? ", uint32 adds" : "");
  }

  std::string text() const {
    std::string out = "asm volatile(\n";
    if (product_.adds)
      out += fmt::format("        \"{{.reg .pred adds;\\n\\t\"\n        \"setp.ne.b32 adds, %{}, 0;\\n\\t\"\n",
                         accumulators_ + a_count_ + product_.steps);
    for (int step = 0; step < product_.steps; ++step) out += step_text(step);
    if (product_.adds) out += "        \"}\"\n";
    out += fmt::format("        : {}\n", operands(product_.adds ? "+f" : "=f", "d", accumulators_));
    out += fmt::format("        : {},\n", operands(product_.a_in_registers ? "r" : "l", "a", a_count_));
    out += fmt::format("          {}", operands("l", "b", product_.steps));
    return out + (product_.adds ? ", \"r\"(adds));\n" : ");\n");
  }

 private:
  static std::string operands(std::string_view constraint, std::string_view array, int count) {
    return list(fmt::format("\"{}\"({}[", constraint, array), 0, count, "])", "\n          ");
  }

  // Only the first step may overwrite D. Neither A nor B is negated; A in shared memory is not transposed.
  std::string step_text(int step) const {
    return fmt::format("        \"{} \"\n        \"{{{}}}, \"\n        \"{}, %{}, {}, 1, 1, {}{};\\n\\t\"\n",
                       instruction_, d_, a_of(step), accumulators_ + a_count_ + step,
                       step != 0       ? "1"
                       : product_.adds ? "adds"
                                       : "0",
                       product_.a_in_registers ? "" : "0, ", product_.b_n_major ? 1 : 0);
  }
  std::string a_of(int step) const {
    if (!product_.a_in_registers) return fmt::format("%{}", accumulators_ + step);
    return "{" + list("%", accumulators_ + kRegistersOfStep * step, kRegistersOfStep, "", "") + "}";
  }

  const WgmmaProduct& product_;
  const int accumulators_, a_count_;
  const std::string instruction_, d_;
};

}  // namespace

std::string render_wgmma(std::string_view name, DType dtype, const WgmmaProduct& product) {
  const Statement statement(dtype, product);
  return fmt::format(
      "// {};   by {} steps, d {} a * b:   PTX ISA 8.0, sm_90a\n"
      "struct {} {{\n"
      "  static __device__ __forceinline__ void issue({}) {{\n"
      "    {}"
      "  }}\n"
      "}};\n",
      statement.instruction(), product.steps, product.adds ? "+=" : "=", name, statement.parameters(),
      statement.text());
}

}  // namespace flashjit::generator
