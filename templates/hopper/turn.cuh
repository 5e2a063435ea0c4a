// SPDX-License-Identifier: Apache-2.0
// How warpgroups take turns, so that one multiplies while another computes its softmax.
#pragma once

#include "hopper/shape.cuh"
#include "ptx/barrier.cuh"

// Warpgroups take turns in a section, in a circle: each waits for the one before it. Nothing, where the variant takes
// turns in another section or in none.
template <class Config, PingPong kSection>
struct Turn {
  static constexpr int kCount = HopperShape<Config>::kWarpgroups;
  static constexpr bool kTaken = Config::kPingPong == kSection && kCount > 1;
  static constexpr int kThreads = 2 * kWarpgroupSize;  // who waits and who hands over

  const int warpgroup;

  __device__ __forceinline__ static NamedBarrier of(int warpgroup) {
    return static_cast<NamedBarrier>(static_cast<int>(NamedBarrier::first_turn) + warpgroup);
  }
  __device__ __forceinline__ void begin() const {
    if (kTaken && warpgroup == kCount - 1) ptx::bar_arrive<kThreads>(of(0));
  }
  __device__ __forceinline__ void take() const {
    if constexpr (kTaken) ptx::bar_sync<kThreads>(of(warpgroup));
  }
  __device__ __forceinline__ void hand_over() const {
    if constexpr (kTaken) ptx::bar_arrive<kThreads>(of(warpgroup + 1 == kCount ? 0 : warpgroup + 1));
  }
  __device__ __forceinline__ void pass() const {
    take();
    hand_over();
  }
};
