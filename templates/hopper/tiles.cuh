// SPDX-License-Identifier: Apache-2.0
// Which tile a block of the Hopper kernel computes, and which key/value blocks it visits.
#pragma once

#include "abi.cuh"
#include "attention/blocks.cuh"
#include "attention/keys.cuh"
#include "attention/mask.cuh"
#include "attention/packed_heads.cuh"
#include "attention/score.cuh"
#include "attention/splits.cuh"
#include "attention/tile_scheduler.cuh"
#include "ptx/memory.cuh"
#include "ptx/special_registers.cuh"
#include "ptx/tma.cuh"
#include "types.cuh"

template <class Config>
struct HopperTile : Config::Sequences::Place, TileSplit<Config::kSplitKv> {
  using Place = typename Config::Sequences::Place;
  using Split = TileSplit<Config::kSplitKv>;

  int first_row;
  int head;  // a pack of query heads
  int batch;
  // The key/value blocks that are loaded: at least one, so that every tile has a first block. Where end_block is 0
  // there is no further tile.
  int end_block, first_block;
  int kv_head;  // for the loads only
  int listed;   // of these blocks, how many are visited; only where blocks are listed

  // One warp finds the tiles and tells the others through shared memory.
  static constexpr int kPlaceAt = 2 * sizeof(ptx::Chunk);
  static constexpr int kSplitAt = kPlaceAt + Place::kBytes;
  static constexpr int kBytes = kSplitAt + Split::kBytes;
  static constexpr int kKvHeadAt = sizeof(ptx::Chunk);
  static constexpr int kFirstBlockAt = kKvHeadAt + sizeof(uint32);
  static constexpr int kListedAt = kFirstBlockAt + sizeof(uint32);

  __device__ __forceinline__ void write(SmemAddress slot) const {
    ptx::st_shared(slot, ptx::Chunk{static_cast<uint32>(first_row), static_cast<uint32>(head),
                                    static_cast<uint32>(batch), static_cast<uint32>(end_block)});
    ptx::st_shared(slot + kKvHeadAt, static_cast<uint32>(kv_head));
    if constexpr (Mask<Config>::kBegins) ptx::st_shared(slot + kFirstBlockAt, static_cast<uint32>(first_block));
    if constexpr (Config::Blocks::kListed) ptx::st_shared(slot + kListedAt, static_cast<uint32>(listed));
    Place::write(slot + kPlaceAt);
    Split::write(slot + kSplitAt);
  }
  static __device__ __forceinline__ HopperTile read(SmemAddress slot) {
    const ptx::Chunk c = ptx::ld_shared(slot);
    HopperTile tile{
        {}, {}, static_cast<int>(c.x), static_cast<int>(c.y), static_cast<int>(c.z), static_cast<int>(c.w), 0, 0, 0};
    if constexpr (Mask<Config>::kBegins) tile.first_block = static_cast<int>(ptx::ld_shared_word(slot + kFirstBlockAt));
    if constexpr (Config::Blocks::kListed) tile.listed = static_cast<int>(ptx::ld_shared_word(slot + kListedAt));
    tile.Place::read(slot + kPlaceAt);
    tile.Split::read(slot + kSplitAt);
    return tile;
  }
  static __device__ __forceinline__ HopperTile read_with_kv_head(SmemAddress slot) {
    HopperTile tile = read(slot);
    tile.kv_head = static_cast<int>(ptx::ld_shared_word(slot + kKvHeadAt));
    return tile;
  }
};

// Whether a tile has too few rows for a warpgroup, so that its warps share them (kernels/hopper_decode.cuh). Then the
// blocks of a cluster, too, have keys of their own of the same tile.
template <class Config>
inline constexpr bool kWarpsShareRows = Config::kBlockQ < kWarpgroupRows;
// Whether these have as many as mma.sync multiplies at once. Fewer of them FFMA multiplies.
template <class Config>
inline constexpr bool kUsesTensorCores = Config::kBlockQ >= kMmaRows;

// Where warps share rows a warp brings the keys and one the values, or two that take turns: a slot in small pages takes
// many boxes.
template <class Config>
inline constexpr int kFeedersOfRing = (kWarpsShareRows<Config> && Config::Keys::kPaged) ? 2 : 1;

// Whether heads that share tiles may be more than a warp stores rows at once, so that these begin with another head.
template <class Config>
inline constexpr bool kPacksAreWide = Config::kSplitKv &&
                                      (Config::kHeadDim > kMostUsualHeadDim || Config::kHeadDimV > kMostUsualHeadDim);

// Where the box begins that a lane of the warp has found. Head and column are the same in all lanes.
__device__ __forceinline__ ptx::EndedBoxOrigin from_lane_of(int box, ptx::EndedBoxOrigin at) {
  at.row = ptx::shfl_from(box, at.row);
  at.end = ptx::shfl_from(box, at.end);
  at.batch = ptx::shfl_from(box, at.batch);
  return at;
}

// Of a cluster whose size is known at launch: a power of two.
__device__ __forceinline__ int cluster_size_log2() { return 31 - __clz(static_cast<int>(ptx::cluster_nctarank())); }

template <class Config>
__device__ __forceinline__ int cluster_rank() {
  if constexpr (Config::kCluster == 1) return 0;
  return static_cast<int>(ptx::cluster_ctarank());
}

template <class Config>
struct HopperTiles {
  using Tile = HopperTile<Config>;
  using Sequences = typename Config::Sequences;
  using Keys = typename Config::Keys;

  const typename Config::Arguments& args;

  // Tiles are counted in clusters: the blocks of one take neighbouring tiles of the same head.
  __device__ __forceinline__ uint32 count() const { return Sequences(args).count(sizes()); }
  __device__ __forceinline__ static uint32 first() {
    if constexpr (kWarpsShareRows<Config>) return ptx::ctaid_x() >> cluster_size_log2();
    return ptx::ctaid_x() / Config::kCluster;
  }
  __device__ __forceinline__ static uint32 stride() {
    if constexpr (kWarpsShareRows<Config>) return ptx::nctaid_x() >> cluster_size_log2();
    return ptx::nctaid_x() / Config::kCluster;
  }

  __device__ __forceinline__ Tile find(uint32 index) const {
    return index < count() ? at(index, entry(index)) : none();
  }
  // The block's first one. A list has room for all blocks, so that what it has of the tile is asked for beside how many
  // tiles there are.
  __device__ __forceinline__ Tile find_first() const {
    const auto of_first = entry(first());
    return first() < count() ? at(first(), of_first) : none();
  }

  // Of the blocks of keys that a tile visits, those of this block of the cluster. A tile that sees no key of its span
  // visits a block outside of it.
  __device__ __forceinline__ static KeySpan<true> share_of_block(const KeySpan<true>& span, const BlockRuns& runs) {
    const int share = (runs.count() + static_cast<int>(ptx::cluster_nctarank()) - 1) >> cluster_size_log2();
    const int first = runs.first + static_cast<int>(ptx::cluster_ctarank()) * share;
    return {span.first_of(min(first, runs.end) * Config::kBlockKv),
            min(span.end, min(first + share, runs.end) * Config::kBlockKv)};
  }

  __device__ __forceinline__ PackedHeads heads() const { return {args.core.packed_heads_log2}; }
  __device__ __forceinline__ Sequence sequence_of(const Tile& tile) const {
    return Sequences::sequence(args.core.sizes, [&]() -> const Tile& { return tile; });
  }
  __device__ __forceinline__ PackedMask<Config> mask_of(const Tile& tile) const {
    const int batch = tile.batch;
    return {args, sequence_of(tile), [batch] { return batch; }, tile.keys()};
  }
  __device__ __forceinline__ RowPlace place_of(const Tile& tile, int row) const {
    return {tile.batch, heads().head(tile.head, row), mask_of(tile).position(heads().query(row)), sequence_of(tile)};
  }
  // By rows of its sequence.
  __device__ __forceinline__ BlockRuns visited(const Tile& tile, int first_row, int last_row) const {
    return block_runs<Config::kBlockKv, 1>(mask_of(tile), first_row, last_row);
  }

  // Of the partial results of a tile, or of all tiles of a cluster, whose keys are split together.
  __device__ __forceinline__ static int row_of_slot(const Tile& tile, int row) {
    return row - tile.first_row + cluster_rank<Config>() * Config::kBlockQ;
  }

  // Where in q and in the output a box of a tile's rows begins.
  __device__ __forceinline__ auto query_origin(const Tile& tile, int column, int first_row) const {
    const int head = first_head(tile, first_row), row = heads().query(first_row);
    if constexpr (Sequences::kRagged) {
      const int end = tile.query_row + tile.of.queries;
      return ptx::EndedBoxOrigin{column, head, args.ragged.query_rows - tile.of.queries + row, end,
                                 tile.batch_of_queries};
    } else {
      return ptx::BoxOrigin{column, head, row, tile.batch};
    }
  }
  // Likewise in k and v. A sequence without keys is read as if it had one, whose scores its masks hide: of a box that
  // lies outside of its tensor map as a whole, hardware reads what may be nobody's memory.
  __device__ __forceinline__ auto key_origin(const Tile& tile, int column, int first_key) const {
    if constexpr (Sequences::kRagged) {
      const int keys = max(tile.of.keys, 1);
      return ptx::EndedBoxOrigin{column, tile.kv_head, args.ragged.key_rows - keys + first_key, tile.key_row + keys,
                                 tile.batch_of_keys};
    } else {
      return ptx::BoxOrigin{column, tile.kv_head, first_key, tile.batch};
    }
  }
  // In v where that comes transposed: of all dims, a key's.
  __device__ __forceinline__ static ptx::BoxOrigin dims_origin(const Tile& tile, int first_key) {
    return {first_key, tile.kv_head, 0, tile.batch};
  }
  // Where a key that there is lies.
  __device__ __forceinline__ KeyPlace place_of_key(const Tile& tile, int key) const {
    if constexpr (Keys::kPaged) {
      const Keys keys(args);
      return keys.place(keys.row(tile.batch_of_keys, tile.of.keys), key);
    } else {
      return {Sequences::key_batch(tile, tile.batch), Sequences::first_key(tile) + key, 0};
    }
  }
  // As key_origin, where keys stand in pages, whose maps are as those of sequences.
  __device__ __forceinline__ ptx::EndedBoxOrigin page_origin(const Tile& tile, int first_key) const {
    return page_origin(tile, first_key, page_of(tile, first_key));
  }
  __device__ __forceinline__ int page_of(const Tile& tile, int key) const {
    const Keys keys(args);
    return keys.page(keys.row(tile.batch_of_keys, tile.of.keys), key);
  }
  __device__ __forceinline__ ptx::EndedBoxOrigin page_origin(const Tile& tile, int first_key, int page) const {
    const Keys keys(args);
    const KeyPlace place = keys.place(keys.row(tile.batch_of_keys, tile.of.keys), first_key, page);
    return {0, tile.kv_head, keys.batch_rows() - place.end + place.row, place.end, place.batch};
  }

 private:
  using Entry = typename Sequences::Entry;

  // Of rows that a warp stores at once, or of a whole tile's.
  __device__ __forceinline__ int first_head(const Tile& tile, int first_row) const {
    if constexpr (kPacksAreWide<Config>) return heads().head(tile.head, first_row);
    return heads().first(tile.head);
  }

  __device__ __forceinline__ Entry entry(uint32 index) const { return Sequences(args).entry(sizes(), index); }
  __device__ __forceinline__ static Tile none() { return {{}, {}, 0, 0, 0, 0, 0, 0, 0}; }
  __device__ __forceinline__ Tile at(uint32 index, const Entry& entry) const {
    const auto cluster = scheduled_tile<Config>(args, sizes(), index, entry);
    const int first_of_cluster = cluster.index * Config::kCluster * Config::kBlockQ;
    Tile tile{cluster, {}, 0, cluster.head, cluster.batch, 0, 0, 0, 0};
    if constexpr (Config::kSplitKv) {
      tile.span = KeySpan<true>::all();
      static_cast<TileSplit<true>&>(tile) = split_of<Config>(args, cluster, mask_of(tile).first_key(first_of_cluster));
    }
    // What is multicast is loaded for all of the cluster's rows.
    const int last_row = first_of_cluster + Config::kCluster * Config::kBlockQ - 1;
    if constexpr (kWarpsShareRows<Config>)
      tile.span = share_of_block(tile.span, visited(tile, first_of_cluster, last_row));
    const BlockRuns runs = visited(tile, first_of_cluster, last_row);
    tile.first_row = first_of_cluster + cluster_rank<Config>() * Config::kBlockQ;
    tile.end_block = runs.end, tile.first_block = runs.first;
    tile.kv_head = cluster.head / args.core.sizes.heads_per_group;
    return tile;
  }

  __device__ __forceinline__ ForwardSizes sizes() const {
    ForwardSizes sizes = args.core.sizes;
    sizes.num_q_tiles /= Config::kCluster;
    return sizes;
  }
};
