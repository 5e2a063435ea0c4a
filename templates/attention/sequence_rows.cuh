// SPDX-License-Identifier: Apache-2.0
// Rows of q or k that a sequence has, by what a batch says of it in memory.
#pragma once

#include "abi.cuh"
#include "types.cuh"

struct RowsOfSequence {
  int first, count;
};

// Of the rows that there are: whatever stands in memory, none is outside.
__device__ __forceinline__ RowsOfSequence rows_of_sequence(const SequenceRows& all, int sequence) {
  int first = 0, end = all.rows;
  if (all.offsets != nullptr) first = all.offsets[sequence], end = all.offsets[sequence + 1];
  first = min(max(first, 0), all.rows);
  int count = min(max(end, first), all.rows) - first;
  if (all.used != nullptr) count = min(count, max(all.used[sequence], 0));
  if (all.padding != nullptr) {
    const int padding = min(max(all.padding[sequence], 0), count);
    first += padding, count -= padding;
  }
  return {first, count};
}
