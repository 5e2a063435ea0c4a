// SPDX-License-Identifier: Apache-2.0
// Of ALiBi's slopes, which take the distance between key and position from a score (parts/score/alibi.cuh). Each warp
// stores what it has of a head and a tile of keys, and kernels/head_gradients.cuh adds that up in its order: sums by
// atomic additions would differ from run to run.
#pragma once

#include "attention/score_gradient.cuh"
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"

struct SlopeGradient {
  const SlopeGradientArguments& args;
  float sum = 0.0f;

  template <class Arguments>
  __device__ __forceinline__ explicit SlopeGradient(const Arguments& of_launch) : args(of_launch.slope_gradient) {}

  __device__ __forceinline__ void add(float derivative, const RowPlace& place, Key key) {
    sum = __fmaf_rn(-derivative, fabsf(key.distance_from(place.position)), sum);
  }
  __device__ __forceinline__ void end_head(const HeadOfTile& of) {
#pragma unroll
    for (int lanes = kWarpSize; lanes > 1; lanes /= 2) sum += ptx::shfl_xor(sum, lanes / 2);
    if (of.lane == 0) ptx::st_global(args.sums + of.index * of.warps + of.warp, sum);
    sum = 0.0f;
  }
};
