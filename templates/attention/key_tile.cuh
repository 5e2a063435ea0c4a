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
};

// Of a batch whose tiles are scheduled as forward's are, keys and queries exchanged (attention/sequence.cuh): so are
// the lists of ragged batches made. Of keys the first tiles see the most. Where tiles take turns, the last come first:
// attention/turns.cuh.
template <class Config>
class PlacedKeyTile : public KeyTile {
  using Sequences = typename Config::Sequences;

 public:
  using Tile = typename Sequences::Tile;

  __device__ __forceinline__ PlacedKeyTile(const typename Config::Arguments& launch, uint32 index)
      : PlacedKeyTile(launch.core.sizes, find(launch, index)) {}
  // tile: of exchanged keys and queries.
  __device__ __forceinline__ PlacedKeyTile(const ForwardSizes& sizes, const Tile& tile)
      : KeyTile{tile.index, tile.head, tile.batch},
        sequence(sequence_of(sizes, tile)),
        key_batch(Sequences::query_batch(tile, tile.batch)),
        query_batch(Sequences::key_batch(tile, tile.batch)),
        first_key(Sequences::first_query(tile)),
        first_query(Sequences::first_key(tile)) {}

  // Of the list, or of the batch.
  __device__ __forceinline__ static Tile find(const typename Config::Arguments& launch, uint32 index) {
    return Sequences(launch).template tile<Config::kDeterministic, Config::kLongestFirst, false>(
        exchanged(launch.core.sizes), index);
  }
  // Whether there is one of this index.
  __device__ __forceinline__ static bool exists(const typename Config::Arguments& launch, uint32 index) {
    return !Sequences::kRagged || index < Sequences(launch).count(exchanged(launch.core.sizes));
  }

  const Sequence sequence;
  const int key_batch, query_batch;  // entries of the tensors where the sequence lies
  const int first_key, first_query;  // and their rows where it begins

  // Among places for tiles of a head, of which an entry has so many: each tile has one of its own. A sequence of packed
  // rows begins in the tile of its first row, and one further for each sequence before it, whose last may be cut.
  __device__ __forceinline__ int key_place(int heads, int of_head, int tiles) const {
    return place(key_batch, heads, of_head, tiles, first_key / Config::kBlockKv);
  }
  __device__ __forceinline__ int query_place(int heads, int of_head, int tiles) const {
    return place(query_batch, heads, of_head, tiles, first_query / Config::kBlockQ);
  }

 private:
  __device__ __forceinline__ static ForwardSizes exchanged(const ForwardSizes& sizes) {
    ForwardSizes of_keys = sizes;
    of_keys.seqlen_q = sizes.seqlen_kv, of_keys.seqlen_kv = sizes.seqlen_q;
    of_keys.num_q_tiles = tiles_of_head(sizes, Config::kBlockKv);
    of_keys.num_heads_q = sizes.num_heads_q / sizes.heads_per_group;
    return of_keys;
  }
  __device__ __forceinline__ static Sequence sequence_of(const ForwardSizes& sizes, const Tile& tile) {
    const Sequence of = Sequences::sequence(exchanged(sizes), [&] { return tile; });
    return {of.queries, of.keys};
  }
  __device__ __forceinline__ int place(int entry, int heads, int of_head, int tiles, int first) const {
    return (entry * heads + of_head) * tiles + first + (batch - entry);
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
  __device__ __forceinline__ static QueryTiles beside(int first_key, int queries, const Mask<Config>& mask) {
    const int tiles = ceil_div(queries, Config::kBlockQ), last_key = first_key + Config::kBlockKv - 1;
    QueryTiles seen;
    seen.first = first_where(
        0, tiles, [&](int i) { return mask.last_key(min((i + 1) * Config::kBlockQ, queries) - 1) >= first_key; });
    seen.end = tiles;
    if constexpr (Mask<Config>::kBegins)
      seen.end = first_where(seen.first, tiles, [&](int i) { return mask.first_key(i * Config::kBlockQ) > last_key; });
    return seen;
  }
};
