// SPDX-License-Identifier: Apache-2.0
// Checks the views of a call, without CUDA: what they say, not what they point to.
#pragma once

#include <cstdint>

#include "flashjit/attention.h"

namespace flashjit::runtime {

struct MemoryRange {
  std::uintptr_t begin = 0, end = 0;  // the bytes that a view spans; equal when it has no elements
  bool dense = false;                 // it touches all of them
  bool empty() const noexcept { return begin == end; }
};

// A call whose views are consistent. It points into the caller's tensors and lives no longer than the call.
struct ForwardCall {
  Problem problem;
  const Tensor* q = nullptr;
  const Tensor* k = nullptr;
  const Tensor* v = nullptr;
  const Tensor* out = nullptr;
  const Tensor* lse = nullptr;  // null: not written
  MemoryRange q_range, k_range, v_range, out_range, lse_range;
  std::int64_t batch = 0, seqlen_q = 0, seqlen_kv = 0, num_heads_q = 0, num_heads_kv = 0;
  float softmax_scale = 0;

  bool nothing_to_do() const noexcept { return batch == 0 || seqlen_q == 0 || num_heads_q == 0; }
  Dims out_shape() const { return {batch, seqlen_q, num_heads_q, problem.head_dim_v}; }
};

// Everything except out. Throws Error(invalid_argument).
ForwardCall validate_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts);
// out against the rest of the call, and against the inputs' memory. Throws Error(invalid_argument).
void validate_out(ForwardCall& call, const Tensor& out);

}  // namespace flashjit::runtime
