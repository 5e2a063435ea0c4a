// SPDX-License-Identifier: Apache-2.0
// Of a bias, which is added to scores: what it gets is their own, summed in f32 over all that an element stands for.
#pragma once

#include "attention/score_gradient.cuh"
#include "ptx/reduction.cuh"

struct BiasGradient {
  const BiasGradientArguments& args;

  template <class Arguments>
  __device__ __forceinline__ explicit BiasGradient(const Arguments& of_launch) : args(of_launch.bias_gradient) {}

  __device__ __forceinline__ void add(float derivative, const RowPlace& place, Key key) {
    const int query = place.position - (place.sequence.keys - place.sequence.queries), at = key.first + key.offset;
    if (derivative == 0.0f || at >= place.sequence.keys) return;
    ptx::red_add(
        args.sums + place.batch * args.batch_stride + place.head * args.head_stride + query * args.query_stride + at,
        derivative);
  }
  __device__ __forceinline__ void end_head(const HeadOfTile&) {}
};
