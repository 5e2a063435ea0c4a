// SPDX-License-Identifier: Apache-2.0
// One warpgroup's arithmetic: its 64 query rows against keys and values in shared memory, with wgmma.
#pragma once

#include "hopper/deferred_softmax.cuh"
#include "hopper/shape.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

template <class Config>
struct WarpgroupAttention {
  using Shape = HopperShape<Config>;
  using QTile = typename Shape::QTile;
  using KTile = typename Shape::KTile;
  using VTile = typename Shape::VTile;
  using Element = typename Config::Element;
  using ScoreMma = typename Config::ScoreMma;
  using OutputMma = typename Config::OutputMma;

  static constexpr int kScoreColumns = Config::kBlockKv / 8;
  static constexpr int kOutputColumns = ceil_div(Config::kHeadDimV, 8);
  static constexpr int kQSteps = ceil_div(Config::kHeadDim, 16);
  static constexpr int kPSteps = Config::kBlockKv / 16;
  using Scores = Accumulator<1, kScoreColumns>;

  Accumulator<1, kOutputColumns> o;
  uint32 begun = 0;       // 1: o has products of this tile; else the next one overwrites it
  uint32 p[kPSteps * 4];  // A fragments of P, one for each 16 keys
  DeferredSoftmax<Config::kRescale> softmax;
  // Matrix descriptors: the warpgroup's rows of the query tile in the first slot and in the present one, and the first
  // slots of the rings.
  uint64 first_q, q, k, v;
  const SmemAddress block;  // the upper bits of its addresses

  __device__ __forceinline__ WarpgroupAttention(float scale_log2, const Shape& shape, int warpgroup)
      : softmax(scale_log2),
        first_q(QTile::k_major(in_block(shape.queries().slot(0)) + warpgroup * kWarpgroupRows * QTile::kRowBytes)),
        k(KTile::k_major(in_block(shape.keys().slot(0)))),
        v(VTile::n_major(in_block(shape.values().slot(0)))),
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

  // --- Products. Between issue and wait nothing may touch s, o or p. -----------------------------------------------

  __device__ __forceinline__ void issue_scores(Scores& s, int stage) {
    ptx::wgmma_fence();
    const uint64 first = KTile::slot(k, stage);
    uint64 a[kQSteps], b[kQSteps];
#pragma unroll
    for (int step = 0; step < kQSteps; ++step) {
      a[step] = q + QTile::k_major_step(step);
      b[step] = first + KTile::k_major_step(step);
    }
    ScoreMma::issue(s.flat(), a, b);
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ void issue_output(int stage) {
    ptx::hold_registers(o.flat());
    ptx::wgmma_fence();
    uint64 b[kPSteps];
    describe_values(b, stage);
    OutputMma::issue(o.flat(), p, b, begun);
    begun = 1;
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ void describe_values(uint64 (&b)[kPSteps], int stage) const {
    const uint64 first = VTile::slot(v, stage);
#pragma unroll
    for (int step = 0; step < kPSteps; ++step) b[step] = first + VTile::n_major_step(step);
  }

  // Waits until at most kPending groups run, of which the one that writes s is none.
  template <int kPending>
  __device__ __forceinline__ static void wait_scores(Scores& s) {
    ptx::wgmma_wait_group<kPending>();
    ptx::hold_registers(s.flat());
  }
  __device__ __forceinline__ void wait_output() {
    ptx::wgmma_wait_group<0>();
    ptx::hold_registers(o.flat());
    ptx::hold_registers(p);
  }

  // --- Probabilities as the next operand; not before the product that reads the last ones is done -------------------

  __device__ __forceinline__ void keep_probabilities(const Scores& s) {
#pragma unroll
    for (int i = 0; i < kPSteps * 4; ++i) p[i] = pack(s, i);
  }

  // The ith register of the A fragments: the accumulator's layout is that of the operand.
  __device__ __forceinline__ static uint32 pack(const Scores& s, int i) {
    const float(&x)[4] = s.x[0][i / 2];
    return ptx::cvt_rn_x2(Element{}, x[2 * (i % 2)], x[2 * (i % 2) + 1]);
  }

  // --- Scores once more, for the lazy maximum: by one warp alone, while P V of the block before may be running ---

  // Accumulators of mma.m16n8k16 lie as those of wgmma.
  __device__ __forceinline__ void recompute_scores(Scores& s, int stage) const {
    const int lane = ptx::tid_x() % kWarpSize;
    const uint32 q_row = warp_row() + lane % 16;
    s.clear();
#pragma unroll 1
    for (int step = 0; step < kQSteps; ++step) {
      uint32 a[4];
      ptx::ldmatrix_x4(a, whole(QTile::address(q)) + QTile::offset(q_row, 2 * step + lane / 16));
      const SmemAddress rows =
          whole(KTile::address(k)) + stage * KTile::kBytes + KTile::offset(lane % 8, 2 * step + lane / 8 % 2);
#pragma unroll
      for (int n = 0; n < kScoreColumns; ++n) {
        uint32 b0, b1;
        ptx::ldmatrix_x2(b0, b1, rows + n * 8 * KTile::kRowBytes);
        ptx::mma_m16n8k16(Element{}, s.x[0][n], a, b0, b1);
      }
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
