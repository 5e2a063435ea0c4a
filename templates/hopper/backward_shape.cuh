// SPDX-License-Identifier: Apache-2.0
// Sizes of the Hopper backward kernels and their maps of shared memory:
//   [ K | V | Q ring | dO ring | a kernel's own tiles | LSE and D of the rings | barriers, jobs ]
#pragma once

#include "hopper/backward_jobs.cuh"
#include "pipeline/ring.cuh"
#include "tile/panel_tile.cuh"
#include "types.cuh"

constexpr int kBackwardWarpgroups = 2;  // of consumers
constexpr int kBackwardStages = 2;      // of Q and dO, and of P and dS
template <class Config>
inline constexpr int kScoreRingBytes = kBackwardStages* PanelTile<Config::kBlockQ, Config::kBlockKv>::kBytes;
// Whether dQ is computed transposed, its rows dims and its columns queries: of these any multiple of 8 can be columns
// of a product, but only multiples of 64 rows.
template <class Config>
inline constexpr bool kTransposesQueries = Config::kBlockQ % kWarpgroupRows != 0;
constexpr int kMostDimsBesideQueries = 248;  // of Q and of V, beside 80 queries and without spills in 232 registers

// What both kernels have. kOwnBytes: of their own tiles. kWriters: warps beside the consumers that read what the loader
// announces.
template <class Config, int kOwnBytes, int kWriters>
struct HopperBackwardRings {
  static constexpr int kWarpgroups = kBackwardWarpgroups, kStages = kBackwardStages;
  static constexpr int kConsumerThreads = kWarpgroups * kWarpgroupSize;
  static constexpr int kConsumerWarps = kConsumerThreads / kWarpSize;
  static constexpr int kThreads = kWarpgroupSize + kConsumerThreads;

  // Registers after setmaxnreg: together what the block had at its launch. Scores of 80 queries beside dK and dV of 128
  // dims each need the most.
  static constexpr bool kConsumersNeedMost =
      kTransposesQueries<Config> && Config::kHeadDim + Config::kHeadDimV > kMostDimsBesideQueries;
  static constexpr int kProducerRegisters = kConsumersNeedMost ? 24 : 40;
  static constexpr int kConsumerRegisters = kConsumersNeedMost ? 240 : 232;

  using KTile = PanelTile<Config::kBlockKv, Config::kHeadDim>;
  using VTile = PanelTile<Config::kBlockKv, Config::kHeadDimV>;
  using QTile = PanelTile<Config::kBlockQ, Config::kHeadDim>;
  using OTile = PanelTile<Config::kBlockQ, Config::kHeadDimV>;  // of dO
  using STile = PanelTile<Config::kBlockQ, Config::kBlockKv>;   // of P or dS: panels of 64 keys

  using KRing = RingPlace<1, KTile::kBytes>;
  using VRing = RingPlace<1, VTile::kBytes>;
  // Of Q, and of O, which may be wider.
  static constexpr int kQueryBytes = QTile::kBytes > OTile::kBytes ? QTile::kBytes : OTile::kBytes;
  using QRing = RingPlace<kStages, kQueryBytes>;
  using ORing = RingPlace<kStages, OTile::kBytes>;
  using JobRing = RingPlace<2, HopperBackwardJob<Config>::kBytes>;  // the present one and the next
  static constexpr int kNumbersBytes = Config::kBlockQ * static_cast<int>(sizeof(float));  // one for each query

  static constexpr int kValues = KTile::kBytes;
  static constexpr int kQRing = kValues + VTile::kBytes;
  static constexpr int kORing = kQRing + kStages * kQueryBytes;
  static constexpr int kOwn = kORing + kStages * OTile::kBytes;
  static constexpr int kLse = kOwn + kOwnBytes;
  static constexpr int kRowSums = kLse + kStages * kNumbersBytes;
  static constexpr int kQueryBarriers = kRowSums + kStages * kNumbersBytes;
  static constexpr int kGradientBarriers = kQueryBarriers + QRing::kBarrierBytes;
  static constexpr int kKeyBarriers = kGradientBarriers + ORing::kBarrierBytes;
  static constexpr int kValueBarriers = kKeyBarriers + KRing::kBarrierBytes;
  static constexpr int kJobBarriers = kValueBarriers + VRing::kBarrierBytes;
  static constexpr int kJobs = kJobBarriers + JobRing::kBarrierBytes;
  static constexpr int kOwnBarriers = kJobs + JobRing::kStages * JobRing::kSlotBytes;
  static constexpr int kBarrierSpace = 256 + JobRing::kStages * Config::Sequences::Place::kBytes;
  static constexpr int kSmemBytes = kQueryBarriers + kBarrierSpace;

  SmemAddress smem;
  __device__ __forceinline__ KRing keys() const { return {smem + kKeyBarriers, smem}; }
  __device__ __forceinline__ VRing values() const { return {smem + kValueBarriers, smem + kValues}; }
  __device__ __forceinline__ QRing queries() const { return {smem + kQueryBarriers, smem + kQRing}; }
  // Of dO, whose places are given back with those of Q.
  __device__ __forceinline__ ORing gradients() const { return {smem + kGradientBarriers, smem + kORing}; }
  __device__ __forceinline__ SmemAddress lse(int stage) const { return smem + kLse + stage * kNumbersBytes; }
  __device__ __forceinline__ SmemAddress row_sums(int stage) const { return smem + kRowSums + stage * kNumbersBytes; }
  __device__ __forceinline__ JobRing jobs() const { return {smem + kJobBarriers, smem + kJobs}; }

  __device__ __forceinline__ void init_barriers() const {
    keys().init(kConsumerWarps);
    values().init(kConsumerWarps);
    queries().init(kConsumerThreads);
    gradients().init(kConsumerThreads);
    jobs().init(kConsumerThreads + kWriters);
  }
};

// Where a warpgroup has 64 keys of its own: dS passes through shared memory, and dQ on its way out. Each warpgroup
// makes 64 rows of a tile of dQ, or of all rows its 64 dims: a part, which lies in memory as in registers, [eight
// columns] [thread][4].
template <class Config>
struct HopperBackwardParts {
  static constexpr bool kAreRows = Config::kBlockQ == kBackwardWarpgroups * kWarpgroupRows;
  static constexpr int kColumns = kAreRows                     ? Config::kHeadDim
                                  : kTransposesQueries<Config> ? Config::kBlockQ
                                                               : kWarpgroupRows;
  static constexpr int kBytes = kWarpgroupRows * kColumns * static_cast<int>(sizeof(float));
  static constexpr int kOwnBytes = kScoreRingBytes<Config> + kBackwardWarpgroups * kBytes;
};
template <class Config>
struct HopperBackwardShape : HopperBackwardRings<Config, HopperBackwardParts<Config>::kOwnBytes, kBackwardWarpgroups> {
  using Parts = HopperBackwardParts<Config>;
  using Rings = HopperBackwardRings<Config, Parts::kOwnBytes, kBackwardWarpgroups>;
  using STile = typename Rings::STile;
  static constexpr int kWarpgroups = Rings::kWarpgroups;
  static_assert(Config::kBlockKv == kWarpgroups * kWarpgroupRows, "each warpgroup has 64 keys");
  static_assert(Parts::kAreRows || ((kTransposesQueries<Config> || Config::kBlockQ == kWarpgroupRows) &&
                                    Rings::KTile::kPanels == kWarpgroups),
                "warpgroups must share out dQ");

  static constexpr bool kPartsAreRows = Parts::kAreRows;
  static constexpr int kPartBytes = Parts::kBytes, kPartChunks = Parts::kColumns / kChunkElements;
  static constexpr int kAdders = kWarpgroups;  // that tell when a tile of keys has added all that it has to dQ
  using PartRing = RingPlace<1, Parts::kBytes>;
  using DerivativeRing = RingPlace<Rings::kStages, STile::kBytes>;
  static constexpr int kDerivativeBarriers = Rings::kOwnBarriers + kWarpgroups * PartRing::kBarrierBytes;
  static constexpr int kParts = Rings::kOwn + kScoreRingBytes<Config>;
  static_assert(kDerivativeBarriers + DerivativeRing::kBarrierBytes <= Rings::kSmemBytes,
                "barriers outgrow their space");

  // Both warpgroups fill a tile and both use it.
  __device__ __forceinline__ DerivativeRing derivatives() const {
    return {this->smem + kDerivativeBarriers, this->smem + Rings::kOwn};
  }
  // Of dQ: full when its warpgroup has written it, empty when it is read.
  __device__ __forceinline__ PartRing part(int i) const {
    return {this->smem + Rings::kOwnBarriers + i * PartRing::kBarrierBytes, this->smem + kParts + i * Parts::kBytes};
  }
  __device__ __forceinline__ void init_barriers() const {
    Rings::init_barriers();
#pragma unroll
    for (int i = 0; i < kWarpgroups; ++i) part(i).init(1, kWarpgroupSize / kWarpSize);
    derivatives().init(Rings::kConsumerWarps, Rings::kConsumerWarps);
    ptx::fence_mbarrier_init();
  }
};

// Where warpgroups share 64 keys, for heads whose dK and dV of 128 keys registers cannot hold: each has the scores of
// half of the queries, and half of the dims of all three gradients. P and dS pass through shared memory.
template <class Config>
struct HopperBackwardWideShape : HopperBackwardRings<Config, 2 * kScoreRingBytes<Config>, Config::kDeterministic> {
  using Rings = HopperBackwardRings<Config, 2 * kScoreRingBytes<Config>, Config::kDeterministic>;
  using STile = typename Rings::STile;
  static constexpr int kWarpgroups = Rings::kWarpgroups;
  static constexpr int kQueriesOfWarpgroup = Config::kBlockQ / kWarpgroups;
  static constexpr int kPanelsOfWarpgroup = Rings::KTile::kPanels / kWarpgroups;
  static constexpr int kColumns = kPanelsOfWarpgroup * Rings::KTile::kPanelColumns;
  static constexpr int kPartBytes = kWarpgroupRows * kColumns * static_cast<int>(sizeof(float));
  static constexpr bool kPartsAreRows = false;
  static constexpr int kAdders = Rings::kConsumerWarps;  // that tell when a tile of keys has added all to dQ
  static constexpr int kPartChunks = kColumns / kChunkElements;
  static_assert(Config::kBlockKv == kWarpgroupRows && Config::kBlockQ == kWarpgroupRows, "tiles of 64 by 64");
  static_assert(kPanelsOfWarpgroup * kWarpgroups == Rings::KTile::kPanels &&
                    Rings::VTile::kPanels == Rings::KTile::kPanels,
                "warpgroups must share out the dims");
  using TurnRing = RingPlace<1, 0>;
  static_assert(Rings::kOwnBarriers + TurnRing::kBarrierBytes <= Rings::kSmemBytes, "barriers outgrow their space");

  __device__ __forceinline__ SmemAddress probabilities(int stage) const {
    return this->smem + Rings::kOwn + stage * STile::kBytes;
  }
  __device__ __forceinline__ SmemAddress derivatives(int stage) const { return probabilities(Rings::kStages + stage); }
  // Where tiles of keys take turns: full while it is this one's, empty when all warps have added.
  __device__ __forceinline__ TurnRing turn() const { return {this->smem + Rings::kOwnBarriers, this->smem}; }
  __device__ __forceinline__ void init_barriers() const {
    Rings::init_barriers();
    if constexpr (Config::kDeterministic) turn().init(Rings::kConsumerWarps);
    ptx::fence_mbarrier_init();
  }
};
