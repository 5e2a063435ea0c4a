// SPDX-License-Identifier: Apache-2.0
// What the splits of a tile have made of one of its rows, and what all of them have together (Dao et al. 2023,
// "Flash-Decoding").
#pragma once

#include "attention/softmax.cuh"
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"
#include "types.cuh"

struct SplitRow {
  const float* partials;  // of the first split: the output by its own sum
  const float* weights;   // and the binary logarithm of that
  int splits;
  int64 stride;  // from one split to the next, in rows
  int columns;

  __device__ __forceinline__ Log2 weight(int split) const {
    Log2 weight;
    ptx::ld_global(weights + 2 * (split * stride), weight.high, weight.low);
    return weight;
  }
  __device__ __forceinline__ float share(int split, const Log2& shift) const {
    const Log2 own = weight(split);
    return ptx::ex2(own.high - shift.high + (own.low - shift.low));
  }
  // What a split that saw no key has in its output is not looked at: its share is 0.
  __device__ __forceinline__ const float* partial(int split) const { return partials + split * stride * columns; }
};

__device__ __forceinline__ Log2 larger(const Log2& a, const Log2& b) { return a < b ? b : a; }

// Of exponentials, relative to the largest split's.
struct SplitSum {
  Log2 shift;
  float total;

  // Where no split saw a key, all shares are 0 for any shift but an infinite one.
  __device__ __forceinline__ static SplitSum none_above(const Log2& largest) {
    return {largest.high == -infinity() ? Log2{0.0f, 0.0f} : largest, 0.0f};
  }
  __device__ __forceinline__ float natural_lse() const {
    return total == 0.0f ? -infinity() : Log2{shift.high, shift.low + ptx::lg2(total)}.natural();
  }
};

// By a whole warp, of which kLanes neighbouring lanes have a row together and find the same.
template <int kLanes>
__device__ __forceinline__ Log2 largest_weight(const SplitRow& row, int lane) {
  Log2 largest{-infinity(), 0.0f};
  for (int split = lane % kLanes; split < row.splits; split += kLanes) largest = larger(largest, row.weight(split));
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2)
    largest = larger(largest, {ptx::shfl_xor(largest.high, distance), ptx::shfl_xor(largest.low, distance)});
  return largest;
}
