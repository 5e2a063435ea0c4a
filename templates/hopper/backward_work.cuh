// SPDX-License-Identifier: Apache-2.0
// A tile of keys, as a job of the Hopper backward kernels: which tiles of queries stand beside it.
#pragma once

#include "abi.cuh"
#include "attention/key_tile.cuh"
#include "attention/mask.cuh"
#include "types.cuh"

// What a thread block has of a tile of keys.
template <class Config>
struct HopperBackwardWork {
  const HopperBackwardArguments& args;
  const PlacedKeyTile<Config> keys;
  const int first_key;
  const Mask<Config> mask;
  const QueryTiles queries;
  const int steps;

  __device__ __forceinline__ HopperBackwardWork(const typename Config::Arguments& arguments,
                                                const PlacedKeyTile<Config>& keys_)
      : args(arguments.core),
        keys(keys_),
        first_key(keys.index * Config::kBlockKv),
        mask(arguments, keys.sequence, [this] { return keys.batch; }, {}),
        queries(QueryTiles::beside<Config>(first_key, keys.sequence.queries, mask)),
        steps(max(queries.count(), 0) * args.sizes.heads_per_group) {}

  // Through heads and tiles, one after the other.
  struct Step {
    int head, tile;
    int index;  // among the tiles of queries of all heads
  };
  __device__ __forceinline__ Step first_step() const {
    const int head = keys.head * args.sizes.heads_per_group, tile = queries.first;
    return {head, tile, keys.query_place(args.sizes.num_heads_q, head, args.sizes.num_q_tiles) + tile};
  }
  __device__ __forceinline__ void advance(Step& step) const {
    ++step.index;
    if (++step.tile != queries.end) return;
    ++step.head, step.tile = queries.first;
    step.index += args.sizes.num_q_tiles - queries.count();
  }
};
