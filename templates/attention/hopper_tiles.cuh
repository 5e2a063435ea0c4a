// SPDX-License-Identifier: Apache-2.0
// Which tile a block of the Hopper kernel computes, and which key/value blocks it visits.
#pragma once

#include "attention/arguments.cuh"
#include "attention/mask.cuh"
#include "attention/tile_scheduler.cuh"
#include "ptx/memory.cuh"
#include "ptx/special_registers.cuh"
#include "types.cuh"

// Rows of a tile are query positions of packed_heads heads, interleaved: see HopperArguments.
template <bool kCausal>
struct PackedMask : Mask<kCausal> {
  int packed_heads_log2;

  __device__ __forceinline__ explicit PackedMask(const HopperArguments& args)
      : Mask<kCausal>(args.sizes), packed_heads_log2(args.packed_heads_log2) {}
  __device__ __forceinline__ int last_key(int row) const { return Mask<kCausal>::last_key(row >> packed_heads_log2); }
};

struct HopperTile {
  int first_row;
  int head;  // a pack of query heads
  int batch;
  int blocks;   // that are loaded, at least one, so that every tile has a first block; 0: there is no further tile
  int kv_head;  // for the loads only

  // One warp finds the tiles and tells the others through shared memory.
  static constexpr int kBytes = 2 * sizeof(ptx::Chunk);
  static constexpr int kKvHeadAt = sizeof(ptx::Chunk);

  __device__ __forceinline__ void write(SmemAddress slot) const {
    ptx::st_shared(slot, ptx::Chunk{static_cast<uint32>(first_row), static_cast<uint32>(head),
                                    static_cast<uint32>(batch), static_cast<uint32>(blocks)});
    ptx::st_shared(slot + kKvHeadAt, static_cast<uint32>(kv_head));
  }
  static __device__ __forceinline__ HopperTile read(SmemAddress slot) {
    const ptx::Chunk c = ptx::ld_shared(slot);
    return {static_cast<int>(c.x), static_cast<int>(c.y), static_cast<int>(c.z), static_cast<int>(c.w), 0};
  }
  static __device__ __forceinline__ HopperTile read_with_kv_head(SmemAddress slot) {
    HopperTile tile = read(slot);
    tile.kv_head = static_cast<int>(ptx::ld_shared_word(slot + kKvHeadAt));
    return tile;
  }
};

template <class Config>
__device__ __forceinline__ int cluster_rank() {
  if constexpr (Config::kCluster == 1) return 0;
  return static_cast<int>(ptx::cluster_ctarank());
}

template <class Config>
struct HopperTiles {
  const HopperArguments& args;
  const PackedMask<Config::kCausal> mask;

  __device__ __forceinline__ explicit HopperTiles(const HopperArguments& args_) : args(args_), mask(args_) {}

  // Tiles are counted in clusters: the blocks of one take neighbouring tiles of the same head.
  __device__ __forceinline__ uint32 count() const {
    return static_cast<uint32>(args.sizes.batch) * args.sizes.num_heads_q * (args.sizes.num_q_tiles / Config::kCluster);
  }
  __device__ __forceinline__ static uint32 first() { return ptx::ctaid_x() / Config::kCluster; }
  __device__ __forceinline__ static uint32 stride() { return ptx::nctaid_x() / Config::kCluster; }

  __device__ __forceinline__ HopperTile find(uint32 index) const {
    if (index >= count()) return {0, 0, 0, 0, 0};
    ForwardSizes sizes = args.sizes;
    sizes.num_q_tiles /= Config::kCluster;
    const QueryTile cluster = schedule_tile<Config::kCausal, Config::kLongestFirst>(sizes, index);
    const int first_of_cluster = cluster.index * Config::kCluster * Config::kBlockQ;
    // What is multicast is loaded for all of the cluster's rows.
    const int last_row = first_of_cluster + Config::kCluster * Config::kBlockQ - 1;
    return {first_of_cluster + cluster_rank<Config>() * Config::kBlockQ, cluster.head, cluster.batch, visible(last_row),
            cluster.head / args.sizes.heads_per_group};
  }

  // Blocks that rows up to last_row see, at least one.
  __device__ __forceinline__ int visible(int last_row) const {
    return max(1, (mask.last_key(last_row) + Config::kBlockKv) / Config::kBlockKv);
  }
  __device__ __forceinline__ int clean(int first_row) const { return clean_blocks<Config::kBlockKv>(mask, first_row); }
};
