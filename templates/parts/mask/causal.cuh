// SPDX-License-Identifier: Apache-2.0
// Causal: a query sees no key behind its own position.
#pragma once

#include "types.cuh"

struct CausalMask {
  static constexpr bool kBegins = false, kEnds = true, kEndsAtPosition = true, kInMemory = false;

  template <class Arguments, class Batch>
  __device__ __forceinline__ CausalMask(const Arguments&, Batch) {}

  __device__ __forceinline__ int first(int) const { return 0; }
  __device__ __forceinline__ int last(int position) const { return position; }
};
