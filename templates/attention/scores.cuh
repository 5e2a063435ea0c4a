// SPDX-License-Identifier: Apache-2.0
// The seam between Q K^T and the softmax: here, and nowhere else, scores become those that the softmax takes.
#pragma once

#include "attention/blocks.cuh"
#include "attention/predicate.cuh"
#include "attention/score.cuh"
#include "attention/softmax.cuh"
#include "types.cuh"

// --- By the parts in the slot of scores ------------------------------------------------------------------------------

// Products become scores, but for what those of a row have in common, which it returns: rows from first_row, columns
// that are keys from first_key on. of_head: any row of the head that they are of; position_of(row): of a query.
template <int kM, int kN, class Row, class PositionOf>
__device__ __forceinline__ Common<kM, Row::kCommon> score_products(Accumulator<kM, kN>& s, const Row& of_head,
                                                                   int first_row, int first_key, int lane,
                                                                   PositionOf position_of) {
  Common<kM, Row::kCommon> common;
  const int first_column = first_key + lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Row row = of_head.at(position_of(first_row + 16 * m + 8 * h + lane / 4));
      if constexpr (Row::kCommon) common.x[m][h] = row.common(first_column);
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s.x[m][n][2 * h + e];
          x = row.apply(x, {first_column, 8 * n + e});
        }
    }
  return common;
}

// The two rows of a lane of a generated ScoreMatrix.
template <class Row>
struct LaneRows {
  Row upper, lower;
};

// slot: of scores or of predicates.
template <class Slot, class PlaceOf>
__device__ __forceinline__ LaneRows<typename Slot::Row> rows_of_lane(const Slot& slot, int first_row, int lane,
                                                                     PlaceOf place_of) {
  return {slot.row([&] { return place_of(first_row + lane / 4); }),
          slot.row([&] { return place_of(first_row + 8 + lane / 4); })};
}

// The same in such a matrix.
template <class Scores, class Row>
__device__ __forceinline__ Common<1, Row::kCommon> score_products(const LaneRows<Row>& rows, int first_key, int lane) {
  const int first_column = first_key + lane % 4 * 2;
  const auto upper = [&](float x, int offset) { return rows.upper.apply(x, {first_column, offset}); };
  const auto lower = [&](float x, int offset) { return rows.lower.apply(x, {first_column, offset}); };
  Scores::transform(upper, lower);
  Common<1, Row::kCommon> common;
  if constexpr (Row::kCommon)
    common.x[0][0] = rows.upper.common(first_column), common.x[0][1] = rows.lower.common(first_column);
  return common;
}

// The same in accumulators of one tile of rows.
template <int kN, class Row>
__device__ __forceinline__ Common<1, Row::kCommon> score_products(Accumulator<1, kN>& s, const LaneRows<Row>& rows,
                                                                  int first_key, int lane) {
  const int first_column = first_key + lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const Row& row = e < 2 ? rows.upper : rows.lower;
      s.x[0][n][e] = row.apply(s.x[0][n][e], {first_column, 8 * n + e % 2});
    }
  Common<1, Row::kCommon> common;
  if constexpr (Row::kCommon)
    common.x[0][0] = rows.upper.common(first_column), common.x[0][1] = rows.lower.common(first_column);
  return common;
}

// --- By comparison: the mma family, which masks few columns at a time, and has no registers to spare ---------------

// Puts -inf in the columns that hides(column, bound) names: rows from first_row, columns that are keys from first_key
// on. bound_of(row): the key at which what the row sees ends or begins; hides() gets it relative to a lane's columns.
template <int kM, int kN, class BoundOf, class Hides>
__device__ __forceinline__ void hide_scores(Accumulator<kM, kN>& s, int first_row, int first_key, int lane,
                                            BoundOf bound_of, Hides hides) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int bound = bound_of(first_row + 16 * m + 8 * h + lane / 4) - first_key - lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        if (hides(8 * n, bound)) s.x[m][n][2 * h] = -infinity();
        if (hides(8 * n + 1, bound)) s.x[m][n][2 * h + 1] = -infinity();
      }
    }
}

// Hides the keys behind the last one that a row sees.
template <int kM, int kN, class Mask>
__device__ __forceinline__ void mask_end(Accumulator<kM, kN>& s, int first_row, int first_key, const Mask& mask,
                                         int lane) {
  hide_scores(
      s, first_row, first_key, lane, [&](int row) { return mask.last_key(row); },
      [](int column, int last) { return column > last; });
}

// Hides the keys before the first one that a row sees.
template <int kM, int kN, class Mask>
__device__ __forceinline__ void mask_begin(Accumulator<kM, kN>& s, int first_row, int first_key, const Mask& mask,
                                           int lane) {
  hide_scores(
      s, first_row, first_key, lane, [&](int row) { return mask.first_key(row); },
      [](int column, int first) { return column < first; });
}

// --- By words of bits: the many columns of a warpgroup's block, both ends at once -----------------------------------

// Of the columns that a lane holds of an accumulator, two in every eight, 32 in a word: those below a bound, which is
// relative to the first of them. ptxas makes seven predicates of a word at once.
constexpr int kTilesOfWord = 16;
__device__ __forceinline__ uint32 columns_below(int bound) {
  const int inside = min(max(bound, 0), 8 * kTilesOfWord);
  const int count = inside / 8 * 2 + min(inside % 8, 2);
  return count == 32 ? ~0u : (1u << count) - 1;
}

// Of the columns that a lane holds of kTiles tiles of eight, those that the predicates of its two rows hide. Some tiles
// at a time: their loads are in flight together, the code is in the instruction cache, and they are passed over where
// it is known that the warp sees all or nothing of them.
template <int kTiles, class Row>
__device__ __forceinline__ void hidden_by_predicates(const Row& upper, const Row& lower, int first_column,
                                                     SeenGranules known,
                                                     uint32 (&hidden)[2][ceil_div(kTiles, kTilesOfWord)]) {
  constexpr int kTogether = kTiles % 4 == 0 ? 4 : 2, kBits = 2 * kTogether;
  constexpr int kGranules = 8 * kTogether / kGranuleKeys;  // of keys, in them
  constexpr uint32 kAll = (1u << kGranules) - 1;
#pragma unroll
  for (int word = 0; word < ceil_div(kTiles, kTilesOfWord); ++word) {
    const int tiles = word < kTiles / kTilesOfWord ? kTilesOfWord : kTiles % kTilesOfWord;
    uint32 hidden_bits[2] = {};
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile += kTogether) {
      const int first = first_column + 8 * (kTilesOfWord * word + tile);
      uint32 by_upper = (known.some & kAll) != 0 ? 0 : ~0u, by_lower = by_upper;
      if ((known.some & kAll) != 0 && (known.whole & kAll) != kAll) {
        by_upper = by_lower = 0;
#pragma unroll
        for (int i = 0; i < kBits; ++i) {
          const Key key{first, i / 2 * 8 + i % 2};
          by_upper |= static_cast<uint32>(!upper.sees(key)) << i;
          by_lower |= static_cast<uint32>(!lower.sees(key)) << i;
        }
      }
      known.some >>= kGranules, known.whole >>= kGranules;
      // From the upper end, so that the first ones are the lowest at last.
      hidden_bits[0] = __funnelshift_r(hidden_bits[0], by_upper, kBits);
      hidden_bits[1] = __funnelshift_r(hidden_bits[1], by_lower, kBits);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) hidden[h][word] |= hidden_bits[h] >> (32 - 2 * tiles);
  }
}

// What is hidden from the two rows of a lane of a generated ScoreMatrix: those add to it that hide, and Scores::hide()
// puts -inf there.
template <class Scores>
using HiddenColumns = uint32[2][ceil_div(Scores::kColumns, 8 * kTilesOfWord)];

template <class Scores, class Rows>
__device__ __forceinline__ void add_hidden_by_predicates(HiddenColumns<Scores>& hidden, const Rows& rows, int first_key,
                                                         SeenGranules known, int lane) {
  const int first_column = first_key + lane % 4 * 2;
  hidden_by_predicates<Scores::kColumns / 8>(rows.upper, rows.lower.beside(rows.upper), first_column, known, hidden);
}

// The same in accumulators: of the tile m of rows, the lane's two.
template <int kM, int kN, class Row>
__device__ __forceinline__ void hide_by_predicates(Accumulator<kM, kN>& s, int m, const Row& upper, const Row& lower,
                                                   int first_key, int lane) {
  uint32 hidden[2][ceil_div(kN, kTilesOfWord)] = {};
  hidden_by_predicates<kN>(upper, lower, first_key + lane % 4 * 2, SeenGranules{}, hidden);
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if ((hidden[e / 2][n / kTilesOfWord] >> (2 * (n % kTilesOfWord) + e % 2) & 1) != 0) s.x[m][n][e] = -infinity();
}
// Rows from first_row. of_head: any row of the head that they are of; position_of(row): of a query.
template <int kM, int kN, class Row, class PositionOf>
__device__ __forceinline__ void hide_by_predicates(Accumulator<kM, kN>& s, const Row& of_head, int first_row,
                                                   int first_key, int lane, PositionOf position_of) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    const int row = first_row + 16 * m + lane / 4;
    hide_by_predicates(s, m, of_head.at(position_of(row)), of_head.at(position_of(row + 8)), first_key, lane);
  }
}

// Keys that lie in no span of their row: rows from first_row, columns that are keys from first_key on.
template <class Scores, class Mask>
__device__ __forceinline__ void add_hidden_by_spans(HiddenColumns<Scores>& hidden, int first_row, int first_key,
                                                    const Mask& mask, int lane) {
  const int first_column = first_key + lane % 4 * 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first_row + 8 * h + lane / 4;
    const int end = mask.last_key(row) + 1 - first_column;
    const int begin = Mask::kBegins ? mask.first_key(row) - first_column : 0;
#pragma unroll
    for (int word = 0; word < ceil_div(Scores::kColumns, 8 * kTilesOfWord); ++word) {
      const int before = 8 * kTilesOfWord * word;
      hidden[h][word] |= ~columns_below(end - before);
      if constexpr (Mask::kBegins) hidden[h][word] |= columns_below(begin - before);
    }
  }
}
