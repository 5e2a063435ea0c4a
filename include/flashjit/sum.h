// SPDX-License-Identifier: Apache-2.0
// Rows added up: gradients of what several calls depend on, as of keys that several GPUs have queries for.
#pragma once

#include <vector>

#include "flashjit/tensor.h"

namespace flashjit {

// out = the sum of the parts, in f32 and in their order, on the GPU that holds them: the same bits in every run. From 1
// to 16 parts [batch, seqlen, num_heads, head_dim], all of the shape of out and of one dtype, f16, bf16 or f32; out has
// that or another of these. head_dim is any multiple of 8. Views are as of attention: the last dimension contiguous,
// pointers 16-byte aligned, other strides multiples of 8 elements, 0 in a part for what several rows share. A part may
// be out itself; other overlaps are refused. A single part of the dtype of out is copied. Asynchronous on the stream.
// Compiles a kernel for each pair of dtypes once, whatever the shapes. Thread-safe. Throws Error; then nothing was
// launched or written.
void sum(const std::vector<Tensor>& parts, const Tensor& out, Stream stream = nullptr);

}  // namespace flashjit
