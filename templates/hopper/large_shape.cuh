// SPDX-License-Identifier: Apache-2.0
// Sizes of the Hopper forward kernel of large heads and its map of shared memory:
//   [ Q, later the output | P of each stream | a ring for each stream | its maxima | barriers, tiles, notes ]
#pragma once

#include "attention/format.cuh"
#include "attention/values.cuh"
#include "hopper/tiles.cuh"
#include "pipeline/ring.cuh"
#include "tile/panel_tile.cuh"
#include "types.cuh"

template <class Config>
struct LargeShape {
  // Each is a warpgroup, which computes every other block of keys and has half of the output's columns.
  static constexpr int kStreams = 2;
  static constexpr int kWarpsOfStream = kWarpgroupSize / kWarpSize;
  static constexpr int kConsumerThreads = kStreams * kWarpgroupSize;
  static constexpr int kConsumerWarps = kStreams * kWarpsOfStream;
  static constexpr int kThreads = kConsumerThreads + kWarpgroupSize;
  // After setmaxnreg. The output alone is 128.
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

  // Of the output, of a stream; what the copy engine stores in one box ends where they do.
  static constexpr int kOutputColumns = round_up(ceil_div(Config::kHeadDimV, kStreams), 16);
  using OutputTile = PanelTile<kWarpgroupRows, kOutputColumns, power_of_two_in(kOutputColumns, 64)>;
  static constexpr int kStoreRows = 16;
  static constexpr int kOutputPanels = OutputTile::kPanels;
  static constexpr int kOutputPanelBytes = kStoreRows * OutputTile::kRowBytes;
  static constexpr int kWarpOutputBytes = kOutputPanels * kOutputPanelBytes;

  using QTile = PanelTile<Config::kBlockQ, Config::kHeadDim>;
  using PTile = PanelTile<kWarpgroupRows, Config::kBlockKv>;

  // Keys come by panels of the head dim, values by as many keys as fit where a panel does.
  static constexpr int kKeyPieces = QTile::kPanels;
  using KeyPiece = PanelTile<Config::kBlockKv, QTile::kPanelColumns>;
  static constexpr int kPieceBytes = Config::kBlockKv * 128;
  static constexpr int kBytesOfValueRow = PanelTile<8, kOutputColumns>::kBytes / 8;
  static constexpr int kKeysOfPiece = power_of_two_in(kPieceBytes / kBytesOfValueRow / 16 * 16, Config::kBlockKv);
  using ValuePiece = PanelTile<kKeysOfPiece, kOutputColumns>;
  static constexpr int kValuePieces = Config::kBlockKv / kKeysOfPiece;
  // Where values are in keys, pieces of the keys that have a stream's own columns stay for P V of its own
  // blocks, and the others pass, as do values of the other stream's.
  static constexpr int kOwnPieces = Config::Values::kInKeys ? kOutputColumns / QTile::kPanelColumns : 0;
  static constexpr int kPassingPieces = kKeyPieces - kOwnPieces;
  static_assert(kOwnPieces == 0 || kOutputColumns % QTile::kPanelColumns == 0, "a stream's columns are pieces");
  using OwnValues = PanelTile<Config::kBlockKv, kOutputColumns>;
  // Of wgmma's depth.
  static constexpr int kKeySteps = ceil_div(Config::kHeadDim, 16);
  static constexpr int kStepsOfKeyPiece = QTile::kPanelColumns / 16;
  static constexpr int kStepsOfValuePiece = kKeysOfPiece / 16;

  // When a stream waits for P V of the other one's block: before the exponentials, so that values are free early, which
  // blocks that share them gain by. docs/kernels/large_heads.md.
  static constexpr bool kOutputEarly = Config::kCluster > 1 || kOwnPieces != 0;
  // Whether the first keys of a tile are requested before its query, whose place the output of the tile before leaves
  // late: they have room.
  static constexpr bool kKeysFirst = Config::kPieces - kOwnPieces >= kPassingPieces;
  static constexpr bool kOneTile = Config::kScheduler == Scheduler::single;

  using QRing = RingPlace<1, QTile::kBytes>;
  using PieceRing = RingPlace<Config::kPieces - kOwnPieces, kPieceBytes>;
  using OwnRing = RingPlace<kOwnPieces, kPieceBytes>;
  static constexpr int kPassingBeforeOwn = kOwnPieces == 0                       ? 0
                                           : kPassingPieces < PieceRing::kStages ? kPassingPieces
                                                                                 : PieceRing::kStages;
  using ExchangeRing = RingPlace<1, PTile::kBytes>;
  static constexpr int kKnownTiles = 2;  // the present one and the next
  using TileRing = RingPlace<kKnownTiles, HopperTile<Config>::kBytes>;

  static constexpr int kSwizzleBytes = 1024;
  static constexpr int kOutputBytes = kConsumerWarps * kWarpOutputBytes;
  static constexpr int kQueryBytes =
      round_up(QTile::kBytes > kOutputBytes ? QTile::kBytes : kOutputBytes, kSwizzleBytes);
  static constexpr int kProbabilities = kQueryBytes;
  static constexpr int kPieces = kProbabilities + kStreams * PTile::kBytes;
  static constexpr int kMaxima = kPieces + kStreams * Config::kPieces * kPieceBytes;
  static constexpr int kBytesOfMaximum = 8;  // beside it the factor of its last rise
  static constexpr int kMaximaBytes = kWarpgroupRows * kBytesOfMaximum;
  static constexpr int kQueryBarriers = kMaxima + kStreams * kMaximaBytes;
  static constexpr int kExchangeBarriers = kQueryBarriers + QRing::kBarrierBytes;
  static constexpr int kPieceBarriers = kExchangeBarriers + kStreams * ExchangeRing::kBarrierBytes;
  static constexpr int kOwnBarriers = kPieceBarriers + kStreams * PieceRing::kBarrierBytes;
  static constexpr int kTileBarriers = kOwnBarriers + kStreams * OwnRing::kBarrierBytes;
  static constexpr int kTiles = kTileBarriers + TileRing::kBarrierBytes;
  static constexpr int kNotes = kTiles + TileRing::kStages * TileRing::kSlotBytes;
  static constexpr int kNotesEnd = kNotes + (Config::Blocks::kListed ? kStreams * Config::kPieces * 4 : 0);
  static constexpr int kSmallSpace = 1024;  // for barriers, tiles and notes
  static constexpr int kSmemBytes = kQueryBarriers + kSmallSpace;
  static_assert(kNotesEnd <= kSmemBytes, "barriers outgrow their space");
  static_assert(kTiles % sizeof(ptx::Chunk) == 0, "tiles are read by chunks");

  SmemAddress smem;
  __device__ __forceinline__ QRing queries() const { return {smem + kQueryBarriers, smem}; }
  __device__ __forceinline__ PieceRing pieces(int stream) const {
    return {smem + kPieceBarriers + stream * PieceRing::kBarrierBytes,
            smem + kPieces + stream * Config::kPieces * kPieceBytes};
  }
  // Behind these.
  __device__ __forceinline__ OwnRing own_pieces(int stream) const {
    return {smem + kOwnBarriers + stream * OwnRing::kBarrierBytes,
            pieces(stream).slots + PieceRing::kStages * kPieceBytes};
  }
  // Panels of keys, in the order of their use: first those that pass.
  static __device__ __forceinline__ int passing_panel(int stream, int i) {
    return stream == 0 || i >= kOwnPieces ? i + kOwnPieces : i;
  }
  static __device__ __forceinline__ int own_panel(int stream, int i) { return stream * kOwnPieces + i; }
  // What a stream sends.
  __device__ __forceinline__ ExchangeRing exchange(int stream) const {
    return {smem + kExchangeBarriers + stream * ExchangeRing::kBarrierBytes,
            smem + kProbabilities + stream * PTile::kBytes};
  }
  __device__ __forceinline__ SmemAddress maxima(int stream) const { return smem + kMaxima + stream * kMaximaBytes; }
  __device__ __forceinline__ TileRing tiles() const { return {smem + kTileBarriers, smem + kTiles}; }
  // What a loader notes of the block whose first piece of keys is in a slot, where blocks are listed.
  __device__ __forceinline__ SmemAddress note(int stream, int stage) const {
    return smem + kNotes + 4 * (stream * Config::kPieces + stage);
  }
};
