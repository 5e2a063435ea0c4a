// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flashjit/tensor.h"

namespace flashjit::runtime {

// Of q, k, v and out, in this order.
enum Dim { batch_dim, seqlen_dim, heads_dim, head_dim_dim };
inline constexpr int kRank = 4;
inline constexpr const char* kDimNames[kRank] = {"batch", "seqlen", "num_heads", "head_dim"};

// Whether a tensor has the rows of each column one after the other, as v of e4m3 may: then its rows in memory are of a
// column each.
inline bool comes_transposed(const Tensor& tensor) noexcept {
  return tensor.shape[head_dim_dim] > 1 && tensor.strides[head_dim_dim] != 1 && tensor.strides[seqlen_dim] == 1;
}
// The dimension whose elements are neighbours, and that of rows in memory.
inline Dim contiguous_dim(const Tensor& tensor) noexcept {
  return comes_transposed(tensor) ? seqlen_dim : head_dim_dim;
}
inline Dim row_dim(const Tensor& tensor) noexcept { return comes_transposed(tensor) ? head_dim_dim : seqlen_dim; }

}  // namespace flashjit::runtime
