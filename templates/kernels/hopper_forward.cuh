// SPDX-License-Identifier: Apache-2.0
// Attention forward for Hopper: a producer warp feeds the copy engine, warpgroups of 64 query rows each consume, and a
// block that has finished a tile goes on with the next. docs/kernels/hopper_forward.md explains who waits for whom.
#pragma once

#include "attention/scores.cuh"
#include "hopper/block.cuh"
#include "hopper/store.cuh"
#include "hopper/tiles.cuh"
#include "hopper/turn.cuh"
#include "hopper/warpgroup_attention.cuh"

template <class Config>
class HopperConsumer {
  using Shape = HopperShape<Config>;
  using Tile = HopperTile<Config>;
  using Warpgroup = WarpgroupAttention<Config>;
  using Scores = typename Warpgroup::Scores;
  static constexpr bool kLazy = Config::kRescale == Rescale::lazy;
  static constexpr bool kBegins = Config::Masks::kBegins;

 public:
  __device__ __forceinline__ HopperConsumer(const typename Config::Arguments& args_, const Shape& shape_,
                                            int warpgroup_)
      : args(args_.core),
        shape(shape_),
        tiles{args_},
        gemm_turn{warpgroup_},
        softmax_turn{warpgroup_},
        queries(shape_.queries()),
        keys(shape_.keys()),
        values(shape_.values()),
        announced(shape_.tiles()),
        warpgroup(warpgroup_),
        self(args_.core.sizes.scale_log2, shape_, warpgroup_) {}

  __device__ __forceinline__ void run() {
    const HopperStore<Config> store{args};
    gemm_turn.begin();
    softmax_turn.begin();
    Visit visit = next_visit();
    Scores s;
    bool scores_ready = false;
    for (;;) {
      if (!scores_ready) compute_first_scores(visit, s);
      visit_blocks(visit, s);
      queries.release(signs());
      const Visit next = Shape::kOneTile ? Visit{} : next_visit();
      scores_ready = finish_blocks(visit, next, s);
      const Tile tile = tile_of(visit);
      store.write(self.o, self.softmax, tile, warp_row(tile), output_slab());
      announced.give_back(visit.stage, signs());
      if (!next.more()) break;
      visit = next;
    }
    store.finish();
  }

 private:
  // What a warpgroup does of a tile. The tile itself stays in shared memory.
  struct Visit {
    int stage;  // of its description
    int loaded_first,
        loaded_end;    // the tile's blocks, of which the warpgroup passes over those that no row of its sees
    BlockRuns blocks;  // the others, at least one

    __device__ __forceinline__ bool more() const { return loaded_end != 0; }
    __device__ __forceinline__ bool begins_at_once() const { return blocks.end == loaded_end; }
    __device__ __forceinline__ bool ends_at_once() const { return blocks.first == loaded_first; }
  };

  __device__ __forceinline__ Visit next_visit() {
    Visit visit{};
    visit.stage = announced.take();
    const Tile tile = tile_of(visit);
    const int first_row = tile.first_row + warpgroup * kWarpgroupRows;
    const BlockRuns blocks = tiles.visited(tile.batch, first_row, first_row + kWarpgroupRows - 1);
    visit.loaded_end = ptx::shfl_first(tile.end_block);
    visit.blocks.end = ptx::shfl_first(min(blocks.end, tile.end_block));
    visit.blocks.clean_end = ptx::shfl_first(blocks.clean_end);
    if constexpr (kBegins) {
      visit.loaded_first = ptx::shfl_first(tile.first_block);
      visit.blocks.first = ptx::shfl_first(blocks.first);
      visit.blocks.clean_first = ptx::shfl_first(blocks.clean_first);
    }
    return visit;
  }
  __device__ __forceinline__ Tile tile_of(const Visit& visit) const {
    return Tile::read(announced.place.slot(visit.stage));
  }

  // --- The blocks of a tile ----------------------------------------------------------------------------------------

  // Until the scores of the first block that the warpgroup sees are there.
  __device__ __forceinline__ void compute_first_scores(const Visit& visit, Scores& s) {
    pass_over(visit.loaded_end, visit.blocks.end);
    take_query();
    keys.wait_full();
    if constexpr (Shape::kSerial) gemm_turn.take();
    self.issue_scores(s, keys.stage());
    if constexpr (Shape::kSerial) gemm_turn.hand_over();
    Warpgroup::template wait_scores<0>(s);
    release_key();
  }

  // The blocks end-1 … first.
  __device__ __forceinline__ void pass_over(int end, int first) {
#pragma unroll 1
    for (int block = end - 1; block >= first; --block) {
      keys.wait_full();
      release_key();
      values.wait_full();
      release_value();
      gemm_turn.pass();
      softmax_turn.pass();
    }
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
    const BlockRuns& blocks = visit.blocks;
    int block = blocks.end - 1;
    take_first_block(visit, block, s);
    --block;
    if constexpr (Config::Masks::kEnds) {
#pragma unroll 1
      for (; block >= blocks.clean_end; --block) step<true>(visit, block, s);
    }
#pragma unroll 1
    for (; block >= blocks.first; --block) step<false>(visit, block, s);
  }

  __device__ __forceinline__ void take_first_block(const Visit& visit, int block, Scores& s) {
    softmax_turn.take();
    if (block >= visit.blocks.clean_end)
      finish_scores<true>(visit, block, s);
    else
      finish_scores<false>(visit, block, s);
    self.softmax.take_block(s);
    softmax_turn.hand_over();
    self.keep_probabilities(s);
    if constexpr (Shape::kSerial) add_values();
  }

  // kEnd: of the blocks at the end, whose last keys some row does not see.
  template <bool kEnd>
  __device__ __forceinline__ void step(const Visit& visit, int block, Scores& s) {
    if constexpr (Shape::kSerial)
      step_serial<kEnd>(visit, block, s);
    else
      step_two_stage<kEnd>(visit, block, s);
  }

  // Q K(block) and P V(block + 1) are in flight together, and the latter under the softmax.
  template <bool kEnd>
  __device__ __forceinline__ void step_two_stage(const Visit& visit, int block, Scores& s) {
    issue_both(s);
    const auto finish_output = [&] {
      self.wait_output();
      release_value();
    };
    const bool raised = take_scores<kEnd>(visit, block, s, finish_output);
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

  template <bool kEnd>
  __device__ __forceinline__ void step_serial(const Visit& visit, int block, Scores& s) {
    keys.wait_full();
    gemm_turn.take();
    self.issue_scores(s, keys.stage());
    gemm_turn.hand_over();
    Warpgroup::template wait_scores<0>(s);
    softmax_turn.take();
    const bool raised = take_scores<kEnd>(visit, block, s, [] {});
    softmax_turn.hand_over();
    self.keep_probabilities(s);
    if (raised) self.softmax.rescale(self.o);
    add_values();
  }

  __device__ __forceinline__ void add_values() {
    values.wait_full();
    self.issue_output(values.stage());
    self.wait_output();
    release_value();
  }

  // Scores to probabilities. True when the output has to be rescaled. The keys are free when nothing can ask for the
  // scores again. On the way it waits for P V of the block before.
  template <bool kEnd, class FinishOutput>
  __device__ __forceinline__ bool take_scores(const Visit& visit, int block, Scores& s, FinishOutput finish_output) {
    if constexpr (kLazy && !kEnd) {
      if constexpr (Shape::kOutputEarly) finish_output();
      bool raised = false;
      const int stage = keys.stage();
      finish_scores<false>(visit, block, s);
      self.softmax.take_block_lazily(s, [&] {
        self.recompute_scores(s, stage);
        finish_scores<false>(visit, block, s);
        raised = self.softmax.take_block(s);
        // While P V may still be running the output has to wait.
        if (Shape::kOutputEarly && raised) self.softmax.rescale(self.o);
      });
      release_key();
      if constexpr (Shape::kOutputEarly) return false;
      finish_output();
      return raised;
    } else {
      release_key();
      finish_scores<kEnd>(visit, block, s);
      const bool raised = self.softmax.take_block(s);
      finish_output();
      return raised;
    }
  }

  template <bool kEnd>
  __device__ __forceinline__ void finish_scores(const Visit& visit, int block, Scores& s) const {
    const int first_key = block * Config::kBlockKv;
    if constexpr (kEnd) {
      const Tile tile = tile_of(visit);
      mask_end(s, warp_row(tile), first_key, tiles.mask_of(tile.batch), lane());
    }
    if (kBegins && block < visit.blocks.clean_first) {
      const Tile tile = tile_of(visit);
      mask_begin(s, warp_row(tile), first_key, tiles.mask_of(tile.batch), lane());
    }
  }

  // The last P V of a tile. True when the first scores of the next tile were computed along with it.
  __device__ __forceinline__ bool finish_blocks(const Visit& visit, const Visit& next, Scores& s) {
    if constexpr (Shape::kSerial) {
      pass_over(visit.blocks.first, visit.loaded_first);
      return false;
    }
    if (Config::kFusedBoundary && next.more() && next.begins_at_once() && visit.ends_at_once()) {
      take_query();
      issue_both(s);
      release_key();
      self.wait_output();
      ptx::hold_registers(s.flat());
      release_value();
      return true;
    }
    if (next.more()) gemm_turn.take();
    values.wait_full();
    self.issue_output(values.stage());
    if (next.more()) gemm_turn.hand_over();
    self.wait_output();
    release_value();
    pass_over(visit.blocks.first, visit.loaded_first);
    return false;
  }

  // --- Places ------------------------------------------------------------------------------------------------------

  // One thread of each warp, for the others.
  __device__ __forceinline__ static bool signs() { return ptx::elect(); }
  __device__ __forceinline__ void release_key() { keys.release(signs()); }
  __device__ __forceinline__ void release_value() { values.release(signs()); }
  // The lane and the warp are asked for each time: the loops have no registers to keep them in.
  __device__ __forceinline__ static int lane() { return ptx::tid_x() % kWarpSize; }
  __device__ __forceinline__ static int consumer_warp() {
    return ptx::tid_x() / kWarpSize - kWarpgroupSize / kWarpSize;
  }
  __device__ __forceinline__ int warp_row(const Tile& tile) const {
    return tile.first_row + consumer_warp() * Shape::kStoreRows;
  }
  __device__ __forceinline__ SmemAddress output_slab() const {
    return shape.smem + Shape::kOutput + consumer_warp() * Shape::kWarpOutputBytes;
  }

  const HopperArguments& args;
  const Shape shape;
  const HopperTiles<Config> tiles;
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
__device__ __forceinline__ void forward_hopper(const typename Config::Arguments& args, SmemAddress smem) {
  const HopperShape<Config> shape{smem};
  open_block<Config>(args.core, shape, 1);
  const int warpgroup = ptx::shfl_first(ptx::tid_x() / kWarpgroupSize);
  if (warpgroup == 0)
    feed<Config>(args, shape);
  else
    consume<Config, HopperConsumer<Config>>(args, shape, warpgroup);
  close_block<Config>();
}
