// SPDX-License-Identifier: Apache-2.0
// Where the sequences of a batch lie, as a kernel finds it on the device.
#pragma once

#include <cstdint>
#include <vector>

#include "flashjit/attention.h"

namespace flashjit::reference {

// Rows from the first one on, of a batch entry of a tensor, or of the entries that are its pages.
struct SequenceRows {
  std::int64_t batch, first, count;
  std::int64_t page_size = 0;
  std::vector<std::int64_t> pages = {};  // none: all rows are of the batch entry
};
struct SequencePlace {
  SequenceRows queries, keys;
};

// In the order of the batch. Tensors have the dimension of batches. Throws Error(invalid_argument).
std::vector<SequencePlace> sequences_of(const Tensor& q, const Tensor& k, const AttentionOptions& opts);

// Of batch, seqlen_q and seqlen_kv: what options' tensors have to have.
struct SequenceBounds {
  std::int64_t batch, seqlen_q, seqlen_kv;
};
SequenceBounds sequence_bounds(const Tensor& q, const Tensor& k, const AttentionOptions& opts);

}  // namespace flashjit::reference
