// SPDX-License-Identifier: Apache-2.0
// What becomes of a warp's products with a block of keys, in a generated ScoreMatrix, on their way to the softmax: by
// the parts in the slots of scores, masks, predicates and dropout.
#pragma once

#include "attention/probability.cuh"
#include "attention/scores.cuh"
#include "hopper/block_walk.cuh"
#include "hopper/tiles.cuh"

template <class Config>
struct BlockScores {
  using Tile = HopperTile<Config>;
  using Scores = typename Config::Scores;
  using ScoreRow = typename Score<Config>::Row;
  using Rows = LaneRows<ScoreRow>;
  using Dropouts = typename Config::Dropouts;

  // What is kept of a tile from block to block, where it is short and takes time to find; else blocks need the tile.
  struct Nothing {};
  static constexpr bool kKeepsRows = ScoreRow::kChanges && !Score<Config>::kIsLong;
  static constexpr bool kFindsRows = ScoreRow::kChanges && !kKeepsRows;
  using KeptRows = typename Choose<kKeepsRows, Rows, Nothing>::type;
  struct DropsOfTile {
    LaneRows<typename Dropouts::Row> drops;
  };
  static constexpr bool kKeepsDrops = Dropouts::kAny && !Dropouts::kIsLong;
  static constexpr bool kFindsDrops = Dropouts::kAny && !kKeepsDrops;
  using KeptDrops = typename Choose<kKeepsDrops, DropsOfTile, Nothing>::type;

  const HopperTiles<Config> tiles;
  const int warp_row;  // the first one, of a tile of as many as a warpgroup has

  // --- Rows of a lane ----------------------------------------------------------------------------------------------

  __device__ __forceinline__ Rows rows_of(const Tile& tile) const {
    return rows_of_lane(Score<Config>(tiles.args), first_row(tile), lane(),
                        [&](int row) { return tiles.place_of(tile, row); });
  }
  __device__ __forceinline__ KeptRows kept_rows_of(const Tile& tile) const {
    if constexpr (kKeepsRows)
      return rows_of(tile);
    else
      return {};
  }
  __device__ __forceinline__ KeptDrops kept_drops_of(const Tile& tile) const {
    if constexpr (kKeepsDrops)
      return {drops_of(tile)};
    else
      return {};
  }

  // --- A block -----------------------------------------------------------------------------------------------------

  // Products become scores, but for what those of a row have in common.
  __device__ __forceinline__ Common<1, ScoreRow::kCommon> score(const Tile& tile, const KeptRows& kept,
                                                                int block) const {
    if constexpr (kKeepsRows)
      return score_products<Scores>(kept, first_key(block), lane());
    else if constexpr (kFindsRows)
      return score_products<Scores>(rows_of(tile), first_key(block), lane());
    else
      return {};
  }
  // Hides what masks that are spans do, and predicates.
  __device__ __forceinline__ void hide(const Tile& tile, int block, bool by_spans, bool by_predicates) const {
    HiddenColumns<Scores> hidden = {};
    if (by_predicates) add_hidden_by_predicates(hidden, tile, block);
    if (by_spans) add_hidden_by_spans<Scores>(hidden, first_row(tile), first_key(block), tiles.mask_of(tile), lane());
    Scores::hide(hidden);
  }
  __device__ __forceinline__ auto drops_of(const Tile& tile) const {
    return rows_of_lane(Dropouts(tiles.args), first_row(tile), lane(),
                        [&](int row) { return tiles.place_of(tile, row); });
  }
  // Which probabilities stay.
  __device__ __forceinline__ auto stays_in(const Tile& tile, const KeptDrops& kept, int block) const {
    if constexpr (kKeepsDrops)
      return SomeStay(kept.drops, Dropouts(tiles.args).flips(), first_key(block), lane());
    else if constexpr (kFindsDrops)
      return SomeStay(drops_of(tile), Dropouts(tiles.args).flips(), first_key(block), lane());
    else
      return AllStay{};
  }

 private:
  __device__ __forceinline__ void add_hidden_by_predicates(HiddenColumns<Scores>& hidden, const Tile& tile,
                                                           int block) const {
    const typename Config::Predicates predicates(tiles.args);
    SeenGranules known;
    if constexpr (Config::Blocks::kListed) known = ListedBlocks<Config>{tiles}.granules(tile, tile.first_row, block);
    ::add_hidden_by_predicates<Scores>(
        hidden, rows_of_lane(predicates, first_row(tile), lane(), [&](int row) { return tiles.place_of(tile, row); }),
        first_key(block), known, lane());
  }
  __device__ __forceinline__ int first_row(const Tile& tile) const { return tile.first_row + warp_row; }
  __device__ __forceinline__ static int first_key(int block) { return block * Config::kBlockKv; }
  __device__ __forceinline__ static int lane() { return ptx::tid_x() % kWarpSize; }
};
