// SPDX-License-Identifier: Apache-2.0
// The arithmetic of warps that share their 16 or 32 query rows, with mma.sync, and what they send each other: maxima,
// probabilities and sums.
#pragma once

#include "attention/probability.cuh"
#include "attention/softmax.cuh"
#include "mma/online_softmax.cuh"
#include "mma/operands.cuh"
#include "mma/store.cuh"
#include "ptx/barrier.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/memory.cuh"
#include "ptx/mma.cuh"
#include "ptx/special_registers.cuh"
#include "tile/shared_tile.cuh"

// The online softmax of rows of which a warp has some columns, and is told of the others.
template <int kM, bool kRareRescale>
struct SharedRowsSoftmax : OnlineSoftmax<kM, kRareRescale> {
  using Base = OnlineSoftmax<kM, kRareRescale>;
  using Shift = typename Base::Shift;
  using Base::lag;
  using Base::maximum;
  using Base::sum;

  // Of rows' columns, the same in the four lanes of each.
  struct Maxima {
    float x[kM][2];
  };

  using Base::Base;

  template <int kNs, bool kAny>
  __device__ __forceinline__ static Maxima maxima_of(const Accumulator<kM, kNs>& s, const Common<kM, kAny>& common) {
    Maxima seen;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float of_lane = Base::seen_maximum(s, m, h);
        if constexpr (kAny) of_lane += common.x[m][h];
        const float of_two = fmaxf(of_lane, ptx::shfl_xor(of_lane, 1));
        seen.x[m][h] = fmaxf(of_two, ptx::shfl_xor(of_two, 2));
      }
    return seen;
  }

  // As that of OnlineSoftmax, with the maxima of all columns: every warp that shares the rows rescales, or none.
  template <int kNs, int kNo, bool kAny>
  __device__ __forceinline__ Shift raise_maximum(Accumulator<kM, kNs>& s, Accumulator<kM, kNo>& o, const Maxima& seen,
                                                 const Common<kM, kAny>& common) {
    bool grew = false;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) grew |= seen.x[m][h] > maximum[m][h] + lag;
    if (!kRareRescale || ptx::vote_any(grew)) Base::template rescale<true>(seen.x, o);
    Shift shift = Base::shift_by_maxima();
    Base::add_common(shift, common);
    if (Base::expects_far()) Base::subtract_far_maxima(s, shift, common);
    return shift;
  }

  // What total() gives: of all columns.
  __device__ __forceinline__ void set_total(int m, int h, float total, int lane) {
    sum[m][h] = lane % 4 == 0 ? total : 0.0f;
  }
};

template <class Config, class Shape>
struct SharedRowsAttention {
  using Value = typename Shape::ValueFragments::Value;
  using PTile = typename Shape::PTile;
  static constexpr int kM = Shape::kM;
  using Softmax = SharedRowsSoftmax<kM, Config::kRareRescale>;
  using Shift = typename Softmax::Shift;
  using Scores = Accumulator<kM, Shape::kWarpKeys / 8>;

  Softmax softmax;
  Accumulator<kM, 2 * Shape::kTilesOfWarp> o;
  SmemAddress q_rows;  // of the warps that share them
  int lane;

  __device__ __forceinline__ SharedRowsAttention(float scale_log2, SmemAddress q_rows, int lane)
      : softmax(scale_log2), q_rows(q_rows), lane(lane) {
    o.clear();
  }

  // S += Q K^T of the warp's keys, over the columns of a piece.
  template <int kPiece>
  __device__ __forceinline__ void multiply_keys(Scores& s, SmemAddress piece) const {
    using Fragments = typename Shape::template FragmentsOfPiece<kPiece>;
    using Key = typename Fragments::Key;
    const SmemAddress keys = piece + Shape::part() * Shape::kWarpKeys * Shape::template KeyPiece<kPiece>::kRowBytes;
#pragma unroll
    for (int k = 0; k < Shape::steps_of_piece(kPiece); ++k) {
      uint32 q[kM][4];
      Fragments::load_query(q, q_rows, lane, Shape::first_step(kPiece) + k);
#pragma unroll
      for (int n = 0; n < Shape::kWarpKeys / 16; ++n) {
        uint32 b[4];
        Fragments::load_keys(b, keys, lane, n, k);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          ptx::mma(Key{}, s.x[m][2 * n], q[m], b[0], b[1]);
          ptx::mma(Key{}, s.x[m][2 * n + 1], q[m], b[2], b[3]);
        }
      }
    }
  }

  // maxima: of these rows.
  template <bool kAny>
  __device__ __forceinline__ void send_maxima(const Scores& s, const Common<kM, kAny>& common,
                                              SmemAddress maxima) const {
    const auto own = Softmax::maxima_of(s, common);
    for_each_row([&](int m, int h, int row) { send(maxima, row, own.x[m][h]); });
  }
  // Once all have sent theirs: the scores and the result go to send_probabilities().
  template <bool kAny>
  __device__ __forceinline__ Shift raise_maximum(Scores& s, const Common<kM, kAny>& common, SmemAddress maxima) {
    typename Softmax::Maxima seen;
    for_each_row([&](int m, int h, int row) {
      const Sent sent = sent_of(maxima, row);
      seen.x[m][h] = fmaxf(fmaxf(sent.x[0], sent.x[1]), fmaxf(sent.x[2], sent.x[3]));
    });
    return softmax.raise_maximum(s, o, seen, common);
  }

  // P of the warp's keys. kept(m, h, column): as in WarpAttention::accumulate_output. weigh(p0, p1, n): before two of
  // the n-th eight keys become elements, when they are in their row's sum.
  template <class Kept, class Weigh>
  __device__ __forceinline__ void send_probabilities(const Scores& s, const Shift& shift, SmemAddress p_rows, Kept kept,
                                                     uint32 flips, Weigh weigh) {
    for_each_row([&](int m, int h, int) {
      KeptPairs kept_pairs;
#pragma unroll
      for (int n = 0; n < Shape::kWarpKeys / 8; ++n) {
        uint32 p = softmax.template exponentiate<Value>(s.x[m][n], shift, m, h,
                                                        [&](float& p0, float& p1) { weigh(p0, p1, n); });
        if constexpr (Config::Dropouts::kAny) {
          if (n % (kKeptKeys / 8) == 0) kept_pairs = kept(m, h, 8 * n);
          p &= kept_pairs.x[n % (kKeptKeys / 8)] ^ flips;
        }
        const uint32 at = PTile::offset(lane / 4, Shape::part() * Shape::kWarpKeys / 8 + n) + lane % 4 * 4;
        ptx::st_shared(p_rows + PTile::move(at, 16 * m + 8 * h, 0), p);
      }
    });
  }

  // O += P V of the warp's columns, over the keys of a piece, the first of which is this one of the block.
  __device__ __forceinline__ void multiply_values(SmemAddress p_rows, int first, SmemAddress piece) {
    const uint32 at = Shape::ValueFragments::place_of_values(lane, Shape::part());
#pragma unroll
    for (int j = 0; j < Shape::kKeysOfPiece / 16; ++j) {
      uint32 p[kM][4];
#pragma unroll
      for (int m = 0; m < kM; ++m) Operands<PTile>::rows_as_a(p[m], p_rows, 16 * m, first / 16 + j, lane);
#pragma unroll
      for (int n = 0; n < Shape::kTilesOfWarp; ++n) {
        if (!Shape::has_tile(n)) continue;
        uint32 b[4];
        Shape::ValueFragments::load_values_from(b, piece, at, j, Shape::kWarpsOfRows * n);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          ptx::mma(Value{}, o.x[m][2 * n], p[m], b[0], b[1]);
          ptx::mma(Value{}, o.x[m][2 * n + 1], p[m], b[2], b[3]);
        }
      }
    }
  }

  // Behind the last block: the sums of rows, in the order of the warps.
  __device__ __forceinline__ void send_sums(SmemAddress sums) const {
    for_each_row([&](int m, int h, int row) { send(sums, row, softmax.total(m, h)); });
  }
  __device__ __forceinline__ void take_sums(SmemAddress sums) {
    for_each_row([&](int m, int h, int row) {
      const Sent sent = sent_of(sums, row);
      softmax.set_total(m, h, sent.x[0] + sent.x[1] + sent.x[2] + sent.x[3], lane);
    });
  }

 private:
  // By the warps that share a row, one each.
  struct Sent {
    float x[Shape::kWarpsOfRows];
  };

  // The lane's: body(m, h, row).
  template <class Body>
  __device__ __forceinline__ void for_each_row(Body body) const {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) body(m, h, 16 * m + 8 * h + lane / 4);
  }
  // What the four lanes of a row have alike.
  __device__ __forceinline__ void send(SmemAddress of_rows, int row, float x) const {
    if (lane % 4 == 0) ptx::st_shared(of_rows + row * Shape::kMaximaOfRow + Shape::part() * 4, __float_as_uint(x));
  }
  __device__ __forceinline__ static Sent sent_of(SmemAddress of_rows, int row) {
    const ptx::Chunk c = ptx::ld_shared(of_rows + row * Shape::kMaximaOfRow);
    return {{__uint_as_float(c.x), __uint_as_float(c.y), __uint_as_float(c.z), __uint_as_float(c.w)}};
  }
};

// How rows leave that warps share: each brings its columns to a slab that they have together at the start of shared
// memory, and takes some rows of it away.
template <class Config, class Shape>
struct StoreOfSharedRows {
  using Element = typename Config::Element;
  using Tile = typename Shape::OTile;
  using Columns = typename Shape::ValueFragments::Columns;

  __device__ __forceinline__ static SmemAddress slab(SmemAddress smem, int warp) {
    return smem + warp / Shape::kWarpsOfRows * Tile::kBytes;
  }
  // Whether the warp says what the sums of its rows are: one of them does.
  __device__ __forceinline__ static bool tells() { return Shape::part() == 0; }

  template <class Output>
  __device__ __forceinline__ static void rows(const Output& o, SmemAddress slab, char* rows, int64 row_stride,
                                              int valid_rows, int lane) {
    store_rows<Tile, Config::kHeadDimV, Shape::kGroupThreads>([&] { gather(o, slab, lane); }, slab, rows, row_stride,
                                                              valid_rows, thread());
  }
  template <class Output, class RowAt>
  __device__ __forceinline__ static void found_rows(const Output& o, SmemAddress slab, RowAt row_at, int valid_rows,
                                                    int lane) {
    store_found_rows<Tile, Config::kHeadDimV, Shape::kGroupThreads>([&] { gather(o, slab, lane); }, slab, row_at,
                                                                    valid_rows, thread());
  }
  template <int kM, int kN>
  __device__ __forceinline__ static void partial_rows(const Accumulator<kM, kN>& o, float* rows, int valid_rows,
                                                      int lane) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = 16 * m + 8 * h + lane / 4;
        if (row >= valid_rows) continue;
#pragma unroll
        for (int n = 0; n < kN; n += Columns::kTiles) {
          const int column = 8 * chunk_of(n) + Columns::first(lane);
          if (column < Config::kHeadDimV) Columns::put(rows + row * Config::kHeadDimV + column, o.x[m], n, h);
        }
      }
  }

 private:
  __device__ __forceinline__ static int thread() { return ptx::tid_x() % Shape::kGroupThreads; }
  // Which eight columns of the output the warp has in its n-th accumulator, or begin what it has in several.
  __device__ __forceinline__ static int chunk_of(int n) {
    return 2 * (n / 2 * Shape::kWarpsOfRows + Shape::part()) + n % 2;
  }

  template <int kM, int kN>
  __device__ __forceinline__ static void gather(const Accumulator<kM, kN>& o, SmemAddress slab, int lane) {
    const SmemAddress at =
        slab + Tile::offset(lane / 4, 2 * Shape::part() + Columns::chunk(lane)) + Columns::of_chunk(lane) * 2;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kN; n += Columns::kTiles) {
        if (!Shape::has_tile(n / 2)) continue;
#pragma unroll
        for (int h = 0; h < 2; ++h)
          Columns::template put_elements<Element>(
              Tile::move(at, 16 * m + 8 * h, n / 2 * 2 * Shape::kWarpsOfRows + n % 2), o.x[m], n, h);
      }
    ptx::bar_sync();
  }
};
