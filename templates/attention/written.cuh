// SPDX-License-Identifier: Apache-2.0
// What the output is written as: the elements that other tensors of the problem have, or as a part in this slot says.
// Its contract:
//   static constexpr int kElementsOfWord   so many are in 16 bits
//   factor(arguments)                      where that are two: what it is multiplied by before it is rounded
//   arrange(words)                         brings a lane's, as OutputMatrix::pack makes them, in the order of memory
#pragma once

#include "types.cuh"

// At most one part.
template <class... Parts>
struct WrittenAs;

template <>
struct WrittenAs<> {
  static constexpr int kElementsOfWord = 1;

  template <int kWords>
  __device__ __forceinline__ static void arrange(uint32 (&)[kWords]) {}
};

template <class Part>
struct WrittenAs<Part> : Part {};
