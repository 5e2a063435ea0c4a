// SPDX-License-Identifier: Apache-2.0
// From the products of queries with keys, and of rows of dO with values, to P and dS, in the backward kernels of
// mma.sync: P = exp(S - LSE), dS = P (dP - D), with all that changes scores, hides them or drops their probabilities.
#pragma once

#include "attention/gradient.cuh"
#include "attention/key_tile.cuh"
#include "attention/mask.cuh"
#include "attention/probability.cuh"
#include "attention/score_gradient.cuh"
#include "attention/scores.cuh"
#include "attention/softmax.cuh"
#include "ptx/convert.cuh"
#include "ptx/memory.cuh"
#include "types.cuh"

// Of a warp, which has some tiles of 16 rows of queries and kKeys columns at a time.
template <class Config, int kRowTiles, int kKeys>
class BackwardScores {
  using Element = typename Config::Element;
  using ScoreParts = typename Config::ScoreParts;
  using ScoreRow = typename ScoreParts::template Row<false>;
  using ScoreGradients = typename Config::ScoreGradients;
  using Dropouts = typename Config::Dropouts;
  using Predicates = typename Config::Predicates;
  static constexpr bool kIsCurvedBehind = ScoreGradients::kAny && ScoreParts::kIsCurvedBehind;
  struct Nothing {};

 public:
  using Products = Accumulator<kRowTiles, kKeys / 8>;
  // Of scores: rows of a head's queries from row on, and keys from this column of a block that begins with first_key.
  struct Place {
    int head, row, first_key, column;
  };

  __device__ __forceinline__ BackwardScores(const typename Config::Arguments& arguments,
                                            const PlacedKeyTile<Config>& tile_, const Mask<Config>& mask_, int lane_)
      : launch(arguments),
        sizes(arguments.core.sizes),
        tile(tile_),
        mask(mask_),
        lane(lane_),
        parts(arguments),
        predicates(arguments),
        score_gradients(arguments) {}

  // send(half, n, p, ds): both of two neighbouring columns, of the n-th eight, as elements; half: of the warp's rows,
  // in eights.
  template <class Send>
  __device__ __forceinline__ void differentiate(Products& s, const Products& dp, const Place& at, Send send) {
    Products derivatives;
    DerivativesBehind behind;
    const RowPlace place{tile.batch, at.head, 0, tile.sequence};
    score(s, derivatives, behind, place, at);
    hide(s, place, at);
#pragma unroll
    for (int half = 0; half < 2 * kRowTiles; ++half) {
      const int m = half / 2, first = half % 2 * 2, query = at.row + 8 * half + lane / 4;
      const Row of = row_of(place.head, query);
      const KeptPairs kept = kept_of(place, query, at);
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        const uint32 stays = stays_of(kept, n, at.first_key + at.column);
        float p[2], ds[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          p[e] = ptx::ex2(__fmaf_rn(s.x[m][n][first + e], unit(), -of.lse_log2));
          float gradient = dp.x[m][n][first + e];
          if constexpr (Dropouts::kAny) gradient = (stays >> 16 * e & 0xffff) != 0 ? gradient * dropout_scale() : 0.0f;
          ds[e] = p[e] * (gradient - of.sum);
          if constexpr (ScoreGradients::kAny)
            score_gradients.add(p[e] == 0.0f ? 0.0f : behind_of(ds[e], behind, m, n, first + e),
                                at_position(place, mask.position(query)),
                                {at.first_key + at.column + lane % 4 * 2, 8 * n + e});
          if constexpr (ScoreParts::kIsCurved) ds[e] *= derivatives.x[m][n][first + e];
          if (p[e] == 0.0f) ds[e] = 0.0f;  // what is hidden is 0 whatever its value is
          if constexpr (Dropouts::kAny) p[e] *= dropout_scale();
        }
        uint32 pair = ptx::cvt_rn_x2(Element{}, p[0], p[1]);
        if constexpr (Dropouts::kAny) pair &= stays;
        send(half, n, pair, ptx::cvt_rn_x2(Element{}, ds[0], ds[1]));
      }
    }
  }

  // What came since the last time were all scores of this head beside a tile of keys, of which heads have so many.
  __device__ __forceinline__ void end_head(int head, int key_tiles, int warp) {
    const int64 index = tile.key_place(sizes.num_heads_q, head, key_tiles) + tile.index;
    score_gradients.end_head({index, Config::kWarps, warp, lane});
  }

  // Among LSE and row sums.
  __device__ __forceinline__ int64 row_index(int head, int query) const {
    const int64 of_head = static_cast<int64>(tile.query_batch) * sizes.num_heads_q + head;
    return of_head * sizes.seqlen_q + tile.first_query + query;
  }

 private:
  using DerivativesBehind = typename Choose<kIsCurvedBehind, Products, Nothing>::type;

  // The derivative by what is added to scores.
  __device__ __forceinline__ static float behind_of(float ds, const DerivativesBehind& behind, int m, int n, int i) {
    if constexpr (kIsCurvedBehind) return ds * behind.x[m][n][i];
    return ds;
  }

  // Products become scores; derivatives: theirs by the products, where these are not 1; behind: by what is added.
  __device__ __forceinline__ void score(Products& s, Products& derivatives, DerivativesBehind& behind,
                                        const RowPlace& place, const Place& at) const {
    if (sizes.query_sign != 0) s.multiply(-1.0f);  // the unit is positive, so that what is hidden is 0
    if constexpr (ScoreRow::kChanges) {
      const int first = at.first_key + at.column + lane % 4 * 2;
      const ScoreRow of_head =
          parts.template row<false>([&] { return at_position(place, mask.position(at.row)); }, sizes.scale_log2);
#pragma unroll
      for (int half = 0; half < 2 * kRowTiles; ++half) {
        const ScoreRow of = of_head.at(mask.position(at.row + 8 * half + lane / 4));
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int i = half % 2 * 2 + e;
            float& x = s.x[half / 2][n][i];
            if constexpr (kIsCurvedBehind)
              derivatives.x[half / 2][n][i] = of.apply_with_derivative(x, {first, 8 * n + e}, behind.x[half / 2][n][i]);
            else if constexpr (ScoreParts::kIsCurved)
              derivatives.x[half / 2][n][i] = of.apply_with_derivative(x, {first, 8 * n + e});
            else
              x = of.apply(x, {first, 8 * n + e});
          }
      }
    }
  }

  __device__ __forceinline__ void hide(Products& s, const RowPlace& place, const Place& at) const {
    const int row = at.row, first = at.first_key + at.column, last = first + kKeys - 1;
    if constexpr (Predicates::kAny)
      hide_by_predicates(s, predicates.row([&] { return at_position(place, mask.position(row)); }), row, first, lane,
                         [this](int query) { return mask.position(query); });
    if constexpr (ScoreParts::kMayHide && !ScoreParts::kEndsInHiding)
      if (row + kRows > tile.sequence.queries) hide_missing_rows(s, row);
    if (mask.last_key(row) < last) mask_end(s, row, first, mask, lane);
    if constexpr (Mask<Config>::kBegins)
      if (mask.first_key(row + kRows - 1) > first) mask_begin(s, row, first, mask, lane);
  }

  // Those that do not exist, of which a tensor or a text may make infinity and NaN.
  __device__ __forceinline__ void hide_missing_rows(Products& s, int row) const {
#pragma unroll
    for (int half = 0; half < 2 * kRowTiles; ++half)
      if (row + 8 * half + lane / 4 >= tile.sequence.queries)
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n)
          s.x[half / 2][n][half % 2 * 2] = s.x[half / 2][n][half % 2 * 2 + 1] = -infinity();
  }

  struct Row {
    float lse_log2, sum;
  };
  __device__ __forceinline__ Row row_of(int head, int query) const {
    if (query >= tile.sequence.queries) return {infinity(), 0.0f};
    const int64 index = row_index(head, query);
    return {ptx::ld_global_float(launch.core.lse_log2 + index), ptx::ld_global_float(launch.core.row_sums + index)};
  }
  // Of as many keys as are drawn at once, the block's column among them. Blocks may begin at the second half of those.
  __device__ __forceinline__ KeptPairs kept_of(const RowPlace& place, int query, const Place& at) const {
    if constexpr (Dropouts::kAny) {
      const Dropouts dropouts(launch);
      KeptPairs kept = dropouts.row([&] { return at_position(place, mask.position(query)); })
                           .kept((at.first_key + at.column) / kKeptKeys * kKeptKeys + lane % 4 * 2);
#pragma unroll
      for (uint32& pair : kept.x) pair ^= dropouts.flips();
      return kept;
    } else {
      return {};
    }
  }
  // Where there are half as many columns as are drawn at once, every other time they are the second half of those.
  __device__ __forceinline__ static uint32 stays_of(const KeptPairs& kept, int n, int first_key) {
    constexpr int kHalf = kKeptKeys / 16;
    static_assert(kKeys == kKeptKeys || 2 * kKeys == kKeptKeys, "columns must be all or half of them");
    if constexpr (kKeys == kKeptKeys) return kept.x[n];
    return first_key % kKeptKeys == 0 ? kept.x[n % kHalf] : kept.x[n % kHalf + kHalf];
  }

  __device__ __forceinline__ static RowPlace at_position(const RowPlace& place, int position) {
    return {place.batch, place.head, position, place.sequence};
  }
  __device__ __forceinline__ float unit() const { return parts.unit(sizes.scale_log2); }
  __device__ __forceinline__ float dropout_scale() const { return Dropouts(launch).scale(); }

  static constexpr int kRows = 16 * kRowTiles;

  const typename Config::Arguments& launch;
  const ForwardSizes& sizes;
  // By value: a reference to what lies beside this in the kernel's own object would keep all of that in memory.
  const PlacedKeyTile<Config> tile;
  const Mask<Config> mask;
  const int lane;
  const ScoreParts parts;
  const Predicates predicates;
  ScoreGradients score_gradients;
};
