// SPDX-License-Identifier: Apache-2.0
// Sliding window: a query sees so many keys before its own position and so many behind it.
#pragma once

#include "abi.cuh"
#include "types.cuh"

struct WindowMask {
  static constexpr bool kBegins = true, kEnds = true, kEndsAtPosition = false, kInMemory = false;

  const WindowArguments& window;

  template <class Arguments, class Batch>
  __device__ __forceinline__ WindowMask(const Arguments& args, Batch) : window(args.window) {}

  __device__ __forceinline__ int first(int position) const { return position - window.left; }
  __device__ __forceinline__ int last(int position) const { return position + window.right; }
};
