// SPDX-License-Identifier: Apache-2.0
// Who feeds the warpgroups of the Hopper backward kernel.
#pragma once

#include "hopper/backward_jobs.cuh"
#include "hopper/backward_origins.cuh"
#include "hopper/backward_rows.cuh"
#include "hopper/backward_shape.cuh"
#include "hopper/backward_work.cuh"
#include "ptx/barrier.cuh"
#include "ptx/grid_dependency.cuh"
#include "ptx/special_registers.cuh"
#include "ptx/tma.cuh"

// One thread: draws jobs, and brings all that tiles of keys need.
template <class Config, class Shape>
struct HopperBackwardLoader {
  using Work = HopperBackwardWork<Config>;
  using Step = typename Work::Step;
  using Job = HopperBackwardJob<Config>;
  using Kind = HopperBackwardKind;

  const typename Config::Arguments& launch;
  const Shape shape;
  const HopperBackwardArguments& args = launch.core;
  const HopperBackwardCounters counters{args.counters};
  RingWriter<typename Shape::JobRing> jobs{shape.jobs()};
  RingCursor<1> tile;               // of K and V
  RingCursor<Shape::kStages> step;  // of Q and dO

  // The next job is drawn when the last step of this one has been requested, which is a step or two ahead.
  __device__ __forceinline__ void run() {
    for (;;) {
      const Job job = draw();
      jobs.wait_empty();
      job.write(jobs.slot());
      ptx::mbarrier_arrive(jobs.full());
      jobs.advance();
      if (job.kind == Kind::end) return;
      const PlacedKeyTile<Config> tile = job.placed(args.sizes);
      if (job.kind == Kind::keys) {
        const Work work(launch, tile);
        if (work.steps > 0) bring(work);
      } else if (job.kind == Kind::prepare) {
        bring_outputs({args, tile});
      } else {
        bring_sums({args, tile});
      }
    }
  }

 private:
  // One that can be done.
  __device__ __forceinline__ Job draw() const {
    const HopperBackwardJobs<Config> all(launch);
    Job job;
    do {
      job = all.of(ptx::atom_increment(counters.tickets));
      if (job.kind == Kind::finish && args.dq == nullptr) job.kind = Kind::nothing;
    } while (job.kind == Kind::nothing);
    const uint32 head = all.index_of(job.tile);
    // Where a sequence has no keys nobody else has waited for its rows.
    const bool needs_rows = job.kind == Kind::keys || (Config::Sequences::kRagged && job.kind == Kind::finish);
    if (needs_rows) await(counters.prepared(head), all.rows_beside(job) * Shape::kConsumerWarps);
    if (job.kind == Kind::finish) await(counters.added(head), all.tiles_beside(job) * Shape::kAdders);
    return job;
  }
  __device__ __forceinline__ static void await(const uint32* counter, uint32 count) {
    while (ptx::ld_acquire(counter) != count) {
    }
    ptx::fence_proxy_async_global();
  }
  // For jobs of rows.
  __device__ __forceinline__ void bring_outputs(const HopperBackwardRows<Config>& rows) {
    using Tile = typename Shape::OTile;
#pragma unroll 1
    for (int i = 0; i < rows.tiles; ++i) {
      const auto at = query_origin(launch, rows.beside, rows.head, (rows.first_tile + i) * Config::kBlockQ);
      wait_step();
      bring<Tile>(shape.queries(), step, args.out, at, ptx::L2Policy::evict_first);
      bring<Tile>(shape.gradients(), step, args.dout, at, ptx::L2Policy::evict_last);
      step.advance();
    }
  }
  __device__ __forceinline__ void bring_sums(const HopperBackwardRows<Config>& rows) {
    static_assert(Shape::kPartBytes <= Shape::kQueryBytes, "parts of dQ must fit where Q lies");
    const char* from =
        reinterpret_cast<const char*>(args.dq_sums) + rows.first_tile_of_all() * Shape::kWarpgroups * Shape::kPartBytes;
#pragma unroll 1
    for (int i = 0; i < rows.tiles * Shape::kWarpgroups; ++i, from += Shape::kPartBytes) {
      wait_step();
      const SmemAddress full = shape.queries().full(step.stage());
      ptx::mbarrier_arrive_expect_tx(full, Shape::kPartBytes);
      ptx::bulk_load(shape.queries().slot(step.stage()), from, Shape::kPartBytes, full);
      ptx::mbarrier_arrive(shape.gradients().full(step.stage()));
      step.advance();
    }
  }

  // In the order in which places become free.
  __device__ __forceinline__ void bring(const Work& work) {
    Step at = work.first_step();
    bring_queries(work, at);
    const auto keys = key_origin(launch, work.keys, work.first_key);
    RingWriter<typename Shape::VRing>(shape.values(), tile).wait_empty();
    bring<typename Shape::VTile>(shape.values(), tile, args.v, keys, ptx::L2Policy::evict_first);
    RingWriter<typename Shape::KRing>(shape.keys(), tile).wait_empty();
    bring<typename Shape::KTile>(shape.keys(), tile, args.k, keys, ptx::L2Policy::evict_first);
    tile.advance();
#pragma unroll 1
    for (int i = 1; i < work.steps; ++i) {
      work.advance(at);
      bring_queries(work, at);
    }
  }
  __device__ __forceinline__ void bring_queries(const Work& work, const Step& at) {
    using QTile = typename Shape::QTile;
    using OTile = typename Shape::OTile;
    const auto origin = query_origin(launch, work.keys, at.head, at.tile * Config::kBlockQ);
    const int64 first = static_cast<int64>(at.index) * Config::kBlockQ;
    const int stage = step.stage();
    wait_step();
    bring<QTile, Shape::kNumbersBytes>(shape.queries(), step, args.q, origin, ptx::L2Policy::evict_last);
    ptx::bulk_load(shape.lse(stage), args.lse_log2 + first, Shape::kNumbersBytes, shape.queries().full(stage));
    bring<OTile, Shape::kNumbersBytes>(shape.gradients(), step, args.dout, origin, ptx::L2Policy::evict_last);
    ptx::bulk_load(shape.row_sums(stage), args.row_sums + first, Shape::kNumbersBytes, shape.gradients().full(stage));
    step.advance();
  }
  // Until there is a place for a step of Q and dO.
  __device__ __forceinline__ void wait_step() const {
    RingWriter<typename Shape::QRing>(shape.queries(), step).wait_empty();
  }
  // kMoreBytes: that the caller brings, too.
  template <class Rows, int kMoreBytes = 0, class Place, class Cursor, class Origin>
  __device__ __forceinline__ void bring(const Place& place, const Cursor& cursor, const TensorMap& map,
                                        const Origin& at, ptx::L2Policy policy) const {
    const RingWriter<Place> ring(place, cursor);
    ptx::mbarrier_arrive_expect_tx(ring.full(), Rows::kBytes + kMoreBytes);
    bring_rows<Rows>(map, ring.slot(), at, ring.full(), policy);
  }
  template <class Rows, class Origin>
  __device__ __forceinline__ static void bring_rows(const TensorMap& map, SmemAddress to, Origin at,
                                                    SmemAddress barrier, ptx::L2Policy policy) {
#pragma unroll
    for (int panel = 0; panel < Rows::kPanels; ++panel, at.column += Rows::kPanelColumns)
      ptx::tma_load(to + panel * Rows::kPanelBytes, map, at, barrier, policy);
  }
};

// The block's barriers, its descriptors on their way, and the launch before this one done.
template <class Shape>
__device__ __forceinline__ void open_backward_block(const HopperBackwardArguments& args, const Shape& shape) {
  if (ptx::tid_x() == 0) {
    ptx::prefetch_tensormap(args.k);
    ptx::prefetch_tensormap(args.q);
    ptx::prefetch_tensormap(args.v);
    ptx::prefetch_tensormap(args.dout);
    ptx::prefetch_tensormap(args.out);
    shape.init_barriers();
  }
  ptx::bar_sync();
  ptx::wait_for_grids();
}
