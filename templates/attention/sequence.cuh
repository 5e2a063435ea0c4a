// SPDX-License-Identifier: Apache-2.0
// How long the sequence is that a tile belongs to. Kernels ask for it tile by tile, and nothing else on the device
// takes lengths from the launch.
#pragma once

#include "abi.cuh"
#include "types.cuh"

struct Sequence {
  int keys, queries;
};

// Of every batch entry, while all are equally long.
__device__ __forceinline__ Sequence sequence_of(const ForwardSizes& sizes) { return {sizes.seqlen_kv, sizes.seqlen_q}; }
