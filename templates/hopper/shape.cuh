// SPDX-License-Identifier: Apache-2.0
// Sizes of the Hopper forward kernel and its map of shared memory:
//   [ Q tiles | K ring | V ring | transposed V | output slot | P | what parts fetch | barriers, tiles, notes ]
#pragma once

#include "attention/format.cuh"
#include "attention/products.cuh"
#include "attention/stored.cuh"
#include "attention/values.cuh"
#include "attention/written.cuh"
#include "hopper/cluster_join.cuh"
#include "hopper/joined_row.cuh"
#include "hopper/tiles.cuh"
#include "pipeline/ring.cuh"
#include "tile/panel_tile.cuh"
#include "types.cuh"

template <class Config>
struct HopperShape {
  static constexpr int kWarpgroups = ceil_div(Config::kBlockQ, kWarpgroupRows);  // of consumers
  static constexpr int kConsumerThreads = kWarpgroups * kWarpgroupSize;
  static constexpr int kConsumerWarps = kConsumerThreads / kWarpSize;
  static constexpr int kProducerWarpgroups = Config::kWarpSpecialized ? 1 : 0;
  static constexpr int kProducerWarps =
      kWarpsShareRows<Config> ? 2 * kFeedersOfRing<Config> : kProducerWarpgroups * (kWarpgroupSize / kWarpSize);
  static constexpr int kThreads = kConsumerThreads + kProducerWarps * kWarpSize;

  // Registers after setmaxnreg: together at most what the block had at its launch, 65536 / kThreads for each thread.
  static constexpr int kProducerRegisters = kWarpgroups == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kWarpgroups == 2 ? 232 : kWarpgroups == 3 ? 160 : 112;
  static constexpr bool kMovesRegisters = Config::kWarpSpecialized && kWarpgroups > 1;

  // Columns are words of 16 bits.
  using QTile = PanelTile<Config::kBlockQ, ceil_div(Config::kHeadDim, Config::Products::kElementsOfWord)>;
  static constexpr int kElementsOfWord = Config::Stored::kElementsOfWord;  // of K and V
  using KTile = PanelTile<Config::kBlockKv, ceil_div(Config::kHeadDim, kElementsOfWord)>;
  using PTile = PanelTile<kWarpgroupRows, Config::kBlockKv, power_of_two_in(Config::kBlockKv, 64)>;  // of one warpgroup
  static constexpr int kOutputColumns = ceil_div(Config::kHeadDimV, Config::Written::kElementsOfWord);  // a warpgroup's
  using OutputTile = PanelTile<kWarpgroupRows, kOutputColumns>;

  // The values that are loaded, and those that products take: with rows for keys, or with columns of the output as rows
  // and keys along them. Where the former have rows for keys and the latter have not, warps of the producer's turn
  // them.
  static constexpr bool kComeTransposed = Config::Values::kTransposed;
  static constexpr bool kKeysAlongRows = Config::Products::kTransposesValues;
  static constexpr bool kTransposes = kKeysAlongRows && !kComeTransposed;
  static constexpr int kWordsOfKeys = Config::kBlockKv / kElementsOfWord;
  using RowsOfKeys = PanelTile<Config::kBlockKv, ceil_div(Config::kHeadDimV, kElementsOfWord)>;
  using RowsOfDims = PanelTile<Config::kHeadDimV, kWordsOfKeys, power_of_two_in(kWordsOfKeys, 64)>;
  using VTile = typename Choose<kComeTransposed, RowsOfDims, RowsOfKeys>::type;
  using ValueTile = typename Choose<kKeysAlongRows, RowsOfDims, RowsOfKeys>::type;
  static constexpr int kTransposers = kTransposes ? 2 : 0;  // warps of the producer's
  static constexpr int kFirstTransposer = 2;

  // When a warpgroup waits for P V of the block before: before the exponentials, with a lazy maximum so that the values
  // are free early, and with dropout because these write where P V reads; or after them, so that they overlap, which
  // three warpgroups gain by where products are of 8 bits, unless registers are short.
  // Measured: docs/kernels/hopper_forward.md, docs/kernels/fp8.md.
  static constexpr bool kOverlapsTransposed =
      kKeysAlongRows && !Config::Products::kSumsApart && kWarpgroups == 3 && !Config::kFusedBoundary;
  static constexpr bool kOutputEarly =
      Config::Dropouts::kAny ||
      (Config::kRescale == Rescale::lazy && !kOverlapsTransposed && (kWarpgroups > 2 || Config::kHeadDimV > 128));

  // The output leaves warp by warp: 16 rows, kOutputPanels panels at a time. In the place of Q its panels lie further
  // apart.
  static constexpr int kStoreRows = 16;
  static constexpr bool kOutputInQuery = Config::kOutputSlot == OutputSlot::query;
  static constexpr int kOutputPanels =
      Config::kOutputSlot == OutputSlot::half ? ceil_div(OutputTile::kPanels, 2) : OutputTile::kPanels;
  static constexpr int kOutputPanelBytes = kOutputInQuery ? QTile::kPanelBytes : kStoreRows * OutputTile::kRowBytes;
  static constexpr int kWarpOutputBytes =
      kOutputInQuery ? kStoreRows * QTile::kRowBytes : kOutputPanels * kOutputPanelBytes;
  static constexpr bool kHasOutputSlot = !kOutputInQuery && !kWarpsShareRows<Config>;

  // Where warps share rows, what each of them has made takes the place of keys and values when all of these are used,
  // and after it what the other blocks of a cluster have made.
  static constexpr int kPartRows = Config::kBlockQ < kStoreRows ? Config::kBlockQ : kStoreRows;
  using Part = PartialRows<kPartRows, round_up(Config::kHeadDimV, 16)>;
  static constexpr int kPartsBytes =
      kWarpsShareRows<Config> ? (kConsumerWarps + kMostBlocksOfCluster - 1) * Part::kBytes : 0;
  static constexpr int kMostParts = 16;  // a power of two that is no less
  using JoinRing = RingPlace<1, kPartsBytes>;

  static constexpr bool kSerial = Config::kOverlap == GemmSoftmax::serial;
  static constexpr bool kOneTile = Config::kScheduler == Scheduler::single;

  // Keys are requested one block ahead of values. But a serial warpgroup keeps its keys until its turn is over, and a
  // warpgroup that passes over the block hands on its turn when it has the block's values: with one slot for keys these
  // come first.
  static constexpr bool kKeysAhead = (Config::kStages > 1 || !kSerial) && !kTransposes;
  // Values that are transposed come with their keys: they are not ready before the scores are.
  static constexpr bool kValuesWithKeys = kTransposes;

  // The next tile's query and first keys are requested before the last values of this one, unless the query's slot is
  // free only after those have been used, or shortly before.
  static constexpr bool kNextTileFirst = Config::kQStages > 1 && !kOutputInQuery && !kSerial && !kOneTile;

  using QRing = RingPlace<Config::kQStages, QTile::kBytes>;
  using KRing = RingPlace<Config::kStages, KTile::kBytes>;
  using VRing = RingPlace<Config::kStages, VTile::kBytes>;  // of what is loaded
  using ValueRing = RingPlace<Config::kStages, ValueTile::kBytes>;
  static constexpr int kKnownTiles = 2;  // the present one and the next
  using TileRing = RingPlace<kKnownTiles, HopperTile<Config>::kBytes>;

  // What repeats in the widest swizzle begins where it repeats; of few narrow rows Q has less than that.
  static constexpr int kSwizzleBytes = 1024;
  static constexpr int kKeys = round_up(Config::kQStages * QTile::kBytes, kSwizzleBytes);
  static constexpr int kValues = kKeys + Config::kStages * KTile::kBytes;
  static constexpr int kParts = kKeys;
  static constexpr int kTransposed = kValues + (kComeTransposed ? 0 : Config::kStages * VTile::kBytes);
  static constexpr int kTransposedBytes = kKeysAlongRows ? Config::kStages * ValueTile::kBytes : 0;
  static constexpr int kRingsEnd = kTransposed + round_up(kTransposedBytes, kSwizzleBytes);
  static constexpr int kOutput = kRingsEnd > kParts + kPartsBytes ? kRingsEnd : kParts + kPartsBytes;
  static constexpr int kProbabilities = kOutput + (kHasOutputSlot ? kConsumerWarps * kWarpOutputBytes : 0);
  static constexpr int kFetched =
      kProbabilities + (Config::kProbabilitiesInRegisters ? 0 : kWarpgroups * PTile::kBytes);
  static constexpr int kWarpFetchedBytes =
      Config::ScoreParts::kFetches ? kStoreRows * fetched_row_bytes<Config::kBlockKv>() : 0;
  static constexpr int kQueryBarriers = kFetched + kConsumerWarps * kWarpFetchedBytes;
  static constexpr int kKeyBarriers = kQueryBarriers + QRing::kBarrierBytes;
  static constexpr int kValueBarriers = kKeyBarriers + KRing::kBarrierBytes;
  static constexpr int kTransposedBarriers = kValueBarriers + VRing::kBarrierBytes;
  static constexpr int kTransposedBarrierBytes = kTransposes ? ValueRing::kBarrierBytes : 0;
  static constexpr int kTileBarriers = kTransposedBarriers + kTransposedBarrierBytes;
  static constexpr int kTiles = kTileBarriers + TileRing::kBarrierBytes;
  static constexpr int kNotes = kTiles + TileRing::kStages * TileRing::kSlotBytes;  // one for each stage of the keys
  static constexpr int kNotesBytes = Config::Blocks::kListed ? 32 : 0;
  static constexpr int kPlaceBytes =
      TileRing::kStages * (HopperTile<Config>::Place::kBytes + HopperTile<Config>::Split::kBytes);
  static constexpr int kTransposedSpace = kTransposes ? 64 : 0;  // of its barriers
  static constexpr int kBarrierSpace = 256 + kTransposedSpace + kNotesBytes + kPlaceBytes;
  static constexpr int kSmemBytes = kQueryBarriers + kBarrierSpace;
  static constexpr int kJoinBarriers = kNotes + kNotesBytes;
  static constexpr int kJoinBarrierBytes = kWarpsShareRows<Config> ? JoinRing::kBarrierBytes : 0;
  static_assert(kJoinBarriers + kJoinBarrierBytes <= kSmemBytes, "barriers outgrow their space");
  static_assert(kJoinBarriers % kMbarrierBytes == 0, "notes are of whole barriers' size");

  // The rings of a block whose shared memory starts at smem.
  SmemAddress smem;
  __device__ __forceinline__ QRing queries() const { return {smem + kQueryBarriers, smem}; }
  __device__ __forceinline__ KRing keys() const { return {smem + kKeyBarriers, smem + kKeys}; }
  __device__ __forceinline__ VRing loaded_values() const { return {smem + kValueBarriers, smem + kValues}; }
  __device__ __forceinline__ ValueRing values() const {
    if constexpr (kTransposes) return {smem + kTransposedBarriers, smem + kTransposed};
    return {smem + kValueBarriers, smem + kValues};
  }
  // What the producer notes of the block whose keys are in a slot, where blocks are listed.
  __device__ __forceinline__ SmemAddress note(int stage) const { return smem + kNotes + 4 * stage; }
  __device__ __forceinline__ Part part(int i) const { return {smem + kParts + i * Part::kBytes}; }
  __device__ __forceinline__ JoinRing joins() const { return {smem + kJoinBarriers, smem + kParts}; }
  __device__ __forceinline__ TileRing tiles() const { return {smem + kTileBarriers, smem + kTiles}; }
};
