// SPDX-License-Identifier: Apache-2.0
// ALiBi (Press et al. 2022): a score loses the head's slope times the distance between key and position.
#pragma once

#include "abi.cuh"
#include "attention/score.cuh"
#include "ptx/convert.cuh"

struct AlibiSlopes {
  static constexpr bool kMayHide = false, kIsLong = false, kFetches = false, kIsCurved = false;

  const HeadArguments& alibi;

  template <class Arguments>
  __device__ __forceinline__ explicit AlibiSlopes(const Arguments& args) : alibi(args.alibi) {}

  // Where all keys lie before the position, the distance falls evenly along the keys.
  template <bool kDefers>
  struct Row {
    static constexpr bool kCommon = kDefers, kHasNear = false;

    int position;
    float slope;  // in the unit of the scores, for each key of distance

    __device__ __forceinline__ Row at(int other) const { return {other, slope}; }
    __device__ __forceinline__ float apply(float score, Key key) const {
      if constexpr (kDefers) return __fmaf_rn(slope, static_cast<float>(key.offset), score);
      return __fmaf_rn(-slope, fabsf(key.distance_from(position)), score);
    }
    __device__ __forceinline__ float common(int first) const { return slope * static_cast<float>(first - position); }
  };
  __device__ __forceinline__ float unit(float taken) const { return taken; }
  template <bool kDefers, class PlaceOfRow>
  __device__ __forceinline__ Row<kDefers> row(PlaceOfRow place, float taken) const {
    const RowPlace of = place();
    return {of.position, value_of_head(alibi, of) * kLog2E * ptx::rcp(taken)};
  }
};
