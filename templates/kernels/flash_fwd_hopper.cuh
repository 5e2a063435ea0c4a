// SPDX-License-Identifier: Apache-2.0
// Attention forward for Hopper: a producer warp feeds the copy engine, warpgroups of 64 query rows each consume, and a
// block that has finished a tile goes on with the next. docs/kernels/hopper_forward.md explains who waits for whom.
#pragma once

#include "attention/hopper_loader.cuh"
#include "attention/hopper_shape.cuh"
#include "attention/hopper_store.cuh"
#include "attention/hopper_tiles.cuh"
#include "attention/warpgroup_attention.cuh"
#include "ptx/cluster.cuh"

// Warpgroups take turns in a section, in a circle: each waits for the one before it. Nothing, where the variant takes
// turns in another section or in none.
template <class Config, PingPong kSection>
struct Turn {
  static constexpr int kCount = HopperShape<Config>::kWarpgroups;
  static constexpr bool kTaken = Config::kPingPong == kSection && kCount > 1;
  static constexpr int kThreads = 2 * kWarpgroupSize;  // who waits and who hands over

  const int warpgroup;

  __device__ __forceinline__ static NamedBarrier of(int warpgroup) {
    return static_cast<NamedBarrier>(static_cast<int>(NamedBarrier::first_turn) + warpgroup);
  }
  __device__ __forceinline__ void begin() const {
    if (kTaken && warpgroup == kCount - 1) ptx::bar_arrive<kThreads>(of(0));
  }
  __device__ __forceinline__ void take() const {
    if constexpr (kTaken) ptx::bar_sync<kThreads>(of(warpgroup));
  }
  __device__ __forceinline__ void hand_over() const {
    if constexpr (kTaken) ptx::bar_arrive<kThreads>(of(warpgroup + 1 == kCount ? 0 : warpgroup + 1));
  }
  __device__ __forceinline__ void pass() const {
    take();
    hand_over();
  }
};

// --- The producer --------------------------------------------------------------------------------------------------

// One thread. Tile after tile, keys one block ahead of values. Where a second query slot is free already, the next
// tile's query and first keys come before the last values of this one; else after them.
template <class Config>
__device__ __forceinline__ void produce(const HopperArguments& args, const HopperShape<Config>& shape) {
  using Shape = HopperShape<Config>;
  HopperLoader<Config> loader(args, shape);
  RingReader<typename Shape::TileRing, 1> announced(shape.tiles());
  // A description is read again for each use: this thread has few registers.
  int stage = announced.take();
  HopperTile tile = HopperTile::read_with_kv_head(announced.place.slot(stage));
  loader.request_key(tile, tile.blocks - 1);
  loader.request_query(tile);
  for (;;) {
#pragma unroll 1
    for (int block = tile.blocks - 1; block > 0; --block) {
      loader.request_key(tile, block - 1);
      loader.request_value(tile, block);
    }
    if constexpr (!Shape::kNextTileFirst) loader.request_value(tile, 0);
    if constexpr (Shape::kOneTile) return;
    announced.give_back(stage, true);
    stage = announced.take();
    const SmemAddress next = announced.place.slot(stage);
    const int next_blocks = HopperTile::read(next).blocks;
    if (next_blocks != 0) {
      if constexpr (Shape::kNextTileFirst) loader.request_query(HopperTile::read(next));
      loader.request_key(HopperTile::read_with_kv_head(next), next_blocks - 1);
      if constexpr (!Shape::kNextTileFirst) loader.request_query(HopperTile::read(next));
    }
    if constexpr (Shape::kNextTileFirst) loader.request_value(tile, 0);
    if (next_blocks == 0) return;
    tile = HopperTile::read_with_kv_head(next);
  }
}

// --- The consumers -------------------------------------------------------------------------------------------------

template <class Config>
class HopperConsumer {
  using Shape = HopperShape<Config>;
  using Warpgroup = WarpgroupAttention<Config>;
  using Scores = typename Warpgroup::Scores;
  static constexpr bool kLazy = Config::kRescale == Rescale::lazy;

 public:
  __device__ __forceinline__ HopperConsumer(const HopperArguments& args_, const Shape& shape_, int warpgroup_)
      : args(args_),
        shape(shape_),
        tiles(args_),
        announcer(args_, shape_),
        loader(args_, shape_),
        gemm_turn{warpgroup_},
        softmax_turn{warpgroup_},
        queries(shape_.queries()),
        keys(shape_.keys()),
        values(shape_.values()),
        announced(shape_.tiles()),
        warpgroup(warpgroup_),
        self(args_.sizes.scale_log2, shape_, warpgroup_) {}

  __device__ __forceinline__ void run() {
    const HopperStore<Config> store{args};
    gemm_turn.begin();
    softmax_turn.begin();
    uint32 index = tiles.first();
    Visit visit = next_visit(index);
    Scores s;
    bool scores_ready = false;
    for (;;) {
      if constexpr (!Config::kWarpSpecialized) load_first();
      if (!scores_ready) compute_first_scores(visit, s);
      visit_blocks(visit, s);
      const SmemAddress query = queries.slot();
      if constexpr (!Shape::kOutputInQuery) queries.release(signs());
      index += tiles.stride();
      const Visit next = Shape::kOneTile ? Visit{} : next_visit(index);
      scores_ready = finish_blocks(next, s);
      const HopperTile tile = tile_of(visit);
      store.write(self.o, self.softmax, tile, warp_row(tile), output_slab(query));
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
    const HopperTile tile = tile_of(visit);
    const int first_row = tile.first_row + warpgroup * kWarpgroupRows;
    visit.loaded = ptx::shfl_first(tile.blocks);
    visit.blocks = ptx::shfl_first(min(tiles.visible(first_row + kWarpgroupRows - 1), tile.blocks));
    visit.clean = ptx::shfl_first(tiles.clean(first_row));
    return visit;
  }
  __device__ __forceinline__ HopperTile tile_of(const Visit& visit) const {
    return HopperTile::read(announced.place.slot(visit.stage));
  }

  // --- The blocks of a tile ----------------------------------------------------------------------------------------

  // Until the scores of the first block that the warpgroup sees are there.
  __device__ __forceinline__ void compute_first_scores(const Visit& visit, Scores& s) {
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
    self.issue_scores(s, keys.stage());
    if constexpr (Shape::kSerial) gemm_turn.hand_over();
    Warpgroup::template wait_scores<0>(s);
    release_key(visit.blocks - 1);
  }

  __device__ __forceinline__ void take_query() {
    queries.wait_full();
    self.set_query(queries.stage());
    if (args.sizes.query_sign != 0) self.flip_query(args.sizes.query_sign);
  }

  // Ends with the probabilities of the last block, except in a serial pipeline, which ends with the output.
  __device__ __forceinline__ void visit_blocks(const Visit& visit, Scores& s) {
    self.o.clear();
    self.softmax.reset();
    int block = visit.blocks - 1;
    if constexpr (Config::kOverlap == GemmSoftmax::three_stage) {
      visit_three_stage(visit, block, s);
    } else {
      take_first_block(visit, block, s);
      --block;
      if constexpr (Config::kCausal) {
#pragma unroll 1
        for (; block >= visit.clean; --block) step<true>(visit, block, s);
      }
#pragma unroll 1
      for (; block >= 0; --block) step<false>(visit, block, s);
    }
  }

  __device__ __forceinline__ void take_first_block(const Visit& visit, int block, Scores& s) {
    softmax_turn.take();
    if (block >= visit.clean) mask(visit, block, s);
    self.softmax.take_block(s);
    softmax_turn.hand_over();
    self.keep_probabilities(s);
    if constexpr (Shape::kSerial) add_values(visit, block);
  }

  template <bool kMasked>
  __device__ __forceinline__ void step(const Visit& visit, int block, Scores& s) {
    if constexpr (Shape::kSerial)
      step_serial<kMasked>(visit, block, s);
    else
      step_two_stage<kMasked>(visit, block, s);
  }

  // Q K(block) and P V(block + 1) are in flight together, and the latter under the softmax.
  template <bool kMasked>
  __device__ __forceinline__ void step_two_stage(const Visit& visit, int block, Scores& s) {
    issue_both(s);
    const auto finish_output = [&] {
      self.wait_output();
      release_value(block + 1);
    };
    const bool raised = take_scores<kMasked>(visit, block, s, finish_output);
    ptx::hold_registers(s.flat());
    self.keep_probabilities(s);
    if (raised) self.softmax.rescale(self.o);
  }

  // Scores of the next keys beside P V of the next values; waits for the scores only.
  __device__ __forceinline__ void issue_both(Scores& s) {
    keys.wait_full();
    gemm_turn.take();
    self.issue_scores(s, keys.stage());
    values.wait_full();
    self.issue_output(values.stage());
    gemm_turn.hand_over();
    Warpgroup::template wait_scores<1>(s);
  }

  template <bool kMasked>
  __device__ __forceinline__ void step_serial(const Visit& visit, int block, Scores& s) {
    keys.wait_full();
    gemm_turn.take();
    self.issue_scores(s, keys.stage());
    gemm_turn.hand_over();
    Warpgroup::template wait_scores<0>(s);
    softmax_turn.take();
    const bool raised = take_scores<kMasked>(visit, block, s, [] {});
    softmax_turn.hand_over();
    self.keep_probabilities(s);
    if (raised) self.softmax.rescale(self.o);
    add_values(visit, block);
  }

  __device__ __forceinline__ void add_values(const Visit& visit, int block) {
    values.wait_full();
    self.issue_output(values.stage());
    self.wait_output();
    release_value(block);
  }

  // Under the softmax of a block run Q K of the next one and P V of the one before.
  __device__ __forceinline__ void visit_three_stage(const Visit& visit, int block, Scores& s) {
    if (block == 0) return take_first_block(visit, block, s);
    Scores next;
    keys.wait_full();
    self.issue_scores(next, keys.stage());
    take_first_block(visit, block, s);
    Warpgroup::template wait_scores<0>(next);
    release_key(--block);
    if constexpr (Config::kCausal) {
#pragma unroll 1
      for (; block > 0 && block >= visit.clean; --block) step_three_stage<true, false>(visit, block, s, next);
    }
#pragma unroll 1
    for (; block > 0; --block) step_three_stage<false, false>(visit, block, s, next);
    if (Config::kCausal && visit.clean == 0)
      step_three_stage<true, true>(visit, block, s, next);
    else
      step_three_stage<false, true>(visit, block, s, next);
  }

  // next holds the scores of the block, and then of the one after it.
  template <bool kMasked, bool kLast>
  __device__ __forceinline__ void step_three_stage(const Visit& visit, int block, Scores& s, Scores& next) {
    s = next;
    gemm_turn.take();
    if constexpr (!kLast) {
      keys.wait_full();
      self.issue_scores(next, keys.stage());
    }
    values.wait_full();
    self.issue_output(values.stage());
    gemm_turn.hand_over();
    if constexpr (kMasked) mask(visit, block, s);
    const bool raised = self.softmax.take_block(s);
    self.wait_output();
    if constexpr (!kLast) {
      ptx::hold_registers(next.flat());
      release_key(block - 1);
    }
    release_value(block + 1);
    self.keep_probabilities(s);
    if (raised) self.softmax.rescale(self.o);
  }

  // Scores to probabilities. True when the output has to be rescaled. The keys are free when nothing can ask for the
  // scores again. On the way it waits for P V of the block before.
  template <bool kMasked, class FinishOutput>
  __device__ __forceinline__ bool take_scores(const Visit& visit, int block, Scores& s, FinishOutput finish_output) {
    if constexpr (kLazy && !kMasked) {
      if constexpr (Shape::kOutputEarly) finish_output();
      bool raised = false;
      const int stage = keys.stage();
      self.softmax.take_block_lazily(s, [&] {
        self.recompute_scores(s, stage);
        raised = self.softmax.take_block(s);
        // While P V may still be running the output has to wait.
        if (Shape::kOutputEarly && raised) self.softmax.rescale(self.o);
      });
      release_key(block);
      if constexpr (Shape::kOutputEarly) return false;
      finish_output();
      return raised;
    } else {
      release_key(block);
      if constexpr (kMasked) mask(visit, block, s);
      const bool raised = self.softmax.take_block(s);
      finish_output();
      return raised;
    }
  }

  __device__ __forceinline__ void mask(const Visit& visit, int block, Scores& s) const {
    mask_scores(s, warp_row(tile_of(visit)), block * Config::kBlockKv, tiles.mask, lane());
  }

  // The last P V of a tile. True when the first scores of the next tile were computed along with it.
  __device__ __forceinline__ bool finish_blocks(const Visit& next, Scores& s) {
    if constexpr (Shape::kSerial) return false;
    if (Config::kFusedBoundary && next.more() && next.blocks == next.loaded) {
      take_query();
      issue_both(s);
      release_key(next.blocks - 1);
      self.wait_output();
      ptx::hold_registers(s.flat());
      release_value(0);
      return true;
    }
    if (next.more()) gemm_turn.take();
    values.wait_full();
    self.issue_output(values.stage());
    if (next.more()) gemm_turn.hand_over();
    self.wait_output();
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
    const int last = loading.blocks - 1;
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
  // Asked anew each time: the loops have no registers to keep such things in.
  __device__ __forceinline__ static int lane() { return ptx::tid_x() % kWarpSize; }
  __device__ __forceinline__ static int consumer_warp() {
    return ptx::tid_x() / kWarpSize - (Config::kWarpSpecialized ? kWarpgroupSize / kWarpSize : 0);
  }
  __device__ __forceinline__ int warp_row(const HopperTile& tile) const {
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
  HopperTile loading;
  const Turn<Config, PingPong::gemm> gemm_turn;
  const Turn<Config, PingPong::softmax> softmax_turn;
  RingReader<typename Shape::QRing, 1> queries;
  RingReader<typename Shape::KRing, Config::kCluster> keys;
  RingReader<typename Shape::VRing, Config::kCluster> values;
  RingReader<typename Shape::TileRing, 1> announced;
  const int warpgroup;
  Warpgroup self;
};

// --- The block -----------------------------------------------------------------------------------------------------

template <class Config>
__device__ __forceinline__ void forward_hopper(const HopperArguments& args, SmemAddress smem) {
  using Shape = HopperShape<Config>;
  const Shape shape{smem};
  if (ptx::tid_x() == 0) {
    ptx::prefetch_tensormap(args.k);
    ptx::prefetch_tensormap(args.q);
    ptx::prefetch_tensormap(args.v);
    shape.queries().init(Shape::kConsumerWarps);
    shape.keys().init(Shape::kConsumerWarps * Config::kCluster);
    shape.values().init(Shape::kConsumerWarps * Config::kCluster);
    shape.tiles().init(Shape::kConsumerWarps + (Config::kWarpSpecialized ? 1 : 0));
    ptx::fence_mbarrier_init();
  }
  ptx::bar_sync();
  if constexpr (Config::kCluster > 1) ptx::cluster_sync();

  const int warpgroup = ptx::shfl_first(ptx::tid_x() / kWarpgroupSize);
  if constexpr (!Config::kWarpSpecialized) {
    HopperConsumer<Config>(args, shape, warpgroup).run();
  } else if (warpgroup == 0) {
    if constexpr (Shape::kMovesRegisters) ptx::setmaxnreg_dec<Shape::kProducerRegisters>();
    if (ptx::tid_x() == 0) produce<Config>(args, shape);
    if (ptx::tid_x() == kWarpSize) HopperAnnouncer<Config>(args, shape).announce_all();
  } else {
    if constexpr (Shape::kMovesRegisters) ptx::setmaxnreg_inc<Shape::kConsumerRegisters>();
    HopperConsumer<Config>(args, shape, warpgroup - 1).run();
  }
  // A block's shared memory must outlive what others of its cluster send there.
  if constexpr (Config::kCluster > 1) ptx::cluster_sync();
}
