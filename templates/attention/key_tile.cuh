// SPDX-License-Identifier: Apache-2.0
// What a thread block of a backward kernel goes through: BLOCK_KV keys of one head, and beside them the tiles of
// BLOCK_Q queries that see any of them, of all query heads of the group one after the other.
#pragma once

#include "abi.cuh"
#include "attention/mask.cuh"
#include "attention/tile_scheduler.cuh"
#include "types.cuh"

struct KeyTile {
  int index, head, batch;  // head: of keys and values

  __device__ __forceinline__ static int tiles_of_head(const ForwardSizes& sizes, int block_kv) {
    return ceil_div(sizes.seqlen_kv, block_kv);
  }
  // In the order of forward's, with keys in place of queries: of these the first see the most. Where tiles take turns,
  // the last come first: attention/turns.cuh.
  template <class Config>
  __device__ __forceinline__ static KeyTile find(const ForwardSizes& sizes, uint32 index) {
    ForwardSizes of_keys = sizes;
    of_keys.num_q_tiles = tiles_of_head(sizes, Config::kBlockKv);
    of_keys.num_heads_q = sizes.num_heads_q / sizes.heads_per_group;
    const QueryTile tile = schedule_tile<Config::kDeterministic, Config::kLongestFirst>(of_keys, index);
    return {tile.index, tile.head, tile.batch};
  }
};

template <class Is>
__device__ __forceinline__ int first_where(int begin, int end, Is is) {
#pragma unroll 1
  while (begin < end) {
    const int middle = (begin + end) / 2;
    if (is(middle))
      end = middle;
    else
      begin = middle + 1;
  }
  return begin;
}

// Of a head, those that see a key of the block.
struct QueryTiles {
  int first, end;

  __device__ __forceinline__ int count() const { return end - first; }

  // What rows see neither begins nor ends earlier than what rows before them see.
  template <class Config>
  __device__ __forceinline__ static QueryTiles beside(int first_key, const ForwardSizes& sizes,
                                                      const Mask<Config>& mask) {
    const int tiles = ceil_div(sizes.seqlen_q, Config::kBlockQ), last_key = first_key + Config::kBlockKv - 1;
    QueryTiles seen;
    seen.first = first_where(0, tiles, [&](int i) {
      return mask.last_key(min((i + 1) * Config::kBlockQ, sizes.seqlen_q) - 1) >= first_key;
    });
    seen.end = tiles;
    if constexpr (Mask<Config>::kBegins)
      seen.end = first_where(seen.first, tiles, [&](int i) { return mask.first_key(i * Config::kBlockQ) > last_key; });
    return seen;
  }
};
