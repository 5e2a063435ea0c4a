// SPDX-License-Identifier: Apache-2.0
// Gradients of attention with mma.sync (sm_80 and later) where head dims are above 256: three kernels, each for one of
// them, whose sums fill the registers of a block. Essay: docs/kernels/large_heads.md.
//
// A block has some rows of a gradient and walks over the blocks of rows that they meet:
//   dV = sum P^T dO      dK = sum dS^T Q      of keys, through blocks of queries
//   dQ = sum dS K                             of queries, through blocks of keys
// Rows of so many columns come in pieces, through one ring in the order of their use. Every piece has a barrier of the
// block, behind which it is there and the one before it is read, so that a later piece may come in its place.
//
//   for each block:
//     for each piece of columns:  barrier; request a later piece; S += Q K^T, or dP += dO V^T
//     P = exp(S - LSE), or dS = P (dP - D), to shared memory
//     for each piece of rows:     barrier; request a later piece; add up its product with P or dS
#pragma once

#include "attention/gradient.cuh"
#include "attention/large_backward_work.cuh"
#include "attention/softmax.cuh"
#include "mma/backward_scores.cuh"
#include "mma/large_backward_shape.cuh"
#include "mma/operands.cuh"
#include "mma/piece_ring.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/made_here.cuh"
#include "ptx/memory.cuh"
#include "ptx/special_registers.cuh"

template <class Config>
class LargeBackwardMma {
  using Shape = LargeBackwardMmaShape<Config>;
  using Work = LargeBackwardWork<Config>;
  using Step = typename Work::Step;
  using Element = typename Config::Element;
  using STile = typename Shape::STile;
  using AddedPiece = typename Shape::AddedPiece;
  using ScoreGradients = typename Config::ScoreGradients;
  using BlockScores = BackwardScores<Config, Shape::kRowTiles, Shape::kKeysOfWarp>;
  using Products = typename BlockScores::Products;
  static constexpr bool kOfQueries = Shape::kOfQueries;

  using Ring = PieceRing<Shape>;

 public:
  // The block's rows, where there are some.
  __device__ __forceinline__ static void run(const typename Config::Arguments& arguments, SmemAddress smem) {
    const uint32 index = ptx::ctaid_x();
    if (Work::exists(arguments, index)) LargeBackwardMma(arguments, smem, index).run();
  }

 private:
  __device__ __forceinline__ LargeBackwardMma(const typename Config::Arguments& arguments, SmemAddress smem_,
                                              uint32 index)
      : args(arguments.core),
        smem(smem_),
        work(arguments, index),
        scores(arguments, work.tile, work.mask, Self{}.lane()) {}

  __device__ __forceinline__ void run() {
    sum.clear();
    if (work.steps > 0) {
      if constexpr (Config::kStays) request_rows_that_stay();
      fill_ring();
#pragma unroll 1
      for (int i = 0; i < work.steps; ++i) visit(i);
    } else if constexpr (ScoreGradients::kAny) {
      for (int i = 0; i < args.sizes.heads_per_group; ++i) end_head(work.head + i);
    }
    if (args.gradient != nullptr) store();
  }

  // --- A block that the rows meet -----------------------------------------------------------------------------------

  // Which one it is is found anew for each piece, as registers are few: so is what follows from the thread.

  __device__ __forceinline__ void visit(int i) {
    Products s, dp;
    s.clear(), dp.clear();
    multiply(s, dp, i);
    const Self self;
    const Step at = work.step(ptx::made_here(i));
    // What is made of a dP that there is not, for dV, is not sent.
    scores.differentiate(s, dp,
                         {at.head, work.first_query(at) + self.query_row(), work.first_key(at), self.key_column()},
                         [&](int half, int n, uint32 p, uint32 ds) {
                           const uint32 to = STile::move(STile::offset(self.lane() / 4, 0) + self.lane() % 4 * 4,
                                                         self.query_row() + 8 * half, self.key_column() / 8 + n);
                           ptx::st_shared(smem + Shape::kScores + to, Shape::kDifferentiates ? ds : p);
                         });
    add(i);
    if constexpr (ScoreGradients::kAny)
      if ((i + 1) % work.blocks.count() == 0) end_head(at.head);
    // P or dS is written again behind the barriers of the next block's pieces.
  }

  template <int kPiece = 0>
  __device__ __forceinline__ void multiply(Products& s, Products& dp, int i) {
    if constexpr (kPiece < Shape::kScorePieces) {
      const SmemAddress piece = next_piece<kPiece>(i);
      multiply_piece<kPiece>(Shape::is_of_keys(kPiece) ? s : dp, piece);
      multiply<kPiece + 1>(s, dp, i);
    }
  }
  // Rows of queries by rows of keys, over the columns of a piece.
  template <int kPiece>
  __device__ __forceinline__ void multiply_piece(Products& products, SmemAddress met) const {
    using Met = typename Shape::template MetPiece<kPiece>;
    using Own = typename Shape::template OwnPiece<kPiece>;
    using Queries = typename Choose<kOfQueries, Own, Met>::type;
    using Keys = typename Choose<kOfQueries, Met, Own>::type;
    constexpr int kOwnStep = Config::kStays ? Shape::first_column(kPiece) / 16 : 0;
    const SmemAddress own =
        Config::kStays ? smem + (Shape::is_of_keys(kPiece) ? 0 : Shape::kOwnKeyBytes) : met + Met::kBytes;
    const Self self;
#pragma unroll
    for (int k = 0; k < Shape::steps_of(kPiece); ++k) {
      uint32 a[Shape::kRowTiles][4];
#pragma unroll
      for (int m = 0; m < Shape::kRowTiles; ++m)
        Operands<Queries>::rows_as_a(a[m], kOfQueries ? own : met, self.query_row() + 16 * m,
                                     k + (kOfQueries ? kOwnStep : 0), self.lane());
#pragma unroll
      for (int n = 0; n < Shape::kKeysOfWarp / 16; ++n) {
        uint32 b[4];
        Operands<Keys>::rows_as_b(b, kOfQueries ? met : own, self.key_column() + 16 * n,
                                  k + (kOfQueries ? 0 : kOwnStep), self.lane());
        add_products<Element>(products, n, a, b);
      }
    }
  }

  template <int kPiece = 0>
  __device__ __forceinline__ void add(int i) {
    if constexpr (kPiece < Shape::kAddedPieces) {
      const SmemAddress piece = next_piece<Shape::kScorePieces + kPiece>(i);
      add_piece(kPiece * Shape::kAddedRows, piece);
      add<kPiece + 1>(i);
    }
  }
  // The warp's rows of P or dS, or of their transpose, by rows that are met, from the block's first-th on.
  __device__ __forceinline__ void add_piece(int first, SmemAddress piece) {
    const Self self;
    const uint32 at = AddedPiece::offset(self.lane() % 16, 2 * self.dim_part() + self.lane() / 16);
#pragma unroll
    for (int k = 0; k < Shape::kAddedRows / 16; ++k) {
      uint32 a[Shape::kRowTiles][4];
#pragma unroll
      for (int m = 0; m < Shape::kRowTiles; ++m)
        load_scores(a[m], self.row_of_sum() + 16 * m, first / 16 + k, self.lane());
#pragma unroll
      for (int n = 0; n < Shape::kDimTiles; ++n) {
        if (!self.has_tile(n)) continue;
        uint32 b[4];
        ptx::ldmatrix_x4_trans(b, piece + AddedPiece::move(at, 16 * k, 2 * Shape::kDimParts * n));
        add_products<Element>(sum, n, a, b);
      }
    }
  }
  __device__ __forceinline__ void load_scores(uint32 (&a)[4], int row, int k, int lane) const {
    if constexpr (kOfQueries)
      Operands<STile>::rows_as_a(a, smem + Shape::kScores, row, k, lane);
    else
      Operands<STile>::columns_as_a(a, smem + Shape::kScores, row / 16, 16 * k, lane);
  }

  __device__ __forceinline__ void end_head(int head) { scores.end_head(head, args.key_tiles, Self{}.warp()); }

  // --- The ring of pieces -------------------------------------------------------------------------------------------

  // Waits for a piece of block i.
  template <int kPiece>
  __device__ __forceinline__ SmemAddress next_piece(int i) {
    return ring.take(smem, [&](SmemAddress slot) { request<kPiece + Ring::kLead>(i, slot); });
  }

  template <int kPiece = 0>
  __device__ __forceinline__ void fill_ring() {
    if constexpr (kPiece < Ring::kLead) {
      request<kPiece>(0, Ring::slot(smem, kPiece));
      fill_ring<kPiece + 1>();
    } else {
      ring.begin(smem);
    }
  }

  // Pieces are counted from block i on. One group of copies for each, so that they are counted alike to the last one.
  template <int kPiece>
  __device__ __forceinline__ void request(int i, SmemAddress slot) const {
    constexpr int kOfBlock = kPiece % Shape::kPieces;
    i += kPiece / Shape::kPieces;
    if (i < work.steps) {
      const Step at = work.step(ptx::made_here(i));
      if constexpr (kOfBlock < Shape::kScorePieces)
        request_columns<kOfBlock>(at, slot);
      else
        request_added(at, (kOfBlock - Shape::kScorePieces) * Shape::kAddedRows, slot);
    }
    ptx::cp_async_commit_group();
  }
  template <int kPiece>
  __device__ __forceinline__ void request_columns(const Step& at, SmemAddress slot) const {
    using Met = typename Shape::template MetPiece<kPiece>;
    constexpr bool kOfKeys = Shape::is_of_keys(kPiece);
    constexpr int kWidth = Shape::width_of(kPiece), kFirst = Shape::first_column(kPiece);
    request_rows<Met, kWidth, kFirst>(slot, met_rows<kOfKeys>(at));
    if constexpr (!Config::kStays)
      request_rows<typename Shape::template OwnPiece<kPiece>, kWidth, kFirst>(slot + Met::kBytes, own_rows<kOfKeys>());
  }
  // Of a block's rows those from the first-th on.
  __device__ __forceinline__ void request_added(const Step& at, int first, SmemAddress slot) const {
    Rows rows = met_rows<Shape::kDifferentiates>(at);
    rows.first += first * rows.stride, rows.count -= first;
    request_rows<AddedPiece, Shape::kColumns, 0>(slot, rows);
  }
  // With the first piece.
  __device__ __forceinline__ void request_rows_that_stay() const {
    request_rows<typename Shape::template RowsThatStay<Config::kHeadDim>, Config::kHeadDim, 0>(smem, own_rows<true>());
    if constexpr (Shape::kDifferentiates)
      request_rows<typename Shape::template RowsThatStay<Config::kHeadDimV>, Config::kHeadDimV, 0>(
          smem + Shape::kOwnKeyBytes, own_rows<false>());
  }

  // Rows that lie in a tensor one after the other. Those from count on do not exist, and become zeros.
  struct Rows {
    const char* first;
    int64 stride;
    int count;
  };
  // What pads the rows is cleared each time, as other pieces lay there.
  template <class Tile, int kWidth, int kFirstColumn>
  __device__ __forceinline__ void request_rows(SmemAddress to, const Rows& rows) const {
    const char* const first = rows.first + 2 * kFirstColumn;
    const int thread = Self{}.thread;
    Tile::template clear_padding<kWidth, Shape::kThreads>(to, thread);
    Tile::template request<kWidth, Shape::kThreads, true>(
        to, Tile::template source<kWidth, Shape::kThreads>(first, rows.stride, thread), rows.stride, rows.count,
        thread);
  }
  // kOfKeys: of q and k, or of dO and v.
  template <bool kOfKeys>
  __device__ __forceinline__ Rows met_rows(const Step& at) const {
    if constexpr (kOfQueries) return rows_of_keys<kOfKeys>(work.first_key(at));
    return rows_of_queries<kOfKeys>(at.head, work.first_query(at));
  }
  template <bool kOfKeys>
  __device__ __forceinline__ Rows own_rows() const {
    if constexpr (kOfQueries) return rows_of_queries<kOfKeys>(work.head, work.first_row());
    return rows_of_keys<kOfKeys>(work.first_row());
  }
  template <bool kOfKeys>
  __device__ __forceinline__ Rows rows_of_keys(int first) const {
    const RowStrides& strides = kOfKeys ? args.k_strides : args.v_strides;
    return {key_row(kOfKeys ? args.k : args.v, strides, first), strides.row, work.tile.sequence.keys - first};
  }
  template <bool kOfKeys>
  __device__ __forceinline__ Rows rows_of_queries(int head, int first) const {
    const RowStrides& strides = kOfKeys ? args.q_strides : args.dout_strides;
    return {query_row(kOfKeys ? args.q : args.dout, strides, head, first), strides.row,
            work.tile.sequence.queries - first};
  }
  template <class Byte>
  __device__ __forceinline__ Byte* key_row(Byte* tensor, const RowStrides& strides, int key) const {
    return tensor + work.tile.key_batch * strides.batch + work.tile.head * strides.head +
           (work.tile.first_key + key) * strides.row;
  }
  template <class Byte>
  __device__ __forceinline__ Byte* query_row(Byte* tensor, const RowStrides& strides, int head, int query) const {
    return tensor + work.tile.query_batch * strides.batch + head * strides.head +
           (work.tile.first_query + query) * strides.row;
  }

  // --- The gradient -------------------------------------------------------------------------------------------------

  __device__ __forceinline__ void store() const {
    using Stored = typename Config::GradientElement;
    constexpr int kBytes = Config::kGradientBytes;
    const Sequence& sequence = work.tile.sequence;
    const Self self;
#pragma unroll
    for (int half = 0; half < 2 * Shape::kRowTiles; ++half) {
      const int row = work.first_row() + self.row_of_sum() + 8 * half + self.lane() / 4;
      if (row >= (kOfQueries ? sequence.queries : sequence.keys)) continue;
      char* const to = kOfQueries ? query_row(args.gradient, args.gradient_strides, work.head, row)
                                  : key_row(args.gradient, args.gradient_strides, row);
#pragma unroll
      for (int n = 0; n < 2 * Shape::kDimTiles; ++n) {
        const int column = 16 * (Shape::kDimParts * (n / 2) + self.dim_part()) + n % 2 * 8;
        if (column >= Shape::kColumns) break;
        store_gradients(Stored{}, to + (column + self.lane() % 4 * 2) * kBytes,
                        sum.x[half / 2][n][half % 2 * 2] * args.scale,
                        sum.x[half / 2][n][half % 2 * 2 + 1] * args.scale);
      }
    }
  }

  // --- Places -------------------------------------------------------------------------------------------------------

  // Of a thread. Asked for anew for each piece, as the loop has no registers to keep what follows from it.
  struct Self {
    const int thread = ptx::tid_x();

    __device__ __forceinline__ int lane() const { return thread % kWarpSize; }
    __device__ __forceinline__ int warp() const { return thread / kWarpSize; }
    // Of scores, the warp's first row and column.
    __device__ __forceinline__ int query_row() const { return warp() % Shape::kQueryWarps * Shape::kRowsOfWarp; }
    __device__ __forceinline__ int key_column() const { return warp() / Shape::kQueryWarps * Shape::kKeysOfWarp; }
    // Of the gradient, its first row, and which of every so many tiles of 16 columns it has.
    __device__ __forceinline__ int row_of_sum() const { return warp() % Shape::kRowWarps * Shape::kRowsOfWarp; }
    __device__ __forceinline__ int dim_part() const { return warp() / Shape::kRowWarps; }
    __device__ __forceinline__ bool has_tile(int n) const {
      return Shape::kDimParts * n + dim_part() < Shape::kPaddedColumns / 16;
    }
  };

  const MmaLargeBackwardArguments& args;
  const SmemAddress smem;
  const Work work;
  BlockScores scores;
  Ring ring;
  Accumulator<Shape::kRowTiles, 2 * Shape::kDimTiles> sum;
};
