// SPDX-License-Identifier: Apache-2.0
// The key/value blocks of a tile, one after the other, from the last on.
#pragma once

#include "hopper/tiles.cuh"
#include "ptx/barrier.cuh"

// What predicates show the rows of a tile of its blocks.
template <class Config>
struct ListedBlocks {
  using Tile = HopperTile<Config>;

  const HopperTiles<Config> tiles;

  __device__ __forceinline__ SeenBlock seen(const Tile& tile, int block) const {
    const Queries of = queries(tile, tile.first_row, Config::kBlockQ);
    return typename Config::Blocks(tiles.args)
        .template seen<Config::kBlockKv>(tile.batch, of.head, of.first, of.last, block * Config::kBlockKv);
  }
  // What a warpgroup's rows see, from first_row on. They are of one granule.
  __device__ __forceinline__ SeenGranules granules(const Tile& tile, int first_row, int block) const {
    static_assert(kWarpgroupRows == kGranuleQueries, "tiles begin at a multiple of a warpgroup's rows");
    const Queries of = queries(tile, first_row, kWarpgroupRows);
    return typename Config::Blocks(tiles.args)
        .template granules<Config::kBlockKv>(tile.batch, of.head, of.last, block * Config::kBlockKv);
  }
  // Of a tile, by the lanes of a warp together. Where there are none its last block is visited.
  __device__ __forceinline__ int count(const Tile& tile) const {
    int listed = 0;
    for (int first = tile.first_block; first < tile.end_block; first += kWarpSize) {
      const int block = first + ptx::tid_x() % kWarpSize;
      listed += __popc(ptx::vote_ballot(block < tile.end_block && seen(tile, block).some));
    }
    return listed;
  }

 private:
  struct Queries {
    int head, first, last;
  };
  // Heads that share a tile have one mask: choose_packed_heads sees to it.
  __device__ __forceinline__ Queries queries(const Tile& tile, int first_row, int rows) const {
    const PackedHeads heads = tiles.heads();
    return {heads.first(tile.head), heads.query(first_row),
            min(heads.query(first_row + rows - 1), tiles.sequence_of(tile).queries - 1)};
  }
};

// For the loads: all blocks between the tile's first and last one.
template <class Config, bool kListed = Config::Blocks::kListed>
struct BlockWalk {
  using Tile = HopperTile<Config>;

  __device__ __forceinline__ explicit BlockWalk(const typename Config::Arguments&) {}
  // The block where the tile begins.
  __device__ __forceinline__ int begin(const Tile& tile) const { return tile.end_block - 1; }
  // step(block, next) from there on; returns the last block.
  template <class Step>
  __device__ __forceinline__ int go(const Tile& tile, Step step) const {
#pragma unroll 1
    for (int block = tile.end_block - 1; block > tile.first_block; --block) step(block, block - 1);
    return tile.first_block;
  }
  // What consumers are told of the block that was found last.
  __device__ __forceinline__ uint32 note() const { return 0; }
};

// Those that some row sees: found by the lanes of a warp together, kWarpSize blocks at a time.
template <class Config>
struct BlockWalk<Config, true> {
  using Tile = HopperTile<Config>;

  const ListedBlocks<Config> blocks;
  int window = 0;                  // the blocks that were looked at last are window * kWarpSize and on
  uint32 to_visit = 0, whole = 0;  // of these, a bit for each
  uint32 found = 0;                // see note()

  __device__ __forceinline__ explicit BlockWalk(const typename Config::Arguments& args) : blocks{{args}} {}
  __device__ __forceinline__ int begin(const Tile& tile) {
    window = ceil_div(tile.end_block, kWarpSize), to_visit = 0;
    return find(tile);
  }
  template <class Step>
  __device__ __forceinline__ int go(const Tile& tile, Step step) {
#pragma unroll 1
    for (int left = tile.listed; left > 1; --left) {
      const int before = block();
      step(before, find(tile));
    }
    return block();
  }
  __device__ __forceinline__ uint32 note() const { return found; }

 private:
  __device__ __forceinline__ int block() const { return static_cast<int>(found >> 1); }
  // The next one below. Where no row of the tile sees any, the last block.
  __device__ __forceinline__ int find(const Tile& tile) {
    while (to_visit == 0 && window * kWarpSize > tile.first_block) look_at(tile, --window);
    if (to_visit == 0) {
      found = static_cast<uint32>(tile.end_block - 1) << 1 | 1;
    } else {
      const int bit = kWarpSize - 1 - __clz(static_cast<int>(to_visit));
      to_visit ^= 1u << bit;
      found = static_cast<uint32>(window * kWarpSize + bit) << 1 | (~whole >> bit & 1);
    }
    return block();
  }
  __device__ __forceinline__ void look_at(const Tile& tile, int of_blocks) {
    const int block = of_blocks * kWarpSize + ptx::tid_x() % kWarpSize;
    SeenBlock seen{false, false};
    if (block >= tile.first_block && block < tile.end_block) seen = blocks.seen(tile, block);
    to_visit = ptx::vote_ballot(seen.some), whole = ptx::vote_ballot(seen.whole);
  }
};

// For the consumers: where a warpgroup is.
template <class Config, bool kListed = Config::Blocks::kListed>
struct BlockCursor {
  int block;

  // first, end: the blocks that some of the warpgroup's rows see.
  __device__ __forceinline__ BlockCursor(int, int end) : block(end - 1) {}
  __device__ __forceinline__ bool go_on(int first) { return --block >= first; }
  __device__ __forceinline__ void read(SmemAddress) {}
  __device__ __forceinline__ bool is_whole() const { return false; }
};

template <class Config>
struct BlockCursor<Config, true> {
  int block = 0, left;
  bool whole = false;

  __device__ __forceinline__ BlockCursor(int listed, int) : left(listed) {}
  __device__ __forceinline__ bool go_on(int) { return --left > 0; }
  // Once the block's keys are there.
  __device__ __forceinline__ void read(SmemAddress note) {
    // The lane that gives the slot back is the one that reads it: nobody else is to be waited for.
    uint32 reader, noted = 0;
    if (ptx::elect(reader)) noted = ptx::ld_shared_word(note);
    noted = ptx::shfl_from(reader, noted);
    block = static_cast<int>(noted >> 1), whole = (noted & 1) == 0;
  }
  __device__ __forceinline__ bool is_whole() const { return whole; }
};
