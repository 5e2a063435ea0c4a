// SPDX-License-Identifier: Apache-2.0
// What options do to scores, and the problem that all options together make.
#pragma once

#include "flashjit/attention.h"
#include "runtime/call/masks.h"

namespace flashjit::runtime {

// The factor on q k^T. Throws Error(invalid_argument) for a scale or a cap that no call may have, and for both that
// none may have together.
float softmax_scale_of(const AttentionOptions& opts, std::int64_t head_dim);

// It may still be one that validate() refuses. Throws Error(invalid_argument) for tensors of a wrong dtype.
Problem problem_of(DType dtype, int head_dim, int head_dim_v, const AttentionOptions& opts, const Masks& masks,
                   std::optional<DType> kv_dtype = {});

}  // namespace flashjit::runtime
