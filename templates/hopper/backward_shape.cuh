// SPDX-License-Identifier: Apache-2.0
// Sizes of the Hopper backward kernel and its map of shared memory:
//   [ K | V | Q ring | dO ring | dS ring | dQ | LSE and D of the rings | barriers ]
#pragma once

#include "pipeline/ring.cuh"
#include "tile/panel_tile.cuh"
#include "types.cuh"

template <class Config>
struct HopperBackwardShape {
  static constexpr int kWarpgroups = Config::kBlockKv / kWarpgroupRows;  // of consumers: 64 keys each
  static constexpr int kConsumerThreads = kWarpgroups * kWarpgroupSize;
  static constexpr int kConsumerWarps = kConsumerThreads / kWarpSize;
  static constexpr int kWarpgroupWarps = kWarpgroupSize / kWarpSize;
  static constexpr int kThreads = kWarpgroupSize + kConsumerThreads;
  static_assert(kWarpgroups == 2, "two warpgroups share out dQ");

  // Registers after setmaxnreg: together what the block had at its launch.
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;

  using KTile = PanelTile<Config::kBlockKv, Config::kHeadDim>;
  using VTile = PanelTile<Config::kBlockKv, Config::kHeadDimV>;
  using QTile = PanelTile<Config::kBlockQ, Config::kHeadDim>;
  using OTile = PanelTile<Config::kBlockQ, Config::kHeadDimV>;  // of dO
  using STile = PanelTile<Config::kBlockQ, Config::kBlockKv>;   // of dS: a panel for each warpgroup

  // Each warpgroup makes 64 rows of a tile of dQ, or of 64 rows its 64 dims: a part, which lies in memory as in
  // registers, [eight columns][thread][4].
  static constexpr bool kPartsAreRows = Config::kBlockQ == kWarpgroups * kWarpgroupRows;
  static constexpr int kPartColumns = kPartsAreRows ? Config::kHeadDim : kWarpgroupRows;
  static constexpr int kPartBytes = kWarpgroupRows * kPartColumns * static_cast<int>(sizeof(float));
  static_assert(kPartsAreRows || (Config::kBlockQ == kWarpgroupRows && KTile::kPanels == kWarpgroups),
                "warpgroups must share out dQ");

  using QRing = RingPlace<Config::kStages, QTile::kBytes>;
  using ORing = RingPlace<Config::kStages, OTile::kBytes>;
  static constexpr int kDerivativeTiles = 2;  // one is read while the next is written
  static constexpr int kNumbersBytes = Config::kBlockQ * static_cast<int>(sizeof(float));  // one for each query

  static constexpr int kValues = KTile::kBytes;
  static constexpr int kQRing = kValues + VTile::kBytes;
  static constexpr int kORing = kQRing + Config::kStages * QTile::kBytes;
  static constexpr int kDerivatives = kORing + Config::kStages * OTile::kBytes;
  static constexpr int kQueryGradients = kDerivatives + kDerivativeTiles * STile::kBytes;
  static constexpr int kLse = kQueryGradients + kWarpgroups * kPartBytes;
  static constexpr int kRowSums = kLse + Config::kStages * kNumbersBytes;
  static constexpr int kQueryBarriers = kRowSums + Config::kStages * kNumbersBytes;
  static constexpr int kGradientBarriers = kQueryBarriers + QRing::kBarrierBytes;
  static constexpr int kKeyBarrier = kGradientBarriers + ORing::kBarrierBytes;
  static constexpr int kValueBarrier = kKeyBarrier + kMbarrierBytes;
  static constexpr int kPartBarriers = kValueBarrier + kMbarrierBytes;  // full ones, then empty ones
  static constexpr int kBarrierSpace = 128;
  static constexpr int kSmemBytes = kQueryBarriers + kBarrierSpace;
  static_assert(kPartBarriers + 2 * kWarpgroups * kMbarrierBytes <= kSmemBytes, "barriers outgrow their space");

  SmemAddress smem;
  __device__ __forceinline__ SmemAddress keys() const { return smem; }
  __device__ __forceinline__ SmemAddress values() const { return smem + kValues; }
  __device__ __forceinline__ QRing queries() const { return {smem + kQueryBarriers, smem + kQRing}; }
  __device__ __forceinline__ ORing gradients() const { return {smem + kGradientBarriers, smem + kORing}; }
  __device__ __forceinline__ SmemAddress lse(int stage) const { return smem + kLse + stage * kNumbersBytes; }
  __device__ __forceinline__ SmemAddress row_sums(int stage) const { return smem + kRowSums + stage * kNumbersBytes; }
  __device__ __forceinline__ SmemAddress key_barrier() const { return smem + kKeyBarrier; }
  __device__ __forceinline__ SmemAddress value_barrier() const { return smem + kValueBarrier; }
  // Of a part of dQ: full when its warpgroup has written it, empty when it is read.
  __device__ __forceinline__ SmemAddress part(int i) const { return smem + kQueryGradients + i * kPartBytes; }
  __device__ __forceinline__ SmemAddress part_full(int i) const { return smem + kPartBarriers + i * kMbarrierBytes; }
  __device__ __forceinline__ SmemAddress part_empty(int i) const { return part_full(kWarpgroups + i); }

  __device__ __forceinline__ void init_barriers() const {
    queries().init(kConsumerWarps);
    gradients().init(kConsumerWarps);
    ptx::mbarrier_init(key_barrier(), 1);
    ptx::mbarrier_init(value_barrier(), 1);
#pragma unroll
    for (int i = 0; i < kWarpgroups; ++i) {
      ptx::mbarrier_init(part_full(i), kWarpgroupWarps);
      ptx::mbarrier_init(part_empty(i), 1);
    }
    ptx::fence_mbarrier_init();
  }
};
