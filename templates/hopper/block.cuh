// SPDX-License-Identifier: Apache-2.0
// What the thread blocks of every Hopper forward kernel have in common: their barriers, and the warpgroup that feeds
// the others.
#pragma once

#include "hopper/loader.cuh"
#include "hopper/producer.cuh"
#include "hopper/shape.cuh"
#include "hopper/transposer.cuh"
#include "ptx/barrier.cuh"
#include "ptx/cluster.cuh"
#include "ptx/wgmma.cuh"

// producers: feeders that read the descriptions of tiles, beside the consumers and the transposers.
template <class Config>
__device__ __forceinline__ void open_block(const HopperArguments& args, const HopperShape<Config>& shape,
                                           int producers) {
  using Shape = HopperShape<Config>;
  if (ptx::tid_x() == 0) {
    ptx::prefetch_tensormap(args.k);
    ptx::prefetch_tensormap(args.q);
    ptx::prefetch_tensormap(args.v);
    shape.queries().init(Shape::kConsumerWarps);
    shape.keys().init(Shape::kConsumerWarps * Config::kCluster);
    if constexpr (Shape::kTransposes) shape.loaded_values().init(Shape::kTransposers);
    shape.values().init(Shape::kConsumerWarps * Config::kCluster, Shape::kTransposes ? Shape::kTransposers : 1);
    shape.tiles().init(Shape::kConsumerWarps + Shape::kTransposers + producers);
    if constexpr (kWarpsShareRows<Config>) shape.joins().init(1);
    ptx::fence_mbarrier_init();
  }
  ptx::bar_sync();
  if constexpr (Config::kCluster > 1) ptx::cluster_sync();
}

// The producer's warpgroup: one feeder loads the tiles, and one announces them.
template <class Config>
__device__ __forceinline__ void feed(const typename Config::Arguments& args, const HopperShape<Config>& shape) {
  using Shape = HopperShape<Config>;
  if constexpr (Shape::kMovesRegisters) ptx::setmaxnreg_dec<Shape::kProducerRegisters>();
  if (LoadingFeeder<Config>::is(0, ptx::tid_x())) produce<Config>(args, shape);
  if (AnnouncingFeeder<Config>::is(1, ptx::tid_x())) HopperAnnouncer<Config>(args, shape).announce_all();
  if constexpr (Shape::kTransposes) {
    const int warp = ptx::shfl_first(ptx::tid_x() / kWarpSize) - Shape::kFirstTransposer;
    if (warp >= 0) HopperTransposer<Config>(shape, warp).run();
  }
}

// A warpgroup that the first one feeds.
template <class Config, class Consumer>
__device__ __forceinline__ void consume(const typename Config::Arguments& args, const HopperShape<Config>& shape,
                                        int warpgroup) {
  using Shape = HopperShape<Config>;
  if constexpr (Shape::kMovesRegisters) ptx::setmaxnreg_inc<Shape::kConsumerRegisters>();
  Consumer(args, shape, warpgroup - 1).run();
}

// A block's shared memory must outlive what others of its cluster send there.
template <class Config>
__device__ __forceinline__ void close_block() {
  if constexpr (Config::kCluster > 1) ptx::cluster_sync();
}
