// SPDX-License-Identifier: Apache-2.0
// Sizes of the backward kernels of large heads, how warps share the products, and the map of shared memory:
//   [ the rows that stay, where there is room | P or dS | a ring of pieces ]
#pragma once

#include "attention/large_backward_work.cuh"
#include "mma/column_pieces.cuh"
#include "tile/shared_tile.cuh"
#include "types.cuh"

template <class Config>
struct LargeBackwardMmaShape {
  static constexpr int kThreads = Config::kWarps * kWarpSize;
  static constexpr bool kOfQueries = Config::kPass == LargePass::queries;
  // Whether there is dP, for dS; to dV P is enough.
  static constexpr bool kDifferentiates = Config::kPass != LargePass::values;
  // Rows of the gradient, and of each block that they meet.
  static constexpr int kRows = kOfQueries ? Config::kBlockQ : Config::kBlockKv;
  static constexpr int kMetRows = kOfQueries ? Config::kBlockKv : Config::kBlockQ;

  // Of products whose rows are queries a warp has some tiles of 16 rows and a part of the columns; of the gradient
  // likewise.
  static constexpr int kRowTiles = Config::kRowTiles, kRowsOfWarp = 16 * kRowTiles;
  static constexpr int kQueryWarps = Config::kBlockQ / kRowsOfWarp, kPartsOfRow = Config::kWarps / kQueryWarps;
  static constexpr int kKeysOfWarp = Config::kBlockKv / kPartsOfRow;
  static constexpr int kRowWarps = kRows / kRowsOfWarp, kDimParts = Config::kWarps / kRowWarps;
  static_assert(kQueryWarps * kPartsOfRow == Config::kWarps && kRowWarps * kDimParts == Config::kWarps &&
                    kKeysOfWarp % 16 == 0,
                "warps must share out all products alike");

  // Of the gradient, and of what is added up to it; tiles of 16, of which the last parts may have less.
  static constexpr int kColumns = kDifferentiates ? Config::kHeadDim : Config::kHeadDimV;
  static constexpr int kPaddedColumns = round_up(kColumns, 16);
  static constexpr int kDimTiles = ceil_div(kPaddedColumns / 16, kDimParts);

  // What scores are made of comes by columns: of q and k, then of dO and v. A piece has those of the rows that are met,
  // and behind them, unless these stay, of the gradient's own. What is added up comes by rows.
  static constexpr int kMostPieceBytes = 16 * 1024;
  static constexpr int kPieceRows = kMetRows + (Config::kStays ? 0 : kRows);
  __device__ static constexpr ColumnPieces pieces_of(int columns) {
    return ColumnPieces::of(columns, kMostPieceBytes / (2 * kPieceRows) / 16 * 16);
  }
  static constexpr int kKeyPieces = pieces_of(Config::kHeadDim).count;
  static constexpr int kScorePieces = kKeyPieces + (kDifferentiates ? pieces_of(Config::kHeadDimV).count : 0);
  static constexpr int kFittingRows = power_of_two_below(kMostPieceBytes / (2 * kPaddedColumns), kMetRows);
  static constexpr int kAddedRows = kFittingRows < 16 ? 16 : kFittingRows;
  static constexpr int kAddedPieces = kMetRows / kAddedRows;
  static constexpr int kPieces = kScorePieces + kAddedPieces;  // of a block

  // Of a piece that scores are made of: whether it is of q and k; where it begins in its rows, and how wide it is, but
  // for what pads it to whole products.
  __device__ static constexpr bool is_of_keys(int piece) { return piece < kKeyPieces; }
  __device__ static constexpr int columns_of(int piece) {
    return is_of_keys(piece) ? Config::kHeadDim : Config::kHeadDimV;
  }
  __device__ static constexpr int first_column(int piece) {
    return (is_of_keys(piece) ? piece : piece - kKeyPieces) * pieces_of(columns_of(piece)).width;
  }
  __device__ static constexpr int width_of(int piece) {
    const int rest = columns_of(piece) - first_column(piece), most = pieces_of(columns_of(piece)).width;
    return rest < most ? rest : most;
  }
  __device__ static constexpr int steps_of(int piece) { return ceil_div(width_of(piece), 16); }

  template <int kPiece>
  using MetPiece = SharedTile<kMetRows, 16 * steps_of(kPiece), true>;
  template <int kColumnsOfTile>
  using RowsThatStay = SharedTile<kRows, round_up(kColumnsOfTile, 16), true>;
  // Of a piece, what is the gradient's own: whole rows, where they stay.
  template <int kPiece>
  using OwnPiece = RowsThatStay<Config::kStays ? columns_of(kPiece) : width_of(kPiece)>;
  using AddedPiece = SharedTile<kAddedRows, kPaddedColumns, true>;
  using STile = SharedTile<Config::kBlockQ, Config::kBlockKv, true>;  // of P or dS

  static constexpr int kKeyWidth = pieces_of(Config::kHeadDim).width;
  static constexpr int kValueWidth = kDifferentiates ? pieces_of(Config::kHeadDimV).width : 0;
  static constexpr int kScorePieceBytes = 2 * kPieceRows * (kKeyWidth > kValueWidth ? kKeyWidth : kValueWidth);
  static constexpr int kSlotBytes = kScorePieceBytes > AddedPiece::kBytes ? kScorePieceBytes : AddedPiece::kBytes;
  static constexpr int kSlots = 2 * Config::kStages;

  // Of rows of q or k, and then of dO or v.
  static constexpr int kOwnKeyBytes = Config::kStays ? RowsThatStay<Config::kHeadDim>::kBytes : 0;
  static constexpr int kOwnValueBytes = Config::kStays && kDifferentiates ? RowsThatStay<Config::kHeadDimV>::kBytes : 0;
  static constexpr int kScores = kOwnKeyBytes + kOwnValueBytes;
  static constexpr int kRing = kScores + STile::kBytes;
  static constexpr int kSmemBytes = kRing + kSlots * kSlotBytes;
};
