// SPDX-License-Identifier: Apache-2.0
// Sequences of different lengths, anywhere in the tensors: a list of tiles in memory, the longest first, has for each
// what there is to know of its sequence.
#pragma once

#include "abi.cuh"
#include "attention/sequence.cuh"

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
  };
  using Tile = TileOf<Place>;

  const RaggedArguments& args;

  template <class Arguments>
  __device__ __forceinline__ explicit RaggedSequences(const Arguments& launch) : args(launch.ragged) {}

  __device__ __forceinline__ uint32 count(const ForwardSizes& sizes) const { return *args.count * sizes.num_heads_q; }
  // Heads that share keys are neighbours.
  template <bool kLastFirst, bool kLongestFirst>
  __device__ __forceinline__ Tile tile(const ForwardSizes& sizes, uint32 index) const {
    const PlannedTile& planned = args.tiles[index / sizes.num_heads_q];
    const ptx::Chunk a = ptx::ld_global(&planned.sequence), b = ptx::ld_global(&planned.first_query);
    return {{{static_cast<int>(a.w), static_cast<int>(a.z)},
             static_cast<int>(b.x),
             static_cast<int>(b.y),
             static_cast<int>(b.z),
             static_cast<int>(b.w)},
            {static_cast<int>(a.y), static_cast<int>(index % sizes.num_heads_q), static_cast<int>(a.x)}};
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
