// SPDX-License-Identifier: Apache-2.0
// Which tile of which head a thread block computes: blocks start in the order of their index.
#pragma once

#include "abi.cuh"
#include "attention/sequence.cuh"

// natural: the tiles of one head are neighbours, so K and V are read once into L2 for all of them.
// longest_first: sections of heads whose K and V fit L2 together; within a section the tiles with the most keys come
// first, so that the last wave is made of short ones.
// kLastFirst: of a head the last rows come first, because they see the most keys.
template <bool kLastFirst, bool kLongestFirst>
__device__ __forceinline__ QueryTile schedule_tile(const ForwardSizes& sizes, uint32 block) {
  const uint32 tiles = sizes.num_q_tiles;
  uint32 index, head_of_batch;
  if constexpr (kLongestFirst) {
    const uint32 heads = static_cast<uint32>(sizes.batch) * sizes.num_heads_q;
    const uint32 section = block / (sizes.heads_per_section * tiles);
    const uint32 first_head = section * sizes.heads_per_section;
    const uint32 heads_left = heads - first_head;
    const uint32 heads_here = heads_left < sizes.heads_per_section ? heads_left : sizes.heads_per_section;
    const uint32 rest = block - first_head * tiles;
    index = rest / heads_here;
    head_of_batch = first_head + rest % heads_here;
  } else {
    index = block % tiles;
    head_of_batch = block / tiles;
  }
  if constexpr (kLastFirst) index = tiles - 1 - index;
  return {static_cast<int>(index), static_cast<int>(head_of_batch % sizes.num_heads_q),
          static_cast<int>(head_of_batch / sizes.num_heads_q)};
}

// All equally long, each in a batch entry of its own.
template <>
struct SequencesBy<> {
  static constexpr bool kRagged = false;
  struct Place {
    static constexpr int kBytes = 0;

    __device__ __forceinline__ void write(SmemAddress) const {}
    __device__ __forceinline__ void read(SmemAddress) {}
    __device__ __forceinline__ Place of_first_lane() const { return {}; }
  };
  using Tile = TileOf<Place>;
  struct Entry {};

  template <class Arguments>
  __device__ __forceinline__ explicit SequencesBy(const Arguments&) {}

  __device__ __forceinline__ uint32 count(const ForwardSizes& sizes) const {
    return static_cast<uint32>(sizes.batch) * sizes.num_heads_q * sizes.num_q_tiles;
  }
  __device__ __forceinline__ Entry entry(const ForwardSizes&, uint32) const { return {}; }
  template <bool kLastFirst, bool kLongestFirst, bool kSplit>
  __device__ __forceinline__ static Tile tile(const ForwardSizes& sizes, uint32 index, Entry) {
    return {{}, schedule_tile<kLastFirst, kLongestFirst>(sizes, index)};
  }
  template <bool kLastFirst, bool kLongestFirst, bool kSplit>
  __device__ __forceinline__ static Tile tile(const ForwardSizes& sizes, uint32 index) {
    return tile<kLastFirst, kLongestFirst, kSplit>(sizes, index, Entry{});
  }
  template <class Find>
  __device__ __forceinline__ static Sequence sequence(const ForwardSizes& sizes, Find) {
    return {sizes.seqlen_kv, sizes.seqlen_q};
  }
  __device__ __forceinline__ static constexpr int first_query(const Place&) { return 0; }
  __device__ __forceinline__ static constexpr int first_key(const Place&) { return 0; }
  __device__ __forceinline__ static int query_batch(const Place&, int batch) { return batch; }
  __device__ __forceinline__ static int key_batch(const Place&, int batch) { return batch; }
};
