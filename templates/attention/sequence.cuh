// SPDX-License-Identifier: Apache-2.0
// How long the sequence is that a tile belongs to. Nothing else on the device takes lengths from the launch.
#pragma once

#include "abi.cuh"
#include "types.cuh"

struct Sequence {
  int keys, queries;
};

// Of the batch entry that batch() gives. It is not asked for while all are equally long.
template <class Batch>
__device__ __forceinline__ Sequence sequence_of(const ForwardSizes& sizes, Batch) {
  return {sizes.seqlen_kv, sizes.seqlen_q};
}
