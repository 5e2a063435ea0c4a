// SPDX-License-Identifier: Apache-2.0
// Nothing but mma.sync from registers: the rate that the tensor cores give to this instruction class.
#pragma once

#include "ptx/mma.cuh"
#include "ptx/special_registers.cuh"

// One iteration of one warp: kChains independent accumulators, so that the latency is hidden with few warps.
template <class Element>
__device__ __forceinline__ void mma_ceiling(float* sink, int iterations) {
  constexpr int kChains = 16;
  float d[kChains][4] = {};
  const uint32 seed = ptx::tid_x() * 2654435761u;
  // Random finite elements: exponents are cut to at most 1, in f16 and in bf16.
  const uint32 a[4] = {seed & 0xbfffbfff, seed * 3 & 0xbfffbfff, seed * 5 & 0xbfffbfff, seed * 7 & 0xbfffbfff};
#pragma unroll 1
  for (int i = 0; i < iterations; ++i) {
#pragma unroll
    for (int chain = 0; chain < kChains; ++chain) ptx::mma(Element{}, d[chain], a, a[chain % 4], a[1]);
  }
  float total = 0.0f;
#pragma unroll
  for (int chain = 0; chain < kChains; ++chain) total += d[chain][0] + d[chain][1] + d[chain][2] + d[chain][3];
  if (total == 1.2345f) *sink = total;  // keeps the loop alive
}
