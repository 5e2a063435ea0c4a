// SPDX-License-Identifier: Apache-2.0
// Sizes of the forward kernel and its map of shared memory: [ Q | K ring | V ring ]. With Q in registers there is only
// [ K ring | V ring ], and Q is brought in through it. At the end the rows of the output pass through the start of it
// all.
#pragma once

#include "attention/format.cuh"
#include "attention/products.cuh"
#include "attention/values.cuh"
#include "attention/written.cuh"
#include "tile/shared_tile.cuh"
#include "types.cuh"

template <class Config>
struct ForwardShape {
  static constexpr int kThreads = Config::kWarps * kWarpSize;
  static constexpr int kWarpRows = Config::kBlockQ / Config::kWarps;
  static constexpr int kWarpsOfRows = 1;     // each has rows of its own
  static constexpr int kM = kWarpRows / 16;  // mma tiles of rows
  static constexpr bool kQueryInRegisters = Config::kQueryInRegisters;
  static constexpr int kLdmatrix = Config::kLdmatrix;  // matrices at once
  // Tiles are of 16 bits, of which a row of queries and keys, or of values, has so many, and a tile whole products.
  static constexpr int kElementsOfWord = Config::Products::kElementsOfWord;
  static constexpr int kColumns = Config::kHeadDim / kElementsOfWord;
  static constexpr int kColumnsV = Config::kHeadDimV / kElementsOfWord;
  static constexpr int kPaddedColumns = round_up(kColumns, 16);
  static constexpr int kPaddedColumnsV = round_up(kColumnsV, 16);
  static constexpr int kPaddedHeadDimV = round_up(Config::kHeadDimV, 16);
  // Masked blocks are taken in pieces of this many keys, so that a warp skips what lies above its diagonal.
  static constexpr int kMaskedKeys = Config::kBlockKv % 32 == 0 ? 32 : 16;

  using QTile = SharedTile<Config::kBlockQ, kPaddedColumns, Config::kSwizzle>;
  using KTile = SharedTile<Config::kBlockKv, kPaddedColumns, Config::kSwizzle>;
  using RowsOfKeys = SharedTile<Config::kBlockKv, kPaddedColumnsV, Config::kSwizzle>;
  using RowsOfDims = SharedTile<kPaddedHeadDimV, Config::kBlockKv / kElementsOfWord, Config::kSwizzle>;
  using VTile = typename Choose<Config::Values::kTransposed, RowsOfDims, RowsOfKeys>::type;
  static constexpr int kOutputColumns = Config::kHeadDimV / Config::Written::kElementsOfWord;
  using OTile = SharedTile<kWarpRows, round_up(kOutputColumns, 16), Config::kSwizzle>;  // one warp's

  static constexpr int kKRing = Config::kQueryInRegisters ? 0 : QTile::kBytes;
  static constexpr int kVRing = kKRing + Config::kKStages * KTile::kBytes;
  static constexpr int kRingsEnd = kVRing + Config::kVStages * VTile::kBytes;
  static constexpr int kOutputBytes = Config::kWarps * OTile::kBytes;
  static constexpr int kLargest = QTile::kBytes > kOutputBytes ? QTile::kBytes : kOutputBytes;
  static constexpr int kSmemBytes = kRingsEnd > kLargest ? kRingsEnd : kLargest;
};
