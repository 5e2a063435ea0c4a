// SPDX-License-Identifier: Apache-2.0
// Sizes of the forward kernel of large heads and its map of shared memory:
//   [ Q | P | maxima | a ring of pieces of K and V ]
// At the end the rows of the output pass through the start of it all.
#pragma once

#include "tile/shared_tile.cuh"
#include "types.cuh"

template <class Config>
struct LargeMmaShape {
  static constexpr int kThreads = Config::kWarps * kWarpSize;
  // So many warps share rows. Each has a part of a block's keys, for which it makes the scores, and of every 64 columns
  // of the output 16.
  static constexpr int kWarpsOfRows = 4;
  static constexpr int kGroups = Config::kWarps / kWarpsOfRows;
  static constexpr int kGroupThreads = kWarpsOfRows * kWarpSize;
  static constexpr int kWarpRows = Config::kBlockQ / kGroups;
  static constexpr int kM = kWarpRows / 16;  // mma tiles of rows
  static constexpr int kWarpKeys = Config::kBlockKv / kWarpsOfRows;

  static constexpr int kColumns = Config::kHeadDim;
  static constexpr int kPaddedColumns = round_up(kColumns, 16);
  static constexpr int kPaddedColumnsV = round_up(Config::kHeadDimV, 16);
  static constexpr int kOutputTiles = kPaddedColumnsV / 16;                  // of 16 columns
  static constexpr int kTilesOfWarp = ceil_div(kOutputTiles, kWarpsOfRows);  // at most

  // Keys come by columns of the head dim, pieces of equal width but for the last one; values by keys.
  static constexpr int kMostPieceBytes = 16 * 1024;
  static constexpr int kMostColumnsOfPiece = kMostPieceBytes / (2 * Config::kBlockKv);
  static constexpr int kKeyPieces = ceil_div(kPaddedColumns, kMostColumnsOfPiece);
  static constexpr int kColumnsOfPiece = round_up(ceil_div(kPaddedColumns, kKeyPieces), 16);
  static constexpr int kKeysOfPiece = power_of_two_below(kMostPieceBytes / (2 * kPaddedColumnsV), Config::kBlockKv);
  static constexpr int kValuePieces = Config::kBlockKv / kKeysOfPiece;
  static constexpr int kPieces = kKeyPieces + kValuePieces;  // of a block

  // Of a piece of keys; what pads them to whole products is not counted.
  __device__ static constexpr int columns_of(int piece) {
    return piece + 1 < kKeyPieces ? kColumnsOfPiece : kColumns - piece * kColumnsOfPiece;
  }
  template <int kColumns_>
  using TileOfKeys = SharedTile<Config::kBlockKv, kColumns_, Config::kSwizzle>;
  template <int kPiece>
  using KeyPiece = TileOfKeys<round_up(columns_of(kPiece), 16)>;
  using ValuePiece = SharedTile<kKeysOfPiece, kPaddedColumnsV, Config::kSwizzle>;
  using QTile = SharedTile<Config::kBlockQ, kPaddedColumns, Config::kSwizzle>;
  using PTile = SharedTile<kWarpRows, Config::kBlockKv, Config::kSwizzle>;  // of the warps that share rows
  using OTile = SharedTile<kWarpRows, kPaddedColumnsV, Config::kSwizzle>;   // likewise

  // Of each warp that shares a row one f32.
  static constexpr int kMaximaOfRow = kWarpsOfRows * 4;

  static constexpr int kSlots = Config::kKStages + Config::kVStages;
  static constexpr int kSlotBytes = TileOfKeys<kColumnsOfPiece>::kBytes > ValuePiece::kBytes
                                        ? TileOfKeys<kColumnsOfPiece>::kBytes
                                        : ValuePiece::kBytes;
  static constexpr int kProbabilities = QTile::kBytes;
  static constexpr int kMaxima = kProbabilities + kGroups * PTile::kBytes;
  static constexpr int kRing = kMaxima + Config::kBlockQ * kMaximaOfRow;
  static constexpr int kRingEnd = kRing + kSlots * kSlotBytes;
  static constexpr int kOutputBytes = kGroups * OTile::kBytes;
  static constexpr int kSmemBytes = kRingEnd > kOutputBytes ? kRingEnd : kOutputBytes;

  // Of a warp, among those that share its rows; and these warps, among those of the block.
  __device__ __forceinline__ static int part() { return ptx::tid_x() / kWarpSize % kWarpsOfRows; }
  __device__ __forceinline__ static int group() { return ptx::tid_x() / kGroupThreads; }
  // Whether the warp has the n-th of its tiles of 16 columns.
  __device__ __forceinline__ static bool has_tile(int n) { return kWarpsOfRows * n + part() < kOutputTiles; }
};
