// SPDX-License-Identifier: Apache-2.0
// One warpgroup's arithmetic: its 64 query rows against keys and values in shared memory, with wgmma.
#pragma once

#include "hopper/deferred_softmax.cuh"
#include "hopper/shape.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

template <class Config>
struct WarpgroupAttention {
  using Shape = HopperShape<Config>;
  using QTile = typename Shape::QTile;
  using KTile = typename Shape::KTile;
  using ValueTile = typename Shape::ValueTile;
  // Generated, without members: their registers are known to PTX alone.
  using Scores = typename Config::Scores;
  using Output = typename Config::Output;

  // By wgmma's depth, which is 32 bytes.
  static constexpr int kQSteps = ceil_div(QTile::kColumns, 16);
  static constexpr int kPSteps = Config::kBlockKv / (16 * Config::Products::kElementsOfWord);
  static constexpr bool kKeysAlongRows = Shape::kKeysAlongRows;
  static constexpr int kColumnsOfLane = Config::kBlockKv / 4;  // of a row
  using Softmax = DeferredSoftmax<Scores, Config::kRescale,
                                  typename Config::Products::template Probabilities<Config::kRescale, kColumnsOfLane>>;

  uint32 begun = 0;  // 1: the output has products of this tile; else the next one overwrites it
  Softmax softmax;
  // Matrix descriptors: the warpgroup's rows of the query tile in the first slot and in the present one, and the first
  // slots of the rings.
  uint64 first_q, q, k, v;
  const SmemAddress block;  // the upper bits of its addresses

  __device__ __forceinline__ WarpgroupAttention(float scale_log2, const Shape& shape, int warpgroup)
      : softmax(scale_log2),
        first_q(QTile::k_major(in_block(shape.queries().slot(0)) + warpgroup * kWarpgroupRows * QTile::kRowBytes)),
        k(KTile::k_major(in_block(shape.keys().slot(0)))),
        v(describe(in_block(shape.values().slot(0)))),
        block(shape.smem & ~QTile::kAddressMask) {}

  // In a cluster the upper bits of an address name the block. They are not for a matrix descriptor, but what threads
  // read and write themselves needs them again.
  static __device__ __forceinline__ SmemAddress in_block(SmemAddress address) {
    return Config::kCluster == 1 ? address : address & QTile::kAddressMask;
  }
  __device__ __forceinline__ SmemAddress whole(SmemAddress address) const {
    return Config::kCluster == 1 ? address : address | block;
  }

  __device__ __forceinline__ void set_query(int stage) { q = QTile::slot(first_q, stage); }

  // --- Products. Between issue and wait nothing may touch their registers. -------------------------------------

  template <class Matrix = Scores>
  __device__ __forceinline__ void issue_scores(int stage) {
    ptx::wgmma_fence();
    const uint64 first = KTile::slot(k, stage);
    uint64 a[kQSteps], b[kQSteps];
#pragma unroll
    for (int step = 0; step < kQSteps; ++step) {
      a[step] = q + QTile::k_major_step(step);
      b[step] = first + KTile::k_major_step(step);
    }
    Matrix::issue(a, b);
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ void issue_output(int stage) {
    ptx::wgmma_fence();
    uint64 b[kPSteps];
    describe_values(b, stage);
    Output::issue(b, begun);
    begun = 1;
    ptx::wgmma_commit_group();
  }

  // The same of sums that stand apart: a piece of their columns.
  template <int kPiece>
  __device__ __forceinline__ void issue_piece(int stage) {
    static_assert(kKeysAlongRows, "columns of the output are rows of values");
    ptx::wgmma_fence();
    uint64 b[kPSteps];
    describe_values(b, stage);
#pragma unroll
    for (int step = 0; step < kPSteps; ++step) b[step] += ValueTile::rows(kPiece * Output::kColumnsOfPiece);
    Output::template issue<kPiece>(b);
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ void describe_values(uint64 (&b)[kPSteps], int stage) const {
    const uint64 first = ValueTile::slot(v, stage);
#pragma unroll
    for (int step = 0; step < kPSteps; ++step)
      b[step] = first + (kKeysAlongRows ? ValueTile::k_major_step(step) : ValueTile::n_major_step(step));
  }
  static __device__ __forceinline__ uint64 describe(SmemAddress values) {
    return kKeysAlongRows ? ValueTile::k_major(values) : ValueTile::n_major(values);
  }

  // --- Scores once more, for the lazy maximum: by one warp alone, while P V of the block before may be running ---

  // Accumulators of mma.m16n8k16 lie as those of wgmma.
  __device__ __forceinline__ void recompute_scores(int stage) const {
    const int lane = ptx::tid_x() % kWarpSize;
    const uint32 q_row = warp_row() + lane % 16;
    Scores::clear();
#pragma unroll 1
    for (int step = 0; step < kQSteps; ++step) {
      uint32 a[4];
      ptx::ldmatrix_x4(a, whole(QTile::address(q)) + QTile::offset(q_row, 2 * step + lane / 16));
      Scores::add(a,
                  whole(KTile::address(k)) + stage * KTile::kBytes + KTile::offset(lane % 8, 2 * step + lane / 8 % 2));
    }
    ptx::no_instruction();
  }

  // --- The query ---------------------------------------------------------------------------------------------------

  // For a negative scale: the scores of -Q with the scale's magnitude, so that the softmax may take maxima.
  __device__ __forceinline__ void flip_query(uint32 sign) const {
    const int thread = ptx::tid_x() % kWarpgroupSize;
#pragma unroll 1
    for (int i = thread; i < kWarpgroupRows * QTile::kPanels * QTile::kChunksOfRow; i += kWarpgroupSize) {
      const SmemAddress at = whole(QTile::address(q)) + QTile::offset(i % kWarpgroupRows, i / kWarpgroupRows);
      ptx::Chunk c = ptx::ld_shared(at);
      c.x ^= sign, c.y ^= sign, c.z ^= sign, c.w ^= sign;
      ptx::st_shared(at, c);
    }
    ptx::fence_proxy_async();
    ptx::bar_sync<kWarpgroupSize>(warpgroup_barrier());
  }

  // The first of the warp's rows among the warpgroup's.
  __device__ __forceinline__ static int warp_row() {
    return ptx::tid_x() % kWarpgroupSize / kWarpSize * Shape::kStoreRows;
  }

  __device__ __forceinline__ static NamedBarrier warpgroup_barrier() {
    return static_cast<NamedBarrier>(static_cast<int>(NamedBarrier::first_warpgroup) + ptx::tid_x() / kWarpgroupSize -
                                     Shape::kProducerWarpgroups);
  }
};
