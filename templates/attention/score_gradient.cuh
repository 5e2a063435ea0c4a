// SPDX-License-Identifier: Apache-2.0
// The slot of gradients of what scores are made of: what a backward kernel sums of the derivatives of scores for the
// parameters of parts in their slot (attention/score.cuh), for each that is wanted. Its contract:
//   explicit Part(const Arguments&)      the launch's arguments, of which a part reads the member of its own
//   void add(float derivative, const RowPlace& place, Key key)
//                                        of a score, both in natural logarithms; 0 where the query does not see the
//                                        key. Rows and keys that do not exist come, too
//   void end_head(const HeadOfTile& of)  what came since the last time were all scores of this head
// Parameters are what straight parts add to scores: the derivative is that by the score as it is behind them.
#pragma once

#include "abi.cuh"
#include "attention/key.cuh"
#include "attention/row_place.cuh"
#include "types.cuh"

// Of a warp that has a part of the scores of a query head and a tile of keys.
struct HeadOfTile {
  int64 index;  // among those of all batch entries, heads and tiles
  int warps, warp, lane;
};

template <class... Parts>
struct AllAdded;

template <>
struct AllAdded<> {
  static constexpr bool kAny = false;

  template <class Arguments>
  __device__ __forceinline__ explicit AllAdded(const Arguments&) {}

  __device__ __forceinline__ void add(float, const RowPlace&, Key) {}
  __device__ __forceinline__ void end_head(const HeadOfTile&) {}
};

template <class Part, class... Rest>
struct AllAdded<Part, Rest...> {
  static constexpr bool kAny = true;

  Part part;
  AllAdded<Rest...> others;

  template <class Arguments>
  __device__ __forceinline__ explicit AllAdded(const Arguments& args) : part(args), others(args) {}

  __device__ __forceinline__ void add(float derivative, const RowPlace& place, Key key) {
    part.add(derivative, place, key);
    others.add(derivative, place, key);
  }
  __device__ __forceinline__ void end_head(const HeadOfTile& of) {
    part.end_head(of);
    others.end_head(of);
  }
};
