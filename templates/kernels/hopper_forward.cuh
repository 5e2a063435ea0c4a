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
  // Where tiles are fused: the next tile's first softmax runs while P V of this one's last block does.
  static constexpr bool kFirstBlockUnderOutput = !Shape::kOutputEarly;

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
    bool begun = false;
    for (;;) {
      if (!begun) compute_first_scores(visit, s);
      if (!begun || !kFirstBlockUnderOutput) take_first_block(visit, s);
      visit_blocks(visit, s);
      queries.release(signs());
      const Visit next = Shape::kOneTile ? Visit{} : next_visit();
      const auto finished = self.softmax;
      // Read now, so that its slot is free for the tile after the next before the softmax below.
      const Tile tile = tile_of(visit);
      announced.give_back(visit.stage, signs());
      begun = finish_blocks(visit, next, s);
      store.write(self.o, finished, tile, warp_row(tile), output_slab());
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

  // From the scores of the first block to its probabilities.
  __device__ __forceinline__ void take_first_block(const Visit& visit, Scores& s) {
    softmax_turn.take();
    take_first_scores(visit, s);
    softmax_turn.hand_over();
    self.keep_probabilities(s);
  }

  __device__ __forceinline__ void take_first_scores(const Visit& visit, Scores& s) {
    self.softmax.reset();
    finish_scores<true>(visit, visit.blocks.end - 1, s);
    self.softmax.take_block(s);
  }

  // From the probabilities of the first block to those of the last; in a serial pipeline to the output.
  __device__ __forceinline__ void visit_blocks(const Visit& visit, Scores& s) {
    self.o.clear();
    if constexpr (Shape::kSerial) add_values();
#pragma unroll 1
    for (int block = visit.blocks.end - 2; block >= visit.blocks.first; --block) {
      if constexpr (Shape::kSerial)
        step_serial(visit, block, s);
      else
        step_two_stage(visit, block, s);
    }
  }

  // Q K(block) and P V(block + 1) are in flight together, and the latter under the softmax.
  __device__ __forceinline__ void step_two_stage(const Visit& visit, int block, Scores& s) {
    issue_both(s);
    const auto finish_output = [&] {
      self.wait_output();
      release_value();
    };
    const bool raised = take_scores(visit, block, s, finish_output);
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

  __device__ __forceinline__ void step_serial(const Visit& visit, int block, Scores& s) {
    keys.wait_full();
    gemm_turn.take();
    self.issue_scores(s, keys.stage());
    gemm_turn.hand_over();
    Warpgroup::template wait_scores<0>(s);
    softmax_turn.take();
    const bool raised = take_scores(visit, block, s, [] {});
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
  template <class FinishOutput>
  __device__ __forceinline__ bool take_scores(const Visit& visit, int block, Scores& s, FinishOutput finish_output) {
    if constexpr (kLazy) {
      if constexpr (Shape::kOutputEarly) finish_output();
      bool raised = false;
      const int stage = keys.stage();
      finish_scores(visit, block, s);
      self.softmax.take_block_lazily(s, [&] {
        self.recompute_scores(s, stage);
        finish_scores(visit, block, s);
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
      finish_scores(visit, block, s);
      const bool raised = self.softmax.take_block(s);
      finish_output();
      return raised;
    }
  }

  // The first block is the only one with keys that do not exist, and without a mask the only one to hide any.
  template <bool kFirst = false>
  __device__ __forceinline__ void finish_scores(const Visit& visit, int block, Scores& s) const {
    const bool at_end = (kFirst || Config::Masks::kEnds) && block >= visit.blocks.clean_end;
    if (!at_end && !(kBegins && block < visit.blocks.clean_first)) return;
    const Tile tile = tile_of(visit);
    mask_scores(s, warp_row(tile), block * Config::kBlockKv, tiles.mask_of(tile.batch), lane());
  }

  // The last P V of a tile. True when the next tile's first block was begun along with it.
  __device__ __forceinline__ bool finish_blocks(const Visit& visit, const Visit& next, Scores& s) {
    if constexpr (Shape::kSerial) {
      pass_over(visit.blocks.first, visit.loaded_first);
      return false;
    }
    if (Config::kFusedBoundary && next.more() && next.begins_at_once() && visit.ends_at_once()) {
      take_query();
      issue_both(s);
      release_key();
      if constexpr (kFirstBlockUnderOutput) take_first_scores(next, s);
      self.wait_output();
      ptx::hold_registers(s.flat());
      release_value();
      if constexpr (kFirstBlockUnderOutput) self.keep_probabilities(s);
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
