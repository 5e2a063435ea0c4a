// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "types.cuh"

// A key of its sequence, as a sum of which the compiler knows one term, so that what takes long to compute of a key is
// computed once for all of a lane's columns.
struct Key {
  int first;   // the key of the lane's first column
  int offset;  // from there; known when the kernel is compiled

  // Exact below 2^24.
  __device__ __forceinline__ float distance_from(int position) const {
    return static_cast<float>(first - position) + static_cast<float>(offset);
  }
};
