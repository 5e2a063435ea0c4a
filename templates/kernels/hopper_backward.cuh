// SPDX-License-Identifier: Apache-2.0
// Gradients of attention for Hopper: a producer warp feeds the copy engine, two warpgroups of 64 keys each multiply,
// and a warp for each of them sends dQ on its way. docs/kernels/backward.md explains who waits for whom.
//
// A thread block takes tiles of BLOCK_KV keys of one key/value head, with dK and dV in registers, and goes through the
// tiles of BLOCK_Q queries that see any of them, of all query heads of the group. In each step:
//   S^T = K Q^T,  P^T = exp(S^T - LSE)      dP^T = V dO^T,  dS^T = P^T (dP^T - D)       rows: keys
//   dV += P^T dO                            dK += dS^T Q                                P^T and dS^T from registers
//   dQ += dS K                              rows: queries, or transposed dims; dS through shared memory
#pragma once

#include "attention/turns.cuh"
#include "hopper/backward_consumer.cuh"
#include "hopper/backward_jobs.cuh"
#include "hopper/backward_loader.cuh"
#include "hopper/backward_shape.cuh"
#include "hopper/backward_store.cuh"
#include "hopper/backward_work.cuh"
#include "ptx/barrier.cuh"
#include "ptx/special_registers.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

// One thread for each part of dQ: adds it to global memory.
template <class Config>
struct HopperBackwardWriter {
  using Shape = HopperBackwardShape<Config>;
  using Work = HopperBackwardWork<Config>;
  using Job = HopperBackwardJob<Config>;

  const typename Config::Arguments& launch;
  const Shape shape;
  const int part;
  const HopperBackwardArguments& args = launch.core;
  RingReader<typename Shape::JobRing, 1> jobs{shape.jobs()};
  RingReader<typename Shape::PartRing, 1> parts{shape.part(part)};

  __device__ __forceinline__ void run() {
    for_each_job(jobs, Job::read, [this](const Job& job) {
      if (job.kind == HopperBackwardKind::keys) add(Work(launch, job.placed(launch.core.sizes)));
    });
  }

 private:
  __device__ __forceinline__ void add(const Work& work) {
    ptx::fence_proxy_async_global();
    typename Work::Step step = work.first_step();
    bool is_our_turn = false;
#pragma unroll 1
    for (int i = 0; i < work.steps; ++i) {
      parts.wait_full();
      if (args.dq != nullptr) {
        if constexpr (Config::kDeterministic) await(work, step, is_our_turn);
        add_part(step);
      }
      parts.release(true);
      const int added = step.index;
      work.advance(step);
      if constexpr (Config::kDeterministic) {
        if (args.dq == nullptr) continue;
        // Asked for the next while this one lands: one way to global memory less.
        is_our_turn = i + 1 < work.steps && turns(work).has_come(work.keys, step.index, step.tile, work.mask);
        ptx::tma_wait();
        turns(work).pass(added);
      }
    }
    ptx::tma_wait();
    const uint32 head = HopperBackwardJobs<Config>(launch).index_of(work.keys);
    ptx::red_increment_release(HopperBackwardCounters{args.counters}.added(head));
  }
  __device__ __forceinline__ void add_part(const typename Work::Step& step) const {
    constexpr int kFloats = Shape::Parts::kBytes / static_cast<int>(sizeof(float));
    ptx::bulk_add(args.dq_sums + (static_cast<int64>(step.index) * Shape::kWarpgroups + part) * kFloats, parts.slot(),
                  Shape::Parts::kBytes);
    ptx::tma_commit_group();
    ptx::tma_wait_read();
  }
  __device__ __forceinline__ void await(const Work& work, const typename Work::Step& step, bool has_come) const {
    if (!has_come) turns(work).await(work.keys, step.index, step.tile, work.mask);
    ptx::fence_proxy_async_global();
  }
  __device__ __forceinline__ QueryTurns<Config> turns(const Work& work) const {
    return {args.turns, work.keys.sequence.queries, part, Shape::kAdders};
  }
};

// A warpgroup of 64 keys.
template <class Config>
class HopperBackwardConsumer : HopperBackwardWarpgroup<Config, HopperBackwardShape<Config>> {
  using Shape = HopperBackwardShape<Config>;
  using Base = HopperBackwardWarpgroup<Config, Shape>;
  using Base::args, Base::gradients, Base::keys, Base::queries, Base::scores, Base::shape, Base::signs, Base::values;
  using Work = HopperBackwardWork<Config>;
  using KTile = typename Shape::KTile;
  using VTile = typename Shape::VTile;
  using QTile = typename Shape::QTile;
  using OTile = typename Shape::OTile;
  using STile = typename Shape::STile;
  using typename Base::Matrix, typename Base::KeyGradient, typename Base::ValueGradient, typename Base::QueryGradient;
  using Scores = HopperBackwardScores<Config>;
  static constexpr int kQuerySteps = Config::kBlockQ / 16, kKeySteps = Config::kBlockKv / 16;

 public:
  using Base::Base;

  __device__ __forceinline__ void run() {
    Base::declare();
    Base::take_jobs([this](const PlacedKeyTile<Config>& tile) { take(Work(this->launch, tile)); });
  }

 private:
  __device__ __forceinline__ void take(const Work& work) {
    Base::clear_gradients();
    if (work.steps > 0) {
      keys.wait_full();
      values().wait_full();
      int tile = work.queries.first;
      int left = work.steps - 1;
      step<true>(work, tile * Config::kBlockQ, left == 0);
#pragma unroll 1
      while (left > 0) {
        if (++tile == work.queries.end) tile = work.queries.first;
        step<false>(work, tile * Config::kBlockQ, --left == 0);
      }
      read().wait_full();
      multiply_queries(read().slot());
      ptx::wgmma_wait_group<0>();
      read().release(signs());
      keys.release(signs());
      send_queries();
    }
    const PlacedKeyTile<Config> tile = Base::Job::read_by_warp(this->jobs.slot()).placed(args.sizes);
    const HopperBackwardStore<Config> store{GradientRows::of_keys(tile), tile.index * Config::kBlockKv + own_keys()};
    store.template write<ValueGradient, Config::kHeadDimV, Config::kHeadDimV>(args.dv, args.dv_strides, 0, 1.0f);
    store.template write<KeyGradient, Config::kHeadDim, Config::kHeadDim>(args.dk, args.dk_strides, 0, args.scale);
  }

  // --- A tile of queries. Nothing is in flight before and after it -------------------------------------------------

  // dQ is that of the step before, so that a warpgroup need not wait for the other.
  template <bool kIsFirst>
  __device__ __forceinline__ void step(const Work& work, int first_query, bool is_last) {
    queries.wait_full();
    issue_scores();
    gradients().wait_full();
    issue_probability_gradients();
    ptx::wgmma_wait_group<1>();
    const bool hides =
        scores.exponentiate(work.mask, work.first_key + own_keys(), first_query, shape.lse(queries.stage()));
    ptx::wgmma_wait_group<0>();
    if (is_last) values().release(signs());
    scores.differentiate(hides, shape.row_sums(queries.stage()));
    const auto written = this->written();
    written.wait_empty();
    Matrix::store_derivatives(Scores::template place_in<STile>(written.slot() + warpgroup() * STile::kPanelBytes, 0));
    add<ValueGradient, OTile>(gradients().slot());
    ptx::fence_proxy_async();
    if (signs()) ptx::mbarrier_arrive(written.full());
    if constexpr (!kIsFirst) {
      read().wait_full();
      multiply_queries(read().slot());
    }
    add<KeyGradient, QTile>(queries.slot());
    if constexpr (!kIsFirst) {
      ptx::wgmma_wait_group<1>();
      read().release(signs());
      send_queries();
    }
    derivatives.advance();
    ptx::wgmma_wait_group<0>();
    queries.release(true);
  }

  // The warpgroup's keys by all rows of queries.
  __device__ __forceinline__ void issue_scores() const {
    Base::template issue_rows<Base::kDimSteps, KTile, QTile>(
        own_rows<KTile>(keys.slot()), queries.slot(), [](auto& keys, auto& rows) { Matrix::issue_scores(keys, rows); });
  }
  __device__ __forceinline__ void issue_probability_gradients() const {
    Base::template issue_rows<Base::kValueDimSteps, VTile, OTile>(
        own_rows<VTile>(values().slot()), gradients().slot(),
        [](auto& values, auto& rows) { Matrix::issue_gradients(values, rows); });
  }
  template <class Keys>
  __device__ __forceinline__ SmemAddress own_rows(SmemAddress keys) const {
    return keys + warpgroup() * kWarpgroupRows * Keys::kRowBytes;
  }
  template <class Gradient, class Rows>
  __device__ __forceinline__ static void add(SmemAddress rows) {
    uint64 b[kQuerySteps];
#pragma unroll
    for (int k = 0; k < kQuerySteps; ++k) b[k] = Rows::n_major(rows) + Rows::n_major_step(k);
    ptx::wgmma_fence();
    Gradient::issue(b, 1);
    ptx::wgmma_commit_group();
  }
  // The warpgroup's part of dS K.
  __device__ __forceinline__ void multiply_queries(SmemAddress derivatives) const {
    constexpr bool kRows = Shape::Parts::kAreRows;
    const SmemAddress rows = derivatives + (kRows ? warpgroup() * kWarpgroupRows * STile::kRowBytes : 0);
    const SmemAddress columns = keys.slot() + (kRows ? 0 : warpgroup() * KTile::kPanelBytes);
    uint64 a[kKeySteps], b[kKeySteps];
#pragma unroll
    for (int k = 0; k < kKeySteps; ++k) {
      a[k] = STile::k_major(rows) + STile::k_major_step(k);
      b[k] = KTile::n_major(columns) + KTile::n_major_step(k);
    }
    ptx::wgmma_fence();
    if constexpr (kTransposesQueries<Config>)
      QueryGradient::issue(b, a, 0);
    else
      QueryGradient::issue(a, b, 0);
    ptx::wgmma_commit_group();
  }
  __device__ __forceinline__ void send_queries() {
    const RingWriter<typename Shape::PartRing> part(shape.part(warpgroup()), RingCursor<1>(derivatives.before()));
    part.wait_empty();
    QueryGradient::store(part.slot() + ptx::tid_x() % kWarpgroupSize * kChunkBytes);
    ptx::fence_proxy_async();
    if (signs()) ptx::mbarrier_arrive(part.full());
  }

  // dS of this step, and of the one before.
  __device__ __forceinline__ RingWriter<typename Shape::DerivativeRing> written() const {
    return RingWriter<typename Shape::DerivativeRing>(shape.derivatives(), derivatives);
  }
  __device__ __forceinline__ RingReader<typename Shape::DerivativeRing, 1> read() const {
    return {shape.derivatives(), derivatives.before()};
  }
  __device__ __forceinline__ int own_keys() const { return warpgroup() * kWarpgroupRows; }

  // Asked for each time, as the loop has no register to keep it in.
  __device__ __forceinline__ static int warpgroup() { return ptx::shfl_first(ptx::tid_x() / kWarpgroupSize) - 1; }

  RingCursor<Shape::kStages> derivatives;  // of this step's
};

template <class Config>
__device__ __forceinline__ void backward_hopper(const typename Config::Arguments& args, SmemAddress smem) {
  using Shape = HopperBackwardShape<Config>;
  const Shape shape{smem};
  open_backward_block(args.core, shape);
  const int warpgroup = ptx::shfl_first(ptx::tid_x() / kWarpgroupSize);
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<Shape::kProducerRegisters>();
    const int warp = ptx::tid_x() / kWarpSize;
    if (ptx::tid_x() % kWarpSize != 0) return;
    if (warp == 0)
      HopperBackwardLoader<Config, Shape>{args, shape}.run();
    else if (warp <= Shape::kWarpgroups)
      HopperBackwardWriter<Config>{args, shape, warp - 1}.run();
  } else {
    ptx::setmaxnreg_inc<Shape::kConsumerRegisters>();
    HopperBackwardConsumer<Config>(args, shape).run();
  }
}
