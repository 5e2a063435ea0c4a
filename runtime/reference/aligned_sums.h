// SPDX-License-Identifier: Apache-2.0
// Sums of products of 8 bits as the tensor core of sm_90 makes them: few bits, which a plain computation there has,
// too. Written apart from the emulator's, so that one finds what is wrong with the other.
#pragma once

#include <cstdint>

#include "flashjit/tensor.h"

namespace flashjit::reference {

inline constexpr int kTermsOfStep = 32;  // which one instruction adds

// sum and `count` products, up to kTermsOfStep, of elements of a format, e4m3 or e5m2, b's with a stride. All lose what
// is more than 13 bits behind the point of that with the largest exponent, and so does the result (Xie et al.,
// "MMA-Sim", arXiv:2511.10909).
float add_aligned(float sum, const float* a, const float* b, std::int64_t stride, int count, DType format) noexcept;

}  // namespace flashjit::reference
