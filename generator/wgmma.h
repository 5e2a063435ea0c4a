// SPDX-License-Identifier: Apache-2.0
// Products of a warpgroup by wgmma.mma_async. Its instruction for N columns has N / 2 accumulator operands, so that
// functions for all shapes would be thousands of lines; a source gets those that it uses.
#pragma once

#include <string>
#include <string_view>

#include "flashjit/tensor.h"

namespace flashjit::generator {

// D = A B with 64 rows, or D += A B. The fields say what a product needs to have compiled in.
struct WgmmaProduct {
  int columns;          // of D and B: a multiple of 8 from 8 to 256
  int steps;            // of 16 along K
  bool a_in_registers;  // or K-major in shared memory
  bool b_n_major;       // or K-major; always in shared memory
  bool adds;            // to D, where the call says so; or never
};

// A struct of this name whose issue() issues the product of f16 or bf16 operands with f32 sums. It takes the N / 2
// registers of D, those of A (a descriptor for each step, or four registers), a descriptor of B for each step and, if
// the product adds, whether it does: else D is overwritten, whatever it was. All steps are one asm statement: for each
// statement the compiler's work grows with the accumulators that it names.
std::string render_wgmma(std::string_view name, DType dtype, const WgmmaProduct& product);

}  // namespace flashjit::generator
