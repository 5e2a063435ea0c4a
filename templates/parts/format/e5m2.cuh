// SPDX-License-Identifier: Apache-2.0
// Elements of e5m2, which are the upper halves of an f16 each.
#pragma once

#include "ptx/convert.cuh"
#include "types.cuh"

struct E5m2 {
  using Key = E5m2Element;
  using Value = E5m2BesideE4m3;

  __device__ __forceinline__ static void to_halves(uint32 word, uint32& low, uint32& high) {
    constexpr uint32 kLow = 0x1404, kHigh = 0x3424;  // 4 is a byte of zeros
    low = ptx::prmt(word, kLow), high = ptx::prmt(word, kHigh);
  }
};
