// SPDX-License-Identifier: Apache-2.0
// Rotary embedding (Su et al. 2021, "RoFormer"): which elements of a row turn together, and by how much.
#pragma once

#include "abi.cuh"
#include "tile/octet.cuh"
#include "types.cuh"

// One of a row's first half with one of the second, or neighbours.
enum class Rotary { none, halves, neighbours };

__device__ __forceinline__ int64 number_of_token(const TokenNumbers& numbers, int64 token) {
  if (numbers.are_i64 != 0) return reinterpret_cast<const int64*>(numbers.first)[token];
  return reinterpret_cast<const int*>(numbers.first)[token];
}

// The angles of a position; of one outside of the tables those of the first or the last. Table: of their elements.
template <class Table>
class Angles {
 public:
  __device__ __forceinline__ Angles(const RotaryTables& tables, int64 position) {
    position = min(max(position, static_cast<int64>(0)), static_cast<int64>(tables.positions) - 1);
    cosines = tables.cosines + position * tables.cosines_stride;
    sines = tables.sines + position * tables.sines_stride;
  }

  // Of the index-th eight pairs.
  __device__ __forceinline__ Octet cosine(int index) const {
    return Octets<Table>::load(cosines + index * Octets<Table>::kBytes);
  }
  __device__ __forceinline__ Octet sine(int index) const {
    return Octets<Table>::load(sines + index * Octets<Table>::kBytes);
  }

 private:
  const char *cosines, *sines;
};

__device__ __forceinline__ void turn_pair(float& x, float& y, float cosine, float sine) {
  const float turned = __fmaf_rn(x, cosine, -(y * sine));
  y = __fmaf_rn(y, cosine, x * sine);
  x = turned;
}

// Eight pairs: of elements of two chunks that have the same place there, or of neighbours, of which the first chunk has
// four pairs.
template <Rotary kRotary>
__device__ __forceinline__ void turn_pairs(Octet& x, Octet& y, const Octet& cosine, const Octet& sine) {
#pragma unroll
  for (int i = 0; i < kChunkElements; ++i) {
    if constexpr (kRotary == Rotary::halves) {
      turn_pair(x.x[i], y.x[i], cosine.x[i], sine.x[i]);
    } else {
      Octet& pairs = i < kChunkElements / 2 ? x : y;
      turn_pair(pairs.x[2 * i % kChunkElements], pairs.x[2 * i % kChunkElements + 1], cosine.x[i], sine.x[i]);
    }
  }
}

// One of the two chunks alone, with the same bits: of halves beside the other one,
__device__ __forceinline__ void turn_half(Octet& x, const Octet& other, const Octet& cosine, const Octet& sine,
                                          bool is_second) {
#pragma unroll
  for (int i = 0; i < kChunkElements; ++i) {
    const float product = other.x[i] * sine.x[i];
    x.x[i] = __fmaf_rn(x.x[i], cosine.x[i], is_second ? product : -product);
  }
}
// and of neighbours by itself.
__device__ __forceinline__ void turn_neighbours(Octet& x, const Octet& cosine, const Octet& sine, bool is_second) {
  constexpr int kPairs = kChunkElements / 2;
#pragma unroll
  for (int i = 0; i < kPairs; ++i)
    turn_pair(x.x[2 * i], x.x[2 * i + 1], is_second ? cosine.x[i + kPairs] : cosine.x[i],
              is_second ? sine.x[i + kPairs] : sine.x[i]);
}
