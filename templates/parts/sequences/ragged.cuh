// SPDX-License-Identifier: Apache-2.0
// Sequences of different lengths, anywhere in the tensors: a list of tiles in memory, sequence by sequence, has for
// each what there is to know of its sequence.
#pragma once

#include "abi.cuh"
#include "attention/sequence.cuh"
#include "attention/tile_scheduler.cuh"
#include "ptx/barrier.cuh"

struct RaggedSequences {
  struct Place {
    static constexpr int kBytes = 2 * sizeof(ptx::Chunk);

    Sequence of;
    int query_row, key_row;
    int batch_of_queries, batch_of_keys;

    __device__ __forceinline__ void write(SmemAddress slot) const {
      ptx::st_shared(slot, ptx::Chunk{static_cast<uint32>(of.keys), static_cast<uint32>(of.queries),
                                      static_cast<uint32>(query_row), static_cast<uint32>(batch_of_queries)});
      ptx::st_shared(slot + sizeof(ptx::Chunk),
                     ptx::Chunk{static_cast<uint32>(key_row), static_cast<uint32>(batch_of_keys), 0, 0});
    }
    __device__ __forceinline__ void read(SmemAddress slot) {
      const ptx::Chunk lengths = ptx::ld_shared(slot), keys = ptx::ld_shared(slot + sizeof(ptx::Chunk));
      of = {static_cast<int>(lengths.x), static_cast<int>(lengths.y)};
      query_row = static_cast<int>(lengths.z), batch_of_queries = static_cast<int>(lengths.w);
      key_row = static_cast<int>(keys.x), batch_of_keys = static_cast<int>(keys.y);
    }
    // Known to a warp to be the same in all lanes.
    __device__ __forceinline__ Place of_first_lane() const {
      return {{ptx::shfl_first(of.keys), ptx::shfl_first(of.queries)},
              ptx::shfl_first(query_row),
              ptx::shfl_first(key_row),
              ptx::shfl_first(batch_of_queries),
              ptx::shfl_first(batch_of_keys)};
    }
    // With keys in place of queries.
    __device__ __forceinline__ Place exchanged() const {
      return {{of.queries, of.keys}, key_row, query_row, batch_of_keys, batch_of_queries};
    }
  };
  using Tile = TileOf<Place>;
  // What the list has of a tile, in registers.
  struct Entry {
    ptx::Chunk place, rows, batches;
  };

  const RaggedArguments& args;

  template <class Arguments>
  __device__ __forceinline__ explicit RaggedSequences(const Arguments& launch) : args(launch.ragged) {}

  __device__ __forceinline__ uint32 count(const ForwardSizes& sizes) const {
    return args.head->tiles * sizes.num_heads_q;
  }
  __device__ __forceinline__ Entry entry(const ForwardSizes& sizes, uint32 index) const {
    const PlannedTile& planned = args.tiles[index / sizes.num_heads_q];
    return {ptx::ld_global(&planned.sequence), ptx::ld_global(&planned.queries), ptx::ld_global(&planned.query_batch)};
  }
  // A sequence is scheduled as if it were the whole batch, and its splits were the entries of that.
  template <bool kLastFirst, bool kLongestFirst, bool kSplit>
  __device__ __forceinline__ static Tile tile(const ForwardSizes& sizes, uint32 index, const Entry& entry) {
    const auto& [place, rows, batches] = entry;
    ForwardSizes of_sequence = sizes;
    of_sequence.batch = kSplit ? static_cast<int>(batches.z) : 1;
    of_sequence.num_q_tiles = static_cast<int>(place.z);
    of_sequence.heads_per_section = static_cast<int>(place.w);
    QueryTile tile = schedule_tile<kLastFirst, kLongestFirst>(of_sequence, index - place.y * sizes.num_heads_q);
    const int split = tile.batch, first_slot = static_cast<int>(batches.w);
    tile.batch = static_cast<int>(place.x);
    if constexpr (kSplit) {
      tile.split = split, tile.splits = of_sequence.batch;
      tile.slot_stride = sizes.num_heads_q * of_sequence.num_q_tiles;
      if (first_slot >= 0)
        tile.slot = first_slot + split * tile.slot_stride + tile.head * of_sequence.num_q_tiles + tile.index;
    }
    return {{{static_cast<int>(rows.y), static_cast<int>(rows.x)},
             static_cast<int>(rows.z),
             static_cast<int>(rows.w),
             static_cast<int>(batches.x),
             static_cast<int>(batches.y)},
            tile};
  }
  template <bool kLastFirst, bool kLongestFirst, bool kSplit>
  __device__ __forceinline__ Tile tile(const ForwardSizes& sizes, uint32 index) const {
    return tile<kLastFirst, kLongestFirst, kSplit>(sizes, index, entry(sizes, index));
  }
  template <class Find>
  __device__ __forceinline__ static Sequence sequence(const ForwardSizes&, Find find) {
    return find().of;
  }
  __device__ __forceinline__ static int first_query(const Place& place) { return place.query_row; }
  __device__ __forceinline__ static int first_key(const Place& place) { return place.key_row; }
  __device__ __forceinline__ static int query_batch(const Place& place, int) { return place.batch_of_queries; }
  __device__ __forceinline__ static int key_batch(const Place& place, int) { return place.batch_of_keys; }
};
