// SPDX-License-Identifier: Apache-2.0
// Attention forward for Hopper: a producer warp feeds the copy engine, warpgroups of 64 query rows each consume, and a
// block that has finished a tile goes on with the next. docs/kernels/hopper_forward.md explains who waits for whom.
#pragma once

#include "attention/probability.cuh"
#include "attention/scores.cuh"
#include "hopper/block.cuh"
#include "hopper/block_walk.cuh"
#include "hopper/store.cuh"
#include "hopper/tiles.cuh"
#include "hopper/turn.cuh"
#include "hopper/warpgroup_attention.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/grid_dependency.cuh"

template <class Config>
class HopperConsumer {
  using Shape = HopperShape<Config>;
  using Tile = HopperTile<Config>;
  using Warpgroup = WarpgroupAttention<Config>;
  using Scores = typename Config::Scores;
  using Probabilities = typename Config::Probabilities;
  using Output = typename Config::Output;
  static constexpr bool kLazy = Config::kRescale == Rescale::lazy;
  // Rows that see few keys of their first block outgrow their maximum in the second: where that costs a block's scores
  // it is taken exactly, too.
  static constexpr bool kLooksTwice = kLazy && Warpgroup::Softmax::kHasLittleRoom;
  static constexpr bool kOutputEarly = Shape::kOutputEarly;
  // Whether the code that takes a block exactly stands twice, for a tile's first block and for others: P V is in flight
  // beside the former alone, and ptxas, which has to know where it lands, would wait for each product of its own.
  static constexpr bool kFirstApart = kLazy && !kOutputEarly && Config::kFusedBoundary;
  static constexpr bool kBegins = Mask<Config>::kBegins;
  using ScoreRow = typename Score<Config>::Row;
  using Rows = LaneRows<ScoreRow>;
  // What is kept of them from block to block.
  struct NoRows {};
  static constexpr bool kFetches = Config::ScoreParts::kFetches;
  using KeptRows = typename Choose<Score<Config>::kIsLong, NoRows, Rows>::type;
  using InCommon = Common<1, ScoreRow::kCommon>;
  // Of products, where tiles differ in it.
  using Scales = typename Config::Products::template Scales<Config>;
  struct FactorOfTile {
    float of_products;
  };
  struct NoFactor {};
  static constexpr bool kScalesBlocks = Config::Products::kScalesBlocks;
  using KeptFactor = typename Choose<Scales::kAny, FactorOfTile, NoFactor>::type;
  // Where they are of blocks: of the products of a warp's rows with the keys at hand, of the values of these, and of
  // those whose products are summed.
  struct FactorsOfBlock {
    float of_products, of_values, of_sums;
  };
  using BlockFactors = typename Choose<kScalesBlocks, FactorsOfBlock, NoFactor>::type;
  static constexpr bool kSumsApart = Config::Products::kSumsApart;
  using Dropouts = typename Config::Dropouts;
  struct DropsOfTile {
    LaneRows<typename Dropouts::Row> drops;
  };
  static constexpr bool kKeepsDrops = Dropouts::kAny && !Dropouts::kIsLong;
  using KeptDrops = typename Choose<kKeepsDrops, DropsOfTile, NoRows>::type;
  using Cursor = BlockCursor<Config>;
  static constexpr bool kListed = Config::Blocks::kListed;
  // Whether what makes probabilities of products is most of the code, so that it stands there once.
  static constexpr bool kInOneLoop = Score<Config>::kIsLong || kFetches || Config::Predicates::kAny || Dropouts::kAny;
  // Whether products that are near 0 have a shorter way to their probabilities.
  static constexpr bool kHasNear = kLazy && ScoreRow::kHasNear && !kInOneLoop && !kScalesBlocks;

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
        self(Score<Config>(args_).unit(), shape_, warpgroup_) {}

  __device__ __forceinline__ void run() {
    Scores::declare();
    Probabilities::declare();
    Output::declare();
    if constexpr (kSumsApart) Output::clear();
    gemm_turn.begin();
    softmax_turn.begin();
    Visit visit = next_visit();
    Finished before{self.softmax, {}};
    // Fused: P V of the last block of the tile before is computed beside the first scores of this one.
    for (bool fused = false;;) {
      if constexpr (!kListed) pass_over(visit.loaded_end, visit.blocks.end);
      take_query();
      if constexpr (Scales::kAny) self.softmax.scale_log2 = score(visit).unit();
      if constexpr (Shape::kSerial)
        visit_serially(visit);
      else if constexpr (kInOneLoop)
        visit_blocks_in_one_loop(visit, fused, before);
      else
        visit_blocks(visit, fused, before);
      queries.release(signs());
      const Visit next = Shape::kOneTile ? Visit{} : next_visit();
      fused = Config::kFusedBoundary && next.more() && next.begins_at_once() && visit.ends_at_once();
      before = {self.softmax, tile_of(visit)};
      // Read by now, so that its slot is free for the tile after the next.
      announced.give_back(visit.stage, signs());
      if (!fused) {
        if constexpr (!Shape::kSerial) add_last_values(next);
        if constexpr (!kListed) pass_over(visit.blocks.first, visit.loaded_first);
        store(before);
        if (!next.more()) break;
      }
      visit = next;
    }
    HopperStore<Config>{tiles}.finish();
  }

 private:
  // What a warpgroup does of a tile. The tile itself stays in shared memory.
  struct Visit : KeptDrops, KeptFactor {
    int stage;  // of its description
    int loaded_first,
        loaded_end;    // the tile's blocks, of which the warpgroup passes over those that no row of its sees
    BlockRuns blocks;  // the others, at least one

    int listed;  // how many of the tile's blocks are visited; only where they are listed

    __device__ __forceinline__ bool more() const { return loaded_end != 0; }
    // Listed blocks are visited by all warpgroups.
    __device__ __forceinline__ bool begins_at_once() const { return kListed || blocks.end == loaded_end; }
    __device__ __forceinline__ bool ends_at_once() const { return kListed || blocks.first == loaded_first; }
  };

  // A tile whose softmax is complete.
  struct Finished {
    typename Warpgroup::Softmax softmax;
    Tile tile;
  };

  __device__ __forceinline__ Visit next_visit() {
    Visit visit{};
    visit.stage = announced.take();
    const Tile tile = tile_of(visit);
    const int first_row = tile.first_row + warpgroup * kWarpgroupRows;
    BlockRuns blocks = tiles.visited(tile, first_row, first_row + kWarpgroupRows - 1);
    // Of a split all that a warpgroup sees may lie before what is loaded: then it visits a block that its masks hide.
    if constexpr (Config::kSplitKv) {
      blocks.end = max(blocks.end, tile.first_block + 1);
      blocks.first = max(blocks.first, tile.first_block);
    }
    visit.loaded_end = ptx::shfl_first(tile.end_block);
    visit.blocks.end = ptx::shfl_first(min(blocks.end, tile.end_block));
    visit.blocks.clean_end = ptx::shfl_first(blocks.clean_end);
    if constexpr (kBegins) {
      visit.loaded_first = ptx::shfl_first(tile.first_block);
      visit.blocks.first = ptx::shfl_first(blocks.first);
      visit.blocks.clean_first = ptx::shfl_first(blocks.clean_first);
    }
    if constexpr (kListed) visit.listed = ptx::shfl_first(tile.listed);
    if constexpr (kKeepsDrops) visit.drops = drops_of(tile);
    if constexpr (Scales::kAny) visit.of_products = Scales(tiles.args, tiles.heads(), tile).of_products;
    return visit;
  }
  __device__ __forceinline__ Tile tile_of(const Visit& visit) const {
    return Tile::read(announced.place.slot(visit.stage));
  }

  // --- The blocks of a tile ----------------------------------------------------------------------------------------

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

  // To the probabilities of the last block. Q K of a block and P V of the one before it in time are in flight together,
  // and the latter under the softmax. The first block is taken exactly, and so is one whose maximum a lazy softmax
  // finds too low, by the same code, which stands outside the loop over all others.
  __device__ __forceinline__ void visit_blocks(const Visit& visit, bool fused, const Finished& before) {
    Cursor at(visit.listed, visit.blocks.end);
    const KeptRows kept = kept_rows_of(visit);
    bool is_near = true;  // until a block of the tile is not
    issue_first(visit, kept, at, fused);
    self.softmax.reset();
    if constexpr (kOutputEarly) finish_tile_before(fused, before);
    bool outgrown = false;
    const auto take_exactly = [&](bool first) {
      release_key();
      const bool raised = outgrown || self.softmax.take_block(finish_scores<true>(visit, rows_now(visit, kept), at));
      if (first) doubt_maxima(visit, at);
      if constexpr (!kOutputEarly) {
        if (first) ptx::wgmma_wait_group<0>();  // others are waited for in the loop
        if (!first || fused) take_output();
      }
      Probabilities::keep();
      if (!first) {
        if (raised) Output::multiply(self.softmax.factor);
      } else if constexpr (!kOutputEarly) {
        if (fused) store(before);
      }
    };
    const auto visit_others_until_outgrown = [&] {
      if (!visit_others(visit, kept, at, is_near)) return false;
      outgrown = !takes_exactly() && take_outgrown();
      if (!outgrown && !takes_exactly()) self.recompute_scores(keys.stage());
      return true;
    };
    if constexpr (kFirstApart) {
      take_exactly(true);
      while (visit_others_until_outgrown()) take_exactly(false);
    } else {
      bool first = true;
      do {
        take_exactly(first);
        first = false;
      } while (visit_others_until_outgrown());
    }
  }

  // The same in one loop: a block that has to be taken exactly goes through it once more. What the two have in common
  // stands in both: as a function of its own it changes the PTX of kernels that have nothing of this.
  __device__ __forceinline__ void visit_blocks_in_one_loop(const Visit& visit, bool fused, const Finished& before) {
    Cursor at(visit.listed, visit.blocks.end);
    const KeptRows kept = kept_rows_of(visit);
    issue_first(visit, kept, at, fused);
    self.softmax.reset();
    if constexpr (kOutputEarly) finish_tile_before(fused, before);
    bool first = true, exactly = true;
    Rows rows = rows_now(visit, kept);
#pragma unroll 1
    for (;;) {
      const InCommon common = finish_scores<true>(visit, rows, at);
      bool raised;
      if (!self.softmax.take_either(common, exactly, raised, stays_in(visit, at))) {
        raised = take_outgrown();
        if (!raised) {
          self.recompute_scores(keys.stage());
          rows = rows_now(visit, kept);
          exactly = true;
          continue;
        }
      }
      release_key();
      if (first) doubt_maxima(visit, at);
      if constexpr (!kOutputEarly) {
        ptx::wgmma_wait_group<0>();
        if (!first || fused) take_output();
      }
      Probabilities::keep();
      if (!first) {
        if (raised) Output::multiply(self.softmax.factor);
      } else if constexpr (!kOutputEarly) {
        if (fused) store(before);
      }
      if (!at.go_on(visit.blocks.first)) break;
      issue_both(visit, kept, at);
      rows = rows_now(visit, kept);  // under the products
      wait_for_scores();
      if constexpr (kOutputEarly) finish_output();
      first = false, exactly = !kLazy || takes_exactly();
    }
  }

  // Q K of a tile's first block that the warpgroup sees, and where tiles are fused P V of the block before; waits for
  // the scores only. Each way through here has its own wait, or ptxas would not know what is in flight.
  __device__ __forceinline__ void issue_first(const Visit& visit, const KeptRows& kept, Cursor& at, bool fused) {
    wait_for_keys(at);
    if (fused) find_factor_of_sums();
    find_factors(visit, at);
    fetch(visit, kept, at);
    if (fused) gemm_turn.take();
    issue_products(fused);
    if (fused) {
      gemm_turn.hand_over();
      wait_for_scores();
    } else {
      ptx::wgmma_wait_group<0>();
    }
  }

  __device__ __forceinline__ void finish_tile_before(bool fused, const Finished& before) {
    ptx::wgmma_wait_group<0>();
    if (!fused) return;
    take_output();
    store(before);
  }

  // The blocks after this one. True where it stopped at one that has to be taken exactly; its scores are lost unless
  // takes_exactly(), and P V of the block before it is there, not yet taken where kOutputEarly is false.
  __device__ __forceinline__ bool visit_others(const Visit& visit, const KeptRows& kept, Cursor& at, bool& is_near) {
#pragma unroll 1
    while (at.go_on(visit.blocks.first)) {
      issue_both(visit, kept, at);
      const Rows rows = rows_now(visit, kept);  // under the products
      wait_for_scores();
      bool raised = false;
      if constexpr (kLazy) {
        if constexpr (kOutputEarly) finish_output();
        const bool taken = !takes_exactly() && take_lazily(visit, rows, at, is_near);
        if (taken) release_key();
        // Also of a warp that leaves: PTX wants all warps of a warpgroup to execute the same wait.
        if constexpr (!kOutputEarly) ptx::wgmma_wait_group<0>();
        if (!taken) return true;
        if constexpr (!kOutputEarly) take_output();
      } else {
        release_key();
        raised = self.softmax.take_block(finish_scores<false>(visit, rows, at));
        if constexpr (!kOutputEarly) finish_output();
      }
      Probabilities::keep();
      if (raised) Output::multiply(self.softmax.factor);
    }
    return false;
  }

  // After the first block: of rows that saw few of its keys.
  __device__ __forceinline__ void doubt_maxima(const Visit& visit, const Cursor& at) {
    if constexpr (kLooksTwice)
      if (hides_any(visit, at)) self.softmax.take_next_exactly();
  }
  // Whether a block behind the first is taken exactly without an attempt.
  __device__ __forceinline__ bool takes_exactly() const {
    if constexpr (kLooksTwice) return self.softmax.takes_exactly();
    return false;
  }

  // A block that was not taken lazily, where that is possible without its scores.
  __device__ __forceinline__ bool take_outgrown() {
    if constexpr (kLooksTwice) return self.softmax.take_outgrown_block();
    return false;
  }

  // False where the block has to be taken exactly.
  __device__ __forceinline__ bool take_lazily(const Visit& visit, const Rows& rows, const Cursor& at, bool& is_near) {
    if constexpr (kHasNear)
      if (is_near && !hides<false>(visit, at.block))
        return self.softmax.take_near_block_lazily(rows.upper.near(self.softmax.scale_log2), is_near);
    return self.softmax.take_block_lazily(finish_scores<false>(visit, rows, at));
  }

  // Scores of the next keys beside P V of the next values.
  __device__ __forceinline__ void issue_both(const Visit& visit, const KeptRows& kept, Cursor& at) {
    wait_for_keys(at);
    find_factor_of_sums();
    find_factors(visit, at);
    fetch(visit, kept, at);
    gemm_turn.take();
    issue_products(true);
    gemm_turn.hand_over();
  }
  // Where sums stand apart their first piece comes first, so that it is added under the scores.
  __device__ __forceinline__ void issue_products(bool with_output) {
    if (kSumsApart && with_output) issue_output();
    self.issue_scores(keys.stage());
    if (!kSumsApart && with_output) issue_output();
  }

  // Until the scores are there; of P V beside them a product may run on.
  __device__ __forceinline__ void wait_for_scores() {
    ptx::wgmma_wait_group<1>();
    if constexpr (kSumsApart) {
      advance_output<1>();
      ptx::wgmma_wait_group<1>();
    }
  }

  // Of the block whose keys are there: before its products, under which they come.
  __device__ __forceinline__ void find_factors(const Visit& visit, const Cursor& at) {
    if constexpr (kScalesBlocks) {
      const Tile tile = tile_of(visit);
      const int key = at.block * Config::kBlockKv;
      const int last_row = tiles.heads().rows(tiles.sequence_of(tile).queries) - 1;
      factors.of_products = Scales::of_query(tiles.args, tiles.heads(), tile, min(warp_row(tile), last_row)) *
                            Scales::of_key(tiles.args, tile, key);
      factors.of_values = Scales::of_value(tiles.args, tile, key);
    }
  }
  // Of the block whose probabilities are there, before its products with values.
  __device__ __forceinline__ void find_factor_of_sums() {
    if constexpr (kScalesBlocks) factors.of_sums = factors.of_values;
  }

  __device__ __forceinline__ void wait_for_keys(Cursor& at) {
    keys.wait_full();
    at.read(shape.note(keys.stage()));
  }

  // What a part in the slot of scores fetches for a block, while its products are computed.
  __device__ __forceinline__ void fetch(const Visit& visit, const KeptRows& kept, const Cursor& at) const {
    if constexpr (kFetches) {
      const Rows rows = rows_now(visit, kept);
      ptx::bar_warp_sync();  // what was fetched for the block before is read
      ScoreRow::template fetch<Config::kBlockKv>(rows.upper, rows.lower, at.block * Config::kBlockKv, lane());
    }
  }

  __device__ __forceinline__ void issue_output() {
    values.wait_full();
    if constexpr (kSumsApart)
      self.template issue_piece<0>(values.stage());
    else
      self.issue_output(values.stage());
  }
  // What is left of P V where its sums stand apart: all pieces from one on are issued, and those before them added.
  template <int kPiece>
  __device__ __forceinline__ void advance_output() {
    add_piece<kPiece - 1>();
    self.template issue_piece<kPiece>(values.stage());
    if constexpr (kPiece + 1 < Output::kPieces) {
      ptx::wgmma_wait_group<0>();
      advance_output<kPiece + 1>();
    }
  }

  template <int kPiece>
  __device__ __forceinline__ void add_piece() {
    if constexpr (kScalesBlocks)
      Output::template add<kPiece>(factors.of_sums);
    else
      Output::template add<kPiece>();
  }

  __device__ __forceinline__ void finish_output() {
    ptx::wgmma_wait_group<0>();
    take_output();
  }
  // The same of what was issued without scores.
  __device__ __forceinline__ void finish_lone_output() {
    if constexpr (kSumsApart) {
      ptx::wgmma_wait_group<0>();
      advance_output<1>();
    }
    finish_output();
  }
  // Once P V is there.
  __device__ __forceinline__ void take_output() {
    release_value();
    if constexpr (kSumsApart) add_piece<Output::kPieces - 1>();
  }

  __device__ __forceinline__ void add_last_values(const Visit& next) {
    if (next.more()) gemm_turn.take();
    find_factor_of_sums();
    issue_output();
    if (next.more()) gemm_turn.hand_over();
    finish_lone_output();
  }

  __device__ __forceinline__ void store(const Finished& finished) {
    const Tile& tile = finished.tile;
    HopperStore<Config>{tiles}.write(finished.softmax, tile, warp_row(tile), output_slab());
    self.begun = 0;
    if constexpr (kSumsApart) Output::clear();
  }

  // To the output. A block's products and its softmax follow one another.
  __device__ __forceinline__ void visit_serially(const Visit& visit) {
    const KeptRows kept = kept_rows_of(visit);
    self.softmax.reset();
    Cursor at(visit.listed, visit.blocks.end);
    bool is_first = true;
#pragma unroll 1
    do {
      wait_for_keys(at);
      find_factors(visit, at);
      find_factor_of_sums();
      fetch(visit, kept, at);
      gemm_turn.take();
      self.issue_scores(keys.stage());
      gemm_turn.hand_over();
      ptx::wgmma_wait_group<0>();
      softmax_turn.take();
      const bool raised = take_serially(visit, rows_now(visit, kept), at, is_first);
      if (is_first) doubt_maxima(visit, at);
      softmax_turn.hand_over();
      release_key();
      Probabilities::keep();
      if (raised && !is_first) Output::multiply(self.softmax.factor);
      issue_output();
      finish_lone_output();
      is_first = false;
    } while (at.go_on(visit.blocks.first));
  }

  // Scores to probabilities. True when the output has to be rescaled.
  __device__ __forceinline__ bool take_serially(const Visit& visit, const Rows& rows, const Cursor& at, bool is_first) {
#pragma unroll 1
    for (bool exactly = !kLazy || is_first || takes_exactly();; exactly = true) {
      bool raised;
      const InCommon common = finish_scores<true>(visit, rows, at);
      if (self.softmax.take_either(common, exactly, raised, stays_in(visit, at))) return raised;
      if (take_outgrown()) return true;
      self.recompute_scores(keys.stage());
    }
  }

  // From Q K^T to the softmax, but for what the scores of a row have in common. The first block is the only one with
  // keys that do not exist, and without a mask the only one to hide any.
  template <bool kFirst>
  __device__ __forceinline__ InCommon finish_scores(const Visit& visit, const Rows& rows, const Cursor& at) const {
    InCommon common;
    if constexpr (kFetches) {
      ptx::cp_async_wait_all();
      ptx::bar_warp_sync();
    }
    if constexpr (kScalesBlocks) Scores::multiply({factors.of_products, factors.of_products});
    if constexpr (ScoreRow::kChanges) common = score_products<Scores>(rows, at.block * Config::kBlockKv, lane());
    hide<kFirst>(visit, at);
    return common;
  }

  template <bool kFirst>
  __device__ __forceinline__ void hide(const Visit& visit, const Cursor& at) const {
    const bool by_spans = hides<kFirst>(visit, at.block), by_predicates = Config::Predicates::kAny && !at.is_whole();
    if (!by_spans && !by_predicates) return;
    const Tile tile = tile_of(visit);
    HiddenColumns<Scores> hidden = {};
    if (by_predicates) add_hidden_by_predicates(hidden, tile, at.block);
    if (by_spans)
      add_hidden_by_spans<Scores>(hidden, warp_row(tile), at.block * Config::kBlockKv, tiles.mask_of(tile), lane());
    Scores::hide(hidden);
  }
  __device__ __forceinline__ void add_hidden_by_predicates(HiddenColumns<Scores>& hidden, const Tile& tile,
                                                           int block) const {
    const typename Config::Predicates predicates(tiles.args);
    SeenGranules known;
    if constexpr (kListed)
      known = ListedBlocks<Config>{tiles}.granules(tile, tile.first_row + warpgroup * kWarpgroupRows, block);
    ::add_hidden_by_predicates<Scores>(
        hidden, rows_of_lane(predicates, warp_row(tile), lane(), [&](int row) { return tiles.place_of(tile, row); }),
        block * Config::kBlockKv, known, lane());
  }

  // Which probabilities of a block stay.
  __device__ __forceinline__ auto stays_in(const Visit& visit, const Cursor& at) const {
    const int first_key = at.block * Config::kBlockKv;
    if constexpr (kKeepsDrops)
      return SomeStay(visit.drops, Dropouts(tiles.args).flips(), first_key, lane());
    else if constexpr (Dropouts::kAny)
      return SomeStay(drops_of(tile_of(visit)), Dropouts(tiles.args).flips(), first_key, lane());
    else
      return AllStay{};
  }
  __device__ __forceinline__ auto drops_of(const Tile& tile) const {
    return rows_of_lane(Dropouts(tiles.args), warp_row(tile), lane(),
                        [&](int row) { return tiles.place_of(tile, row); });
  }

  // Whether any mask may hide keys of a tile's first block.
  __device__ __forceinline__ static bool hides_any(const Visit& visit, const Cursor& at) {
    return hides<true>(visit, at.block) || (Config::Predicates::kAny && !at.is_whole());
  }
  // Whether masks that are spans hide keys of a block.
  template <bool kFirst>
  __device__ __forceinline__ static bool hides(const Visit& visit, int block) {
    const bool at_end = (kFirst || Config::Masks::kEnds) && block >= visit.blocks.clean_end;
    return at_end || (kBegins && block < visit.blocks.clean_first);
  }

  __device__ __forceinline__ KeptRows kept_rows_of(const Visit& visit) const {
    if constexpr (Score<Config>::kIsLong)
      return {};
    else
      return rows_of(visit);
  }
  __device__ __forceinline__ Rows rows_now(const Visit& visit, const KeptRows& kept) const {
    if constexpr (Score<Config>::kIsLong)
      return rows_of(visit);
    else
      return kept;
  }
  // What the parts in the slot of scores know of the lane's rows.
  __device__ __forceinline__ Rows rows_of(const Visit& visit) const {
    if constexpr (!ScoreRow::kChanges) return {};
    const Tile tile = tile_of(visit);
    return rows_of_lane(score(visit), warp_row(tile), lane(), [&](int row) {
      RowPlace place = tiles.place_of(tile, row);
      if constexpr (kFetches)
        place.fetched = fetched() + (row - warp_row(tile)) * fetched_row_bytes<Config::kBlockKv>() + lane() % 4 * 4;
      return place;
    });
  }

  // --- Places ------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ auto score(const Visit& visit) const {
    if constexpr (Scales::kAny)
      return ScaledScore<Config>(tiles.args, visit.of_products);
    else
      return Score<Config>(tiles.args);
  }

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
  __device__ __forceinline__ SmemAddress fetched() const {
    return shape.smem + Shape::kFetched + consumer_warp() * Shape::kWarpFetchedBytes;
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
  RingReader<typename Shape::ValueRing, Config::kCluster> values;
  RingReader<typename Shape::TileRing, 1> announced;
  const int warpgroup;
  BlockFactors factors{};
  Warpgroup self;
};

template <class Config>
__device__ __forceinline__ void forward_hopper(const typename Config::Arguments& args, SmemAddress smem) {
  // Where keys are split launches are short: the next one may begin before this one ends.
  constexpr bool kOverlaps = Config::kSplitKv;
  if constexpr (kOverlaps) ptx::launch_dependents();
  // A launch for a ragged batch has as many blocks as there may be tiles.
  if constexpr (Config::Sequences::kRagged) {
    if constexpr (kOverlaps) ptx::wait_for_grids();
    if (HopperTiles<Config>::first() >= HopperTiles<Config>{args}.count()) return;
  }
  const HopperShape<Config> shape{smem};
  open_block<Config>(args.core, shape, 1);
  if constexpr (kOverlaps && !Config::Sequences::kRagged) ptx::wait_for_grids();
  const int warpgroup = ptx::shfl_first(ptx::tid_x() / kWarpgroupSize);
  if (warpgroup == 0)
    feed<Config>(args, shape);
  else
    consume<Config, HopperConsumer<Config>>(args, shape, warpgroup);
  close_block<Config>();
}
