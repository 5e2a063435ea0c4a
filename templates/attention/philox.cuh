// SPDX-License-Identifier: Apache-2.0
// Philox4x32 with seven rounds (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): the fewest that
// pass all tests of that paper. Random bits of a counter, which nobody has to keep.
#pragma once

#include "types.cuh"

struct PhiloxBlock {
  uint32 x[4];
};

struct PhiloxKey {
  uint32 x[2];
};

__device__ __forceinline__ PhiloxBlock philox(PhiloxBlock counter, PhiloxKey key) {
  constexpr int kRounds = 7;
  constexpr uint32 kMultipliers[2] = {0xd2511f53, 0xcd9e8d57};
  constexpr uint32 kWeyl[2] = {0x9e3779b9, 0xbb67ae85};  // what each round adds to the key
#pragma unroll
  for (uint32 round = 0; round < kRounds; ++round) {
    // By halves: of a product of two 64-bit numbers ptxas adds the upper words' part, which is 0.
    const uint32 first = counter.x[0], second = counter.x[2];
    counter = {
        {__umulhi(kMultipliers[1], second) ^ counter.x[1] ^ (key.x[0] + round * kWeyl[0]), kMultipliers[1] * second,
         __umulhi(kMultipliers[0], first) ^ counter.x[3] ^ (key.x[1] + round * kWeyl[1]), kMultipliers[0] * first}};
  }
  return counter;
}
