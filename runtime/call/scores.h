// SPDX-License-Identifier: Apache-2.0
// What options do to scores, and the problem that all options together make.
#pragma once

#include "flashjit/attention.h"
#include "runtime/call/masks.h"

namespace flashjit::runtime {

// The factor on q k^T. Throws Error(invalid_argument) for a scale or a cap that no call may have, and for both that
// none may have together.
float softmax_scale_of(const AttentionOptions& opts, std::int64_t head_dim);

// Those that only calls with q of e4m3 may have, and what they may be. Throws Error(invalid_argument).
void require_e4m3_options(const AttentionOptions& opts, DType q_dtype);

// It may still be one that validate() refuses. Throws Error(invalid_argument) for tensors of a wrong dtype. dtype: of
// q.
Problem problem_of(DType dtype, int head_dim, int head_dim_v, const AttentionOptions& opts, const Masks& masks,
                   std::optional<DType> kv_dtype = {});

}  // namespace flashjit::runtime
