// SPDX-License-Identifier: Apache-2.0
// Probabilities of 16 bits that are multiplied by scales of values: these are divided by a power of two, so that what
// they are multiplied by is near 1. It is raised where one of them needs it, as the softmax raises a maximum, and the
// output is multiplied by it at the end.
#pragma once

#include "types.cuh"

class ScaleReference {
 public:
  // largest: of the magnitudes of some scales.
  __device__ __forceinline__ bool is_exceeded_by(float largest) const { return largest >= 2.0f * value_; }
  // What the output is multiplied by.
  __device__ __forceinline__ float raise(float largest) {
    const float raised = power_of_two_below(largest);
    const float factor = value_ * inverse_of(raised);
    value_ = raised;
    return factor;
  }
  __device__ __forceinline__ float value() const { return value_; }
  __device__ __forceinline__ float inverse() const { return inverse_of(value_); }

 private:
  // From 2^-126 to 2^126, so that its inverse is one, too.
  __device__ __forceinline__ static float power_of_two_below(float x) {
    constexpr uint32 kExponent = 0x7f800000, kSmallest = 0x00800000, kLargest = 0x7e800000;
    return __uint_as_float(min(max(__float_as_uint(x) & kExponent, kSmallest), kLargest));
  }
  __device__ __forceinline__ static float inverse_of(float power_of_two) {
    constexpr uint32 kOneTwice = 0x7f000000;
    return __uint_as_float(kOneTwice - __float_as_uint(power_of_two));
  }

  float value_ = power_of_two_below(0.0f);
};
