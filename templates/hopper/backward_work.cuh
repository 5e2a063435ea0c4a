// SPDX-License-Identifier: Apache-2.0
// The tiles of keys that a thread block of the Hopper backward kernel takes, one after the other.
#pragma once

#include "abi.cuh"
#include "attention/key_tile.cuh"
#include "attention/mask.cuh"
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"
#include "types.cuh"

// What a thread block has of a tile of keys.
template <class Config>
struct HopperBackwardWork {
  const HopperBackwardArguments& args;
  const KeyTile keys;
  const int first_key;
  const Mask<Config> mask;
  const QueryTiles queries;
  const int steps;

  __device__ __forceinline__ HopperBackwardWork(const typename Config::Arguments& arguments, uint32 index)
      : args(arguments.core),
        keys(KeyTile::find<Config>(args.sizes, index)),
        first_key(keys.index * Config::kBlockKv),
        mask(arguments, Sequence{args.sizes.seqlen_kv, args.sizes.seqlen_q}, [this] { return keys.batch; }, {}),
        queries(QueryTiles::beside<Config>(first_key, args.sizes, mask)),
        steps(max(queries.count(), 0) * args.sizes.heads_per_group) {}

  __device__ __forceinline__ static uint32 count(const HopperBackwardArguments& args) {
    return KeyTile::count(args.sizes, Config::kBlockKv);
  }

  // Through heads and tiles, one after the other.
  struct Step {
    int head, tile;
    int index;  // among the tiles of queries of all heads
  };
  __device__ __forceinline__ Step first_step() const {
    const int head = keys.head * args.sizes.heads_per_group, tile = queries.first;
    return {head, tile, (keys.batch * args.sizes.num_heads_q + head) * args.sizes.num_q_tiles + tile};
  }
  __device__ __forceinline__ void advance(Step& step) const {
    ++step.index;
    if (++step.tile != queries.end) return;
    ++step.head, step.tile = queries.first;
    step.index += args.sizes.num_q_tiles - queries.count();
  }
};

// Goes through the tiles that the loader announces, of which each stays in its slot until it is done. index_in: reads
// an index from there; signs(): whether this thread speaks for those that read together.
template <class Config, class Tiles, class IndexIn, class Signs, class Take>
__device__ __forceinline__ void for_each_tile(const typename Config::Arguments& launch, Tiles& tiles, IndexIn index_in,
                                              Signs signs, Take take) {
#pragma unroll 1
  for (;;) {
    tiles.wait_full();
    const uint32 index = index_in(tiles.slot());
    if (index >= HopperBackwardWork<Config>::count(launch.core)) return;
    take(HopperBackwardWork<Config>(launch, index));
    tiles.release(signs());
  }
}
// One thread of a warp, for the others, whose reads and writes are done.
__device__ __forceinline__ bool signs_for_warp() {
  ptx::bar_warp_sync();
  return ptx::elect();
}
// For a whole warp: the index is known to be the same in all of its lanes, so that descriptors are in uniform
// registers.
__device__ __forceinline__ uint32 tile_of_warp(SmemAddress slot) {
  return static_cast<uint32>(ptx::shfl_first(static_cast<int>(ptx::ld_shared_word(slot))));
}
template <class Config, class Tiles, class Take>
__device__ __forceinline__ void for_each_tile_of_warp(const typename Config::Arguments& launch, Tiles& tiles,
                                                      Take take) {
  for_each_tile<Config>(launch, tiles, tile_of_warp, signs_for_warp, take);
}
