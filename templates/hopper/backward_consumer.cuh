// SPDX-License-Identifier: Apache-2.0
// What a warpgroup of either Hopper backward kernel has: its places in the rings, and how it issues the products of
// keys by rows of queries.
#pragma once

#include "hopper/backward_jobs.cuh"
#include "hopper/backward_rows.cuh"
#include "hopper/backward_scores.cuh"
#include "hopper/backward_work.cuh"
#include "pipeline/ring.cuh"
#include "ptx/wgmma.cuh"

template <class Config, class Shape>
struct HopperBackwardWarpgroup {
  // Generated, without members: their registers are known to PTX alone.
  using Matrix = typename Config::Scores;  // S^T, dP^T, and P^T and dS^T of them
  using KeyGradient = typename Config::KeyGradient;
  using ValueGradient = typename Config::ValueGradient;
  using QueryGradient = typename Config::QueryGradient;
  static constexpr int kDimSteps = ceil_div(Config::kHeadDim, 16), kValueDimSteps = ceil_div(Config::kHeadDimV, 16);

  __device__ __forceinline__ HopperBackwardWarpgroup(const typename Config::Arguments& launch_, const Shape& shape_)
      : launch(launch_),
        args(launch_.core),
        shape(shape_),
        jobs(shape_.jobs()),
        keys(shape_.keys()),
        queries(shape_.queries()),
        scores(args.sizes) {}

  __device__ __forceinline__ static void declare() {
    Matrix::declare();
    KeyGradient::declare();
    ValueGradient::declare();
    QueryGradient::declare();
  }

  // To begin with. Nothing of a tile lives until the next, so that other jobs have registers.
  __device__ __forceinline__ static void clear_gradients() {
    KeyGradient::clear();
    ValueGradient::clear();
  }

  using Job = HopperBackwardJob<Config>;

  // take(tile): the gradients of its keys.
  template <class Take>
  __device__ __forceinline__ void take_jobs(Take take) {
    for_each_job(jobs, Job::read_by_warp, [&](const Job& job) {
      const PlacedKeyTile<Config> tile = job.placed(args.sizes);
      if (job.kind == HopperBackwardKind::keys) return take(tile);
      const HopperBackwardRowsJob<Config, Shape> rows{args, {args, tile}};
      const auto next = [&](auto use) { take_step(use); };
      if (job.kind == HopperBackwardKind::finish) return rows.finish(next);
      rows.prepare(next);
      tell(HopperBackwardCounters{args.counters}.prepared(HopperBackwardJobs<Config>(launch).index_of(tile)));
    });
  }
  // Of the rings of Q and dO. Here and for jobs each thread says for itself that it has read: that one can say it for
  // its warp compute-sanitizer does not know, and it was no slower.
  template <class Use>
  __device__ __forceinline__ void take_step(Use use) {
    queries.wait_full();
    gradients().wait_full();
    use(queries.slot(), gradients().slot());
    queries.release(true);
  }
  // Others, what this warp has done.
  __device__ __forceinline__ static void tell(uint32* counter) {
    if (signs()) ptx::red_increment_release(counter);
  }

  // A: a tile of keys or values from its first row on; B: likewise of queries or of dO.
  template <int kSteps, class A, class B, class Issue>
  __device__ __forceinline__ static void issue_rows(SmemAddress a_rows, SmemAddress b_rows, Issue issue) {
    uint64 a[kSteps], b[kSteps];
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      a[k] = A::k_major(a_rows) + A::k_major_step(k);
      b[k] = B::k_major(b_rows) + B::k_major_step(k);
    }
    ptx::wgmma_fence();
    issue(a, b);
    ptx::wgmma_commit_group();
  }

  // Rings that advance with those of keys and of queries.
  __device__ __forceinline__ RingReader<typename Shape::VRing, 1> values() const {
    return {shape.values(), keys.cursor};
  }
  __device__ __forceinline__ RingReader<typename Shape::ORing, 1> gradients() const {
    return {shape.gradients(), queries.cursor};
  }
  // One thread of each warp, for the others, whose reads and writes are done.
  __device__ __forceinline__ static bool signs() {
    ptx::bar_warp_sync();
    return ptx::elect();
  }

  const typename Config::Arguments& launch;
  const HopperBackwardArguments& args;
  const Shape shape;
  RingReader<typename Shape::JobRing, 1> jobs;
  RingReader<typename Shape::KRing, 1> keys;
  RingReader<typename Shape::QRing, 1> queries;
  const HopperBackwardScores<Config> scores;
};
