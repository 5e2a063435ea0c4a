// SPDX-License-Identifier: Apache-2.0
// Sizes of the forward kernel of large heads and its map of shared memory:
//   [ Q | P | maxima | a ring of pieces of K and V ]
// At the end the rows of the output pass through the start of it all.
#pragma once

#include "attention/format.cuh"
#include "attention/stored.cuh"
#include "mma/column_pieces.cuh"
#include "mma/fragments.cuh"
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

  // Words of 16 bits of a row of K or V.
  __device__ static constexpr int words_of(int columns) { return columns / Config::Stored::kElementsOfWord; }

  static constexpr int kColumns = Config::kHeadDim;
  static constexpr int kPaddedColumns = round_up(kColumns, 16);
  static constexpr int kPaddedColumnsV = round_up(Config::kHeadDimV, 16);
  static constexpr int kRotaryColumns = Config::Keys::kRotaryApart ? kColumns - Config::kHeadDimV : 0;  // not of k
  static constexpr int kKeyWords = words_of(kColumns - kRotaryColumns);
  static constexpr int kValueWords = words_of(Config::kHeadDimV);
  static constexpr int kPaddedValueWords = round_up(kValueWords, 16);
  static constexpr int kOutputTiles = kPaddedColumnsV / 16;                  // of 16 columns
  static constexpr int kTilesOfWarp = ceil_div(kOutputTiles, kWarpsOfRows);  // at most

  // Keys come by columns of the head dim, pieces of equal width but for the last one, and behind those of k likewise
  // what stands in a tensor of its own; values by keys.
  static constexpr int kMostPieceBytes = 16 * 1024;
  static constexpr int kMostWordsOfPiece = kMostPieceBytes / (2 * Config::kBlockKv);
  __device__ static constexpr ColumnPieces pieces_of(int words) { return ColumnPieces::of(words, kMostWordsOfPiece); }
  static constexpr int kStoredPieces = pieces_of(kKeyWords).count, kWordsOfPiece = pieces_of(kKeyWords).width;
  static constexpr int kColumnsOfRotaryPiece = pieces_of(kRotaryColumns).width;
  static constexpr int kKeyPieces = kStoredPieces + pieces_of(kRotaryColumns).count;
  static constexpr int kKeysOfPiece = power_of_two_below(kMostPieceBytes / (2 * kPaddedValueWords), Config::kBlockKv);
  static constexpr int kValuePieces = Config::kBlockKv / kKeysOfPiece;
  static constexpr int kPieces = kKeyPieces + kValuePieces;  // of a block

  // Of a piece of keys.
  __device__ static constexpr bool is_rotary(int piece) { return piece >= kStoredPieces; }
  __device__ static constexpr int columns_of_word(int piece) {
    return is_rotary(piece) ? 1 : Config::Stored::kElementsOfWord;
  }
  // Where it begins in its tensor's rows, and how wide it is; what pads it to whole products is not counted.
  __device__ static constexpr int first_word(int piece) {
    return is_rotary(piece) ? (piece - kStoredPieces) * kColumnsOfRotaryPiece : piece * kWordsOfPiece;
  }
  __device__ static constexpr int words_of_piece(int piece) {
    const int rest = (is_rotary(piece) ? kRotaryColumns : kKeyWords) - first_word(piece);
    const int most = is_rotary(piece) ? kColumnsOfRotaryPiece : kWordsOfPiece;
    return rest < most ? rest : most;
  }
  // Steps of 16 columns, and which of those of the head dim comes first.
  __device__ static constexpr int steps_of_piece(int piece) {
    return ceil_div(words_of_piece(piece) * columns_of_word(piece), 16);
  }
  __device__ static constexpr int first_step(int piece) {
    return ((is_rotary(piece) ? kColumns - kRotaryColumns : 0) + first_word(piece) * columns_of_word(piece)) / 16;
  }
  template <int kWords>
  using TileOfKeys = SharedTile<Config::kBlockKv, kWords, Config::kSwizzle>;
  template <int kPiece>
  using KeyPiece = TileOfKeys<round_up(words_of_piece(kPiece), 16)>;
  using ValuePiece = SharedTile<kKeysOfPiece, kPaddedValueWords, Config::kSwizzle>;
  using QTile = SharedTile<Config::kBlockQ, kPaddedColumns, Config::kSwizzle>;
  using PTile = SharedTile<kWarpRows, Config::kBlockKv, Config::kSwizzle>;  // of the warps that share rows
  using OTile = SharedTile<kWarpRows, kPaddedColumnsV, Config::kSwizzle>;   // likewise

  // Of each warp that shares a row one f32.
  static constexpr int kMaximaOfRow = kWarpsOfRows * 4;

  static constexpr int kSlots = Config::kKStages + Config::kVStages;
  static constexpr int kKeyBytes =
      2 * Config::kBlockKv * (kWordsOfPiece > kColumnsOfRotaryPiece ? kWordsOfPiece : kColumnsOfRotaryPiece);
  static constexpr int kSlotBytes = kKeyBytes > ValuePiece::kBytes ? kKeyBytes : ValuePiece::kBytes;
  static constexpr int kProbabilities = QTile::kBytes;
  static constexpr int kMaxima = kProbabilities + kGroups * PTile::kBytes;
  static constexpr int kRing = kMaxima + Config::kBlockQ * kMaximaOfRow;
  static constexpr int kRingEnd = kRing + kSlots * kSlotBytes;
  static constexpr int kOutputBytes = kGroups * OTile::kBytes;

  // What operands are made of: ElementFragments of mma/fragments.cuh, or as keys and values are stored.
  template <int kPiece>
  struct TilesOfPiece {
    using QTile = LargeMmaShape::QTile;
    using KTile = KeyPiece<kPiece>;
    using VTile = ValuePiece;
    static constexpr int kM = LargeMmaShape::kM;
    static constexpr int kLdmatrix = 4;
  };
  template <int kPiece>
  using FragmentsOfPiece =
      typename Choose<is_rotary(kPiece), ElementFragments<Config, TilesOfPiece<kPiece>>,
                      typename Config::Stored::template Fragments<Config, TilesOfPiece<kPiece>>>::type;
  using ValueFragments = FragmentsOfPiece<0>;
  static constexpr int kSmemBytes = kRingEnd > kOutputBytes ? kRingEnd : kOutputBytes;

  // Of a warp, among those that share its rows; and these warps, among those of the block.
  __device__ __forceinline__ static int part() { return ptx::tid_x() / kWarpSize % kWarpsOfRows; }
  __device__ __forceinline__ static int group() { return ptx::tid_x() / kGroupThreads; }
  // Whether the warp has the n-th of its tiles of 16 columns.
  __device__ __forceinline__ static bool has_tile(int n) { return kWarpsOfRows * n + part() < kOutputTiles; }
};
