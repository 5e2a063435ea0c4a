// SPDX-License-Identifier: Apache-2.0
// Sizes of the backward kernel, how its warps share the products, and its map of shared memory:
// [ K | V | Q ring | dO ring | P | dS ].
#pragma once

#include "tile/shared_tile.cuh"
#include "types.cuh"

template <class Config>
struct BackwardShape {
  static constexpr int kThreads = Config::kWarps * kWarpSize;
  static constexpr int kPaddedHeadDim = round_up(Config::kHeadDim, 16);
  static constexpr int kPaddedHeadDimV = round_up(Config::kHeadDimV, 16);

  // Of products whose rows are queries a warp has some tiles of 16 rows and a part of the columns; likewise where they
  // are keys. More tiles take less of shared memory: each operand of the columns serves all of them.
  static constexpr int kRowTiles = Config::kRowTiles, kRowsOfWarp = 16 * kRowTiles;
  static constexpr int kQueryWarps = Config::kBlockQ / kRowsOfWarp, kKeyWarps = Config::kBlockKv / kRowsOfWarp;
  static constexpr int kPartsOfRow = Config::kWarps / kQueryWarps, kDimParts = Config::kWarps / kKeyWarps;
  static constexpr int kKeysOfWarp = Config::kBlockKv / kPartsOfRow;
  static_assert(kQueryWarps * kPartsOfRow == Config::kWarps && kKeyWarps * kDimParts == Config::kWarps &&
                    kKeysOfWarp % 16 == 0,
                "warps must share out all products alike");
  // Tiles of 16 columns, of which the last parts may have less.
  static constexpr int kKeyDimTiles = ceil_div(kPaddedHeadDim / 16, kDimParts);
  static constexpr int kValueDimTiles = ceil_div(kPaddedHeadDimV / 16, kDimParts);
  static constexpr int kQueryDimTiles = ceil_div(kPaddedHeadDim / 16, kPartsOfRow);

  using KTile = SharedTile<Config::kBlockKv, kPaddedHeadDim, true>;
  using VTile = SharedTile<Config::kBlockKv, kPaddedHeadDimV, true>;
  using QTile = SharedTile<Config::kBlockQ, kPaddedHeadDim, true>;
  using OTile = SharedTile<Config::kBlockQ, kPaddedHeadDimV, true>;  // of dO
  using STile = SharedTile<Config::kBlockQ, Config::kBlockKv, true>;

  static constexpr int kValues = KTile::kBytes;
  static constexpr int kQRing = kValues + VTile::kBytes;
  static constexpr int kORing = kQRing + Config::kStages * QTile::kBytes;
  static constexpr int kProbabilities = kORing + Config::kStages * OTile::kBytes;
  static constexpr int kGradients = kProbabilities + STile::kBytes;
  static constexpr int kSmemBytes = kGradients + STile::kBytes;
};
