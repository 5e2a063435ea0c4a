// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace flashjit::runtime {

// Of q, k, v and out, in this order.
enum Dim { batch_dim, seqlen_dim, heads_dim, head_dim_dim };
inline constexpr int kRank = 4;
inline constexpr const char* kDimNames[kRank] = {"batch", "seqlen", "num_heads", "head_dim"};

}  // namespace flashjit::runtime
