// SPDX-License-Identifier: Apache-2.0
// What the forward kernel for Hopper is measured against: no producer warp, a pipeline of three stages, probabilities
// that pass through shared memory, and an output that waits in the place of the query. The tables of
// docs/kernels/hopper_forward.md come from it. It has no part but the causal mask, and gets none.
#pragma once

#include "attention/scores.cuh"
#include "hopper/block.cuh"
#include "hopper/store.cuh"
#include "hopper/tiles.cuh"
#include "hopper/turn.cuh"
#include "hopper/warpgroup_attention.cuh"
#include "ptx/stmatrix.cuh"

// A warpgroup whose probabilities may be the operand in shared memory.
template <class Config>
struct AblationWarpgroup : WarpgroupAttention<Config> {
  using Base = WarpgroupAttention<Config>;
  using typename Base::Output;
  using typename Base::Scores;
  using typename Base::Shape;
  using PTile = typename Shape::PTile;

  const uint64 p_smem;  // the matrix descriptor of its own P

  __device__ __forceinline__ AblationWarpgroup(float scale_log2, const Shape& shape, int warpgroup)
      : Base(scale_log2, shape, warpgroup),
        p_smem(PTile::k_major(Base::in_block(shape.smem) + Shape::kProbabilities + warpgroup * PTile::kBytes)) {}

  __device__ __forceinline__ void issue_output(int stage) {
    if constexpr (Config::kProbabilitiesInRegisters) {
      Base::issue_output(stage);
    } else {
      ptx::wgmma_fence();
      uint64 a[Base::kPSteps], b[Base::kPSteps];
#pragma unroll
      for (int step = 0; step < Base::kPSteps; ++step) a[step] = p_smem + PTile::k_major_step(step);
      Base::describe_values(b, stage);
      Output::issue(a, b, Base::begun);
      Base::begun = 1;
      ptx::wgmma_commit_group();
    }
  }

  __device__ __forceinline__ void keep_probabilities() {
    if constexpr (Config::kProbabilitiesInRegisters)
      Config::Probabilities::keep();
    else
      store_probabilities();
  }

 private:
  __device__ __forceinline__ void store_probabilities() {
    uint32 pairs[4 * Base::kPSteps];
    Scores::pack(pairs);
    const int lane = ptx::tid_x() % kWarpSize;
    const uint32 row = Base::warp_row() + lane % 16;
#pragma unroll
    for (int step = 0; step < Base::kPSteps; ++step)
      ptx::stmatrix_x4(Base::whole(PTile::address(p_smem)) + PTile::offset(row, 2 * step + lane / 16), pairs[4 * step],
                       pairs[4 * step + 1], pairs[4 * step + 2], pairs[4 * step + 3]);
    ptx::fence_proxy_async();
    ptx::bar_sync<kWarpgroupSize>(Base::warpgroup_barrier());
  }
};

template <class Config>
class HopperAblationConsumer {
  using Shape = HopperShape<Config>;
  using Tile = HopperTile<Config>;
  using Warpgroup = AblationWarpgroup<Config>;
  using Scores = typename Config::Scores;
  using Output = typename Config::Output;
  static constexpr bool kLazy = Config::kRescale == Rescale::lazy;

 public:
  __device__ __forceinline__ HopperAblationConsumer(const typename Config::Arguments& args_, const Shape& shape_,
                                                    int warpgroup_)
      : args(args_.core),
        shape(shape_),
        tiles{args_},
        announcer(args_, shape_),
        loader(args_, shape_),
        gemm_turn{warpgroup_},
        softmax_turn{warpgroup_},
        queries(shape_.queries()),
        keys(shape_.keys()),
        values(shape_.values()),
        announced(shape_.tiles()),
        warpgroup(warpgroup_),
        self(args_.core.sizes.scale_log2, shape_, warpgroup_) {}

  __device__ __forceinline__ void run() {
    declare_matrices();
    const HopperStore<Config> store{tiles};
    gemm_turn.begin();
    softmax_turn.begin();
    uint32 index = tiles.first();
    Visit visit = next_visit(index);
    bool scores_ready = false;
    for (;;) {
      if constexpr (!Config::kWarpSpecialized) load_first();
      if (!scores_ready) compute_first_scores(visit);
      visit_blocks(visit);
      const SmemAddress query = queries.slot();
      if constexpr (!Shape::kOutputInQuery) queries.release(signs());
      index += tiles.stride();
      const Visit next = Shape::kOneTile ? Visit{} : next_visit(index);
      scores_ready = finish_blocks(next);
      const Tile tile = tile_of(visit);
      store.write(self.softmax, tile, warp_row(tile), output_slab(query));
      announced.give_back(visit.stage, signs());
      if constexpr (Shape::kOutputInQuery) {
        store.wait_read();
        queries.release(signs());
      }
      if (!next.more()) break;
      visit = next;
    }
    store.finish();
  }

 private:
  __device__ __forceinline__ static void declare_matrices() {
    Scores::declare();
    if constexpr (Config::kOverlap == GemmSoftmax::three_stage) Config::NextScores::declare();
    if constexpr (Config::kProbabilitiesInRegisters) Config::Probabilities::declare();
    Output::declare();
  }

  // What a warpgroup does of a tile: its blocks, from the last to the first. The tile itself stays in shared memory.
  struct Visit {
    int stage;   // of its description
    int loaded;  // blocks, of which the warpgroup passes over the last ones
    int blocks;  // that some row of the warpgroup sees, at least one
    int clean;   // of these, the ones that need no mask

    __device__ __forceinline__ bool more() const { return loaded != 0; }
  };

  // The index counts where there is no producer.
  __device__ __forceinline__ Visit next_visit(uint32 index) {
    if constexpr (!Config::kWarpSpecialized) {
      if (loads()) {
        loading = tiles.find(index);
        announcer.announce(loading);
      }
    }
    Visit visit;
    visit.stage = announced.take();
    const Tile tile = tile_of(visit);
    const int first_row = tile.first_row + warpgroup * kWarpgroupRows;
    const BlockRuns blocks = tiles.visited(tile, first_row, first_row + kWarpgroupRows - 1);
    visit.loaded = ptx::shfl_first(tile.end_block);
    visit.blocks = ptx::shfl_first(min(blocks.end, tile.end_block));
    visit.clean = ptx::shfl_first(blocks.clean_end);
    return visit;
  }
  __device__ __forceinline__ Tile tile_of(const Visit& visit) const {
    return Tile::read(announced.place.slot(visit.stage));
  }

  // --- The blocks of a tile ----------------------------------------------------------------------------------------

  // Until the scores of the first block that the warpgroup sees are there.
  __device__ __forceinline__ void compute_first_scores(const Visit& visit) {
#pragma unroll 1
    for (int block = visit.loaded - 1; block >= visit.blocks; --block) {
      keys.wait_full();
      release_key(block);
      values.wait_full();
      release_value(block);
      gemm_turn.pass();
      softmax_turn.pass();
    }
    take_query();
    keys.wait_full();
    if constexpr (Shape::kSerial) gemm_turn.take();
    self.issue_scores(keys.stage());
    if constexpr (Shape::kSerial) gemm_turn.hand_over();
    ptx::wgmma_wait_group<0>();
    release_key(visit.blocks - 1);
  }

  __device__ __forceinline__ void take_query() {
    queries.wait_full();
    self.set_query(queries.stage());
    if (args.sizes.query_sign != 0) self.flip_query(args.sizes.query_sign);
  }

  // Ends with the probabilities of the last block, except in a serial pipeline, which ends with the output.
  __device__ __forceinline__ void visit_blocks(const Visit& visit) {
    self.begun = 0;
    self.softmax.reset();
    int block = visit.blocks - 1;
    if constexpr (Config::kOverlap == GemmSoftmax::three_stage) {
      visit_three_stage(visit, block);
    } else {
      take_first_block(visit, block);
      --block;
      if constexpr (Config::Masks::kEnds) {
#pragma unroll 1
        for (; block >= visit.clean; --block) step<true>(visit, block);
      }
#pragma unroll 1
      for (; block >= 0; --block) step<false>(visit, block);
    }
  }

  __device__ __forceinline__ void take_first_block(const Visit& visit, int block) {
    softmax_turn.take();
    if (block >= visit.clean) mask(visit, block);
    self.softmax.take_block(nothing_in_common());
    softmax_turn.hand_over();
    self.keep_probabilities();
    if constexpr (Shape::kSerial) add_values(visit, block);
  }

  template <bool kMasked>
  __device__ __forceinline__ void step(const Visit& visit, int block) {
    if constexpr (Shape::kSerial)
      step_serial<kMasked>(visit, block);
    else
      step_two_stage<kMasked>(visit, block);
  }

  // Q K(block) and P V(block + 1) are in flight together, and the latter under the softmax.
  template <bool kMasked>
  __device__ __forceinline__ void step_two_stage(const Visit& visit, int block) {
    issue_both();
    const auto finish_output = [&] {
      ptx::wgmma_wait_group<0>();
      release_value(block + 1);
    };
    const bool raised = take_scores<kMasked>(visit, block, finish_output);
    self.keep_probabilities();
    if (raised) Output::multiply(self.softmax.factor);
  }

  // Scores of the next keys beside P V of the next values; waits for the scores only.
  __device__ __forceinline__ void issue_both() {
    keys.wait_full();
    gemm_turn.take();
    self.issue_scores(keys.stage());
    values.wait_full();
    self.issue_output(values.stage());
    gemm_turn.hand_over();
    ptx::wgmma_wait_group<1>();
  }

  template <bool kMasked>
  __device__ __forceinline__ void step_serial(const Visit& visit, int block) {
    keys.wait_full();
    gemm_turn.take();
    self.issue_scores(keys.stage());
    gemm_turn.hand_over();
    ptx::wgmma_wait_group<0>();
    softmax_turn.take();
    const bool raised = take_scores<kMasked>(visit, block, [] {});
    softmax_turn.hand_over();
    self.keep_probabilities();
    if (raised) Output::multiply(self.softmax.factor);
    add_values(visit, block);
  }

  __device__ __forceinline__ void add_values(const Visit& visit, int block) {
    values.wait_full();
    self.issue_output(values.stage());
    ptx::wgmma_wait_group<0>();
    release_value(block);
  }

  // Under the softmax of a block run Q K of the next one and P V of the one before.
  __device__ __forceinline__ void visit_three_stage(const Visit& visit, int block) {
    if (block == 0) return take_first_block(visit, block);
    keys.wait_full();
    self.template issue_scores<typename Config::NextScores>(keys.stage());
    take_first_block(visit, block);
    ptx::wgmma_wait_group<0>();
    release_key(--block);
    if constexpr (Config::Masks::kEnds) {
#pragma unroll 1
      for (; block > 0 && block >= visit.clean; --block) step_three_stage<true, false>(visit, block);
    }
#pragma unroll 1
    for (; block > 0; --block) step_three_stage<false, false>(visit, block);
    if (Config::Masks::kEnds && visit.clean == 0)
      step_three_stage<true, true>(visit, block);
    else
      step_three_stage<false, true>(visit, block);
  }

  // NextScores hold the scores of the block, and then of the one after it.
  template <bool kMasked, bool kLast>
  __device__ __forceinline__ void step_three_stage(const Visit& visit, int block) {
    Scores::take();
    gemm_turn.take();
    if constexpr (!kLast) {
      keys.wait_full();
      self.template issue_scores<typename Config::NextScores>(keys.stage());
    }
    values.wait_full();
    self.issue_output(values.stage());
    gemm_turn.hand_over();
    if constexpr (kMasked) mask(visit, block);
    const bool raised = self.softmax.take_block(nothing_in_common());
    ptx::wgmma_wait_group<0>();
    if constexpr (!kLast) release_key(block - 1);
    release_value(block + 1);
    self.keep_probabilities();
    if (raised) Output::multiply(self.softmax.factor);
  }

  // Scores to probabilities. True when the output has to be rescaled. The keys are free when nothing can ask for the
  // scores again. On the way it waits for P V of the block before.
  template <bool kMasked, class FinishOutput>
  __device__ __forceinline__ bool take_scores(const Visit& visit, int block, FinishOutput finish_output) {
    if constexpr (kLazy && !kMasked) {
      if constexpr (Shape::kOutputEarly) finish_output();
      bool raised = false;
      if (!self.softmax.take_block_lazily(nothing_in_common())) {
        self.recompute_scores(keys.stage());
        raised = self.softmax.take_block(nothing_in_common());
        // While P V may still be running the output has to wait.
        if (Shape::kOutputEarly && raised) Output::multiply(self.softmax.factor);
      }
      release_key(block);
      if constexpr (Shape::kOutputEarly) return false;
      finish_output();
      return raised;
    } else {
      release_key(block);
      if constexpr (kMasked) mask(visit, block);
      const bool raised = self.softmax.take_block(nothing_in_common());
      finish_output();
      return raised;
    }
  }

  // This kernel has no part in the slot of scores.
  __device__ __forceinline__ static Common<1, false> nothing_in_common() { return {}; }

  __device__ __forceinline__ void mask(const Visit& visit, int block) const {
    const Tile tile = tile_of(visit);
    HiddenColumns<Scores> hidden = {};
    add_hidden_by_spans<Scores>(hidden, warp_row(tile), block * Config::kBlockKv, tiles.mask_of(tile), lane());
    Scores::hide(hidden);
  }

  // The last P V of a tile. True when the first scores of the next tile were computed along with it.
  __device__ __forceinline__ bool finish_blocks(const Visit& next) {
    if constexpr (Shape::kSerial) return false;
    if (Config::kFusedBoundary && next.more() && next.blocks == next.loaded) {
      take_query();
      issue_both();
      release_key(next.blocks - 1);
      ptx::wgmma_wait_group<0>();
      release_value(0);
      return true;
    }
    if (next.more()) gemm_turn.take();
    values.wait_full();
    self.issue_output(values.stage());
    if (next.more()) gemm_turn.hand_over();
    ptx::wgmma_wait_group<0>();
    release_value(0);
    return false;
  }

  // --- Slots -------------------------------------------------------------------------------------------------------

  // Without a producer warp one consumer thread fills the rings: all that fits at the start of a tile, and then each
  // slot anew as soon as every warpgroup has released it.
  __device__ __forceinline__ bool loads() const { return ptx::tid_x() == 0; }

  __device__ __forceinline__ void load_first() {
    if (!loads()) return;
    loader.request_query(loading);
    const int last = loading.end_block - 1;
#pragma unroll 1
    for (int i = 0; i < Config::kStages && i <= last; ++i) {
      loader.request_key(loading, last - i);
      loader.request_value(loading, last - i);
    }
  }
  __device__ __forceinline__ void release_key(int block) {
    keys.release(signs());
    if constexpr (!Config::kWarpSpecialized) {
      if (loads() && block >= Config::kStages) loader.request_key(loading, block - Config::kStages);
    }
  }
  __device__ __forceinline__ void release_value(int block) {
    values.release(signs());
    if constexpr (!Config::kWarpSpecialized) {
      if (loads() && block >= Config::kStages) loader.request_value(loading, block - Config::kStages);
    }
  }

  // --- Places ------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ static bool signs() { return ptx::elect(); }
  // The lane and the warp are asked for each time: the loops have no registers to keep them in.
  __device__ __forceinline__ static int lane() { return ptx::tid_x() % kWarpSize; }
  __device__ __forceinline__ static int consumer_warp() {
    return ptx::tid_x() / kWarpSize - Shape::kProducerWarpgroups * kWarpgroupSize / kWarpSize;
  }
  __device__ __forceinline__ int warp_row(const Tile& tile) const {
    return tile.first_row + consumer_warp() * Shape::kStoreRows;
  }
  __device__ __forceinline__ SmemAddress output_slab(SmemAddress query) const {
    return (Shape::kOutputInQuery ? query : shape.smem + Shape::kOutput) + consumer_warp() * Shape::kWarpOutputBytes;
  }

  const HopperArguments& args;
  const Shape shape;
  const HopperTiles<Config> tiles;
  HopperAnnouncer<Config> announcer;  // these three without a producer
  HopperLoader<Config> loader;
  Tile loading;
  const Turn<Config, PingPong::gemm> gemm_turn;
  const Turn<Config, PingPong::softmax> softmax_turn;
  RingReader<typename Shape::QRing, 1> queries;
  RingReader<typename Shape::KRing, Config::kCluster> keys;
  RingReader<typename Shape::VRing, Config::kCluster> values;
  RingReader<typename Shape::TileRing, 1> announced;
  const int warpgroup;
  Warpgroup self;
};

template <class Config>
__device__ __forceinline__ void forward_hopper_ablation(const typename Config::Arguments& args, SmemAddress smem) {
  using Consumer = HopperAblationConsumer<Config>;
  const HopperShape<Config> shape{smem};
  open_block<Config>(args.core, shape, Config::kWarpSpecialized ? 1 : 0);
  const int warpgroup = ptx::shfl_first(ptx::tid_x() / kWarpgroupSize);
  if constexpr (!Config::kWarpSpecialized)
    Consumer(args, shape, warpgroup).run();
  else if (warpgroup == 0)
    feed<Config>(args, shape);
  else
    consume<Config, Consumer>(args, shape, warpgroup);
  close_block<Config>();
}
