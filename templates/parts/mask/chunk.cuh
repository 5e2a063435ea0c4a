// SPDX-License-Identifier: Apache-2.0
// Chunked attention: keys are cut into chunks of one size, and a query sees those of the chunk that its position is in.
#pragma once

#include "abi.cuh"
#include "types.cuh"

struct ChunkMask {
  static constexpr bool kBegins = true, kEnds = true, kEndsAtPosition = false, kInMemory = false;

  const ChunkArguments& chunk;

  template <class Arguments, class Batch>
  __device__ __forceinline__ ChunkMask(const Arguments& args, Batch) : chunk(args.chunk) {}

  // Positions below 0 share one chunk, which has no keys.
  __device__ __forceinline__ int first(int position) const {
    return position < 0 ? -chunk.keys : position - position % chunk.keys;
  }
  __device__ __forceinline__ int last(int position) const { return first(position) + chunk.keys - 1; }
};
