// SPDX-License-Identifier: Apache-2.0
// Packed sequences shared out among ranks: which parts of which sequences each one has.
#pragma once

#include <cstdint>
#include <vector>

#include "flashjit/distributed.h"

namespace flashjit::distributed {

// By ranks, the rows of each in their order.
struct PackedShards {
  // In the packed tensor. None is empty, and none can be joined with the one behind it.
  std::vector<std::vector<Span>> spans;
  // The same rows, where sequences are numbered anew, one behind the other: first those that several ranks have parts
  // of, then those that one has whole, rank by rank. So the whole ones of a rank, and of neighbours, are one span.
  std::vector<std::vector<Span>> numbered;
  // Where each sequence begins there, and where the last one ends. None is empty.
  std::vector<std::int64_t> offsets;
};

// contiguous: equal parts of all rows. zigzag: a sequence that is more work than the share of a rank, under a causal
// mask, is cut into twice as many parts as there are ranks, of which each has one from the front and one from the back;
// others stay whole with the rank that has least work so far, or where none has room are cut once more. cu_seqlens as
// of Sharding::packed, ranks 1 or more.
PackedShards shared_out(Layout layout, const std::vector<std::int64_t>& cu_seqlens, int ranks);

// Those of a sharding; null where it is of sequences of one length.
const PackedShards* packed_shards(const Sharding& sharding) noexcept;

}  // namespace flashjit::distributed
