// SPDX-License-Identifier: Apache-2.0
// Wrappers of wgmma.mma_async. Its instruction for N columns has N / 2 accumulator operands, so that a wrapper for each
// N would be thousands of lines; a source gets those that it uses.
#pragma once

#include <string>

#include "flashjit/tensor.h"

namespace flashjit::generator {

// "WgmmaM64N128K16"
std::string wgmma_name(int n);
// The struct of that name for f16 or bf16 operands and f32 sums. n: a multiple of 8 from 8 to 256.
std::string render_wgmma(DType dtype, int n);

}  // namespace flashjit::generator
