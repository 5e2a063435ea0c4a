// SPDX-License-Identifier: Apache-2.0
// Gradients of attention for Hopper: a producer warp feeds the copy engine, two warpgroups of 64 keys each multiply,
// and a warp for each of them sends dQ on its way. docs/kernels/backward.md explains who waits for whom.
//
// A thread block takes tiles of BLOCK_KV keys of one key/value head, with dK and dV in registers, and goes through the
// tiles of BLOCK_Q queries that see any of them, of all query heads of the group. In each step:
//   S^T = K Q^T,  P^T = exp(S^T - LSE)      dP^T = V dO^T,  dS^T = P^T (dP^T - D)       rows: keys
//   dV += P^T dO                            dK += dS^T Q                                P^T and dS^T from registers
//   dQ += dS K                              rows: queries; dS through shared memory
#pragma once

#include "hopper/backward_loader.cuh"
#include "hopper/backward_scores.cuh"
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

  const typename Config::Arguments& launch;
  const Shape shape;
  const int part;
  RingReader<typename Shape::TileRing, 1> tiles{shape.tiles()};
  RingReader<typename Shape::PartRing, 1> parts{shape.part(part)};

  __device__ __forceinline__ void run() {
    for_each_tile<Config>(
        launch, tiles, [](SmemAddress slot) { return ptx::ld_shared_word(slot); }, [] { return true; },
        [this](const Work& work) { add(work); });
    ptx::tma_wait();
  }

 private:
  __device__ __forceinline__ void add(const Work& work) {
    typename Work::Step step = work.first_step();
#pragma unroll 1
    for (int i = 0; i < work.steps; ++i, work.advance(step)) {
      parts.wait_full();
      if (work.args.dq != nullptr) {
        constexpr int kFloats = Shape::Parts::kBytes / static_cast<int>(sizeof(float));
        ptx::bulk_add(work.args.dq + (static_cast<int64>(step.index) * Shape::kWarpgroups + part) * kFloats,
                      parts.slot(), Shape::Parts::kBytes);
        ptx::tma_commit_group();
        ptx::tma_wait_read();
      }
      parts.release(true);
    }
  }
};

// A warpgroup of 64 keys.
template <class Config>
class HopperBackwardConsumer {
  using Shape = HopperBackwardShape<Config>;
  using Work = HopperBackwardWork<Config>;
  using KTile = typename Shape::KTile;
  using VTile = typename Shape::VTile;
  using QTile = typename Shape::QTile;
  using OTile = typename Shape::OTile;
  using STile = typename Shape::STile;
  // Generated, without members: their registers are known to PTX alone.
  using Scores = typename Config::Scores;  // S^T, dP^T, and P^T and dS^T of them
  using KeyGradient = typename Config::KeyGradient;
  using ValueGradient = typename Config::ValueGradient;
  using QueryGradient = typename Config::QueryGradient;
  static constexpr int kDimSteps = ceil_div(Config::kHeadDim, 16), kValueDimSteps = ceil_div(Config::kHeadDimV, 16);
  static constexpr int kQuerySteps = Config::kBlockQ / 16, kKeySteps = Config::kBlockKv / 16;

 public:
  __device__ __forceinline__ HopperBackwardConsumer(const typename Config::Arguments& launch_, const Shape& shape_,
                                                    int warpgroup_)
      : launch(launch_),
        args(launch_.core),
        shape(shape_),
        warpgroup(warpgroup_),
        tiles(shape_.tiles()),
        keys(shape_.keys()),
        queries(shape_.queries()),
        part(shape_.part(warpgroup_)),
        written(shape_.derivatives()),
        read(shape_.derivatives()),
        scores(args.sizes) {}

  __device__ __forceinline__ void run() {
    Scores::declare();
    KeyGradient::declare();
    ValueGradient::declare();
    QueryGradient::declare();
    for_each_tile_of_warp<Config>(launch, tiles, [this](const Work& work) { take(work); });
  }

 private:
  __device__ __forceinline__ void take(const Work& work) {
    if (work.steps > 0) {
      keys.wait_full();
      values().wait_full();
      int tile = work.queries.first;
      step<true>(work, tile * Config::kBlockQ, work.steps == 1);
#pragma unroll 1
      for (int i = 1; i < work.steps; ++i) {
        if (++tile == work.queries.end) tile = work.queries.first;
        step<false>(work, tile * Config::kBlockQ, i + 1 == work.steps);
      }
      read.wait_full();
      multiply_queries(read.slot());
      ptx::wgmma_wait_group<0>();
      read.release(signs());
      keys.release(signs());
      send_queries();
    }
    const KeyTile tile = KeyTile::find<Config>(args.sizes, tile_of_warp(tiles.slot()));
    const HopperBackwardStore<Config> store{args.sizes, tile, tile.index * Config::kBlockKv + own_keys(),
                                            work.steps == 0};
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
    const bool hides = scores.exponentiate(work, work.first_key + own_keys(), first_query, shape.lse(queries.stage()));
    ptx::wgmma_wait_group<0>();
    if (is_last) values().release(signs());
    scores.differentiate(hides, shape.row_sums(queries.stage()));
    written.wait_empty();
    Scores::store_derivatives(
        HopperBackwardScores<Config>::template place_in<STile>(written.slot() + warpgroup * STile::kPanelBytes, 0));
    add<ValueGradient, OTile>(gradients().slot(), kIsFirst);
    ptx::fence_proxy_async();
    if (signs()) ptx::mbarrier_arrive(written.full());
    written.advance();
    if constexpr (!kIsFirst) {
      read.wait_full();
      multiply_queries(read.slot());
    }
    add<KeyGradient, QTile>(queries.slot(), kIsFirst);
    if constexpr (!kIsFirst) {
      ptx::wgmma_wait_group<1>();
      read.release(signs());
      send_queries();
    }
    ptx::wgmma_wait_group<0>();
    gradients().release(signs());
    queries.release(signs());
  }

  __device__ __forceinline__ void issue_scores() const {
    issue_rows<kDimSteps, KTile, QTile>(keys.slot(), queries.slot(),
                                        [](auto& keys, auto& rows) { Scores::issue_scores(keys, rows); });
  }
  __device__ __forceinline__ void issue_probability_gradients() const {
    issue_rows<kValueDimSteps, VTile, OTile>(values().slot(), gradients().slot(),
                                             [](auto& values, auto& rows) { Scores::issue_gradients(values, rows); });
  }
  // The warpgroup's keys by all rows of queries.
  template <int kSteps, class Keys, class Rows, class Issue>
  __device__ __forceinline__ void issue_rows(SmemAddress keys, SmemAddress rows, Issue issue) const {
    uint64 a[kSteps], b[kSteps];
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      a[k] = Keys::k_major(keys + warpgroup * kWarpgroupRows * Keys::kRowBytes) + Keys::k_major_step(k);
      b[k] = Rows::k_major(rows) + Rows::k_major_step(k);
    }
    ptx::wgmma_fence();
    issue(a, b);
    ptx::wgmma_commit_group();
  }
  template <class Gradient, class Rows>
  __device__ __forceinline__ static void add(SmemAddress rows, bool is_first) {
    uint64 b[kQuerySteps];
#pragma unroll
    for (int k = 0; k < kQuerySteps; ++k) b[k] = Rows::n_major(rows) + Rows::n_major_step(k);
    ptx::wgmma_fence();
    Gradient::issue(b, is_first ? 0 : 1);
    ptx::wgmma_commit_group();
  }
  // The warpgroup's part of dS K.
  __device__ __forceinline__ void multiply_queries(SmemAddress derivatives) const {
    constexpr bool kRows = Shape::Parts::kAreRows;
    const SmemAddress rows = derivatives + (kRows ? warpgroup * kWarpgroupRows * STile::kRowBytes : 0);
    const SmemAddress columns = keys.slot() + (kRows ? 0 : warpgroup * KTile::kPanelBytes);
    uint64 a[kKeySteps], b[kKeySteps];
#pragma unroll
    for (int k = 0; k < kKeySteps; ++k) {
      a[k] = STile::k_major(rows) + STile::k_major_step(k);
      b[k] = KTile::n_major(columns) + KTile::n_major_step(k);
    }
    ptx::wgmma_fence();
    QueryGradient::issue(a, b, 0);
    ptx::wgmma_commit_group();
  }
  __device__ __forceinline__ void send_queries() {
    part.wait_empty();
    QueryGradient::store(part.slot() + ptx::tid_x() % kWarpgroupSize * kChunkBytes);
    ptx::fence_proxy_async();
    if (signs()) ptx::mbarrier_arrive(part.full());
    part.advance();
  }

  __device__ __forceinline__ int own_keys() const { return warpgroup * kWarpgroupRows; }
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
  const int warpgroup;
  RingReader<typename Shape::TileRing, 1> tiles;
  RingReader<typename Shape::KRing, 1> keys;
  RingReader<typename Shape::QRing, 1> queries;
  RingWriter<typename Shape::PartRing> part;
  RingWriter<typename Shape::DerivativeRing> written;
  RingReader<typename Shape::DerivativeRing, 1> read;
  const HopperBackwardScores<Config> scores;
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
    HopperBackwardConsumer<Config>(args, shape, warpgroup - 1).run();
  }
}
