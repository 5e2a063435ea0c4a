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
#include "attention/softmax.cuh"
#include "attention/turns.cuh"
#include "mma/backward_scores.cuh"
#include "mma/backward_shape.cuh"
#include "mma/operands.cuh"
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"
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
  using ScoreGradients = typename Config::ScoreGradients;
  // A warp takes its columns a piece at a time, so that registers have room for dK and dV.
  static constexpr int kPieceKeys = Shape::kKeysOfWarp < kKeptKeys ? Shape::kKeysOfWarp : kKeptKeys;
  static_assert(Shape::kKeysOfWarp % kPieceKeys == 0 && kKeptKeys % kPieceKeys == 0, "pieces must fill their rows");
  using BlockScores = BackwardScores<Config, Shape::kRowTiles, kPieceKeys>;
  using Products = typename BlockScores::Products;

 public:
  // A block's tile of keys, where there is one.
  __device__ __forceinline__ static void run(const typename Config::Arguments& arguments, SmemAddress smem) {
    const uint32 index = ticket(arguments.core, smem);
    if (PlacedKeyTile<Config>::exists(arguments, index)) BackwardMma(arguments, smem, index).run();
  }

 private:
  __device__ __forceinline__ BackwardMma(const typename Config::Arguments& arguments, SmemAddress smem, uint32 index)
      : args(arguments.core),
        smem(smem),
        thread(ptx::tid_x()),
        tile(arguments, index),
        first_key(tile.index * Config::kBlockKv),
        mask(arguments, tile.sequence, [this] { return tile.batch; }, {}),
        scores(arguments, tile, mask, lane()) {}

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
    Products s, dp;
    multiply<QTile, KTile, Shape::kPaddedHeadDim / 16>(s, q_slot(i), smem, column);
    multiply<OTile, VTile, Shape::kPaddedHeadDimV / 16>(dp, o_slot(i), smem + Shape::kValues, column);
    scores.differentiate(
        s, dp, {head_of(i), first_query(i) + warp_row(), first_key, column}, [&](int half, int n, uint32 p, uint32 ds) {
          const uint32 at =
              STile::move(STile::offset(lane() / 4, 0) + lane() % 4 * 4, warp_row() + 8 * half, column / 8 + n);
          ptx::st_shared(smem + Shape::kProbabilities + at, p);
          ptx::st_shared(smem + Shape::kGradients + at, ds);
        });
  }

  // Rows of queries by rows of keys.
  template <class Rows, class Columns, int kSteps>
  __device__ __forceinline__ void multiply(Products& s, SmemAddress rows, SmemAddress columns, int column) const {
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
        add_products<Element>(s, n, a, b);
      }
    }
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
        add_products<Element>(sum, n, a, b);
      }
    }
  }

  // Rows: this warp's queries. 16 dims at a time, as registers are full of dK and dV.
  __device__ __forceinline__ void add_queries(int i) const {
    if (args.dq == nullptr) return;
    const int row = first_query(i) + warp_row();
    float* const to = args.dq + scores.row_index(head_of(i), row) * Config::kHeadDim;
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
        add_products<Element>(sum, 0, a, b);
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

  __device__ __forceinline__ void end_head(int head) { scores.end_head(head, args.key_tiles, warp()); }

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

  const BackwardArguments& args;
  const SmemAddress smem;
  const int thread;
  const PlacedKeyTile<Config> tile;
  const int first_key;
  const Mask<Config> mask;
  BlockScores scores;
  QueryTiles tiles;
  Accumulator<Shape::kRowTiles, 2 * Shape::kKeyDimTiles> dk;
  Accumulator<Shape::kRowTiles, 2 * Shape::kValueDimTiles> dv;
};
