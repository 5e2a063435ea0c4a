// SPDX-License-Identifier: Apache-2.0
// Products of e4m3: queries, keys, values and probabilities. Tiles have scales of their own, which cost nothing: those
// of queries and keys go into the softmax's scale, those of values into the division by the sums.
#pragma once

#include "abi.cuh"
#include "attention/products.cuh"
#include "ptx/memory.cuh"
#include "types.cuh"

// E4m3 has numbers from 2^-9 to 448. What a score at its row's maximum becomes is far enough above the least that small
// probabilities keep their digits, and far enough below the largest that a maximum may lag behind. Its logarithm is an
// integer: what a row with one key has is exact.
template <int kPeakLog2_>
struct E4m3Probabilities {
  static constexpr int kPeakLog2 = kPeakLog2_;
  static constexpr float kMostLog2 = 8.75f;
  // None of a lane's is above what all of them are together.
  static constexpr float kMostOfLane = 448.0f;
  // A probability becomes e4m3, its row's sum does not: what a reference was rounded by is an error then. Up to here it
  // is below 2^-9, less than half a step of bf16.
  static constexpr float kFar = 16384.0f;
};

// A lane whose columns all are at the maximum is within what a lazy one may sum to.
__device__ constexpr int e4m3_peak_log2(Rescale rescale, int columns) {
  int peak = 4;
  while (rescale == Rescale::lazy && (columns << peak) > 448) --peak;
  return peak;
}

struct E4m3Products {
  static constexpr int kElementsOfWord = 2;
  static constexpr bool kTransposesValues = true;

  template <Rescale kRescale, int kColumns>
  using Probabilities = E4m3Probabilities<e4m3_peak_log2(kRescale, kColumns)>;

  // Of a head of a batch entry, that of products times the launch's.
  template <class Config>
  struct Scales {
    static constexpr bool kAny = true;

    float of_products, of_values;

    template <class Tiles, class Tile>
    __device__ __forceinline__ Scales(const Tiles& tiles, const Tile& tile) {
      const auto& args = tiles.args;
      const int head = tiles.heads().first(tile.head), kv_head = tile.head / args.core.sizes.heads_per_group;
      // By the scale first, which may be what keeps the product in f32.
      of_products = args.core.sizes.scale_log2 * at(args.e4m3_queries.queries, tile.batch, head) *
                    at(args.e4m3.keys, tile.batch, kv_head);
      // Nothing may be 0, nor a slope over it infinite; no score, of 2^26 products at most, changes by it.
      of_products = fmaxf(of_products, kSmallest);
      of_values = at(args.e4m3.values, tile.batch, kv_head);
    }

   private:
    static constexpr float kSmallest = 5.42101086e-20f;  // 2^-64

    __device__ __forceinline__ static float at(const ScaleTensor& scales, int batch, int head) {
      if (scales.first == nullptr) return 1.0f;
      return ptx::ld_global_float(scales.first + batch * scales.strides.batch + head * scales.strides.head);
    }
  };
};
