// SPDX-License-Identifier: Apache-2.0
// Who keeps the rings filled, where a block has a warpgroup for it.
#pragma once

#include "hopper/block_walk.cuh"
#include "hopper/loader.cuh"

// A feeder's. Tile after tile, keys one block ahead of values (but see kKeysAhead and kValuesWithKeys). Where a second
// query slot is free already, the next tile's query and first keys come before the last values of this one; else after
// them.
template <class Config>
__device__ __forceinline__ void produce(const typename Config::Arguments& args, const HopperShape<Config>& shape) {
  using Shape = HopperShape<Config>;
  using Tile = HopperTile<Config>;
  HopperLoader<Config> loader(args, shape);
  RingReader<typename Shape::TileRing, 1> announced(shape.tiles());
  // A description is read again for each use: this thread has few registers.
  int stage = announced.take();
  Tile tile = Tile::read_with_kv_head(announced.place.slot(stage));
  BlockWalk<Config> walk(args);
  const int first = walk.begin(tile);
  loader.request_key(tile, first, walk.note());
  loader.request_query(tile);
  if constexpr (Shape::kValuesWithKeys) loader.request_value(tile, first);
  for (;;) {
    const int last = walk.go(tile, [&](int block, int next) {
      if constexpr (!Shape::kKeysAhead && !Shape::kValuesWithKeys) loader.request_value(tile, block);
      loader.request_key(tile, next, walk.note());
      if constexpr (Shape::kKeysAhead) loader.request_value(tile, block);
      if constexpr (Shape::kValuesWithKeys) loader.request_value(tile, next);
    });
    if constexpr (!Shape::kNextTileFirst && !Shape::kValuesWithKeys) loader.request_value(tile, last);
    if constexpr (Shape::kOneTile) return;
    if constexpr (LoadingFeeder<Config>::kWarp) ptx::bar_warp_sync();  // all of its lanes have read the tile
    announced.give_back(stage, LoadingFeeder<Config>::leads());
    stage = announced.take();
    const SmemAddress next = announced.place.slot(stage);
    const int next_end = Tile::read(next).end_block;
    if (next_end != 0) {
      if constexpr (Shape::kNextTileFirst) loader.request_query(Tile::read(next));
      const Tile next_tile = Tile::read_with_kv_head(next);
      const int next_first = walk.begin(next_tile);
      loader.request_key(next_tile, next_first, walk.note());
      if constexpr (!Shape::kNextTileFirst) loader.request_query(Tile::read(next));
      if constexpr (Shape::kValuesWithKeys) loader.request_value(next_tile, next_first);
    }
    if constexpr (Shape::kNextTileFirst && !Shape::kValuesWithKeys) loader.request_value(tile, last);
    if (next_end == 0) return;
    tile = Tile::read_with_kv_head(next);
  }
}
