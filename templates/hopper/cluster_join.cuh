// SPDX-License-Identifier: Apache-2.0
// What the blocks of a cluster have made of the same tile, whose keys they have split, is joined by the first of them.
// It says when nobody reads its keys and values any more; the others send their rows there, out of registers, and a
// barrier counts the bytes. None waits for the whole cluster but as it begins.
#pragma once

#include "hopper/joined_row.cuh"
#include "pipeline/ring.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/special_registers.cuh"
#include "types.cuh"

// As many blocks as a cluster may have everywhere.
constexpr int kMostBlocksOfCluster = 8;

template <class Shape>
class ClusterJoin {
  using Part = typename Shape::Part;

 public:
  __device__ __forceinline__ explicit ClusterJoin(const Shape& shape_) : shape(shape_) {}

  __device__ __forceinline__ static int blocks() { return static_cast<int>(ptx::cluster_nctarank()); }
  __device__ __forceinline__ static int rank() { return static_cast<int>(ptx::cluster_ctarank()); }

  // By all threads of all blocks, as they begin: this block's barriers are there.
  __device__ __forceinline__ static void announce() {
    if (blocks() > 1) ptx::cluster_arrive_relaxed();
  }
  // By all of them, before they wait for each other: those of the other blocks are there, too.
  __device__ __forceinline__ void meet() {
    if (blocks() > 1 && !met) ptx::cluster_wait();
    met = true;
  }

  // By a warp of the first block. So many rows come from each other one.
  __device__ __forceinline__ void make_room(int rows, int lane) const {
    if (lane == 0) ptx::mbarrier_arrive_expect_tx(sent(), (blocks() - 1) * rows * Part::kSentBytes);
    if (lane > 0 && lane < blocks()) ptx::mbarrier_arrive_cluster(room(), lane);
  }
  // By a warp of another one.
  __device__ __forceinline__ void send(const JoinedRow<Part>& row, int at, int lane) const {
    ptx::mbarrier_wait_cluster(room(), parity);
    const Part there{ptx::in_block_of_cluster(shape.part(Shape::kConsumerWarps + rank() - 1).place, 0)};
    row.send(there, at, lane, ptx::in_block_of_cluster(sent(), 0));
  }
  // By the warps of the first one.
  __device__ __forceinline__ void wait_for_rows() const {
    if (blocks() > 1) ptx::mbarrier_wait_cluster(sent(), parity);
  }
  __device__ __forceinline__ void end_tile() { parity ^= 1; }

 private:
  __device__ __forceinline__ SmemAddress sent() const { return shape.joins().full(0); }
  __device__ __forceinline__ SmemAddress room() const { return shape.joins().empty(0); }

  const Shape shape;
  uint32 parity = 0;
  bool met = false;
};
