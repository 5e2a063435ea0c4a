// SPDX-License-Identifier: Apache-2.0
// Who feeds the warpgroups of the Hopper backward kernel.
#pragma once

#include "hopper/backward_shape.cuh"
#include "hopper/backward_work.cuh"
#include "ptx/barrier.cuh"
#include "ptx/grid_dependency.cuh"
#include "ptx/special_registers.cuh"
#include "ptx/tma.cuh"

// One thread: draws tiles, and brings all that they need.
template <class Config, class Shape>
struct HopperBackwardLoader {
  using Work = HopperBackwardWork<Config>;
  using Step = typename Work::Step;

  const typename Config::Arguments& launch;
  const Shape shape;
  const HopperBackwardArguments& args = launch.core;
  RingWriter<typename Shape::TileRing> tiles{shape.tiles()};
  RingCursor<1> tile;               // of K and V
  RingCursor<Shape::kStages> step;  // of Q and dO

  // The next tile is drawn when the last step of this one has been requested, which is a step or two ahead.
  __device__ __forceinline__ void run() {
    uint32 index = ptx::ctaid_x();
    for (;;) {
      tiles.wait_empty();
      ptx::st_shared(tiles.slot(), index);
      ptx::mbarrier_arrive(tiles.full());
      tiles.advance();
      if (index >= Work::count(args)) return;
      const Work work(launch, index);
      if (work.steps > 0) bring(work);
      index = ptx::nctaid_x() + ptx::atom_increment(args.tile_counter);
    }
  }

 private:
  // In the order in which places become free.
  __device__ __forceinline__ void bring(const Work& work) {
    Step at = work.first_step();
    bring_queries(work, at);
    bring_keys<typename Shape::VTile>(shape.values(), args.v, work);
    bring_keys<typename Shape::KTile>(shape.keys(), args.k, work);
    tile.advance();
#pragma unroll 1
    for (int i = 1; i < work.steps; ++i) {
      work.advance(at);
      bring_queries(work, at);
    }
  }
  __device__ __forceinline__ void bring_queries(const Work& work, const Step& at) {
    bring<typename Shape::QTile>(shape.queries(), args.q, args.lse_log2, shape.lse(step.stage()), work, at);
    bring<typename Shape::OTile>(shape.gradients(), args.dout, args.row_sums, shape.row_sums(step.stage()), work, at);
    step.advance();
  }
  // Rows of queries, and a number for each.
  template <class Rows, class Place>
  __device__ __forceinline__ void bring(const Place& place, const TensorMap& map, const float* numbers, SmemAddress to,
                                        const Work& work, const Step& at) const {
    const RingWriter<Place> ring(place, step);
    ring.wait_empty();
    ptx::mbarrier_arrive_expect_tx(ring.full(), Rows::kBytes + Shape::kNumbersBytes);
    bring_rows<Rows>(map, ring.slot(), {0, at.head, at.tile * Config::kBlockQ, work.keys.batch}, ring.full(),
                     ptx::L2Policy::evict_last);
    ptx::bulk_load(to, numbers + static_cast<int64>(at.index) * Config::kBlockQ, Shape::kNumbersBytes, ring.full());
  }
  template <class Rows, class Place>
  __device__ __forceinline__ void bring_keys(const Place& place, const TensorMap& map, const Work& work) const {
    const RingWriter<Place> ring(place, tile);
    ring.wait_empty();
    ptx::mbarrier_arrive_expect_tx(ring.full(), Rows::kBytes);
    bring_rows<Rows>(map, ring.slot(), {0, work.keys.head, work.first_key, work.keys.batch}, ring.full(),
                     ptx::L2Policy::evict_first);
  }
  template <class Rows>
  __device__ __forceinline__ static void bring_rows(const TensorMap& map, SmemAddress to, ptx::BoxOrigin at,
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
    shape.init_barriers();
  }
  ptx::bar_sync();
  ptx::wait_for_grids();
}
