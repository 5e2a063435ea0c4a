// SPDX-License-Identifier: Apache-2.0
// Columns of 8 bits in their order. Of every eight columns an accumulator gives lane t of a row's four 2t and 2t + 1;
// what takes words of 8 bits wants 4t to 4t + 3 of every sixteen from it. docs/kernels/fp8.md draws it.
#pragma once

#include "ptx/barrier.cuh"
#include "ptx/convert.cuh"
#include "types.cuh"

// Pair q of sixteen columns has 2q and 2q + 1. Lane t has pairs t and 4 + t, in the halves of a word, and is to have 2t
// and 2t + 1; two words of the same columns of two rows are exchanged together, so that all that is sent is taken.
class Neighbours {
 public:
  __device__ __forceinline__ explicit Neighbours(uint32 lane)
      : from((lane & 1) << 1 | (lane & 2) >> 1),
        sent((lane & 1) != 0 ? kUpperHalves : kLowerHalves),
        taken((lane & 2) != 0 ? kSecondFirst : kLowerHalves) {}

  // Lanes 0 and 2 send their lower pairs first, 1 and 3 their upper ones: then no lane is asked for both at once.
  __device__ __forceinline__ void exchange(uint32& x, uint32& y) const {
    const uint32 first = ptx::shfl_from_quad(from, ptx::prmt(x, y, sent));
    const uint32 second = ptx::shfl_from_quad(from ^ 1, ptx::prmt(x, y, sent ^ kOtherHalves));
    x = ptx::prmt(first, second, taken);
    y = ptx::prmt(first, second, taken ^ kOtherHalves);
  }

 private:
  // Orders of prmt: of both words the lower halves, the upper ones, and the lower ones with that of the second first.
  static constexpr uint32 kLowerHalves = 0x5410, kUpperHalves = 0x7632, kSecondFirst = 0x1054;
  static constexpr uint32 kOtherHalves = 0x2222;  // by XOR, from lower to upper and back

  const uint32 from;  // of the row's lanes, which has the first of what this one needs
  const uint32 sent, taken;
};
