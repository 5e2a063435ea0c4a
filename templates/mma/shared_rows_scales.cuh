// SPDX-License-Identifier: Apache-2.0
// What keys and values of fewer bits are multiplied by, where warps share rows: of a block each warp has a quarter of
// the keys, and some columns of the output for all of them. By how they are stored (attention/stored.cuh):
//   begin(launch, place)      place: of the tile's keys, as KeyRows
//   find(first_key, keys)     those of a block, of so many keys that there are from there on
//   apply_to_scores(s)        products of the warp's keys, all that were made of scaled elements
//   weights(o)                for weigh(): what probabilities of the warp's keys are multiplied by, once they are in
//                             their row's sum; o: the output, before values of the block are added to it
//   weigh(weights, p0, p1, n) a lane's in the n-th eight of these keys
//   apply_to_output(o)        once all values have been added
#pragma once

#include "abi.cuh"
#include "attention/scale_reference.cuh"
#include "attention/softmax.cuh"
#include "attention/stored.cuh"
#include "mma/key_rows.cuh"
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"
#include "types.cuh"

// Parts, which a kernel has or has not.
struct E4m3;
struct TokenScales;

template <class Config, class Shape, class Stored = typename Config::Stored>
struct SharedRowsScales;

// Of elements as products take them: all are 1.
template <class Config, class Shape>
struct SharedRowsScales<Config, Shape, StoredAs<>> {
  struct Weights {};

  template <class Launch, class Place>
  __device__ __forceinline__ void begin(const Launch&, const Place&, int) {}
  __device__ __forceinline__ void find(int, int) const {}
  template <class Scores>
  __device__ __forceinline__ void apply_to_scores(Scores&) const {}
  template <class Output>
  __device__ __forceinline__ Weights weights(Output&) const {
    return {};
  }
  __device__ __forceinline__ void weigh(const Weights&, float&, float&, int) const {}
  template <class Output>
  __device__ __forceinline__ void apply_to_output(Output&) const {}
};

// One for all keys of a head, and one for their values.
template <class Config, class Shape>
struct SharedRowsScales<Config, Shape, StoredAs<E4m3>> : SharedRowsScales<Config, Shape, StoredAs<>> {
  template <class Launch, class Place>
  __device__ __forceinline__ void begin(const Launch& launch, const Place& place, int) {
    of_keys = of_head(launch.e4m3.keys, place), of_values = of_head(launch.e4m3.values, place);
  }
  template <int kM, int kNs>
  __device__ __forceinline__ void apply_to_scores(Accumulator<kM, kNs>& s) const {
    s.multiply(of_keys);
  }
  template <int kM, int kNo>
  __device__ __forceinline__ void apply_to_output(Accumulator<kM, kNo>& o) const {
    o.multiply(of_values);
  }

 private:
  template <class Place>
  __device__ __forceinline__ static float of_head(const ScaleTensor& scales, const Place& place) {
    return scales.first == nullptr ? 1.0f : ptx::ld_global_float(place.first(scales.first, scales.strides));
  }

  float of_keys, of_values;
};

// One for each key, and one for its value. A lane reads those of every 32nd key of a block; lanes have their columns'
// from each other, and what raises the reference is the same in all warps that share rows.
template <class Config, class Shape>
class SharedRowsScales<Config, Shape, StoredAs<E4m3, TokenScales>> {
 public:
  struct Weights {
    float x[Shape::kWarpKeys / 8][2];
  };

  template <class Launch, class Place>
  __device__ __forceinline__ void begin(const Launch& launch, const Place& place_, int lane_) {
    tensors = &launch.e4m3, place = place_, lane = lane_;
  }
  __device__ __forceinline__ void find(int first_key, int keys) {
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int key = kWarpSize * i + lane;
      of_keys[i] = of_values[i] = 0.0f;
      if (key >= keys) continue;
      of_keys[i] = ptx::ld_global_float(place.of_key(tensors->keys.first, tensors->keys.strides, first_key + key));
      of_values[i] =
          ptx::ld_global_float(place.of_key(tensors->values.first, tensors->values.strides, first_key + key));
    }
  }
  template <int kM, int kNs>
  __device__ __forceinline__ void apply_to_scores(Accumulator<kM, kNs>& s) const {
    const Weights own = own_of(of_keys);
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kNs; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) s.x[m][n][e] *= own.x[n][e % 2];
  }
  template <int kM, int kNo>
  __device__ __forceinline__ Weights weights(Accumulator<kM, kNo>& o) {
    float largest = 0.0f;
#pragma unroll
    for (const float scale : of_values) largest = fmaxf(largest, fabsf(scale));
    if (ptx::vote_any(reference.is_exceeded_by(largest))) {
#pragma unroll
      for (int distance = kWarpSize / 2; distance > 0; distance /= 2)
        largest = fmaxf(largest, ptx::shfl_xor(largest, distance));
      o.multiply(reference.raise(largest));
    }
#pragma unroll
    for (float& scale : of_values) scale *= reference.inverse();
    return own_of(of_values);
  }
  __device__ __forceinline__ void weigh(const Weights& weights, float& p0, float& p1, int n) const {
    p0 *= weights.x[n][0], p1 *= weights.x[n][1];
  }
  template <int kM, int kNo>
  __device__ __forceinline__ void apply_to_output(Accumulator<kM, kNo>& o) const {
    o.multiply(reference.value());
  }

 private:
  static constexpr int kOfLane = Config::kBlockKv / kWarpSize;
  using OfLane = float[kOfLane];

  // Of the columns of scores that a lane has.
  __device__ __forceinline__ Weights own_of(const OfLane& of_block) const {
    const int first = Shape::part() * Shape::kWarpKeys;
    float of_warp = 0.0f;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const float of_quarter = of_block[i];
      of_warp = first / kWarpSize == i ? of_quarter : of_warp;
    }
    Weights own;
#pragma unroll
    for (int n = 0; n < Shape::kWarpKeys / 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) own.x[n][e] = ptx::shfl_from(first % kWarpSize + 8 * n + lane % 4 * 2 + e, of_warp);
    return own;
  }

  const E4m3Arguments* tensors;
  KeyRows<Config> place;
  int lane;
  OfLane of_keys, of_values;
  ScaleReference reference;
};
