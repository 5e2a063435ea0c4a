// SPDX-License-Identifier: Apache-2.0
// The same for wide heads, whose dK and dV of 128 keys registers cannot hold: a thread block has 64 keys, and its two
// warpgroups share out the queries of the scores, and the dims of all three gradients. P and dS pass through shared
// memory. dQ leaves by reductions from registers, as shared memory has no room for it and no time.
// docs/kernels/backward.md explains who waits for whom.
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
#include "ptx/wgmma.cuh"

// One thread, where tiles of keys take turns: waits for those of this block and passes them on, so that nobody who
// multiplies waits for global memory.
template <class Config>
struct HopperBackwardTurnKeeper {
  using Shape = HopperBackwardWideShape<Config>;
  using Work = HopperBackwardWork<Config>;
  using Job = HopperBackwardJob<Config>;

  const typename Config::Arguments& launch;
  const Shape shape;
  RingReader<typename Shape::JobRing, 1> jobs{shape.jobs()};
  RingWriter<typename Shape::TurnRing> turn{shape.turn()};

  __device__ __forceinline__ void run() {
    for_each_job(jobs, Job::read, [this](const Job& job) {
      if (job.kind == HopperBackwardKind::keys && launch.core.dq != nullptr)
        keep(Work(launch, job.placed(launch.core.sizes)));
    });
  }

 private:
  __device__ __forceinline__ void keep(const Work& work) {
    const QueryTurns<Config> turns(launch.core.turns, work.keys.sequence.queries, 0, 1);
    typename Work::Step step = work.first_step();
#pragma unroll 1
    for (int i = 0; i < work.steps; ++i, work.advance(step)) {
      turns.await(work.keys, step.index, step.tile, work.mask);
      ptx::mbarrier_arrive(turn.full());
      turn.advance();
      turn.wait_empty();
      turns.pass(step.index);
    }
  }
};

template <class Config>
class HopperBackwardWideConsumer : HopperBackwardWarpgroup<Config, HopperBackwardWideShape<Config>> {
  using Shape = HopperBackwardWideShape<Config>;
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
  static constexpr int kSteps = kWarpgroupRows / 16;  // of 64 queries, and of 64 keys

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
    }
    typename Work::Step at = work.first_step();
#pragma unroll 1
    for (int i = 0; i < work.steps; ++i) {
      step(work, at, i + 1 == work.steps);
      work.advance(at);
    }
    // Read anew, as registers are few in between.
    const PlacedKeyTile<Config> tile = Base::Job::read_by_warp(this->jobs.slot()).placed(args.sizes);
    const HopperBackwardStore<Config> store{GradientRows::of_keys(tile), tile.index * Config::kBlockKv};
    const int first = warpgroup() * Shape::kColumns;
    store.template write<ValueGradient, Shape::kColumns, Config::kHeadDimV>(args.dv, args.dv_strides, first, 1.0f);
    store.template write<KeyGradient, Shape::kColumns, Config::kHeadDim>(args.dk, args.dk_strides, first, args.scale);
    const uint32 head = HopperBackwardJobs<Config>(this->launch).index_of(tile);
    Base::tell(HopperBackwardCounters{args.counters}.added(head));
  }

  // --- A tile of queries. Nothing is in flight before and after it -------------------------------------------------

  __device__ __forceinline__ void step(const Work& work, const typename Work::Step& at, bool is_last) {
    queries.wait_full();
    issue_scores();
    gradients().wait_full();
    issue_probability_gradients();
    ptx::wgmma_wait_group<1>();
    const int own = warpgroup() * Shape::kQueriesOfWarpgroup;
    const uint32 own_bytes = own * sizeof(float);
    const bool hides = scores.exponentiate(work.mask, work.first_key, at.tile * Config::kBlockQ + own,
                                           shape.lse(queries.stage()) + own_bytes);
    ptx::wgmma_wait_group<0>();
    if (is_last) values().release(signs());
    scores.differentiate(hides, shape.row_sums(queries.stage()) + own_bytes);
    const SmemAddress probabilities = shape.probabilities(queries.stage()),
                      derivatives = shape.derivatives(queries.stage());
    Matrix::store_probabilities(Scores::template place_in<STile>(probabilities, own));
    Matrix::store_derivatives(Scores::template place_in<STile>(derivatives, own));
    ptx::fence_proxy_async();
    ptx::bar_sync<Shape::kConsumerThreads>(NamedBarrier::derivatives);
    multiply_queries(derivatives);
    add<ValueGradient, OTile>(STile::n_major(probabilities), gradients().slot());
    add<KeyGradient, QTile>(STile::n_major(derivatives), queries.slot());
    ptx::wgmma_wait_group<2>();
    if (is_last) keys.release(signs());
    // What this takes beside the products is the longer for each that has ended before.
    if (args.dq != nullptr) add_part(work, at);
    ptx::wgmma_wait_group<0>();
    queries.release(true);
  }

  // All keys by the warpgroup's rows of queries.
  __device__ __forceinline__ void issue_scores() const {
    Base::template issue_rows<Base::kDimSteps, KTile, QTile>(
        shape.keys().slot(0), own_rows<QTile>(queries.slot()),
        [](auto& keys, auto& rows) { Matrix::issue_scores(keys, rows); });
  }
  __device__ __forceinline__ void issue_probability_gradients() const {
    Base::template issue_rows<Base::kValueDimSteps, VTile, OTile>(
        shape.values().slot(0), own_rows<OTile>(gradients().slot()),
        [](auto& values, auto& rows) { Matrix::issue_gradients(values, rows); });
  }
  template <class Rows>
  __device__ __forceinline__ static SmemAddress own_rows(SmemAddress rows) {
    return rows + warpgroup() * Shape::kQueriesOfWarpgroup * Rows::kRowBytes;
  }
  // The warpgroup's dims. scores: queries by keys.
  template <class Gradient, class Rows>
  __device__ __forceinline__ void add(uint64 scores, SmemAddress rows) const {
    uint64 a[kSteps], b[kSteps];
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      a[k] = scores + STile::n_major_step(k);
      b[k] = Rows::n_major(rows + warpgroup() * Shape::kPanelsOfWarpgroup * Rows::kPanelBytes) + Rows::n_major_step(k);
    }
    ptx::wgmma_fence();
    Gradient::issue(a, b, 1);
    ptx::wgmma_commit_group();
  }
  __device__ __forceinline__ void multiply_queries(SmemAddress derivatives) const {
    uint64 a[kSteps], b[kSteps];
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      a[k] = STile::k_major(derivatives) + STile::k_major_step(k);
      b[k] = KTile::n_major(shape.keys().slot(0) + warpgroup() * Shape::kPanelsOfWarpgroup * KTile::kPanelBytes) +
             KTile::n_major_step(k);
    }
    ptx::wgmma_fence();
    QueryGradient::issue(a, b, 0);
    ptx::wgmma_commit_group();
  }
  __device__ __forceinline__ void add_part(const Work& work, const typename Work::Step& at) {
    if constexpr (Config::kDeterministic) turn.wait_full();
    QueryGradient::add_to(part_of(work, at));
    if constexpr (Config::kDeterministic) turn.release(signs());
  }
  // Of dQ, the thread's place in it.
  __device__ __forceinline__ float* part_of(const Work& work, const typename Work::Step& at) const {
    constexpr int kFloats = Shape::kPartBytes / static_cast<int>(sizeof(float)), kFloatsOfThread = 4;
    return args.dq_sums + (static_cast<int64>(at.index) * Shape::kWarpgroups + warpgroup()) * kFloats +
           ptx::tid_x() % kWarpgroupSize * kFloatsOfThread;
  }

  // Asked for each time, as the loop has no register to keep it in.
  __device__ __forceinline__ static int warpgroup() { return ptx::shfl_first(ptx::tid_x() / kWarpgroupSize) - 1; }

  RingReader<typename Shape::TurnRing, 1> turn{shape.turn()};
};

template <class Config>
__device__ __forceinline__ void backward_hopper_wide(const typename Config::Arguments& args, SmemAddress smem) {
  using Shape = HopperBackwardWideShape<Config>;
  const Shape shape{smem};
  open_backward_block(args.core, shape);
  const int warpgroup = ptx::shfl_first(ptx::tid_x() / kWarpgroupSize);
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<Shape::kProducerRegisters>();
    if (ptx::tid_x() == 0) HopperBackwardLoader<Config, Shape>{args, shape}.run();
    if constexpr (Config::kDeterministic)
      if (ptx::tid_x() == kWarpSize) HopperBackwardTurnKeeper<Config>{args, shape}.run();
  } else {
    ptx::setmaxnreg_inc<Shape::kConsumerRegisters>();
    HopperBackwardWideConsumer<Config>(args, shape).run();
  }
}
