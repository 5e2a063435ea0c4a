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

// A word times a constant. By halves: of a product of two 64-bit numbers ptxas adds the upper words' part, which is 0.
struct PhiloxProduct {
  uint32 low, high;

  __device__ __forceinline__ PhiloxProduct(uint32 x, uint32 multiplier)
      : low(x * multiplier), high(__umulhi(x, multiplier)) {}
};

// The blocks of counters that differ in x[1] alone. It takes three rounds until that is in all four words: what the
// other words give until then is found once.
struct PhiloxSeries {
  PhiloxKey key;
  // What words are XORed with to be those after a round, and the last one all of it.
  uint32 x0_after_1, x2_after_2, x0_after_3, x2_after_3, x3_after_3;

  // x[1] of the counter is not read.
  static __device__ __forceinline__ PhiloxSeries of(const PhiloxBlock& counter, const PhiloxKey& key) {
    PhiloxSeries series{key};
    const PhiloxProduct x0 = times_first(counter.x[0]), x2 = times_second(counter.x[2]);
    series.x0_after_1 = x2.high ^ key_word(key, 0, 0);
    series.x2_after_2 = x0.low ^ key_word(key, 1, 1);
    const PhiloxProduct x2_of_2 = times_second(x0.high ^ counter.x[3] ^ key_word(key, 0, 1));
    const PhiloxProduct x0_of_3 = times_first(x2_of_2.high ^ x2.low ^ key_word(key, 1, 0));
    series.x0_after_3 = x2_of_2.low ^ key_word(key, 2, 0);
    series.x2_after_3 = x0_of_3.high ^ key_word(key, 2, 1);
    series.x3_after_3 = x0_of_3.low;
    return series;
  }

  __device__ __forceinline__ PhiloxBlock block(uint32 x1) const {
    const PhiloxProduct x0_of_2 = times_first(x1 ^ x0_after_1);
    const PhiloxProduct x2_of_3 = times_second(x0_of_2.high ^ x2_after_2);
    PhiloxBlock block{{x2_of_3.high ^ x0_after_3, x2_of_3.low, x0_of_2.low ^ x2_after_3, x3_after_3}};
    constexpr int kRounds = 7;
#pragma unroll
    for (int round = 3; round < kRounds; ++round) {
      const PhiloxProduct x0 = times_first(block.x[0]), x2 = times_second(block.x[2]);
      block = {{x2.high ^ block.x[1] ^ key_word(key, round, 0), x2.low, x0.high ^ block.x[3] ^ key_word(key, round, 1),
                x0.low}};
    }
    return block;
  }

 private:
  static __device__ __forceinline__ PhiloxProduct times_first(uint32 x) { return {x, 0xd2511f53}; }
  static __device__ __forceinline__ PhiloxProduct times_second(uint32 x) { return {x, 0xcd9e8d57}; }
  // Of the key, to which each round adds.
  static __device__ __forceinline__ uint32 key_word(const PhiloxKey& key, uint32 round, int word) {
    constexpr uint32 kWeyl[2] = {0x9e3779b9, 0xbb67ae85};
    return key.x[word] + round * kWeyl[word];
  }
};
