// SPDX-License-Identifier: Apache-2.0
// A call on parts of sequences, as kernels are told of it.
#pragma once

#include "distributed/workspace.h"

namespace flashjit::distributed {

// Of a tensor of queries and keys, as a bias is, [batch, heads, queries, keys], with all keys: those that see each
// other as a sight says.
Tensor seen_block(const Tensor& tensor, const Sight& sight);

// The options of a call for a batch of parts that see each other as a sight says. of: those of the whole, with a bias
// of the queries whose rows the sight counts.
AttentionOptions options_of_part(const Workspace& work, const AttentionOptions& of, const Sight& sight,
                                 std::int64_t batch);

}  // namespace flashjit::distributed
