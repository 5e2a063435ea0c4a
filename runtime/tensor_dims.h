// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace flashjit::runtime {

// Of q, k, v and out, in this order.
enum Dim { batch_dim, seqlen_dim, heads_dim, head_dim_dim };
constexpr int kRank = 4;
constexpr const char* kDimNames[kRank] = {"batch", "seqlen", "num_heads", "head_dim"};

}  // namespace flashjit::runtime
