// SPDX-License-Identifier: Apache-2.0
// Prefix-LM (Raffel et al. 2020): a query sees no key behind its own position but those of its sequence's prefix.
#pragma once

#include "abi.cuh"
#include "types.cuh"

struct PrefixMask {
  static constexpr bool kBegins = false, kEnds = true, kEndsAtPosition = false, kInMemory = true;

  const int last_of_prefix;

  template <class Arguments, class Batch>
  __device__ __forceinline__ PrefixMask(const Arguments& args, Batch batch)
      : last_of_prefix(max(args.prefix.keys[batch()], 0) - 1) {}

  __device__ __forceinline__ int first(int) const { return 0; }
  __device__ __forceinline__ int last(int position) const { return max(position, last_of_prefix); }
};
