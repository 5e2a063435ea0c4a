// SPDX-License-Identifier: Apache-2.0
// Gradients of attention with mma.sync (sm_80 and later), after FlashAttention-2. Essay: docs/kernels/backward.md.
//
// A block has BLOCK_KV keys of one key/value head and goes through the tiles of BLOCK_Q queries that see any of them,
// of all query heads of the group, so that dK and dV stay in registers. For each tile:
//   S = Q K^T,  P = exp(S - LSE)        dP = dO V^T,  dS = P (dP - D)          rows: queries
//   dV += P^T dO                        dK += dS^T Q                           rows: keys
//   dQ += dS K                          by reductions in global memory, in f32
// P and dS pass through shared memory in 16 bits. LSE and D are of kernels/backward_rows.cuh, which runs before, and
// rounds dQ afterwards.
#pragma once

#include "attention/gradient.cuh"
#include "attention/key_tile.cuh"
#include "attention/mask.cuh"
#include "attention/probability.cuh"
#include "attention/score_gradient.cuh"
#include "attention/scores.cuh"
#include "attention/softmax.cuh"
#include "attention/turns.cuh"
#include "mma/backward_shape.cuh"
#include "mma/operands.cuh"
#include "ptx/barrier.cuh"
#include "ptx/convert.cuh"
#include "ptx/memory.cuh"
#include "ptx/mma.cuh"
#include "ptx/reduction.cuh"
#include "ptx/special_registers.cuh"

template <class Config>
class BackwardMma {
  using Shape = BackwardShape<Config>;
  using Element = typename Config::Element;
  using KTile = typename Shape::KTile;
  using VTile = typename Shape::VTile;
  using QTile = typename Shape::QTile;
  using OTile = typename Shape::OTile;
  using STile = typename Shape::STile;
  using ScoreParts = typename Config::ScoreParts;
  using ScoreRow = typename ScoreParts::template Row<false>;
  using ScoreGradients = typename Config::ScoreGradients;
  using Dropouts = typename Config::Dropouts;
  using Predicates = typename Config::Predicates;
  // A warp takes its columns a piece at a time, so that registers have room for dK and dV.
  static constexpr int kPieceKeys = Shape::kKeysOfWarp < kKeptKeys ? Shape::kKeysOfWarp : kKeptKeys;
  static_assert(Shape::kKeysOfWarp % kPieceKeys == 0 && kKeptKeys % kPieceKeys == 0, "pieces must fill their rows");
  using Scores = Accumulator<Shape::kRowTiles, kPieceKeys / 8>;
  static constexpr bool kIsCurvedBehind = ScoreGradients::kAny && ScoreParts::kIsCurvedBehind;
  struct Nothing {};
  using DerivativesBehind = typename Choose<kIsCurvedBehind, Scores, Nothing>::type;

 public:
  // A block's tile of keys, where there is one.
  __device__ __forceinline__ static void run(const typename Config::Arguments& arguments, SmemAddress smem) {
    const uint32 index = ticket(arguments.core, smem);
    if (PlacedKeyTile<Config>::exists(arguments, index)) BackwardMma(arguments, smem, index).run();
  }

 private:
  __device__ __forceinline__ BackwardMma(const typename Config::Arguments& arguments, SmemAddress smem, uint32 index)
      : launch(arguments),
        args(arguments.core),
        smem(smem),
        thread(ptx::tid_x()),
        tile(arguments, index),
        first_key(tile.index * Config::kBlockKv),
        mask(arguments, tile.sequence, [this] { return tile.batch; }, {}),
        parts(arguments),
        predicates(arguments),
        score_gradients(arguments) {}

  __device__ __forceinline__ void run() {
    dk.clear(), dv.clear();
    tiles = QueryTiles::beside<Config>(first_key, tile.sequence.queries, mask);
    if (tiles.count() > 0) {
      bring_keys();
      const int steps = tiles.count() * args.sizes.heads_per_group;
      clear_ring_padding();
      request_queries(0);
#pragma unroll 1
      for (int i = 0; i < steps; ++i) step(i, steps);
      if constexpr (Config::kDeterministic) {
        ptx::bar_sync();
        pass_turn(steps - 1);
      }
    } else if constexpr (ScoreGradients::kAny) {
      for (int i = 0; i < args.sizes.heads_per_group; ++i) end_head(tile.head * args.sizes.heads_per_group + i);
    }
    store<Shape::kKeyDimTiles, Config::kHeadDim>(dk, args.dk, args.dk_strides, args.scale);
    store<Shape::kValueDimTiles, Config::kHeadDimV>(dv, args.dv, args.dv_strides, 1.0f);
  }

  // --- One tile of queries ------------------------------------------------------------------------------------------

  __device__ __forceinline__ void step(int i, int steps) {
    ptx::cp_async_wait_group<0>();
    ptx::bar_sync();
    if constexpr (Config::kDeterministic)
      if (i > 0) pass_turn(i - 1);
    if constexpr (Config::kStages > 1)
      if (i + 1 < steps) request_queries(i + 1);
#pragma unroll 1
    for (int piece = 0; piece < Shape::kKeysOfWarp; piece += kPieceKeys)
      differentiate(i, part_of_row() * Shape::kKeysOfWarp + piece);
    ptx::bar_sync();
    add_keys<Shape::kValueDimTiles, OTile>(dv, smem + Shape::kProbabilities, o_slot(i), Shape::kPaddedHeadDimV / 16);
    add_keys<Shape::kKeyDimTiles, QTile>(dk, smem + Shape::kGradients, q_slot(i), Shape::kPaddedHeadDim / 16);
    if constexpr (Config::kStages == 1) {
      ptx::bar_sync();  // the next queries come where these were, while dQ is computed
      if (i + 1 < steps) request_queries(i + 1);
    }
    if constexpr (Config::kDeterministic)
      if (args.dq != nullptr) turns().await(tile, query_place(i), tile_of(i), mask);
    add_queries(i);
    if constexpr (ScoreGradients::kAny)
      if ((i + 1) % tiles.count() == 0) end_head(head_of(i));
    // P and dS are written again behind the next step's barrier.
  }

  // P and dS of a piece of the block's columns, to shared memory.
  __device__ __forceinline__ void differentiate(int i, int column) {
    Scores s, dp, derivatives;
    DerivativesBehind behind;
    multiply<QTile, KTile, Shape::kPaddedHeadDim / 16>(s, q_slot(i), smem, column);
    multiply<OTile, VTile, Shape::kPaddedHeadDimV / 16>(dp, o_slot(i), smem + Shape::kValues, column);
    const int row = first_query(i) + warp_row();
    const RowPlace place{tile.batch, head_of(i), 0, tile.sequence};
    score(s, derivatives, behind, place, row, column);
    hide(s, place, row, column);
#pragma unroll
    for (int half = 0; half < 2 * Shape::kRowTiles; ++half) {
      const int m = half / 2, first = half % 2 * 2, query = row + 8 * half + lane() / 4;
      const Row of = row_of(place.head, query);
      const KeptPairs kept = kept_of(place, query, column);
#pragma unroll
      for (int n = 0; n < kPieceKeys / 8; ++n) {
        const uint32 stays = stays_of(kept, n, column);
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
                                {first_key + column + lane() % 4 * 2, 8 * n + e});
          if constexpr (ScoreParts::kIsCurved) ds[e] *= derivatives.x[m][n][first + e];
          if (p[e] == 0.0f) ds[e] = 0.0f;  // what is hidden is 0 whatever its value is
          if constexpr (Dropouts::kAny) p[e] *= dropout_scale();
        }
        uint32 pair = ptx::cvt_rn_x2(Element{}, p[0], p[1]);
        if constexpr (Dropouts::kAny) pair &= stays;
        const uint32 at =
            STile::move(STile::offset(lane() / 4, 0) + lane() % 4 * 4, warp_row() + 8 * half, column / 8 + n);
        ptx::st_shared(smem + Shape::kProbabilities + at, pair);
        ptx::st_shared(smem + Shape::kGradients + at, ptx::cvt_rn_x2(Element{}, ds[0], ds[1]));
      }
    }
  }

  // The derivative by what is added to scores.
  __device__ __forceinline__ static float behind_of(float ds, const DerivativesBehind& behind, int m, int n, int i) {
    if constexpr (kIsCurvedBehind) return ds * behind.x[m][n][i];
    return ds;
  }

  // Rows of queries by rows of keys.
  template <class Rows, class Columns, int kSteps>
  __device__ __forceinline__ void multiply(Scores& s, SmemAddress rows, SmemAddress columns, int column) const {
    s.clear();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      uint32 a[Shape::kRowTiles][4];
#pragma unroll
      for (int m = 0; m < Shape::kRowTiles; ++m) Operands<Rows>::rows_as_a(a[m], rows, warp_row() + 16 * m, k, lane());
#pragma unroll
      for (int n = 0; n < kPieceKeys / 16; ++n) {
        uint32 b[4];
        Operands<Columns>::rows_as_b(b, columns, column + 16 * n, k, lane());
        add_products(s, n, a, b);
      }
    }
  }

  // Of all tiles of rows with two of columns.
  template <int kTiles>
  __device__ __forceinline__ static void add_products(Accumulator<Shape::kRowTiles, kTiles>& sum, int n,
                                                      const uint32 (&a)[Shape::kRowTiles][4], const uint32 (&b)[4]) {
#pragma unroll
    for (int m = 0; m < Shape::kRowTiles; ++m) {
      ptx::mma(Element{}, sum.x[m][2 * n], a[m], b[0], b[1]);
      ptx::mma(Element{}, sum.x[m][2 * n + 1], a[m], b[2], b[3]);
    }
  }

  // Products become scores; derivatives: theirs by the products, where these are not 1; behind: by what is added.
  __device__ __forceinline__ void score(Scores& s, Scores& derivatives, DerivativesBehind& behind,
                                        const RowPlace& place, int row, int column) const {
    if (args.sizes.query_sign != 0) s.multiply(-1.0f);  // the unit is positive, so that what is hidden is 0
    if constexpr (ScoreRow::kChanges) {
      const int first = first_key + column + lane() % 4 * 2;
      const ScoreRow of_head =
          parts.template row<false>([&] { return at_position(place, mask.position(row)); }, args.sizes.scale_log2);
#pragma unroll
      for (int half = 0; half < 2 * Shape::kRowTiles; ++half) {
        const ScoreRow of = of_head.at(mask.position(row + 8 * half + lane() / 4));
#pragma unroll
        for (int n = 0; n < kPieceKeys / 8; ++n)
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

  __device__ __forceinline__ void hide(Scores& s, const RowPlace& place, int row, int column) const {
    const int first = first_key + column, last = first + kPieceKeys - 1;
    if constexpr (Predicates::kAny)
      hide_by_predicates(s, predicates.row([&] { return at_position(place, mask.position(row)); }), row, first, lane(),
                         [this](int query) { return mask.position(query); });
    if constexpr (ScoreParts::kMayHide && !ScoreParts::kEndsInHiding)
      if (row + Shape::kRowsOfWarp > tile.sequence.queries) hide_missing_rows(s, row);
    if (mask.last_key(row) < last) mask_end(s, row, first, mask, lane());
    if constexpr (Mask<Config>::kBegins)
      if (mask.first_key(row + Shape::kRowsOfWarp - 1) > first) mask_begin(s, row, first, mask, lane());
  }

  // Those that do not exist, of which a tensor or a text may make infinity and NaN.
  __device__ __forceinline__ void hide_missing_rows(Scores& s, int row) const {
#pragma unroll
    for (int half = 0; half < 2 * Shape::kRowTiles; ++half)
      if (row + 8 * half + lane() / 4 >= tile.sequence.queries)
#pragma unroll
        for (int n = 0; n < kPieceKeys / 8; ++n)
          s.x[half / 2][n][half % 2 * 2] = s.x[half / 2][n][half % 2 * 2 + 1] = -infinity();
  }

  // Rows: this warp's keys; of the queries' products.
  template <int kDimTiles, class Columns>
  __device__ __forceinline__ void add_keys(Accumulator<Shape::kRowTiles, 2 * kDimTiles>& sum, SmemAddress of_scores,
                                           SmemAddress columns, int dim_tiles) const {
#pragma unroll 1
    for (int k = 0; k < Config::kBlockQ / 16; ++k) {
      uint32 a[Shape::kRowTiles][4];
#pragma unroll
      for (int m = 0; m < Shape::kRowTiles; ++m)
        Operands<STile>::columns_as_a(a[m], of_scores, warp() % Shape::kKeyWarps * Shape::kRowTiles + m, 16 * k,
                                      lane());
#pragma unroll
      for (int n = 0; n < kDimTiles; ++n) {
        const int tile_of_dims = dim_part() * kDimTiles + n;
        if (Shape::kDimParts > 1 && tile_of_dims >= dim_tiles) break;
        uint32 b[4];
        Operands<Columns>::columns_as_b(b, columns, tile_of_dims, 16 * k, lane());
        add_products(sum, n, a, b);
      }
    }
  }

  // Rows: this warp's queries. 16 dims at a time, as registers are full of dK and dV.
  __device__ __forceinline__ void add_queries(int i) const {
    if (args.dq == nullptr) return;
    const int row = first_query(i) + warp_row();
    float* const to = args.dq + row_index(head_of(i), row) * Config::kHeadDim;
#pragma unroll 1
    for (int n = 0; n < Shape::kQueryDimTiles; ++n) {
      const int tile_of_dims = part_of_row() * Shape::kQueryDimTiles + n;
      if (Shape::kPartsOfRow > 1 && tile_of_dims >= Shape::kPaddedHeadDim / 16) break;
      Accumulator<Shape::kRowTiles, 2> sum;
      sum.clear();
#pragma unroll
      for (int k = 0; k < Config::kBlockKv / 16; ++k) {
        uint32 a[Shape::kRowTiles][4], b[4];
#pragma unroll
        for (int m = 0; m < Shape::kRowTiles; ++m)
          Operands<STile>::rows_as_a(a[m], smem + Shape::kGradients, warp_row() + 16 * m, k, lane());
        Operands<KTile>::columns_as_b(b, smem, tile_of_dims, 16 * k, lane());
        add_products(sum, 0, a, b);
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int dim = 16 * tile_of_dims + 8 * n;
        if (dim >= Config::kHeadDim) continue;
#pragma unroll
        for (int half = 0; half < 2 * Shape::kRowTiles; ++half)
          if (row + 8 * half + lane() / 4 < tile.sequence.queries)
            reduce(to + (8 * half + lane() / 4) * Config::kHeadDim + dim + lane() % 4 * 2,
                   sum.x[half / 2][n][half % 2 * 2], sum.x[half / 2][n][half % 2 * 2 + 1]);
      }
    }
  }
  // One thread for all, behind a barrier that comes anyway.
  __device__ __forceinline__ void pass_turn(int i) const {
    if (args.dq != nullptr && thread == 0) turns().pass(query_place(i));
  }
  __device__ __forceinline__ QueryTurns<Config> turns() const { return {args.turns, tile.sequence.queries, 0, 1}; }
  __device__ __forceinline__ static void reduce(float* to, float x, float y) {
    if constexpr (Config::kReducesPairs)
      ptx::red_add(to, x, y);
    else
      ptx::red_add(to, x), ptx::red_add(to + 1, y);
  }

  __device__ __forceinline__ void end_head(int head) {
    const int64 index = tile.key_place(args.sizes.num_heads_q, head, args.key_tiles) + tile.index;
    score_gradients.end_head({index, Config::kWarps, warp(), lane()});
  }

  // --- Copies -------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ void bring_keys() {
    KTile::template clear_padding<Config::kHeadDim, Shape::kThreads>(smem, thread);
    VTile::template clear_padding<Config::kHeadDimV, Shape::kThreads>(smem + Shape::kValues, thread);
    const int rows = tile.sequence.keys - first_key;
    request<KTile, Config::kHeadDim>(smem, key_row(args.k, args.k_strides, first_key), args.k_strides.row, rows);
    request<VTile, Config::kHeadDimV>(smem + Shape::kValues, key_row(args.v, args.v_strides, first_key),
                                      args.v_strides.row, rows);
  }
  __device__ __forceinline__ void clear_ring_padding() {
#pragma unroll
    for (int i = 0; i < Config::kStages; ++i) {
      QTile::template clear_padding<Config::kHeadDim, Shape::kThreads>(q_slot(i), thread);
      OTile::template clear_padding<Config::kHeadDimV, Shape::kThreads>(o_slot(i), thread);
    }
  }
  __device__ __forceinline__ void request_queries(int i) {
    const int rows = tile.sequence.queries - first_query(i);
    request<QTile, Config::kHeadDim>(q_slot(i), query_row(args.q, args.q_strides, i), args.q_strides.row, rows);
    request<OTile, Config::kHeadDimV>(o_slot(i), query_row(args.dout, args.dout_strides, i), args.dout_strides.row,
                                      rows);
    ptx::cp_async_commit_group();
  }
  template <class Rows, int kColumns>
  __device__ __forceinline__ void request(SmemAddress to, const char* first, int64 stride, int rows) const {
    Rows::template request<kColumns, Shape::kThreads, true>(
        to, Rows::template source<kColumns, Shape::kThreads>(first, stride, thread), stride, rows, thread);
  }
  // Rows of tensors: of this tile's head, and of a step's.
  template <class Byte>
  __device__ __forceinline__ Byte* key_row(Byte* tensor, const RowStrides& strides, int key) const {
    return tensor + tile.key_batch * strides.batch + tile.head * strides.head + (tile.first_key + key) * strides.row;
  }
  __device__ __forceinline__ const char* query_row(const char* tensor, const RowStrides& strides, int i) const {
    return tensor + tile.query_batch * strides.batch + head_of(i) * strides.head +
           (tile.first_query + first_query(i)) * strides.row;
  }
  __device__ __forceinline__ SmemAddress q_slot(int i) const {
    return smem + Shape::kQRing + static_cast<uint32>(i) % Config::kStages * QTile::kBytes;
  }
  __device__ __forceinline__ SmemAddress o_slot(int i) const {
    return smem + Shape::kORing + static_cast<uint32>(i) % Config::kStages * OTile::kBytes;
  }

  template <int kDimTiles, int kColumns>
  __device__ __forceinline__ void store(const Accumulator<Shape::kRowTiles, 2 * kDimTiles>& sum, char* to,
                                        const RowStrides& strides, float scale) const {
    if (to == nullptr) return;
    using Stored = typename Config::GradientElement;
    constexpr int kBytes = Config::kGradientBytes;
#pragma unroll
    for (int half = 0; half < 2 * Shape::kRowTiles; ++half) {
      const int key = first_key + warp() % Shape::kKeyWarps * Shape::kRowsOfWarp + 8 * half + lane() / 4;
      if (key >= tile.sequence.keys) continue;
      char* const row = key_row(to, strides, key);
#pragma unroll
      for (int n = 0; n < 2 * kDimTiles; ++n) {
        const int dim = dim_part() * kDimTiles * 16 + 8 * n;
        if (dim >= kColumns) break;
        store_gradients(Stored{}, row + (dim + lane() % 4 * 2) * kBytes, sum.x[half / 2][n][half % 2 * 2] * scale,
                        sum.x[half / 2][n][half % 2 * 2 + 1] * scale);
      }
    }
  }

  // --- Places -------------------------------------------------------------------------------------------------------

  // Which tile of keys: where they take turns the next one, as blocks need not begin in the order of their index.
  __device__ __forceinline__ static uint32 ticket(const BackwardArguments& args, SmemAddress smem) {
    if constexpr (Config::kDeterministic) {
      if (ptx::tid_x() == 0) ptx::st_shared(smem, ptx::atom_increment(args.tickets));
      ptx::bar_sync();
      const uint32 drawn = ptx::ld_shared_word(smem);
      ptx::bar_sync();
      return drawn;
    }
    return ptx::ctaid_x();
  }

  struct Row {
    float lse_log2, sum;
  };
  __device__ __forceinline__ Row row_of(int head, int query) const {
    if (query >= tile.sequence.queries) return {infinity(), 0.0f};
    const int64 at = row_index(head, query);
    return {ptx::ld_global_float(args.lse_log2 + at), ptx::ld_global_float(args.row_sums + at)};
  }
  __device__ __forceinline__ int64 row_index(int head, int query) const {
    return (static_cast<int64>(tile.query_batch) * args.sizes.num_heads_q + head) * args.sizes.seqlen_q +
           tile.first_query + query;
  }
  // Of as many keys as are drawn at once, the block's column among them.
  __device__ __forceinline__ KeptPairs kept_of(const RowPlace& place, int query, int column) const {
    if constexpr (Dropouts::kAny) {
      const Dropouts dropouts(launch);
      KeptPairs kept = dropouts.row([&] { return at_position(place, mask.position(query)); })
                           .kept(first_key + column / kKeptKeys * kKeptKeys + lane() % 4 * 2);
#pragma unroll
      for (uint32& pair : kept.x) pair ^= dropouts.flips();
      return kept;
    } else {
      return {};
    }
  }
  // Where a piece has half as many columns as are drawn at once, every other one is the second half of those.
  __device__ __forceinline__ static uint32 stays_of(const KeptPairs& kept, int n, int column) {
    constexpr int kHalf = kKeptKeys / 16;
    static_assert(kPieceKeys == kKeptKeys || 2 * kPieceKeys == kKeptKeys, "a piece must be all or half of them");
    if constexpr (kPieceKeys == kKeptKeys) return kept.x[n];
    return column % kKeptKeys == 0 ? kept.x[n % kHalf] : kept.x[n % kHalf + kHalf];
  }

  __device__ __forceinline__ static RowPlace at_position(const RowPlace& place, int position) {
    return {place.batch, place.head, position, place.sequence};
  }
  __device__ __forceinline__ float unit() const { return parts.unit(args.sizes.scale_log2); }
  __device__ __forceinline__ float dropout_scale() const { return Dropouts(launch).scale(); }
  // Steps go through the heads of the group, one after the other.
  __device__ __forceinline__ int head_of(int i) const {
    return tile.head * args.sizes.heads_per_group + i / tiles.count();
  }
  __device__ __forceinline__ int tile_of(int i) const { return tiles.first + i % tiles.count(); }
  __device__ __forceinline__ int first_query(int i) const { return tile_of(i) * Config::kBlockQ; }
  // Among those of all heads.
  __device__ __forceinline__ int query_place(int i) const {
    return tile.query_place(args.sizes.num_heads_q, head_of(i), args.sizes.num_q_tiles) + tile_of(i);
  }
  __device__ __forceinline__ int lane() const { return thread % kWarpSize; }
  __device__ __forceinline__ int warp() const { return thread / kWarpSize; }
  __device__ __forceinline__ int warp_row() const { return warp() % Shape::kQueryWarps * Shape::kRowsOfWarp; }
  __device__ __forceinline__ int part_of_row() const { return warp() / Shape::kQueryWarps; }
  __device__ __forceinline__ int dim_part() const { return warp() / Shape::kKeyWarps; }

  const typename Config::Arguments& launch;
  const BackwardArguments& args;
  const SmemAddress smem;
  const int thread;
  const PlacedKeyTile<Config> tile;
  const int first_key;
  const Mask<Config> mask;
  const ScoreParts parts;
  const Predicates predicates;
  ScoreGradients score_gradients;
  QueryTiles tiles;
  Accumulator<Shape::kRowTiles, 2 * Shape::kKeyDimTiles> dk;
  Accumulator<Shape::kRowTiles, 2 * Shape::kValueDimTiles> dv;
};
