// SPDX-License-Identifier: Apache-2.0
// Who finds the tiles, and who feeds the copy engine.
#pragma once

#include "hopper/block_walk.cuh"
#include "hopper/shape.cuh"
#include "hopper/tiles.cuh"
#include "ptx/barrier.cuh"
#include "ptx/tma.cuh"

// Tiles are announced, and their blocks loaded, by a thread each, or by a warp each, of whose lanes one speaks.
template <bool kWarp_>
struct Feeder {
  static constexpr bool kWarp = kWarp_;

  __device__ __forceinline__ static bool is(int warp, int thread) {
    return kWarp ? thread / kWarpSize == warp : thread == warp * kWarpSize;
  }
  __device__ __forceinline__ static bool leads() { return !kWarp || ptx::tid_x() % kWarpSize == 0; }
};

// Where blocks are listed, lanes look at the list together. Nothing else keeps them together from tile to tile: a lane
// that fell two tiles behind would wait for a phase of a barrier that has passed.
template <class Config>
using AnnouncingFeeder = Feeder<Config::Blocks::kListed>;
// There, too, and each lane loads a page.
template <class Config>
using LoadingFeeder = Feeder<Config::Blocks::kListed || Config::Keys::kPaged>;

// Tells everybody the tiles of this block, one after the other.
template <class Config, class Shape = HopperShape<Config>>
struct HopperAnnouncer {
  using Tile = HopperTile<Config>;

  const HopperTiles<Config> tiles;
  RingWriter<typename Shape::TileRing> announced;

  __device__ __forceinline__ HopperAnnouncer(const typename Config::Arguments& args, const Shape& shape)
      : tiles{args}, announced(shape.tiles()) {}

  __device__ __forceinline__ void announce(const Tile& tile) {
    announced.wait_empty();
    if (leads()) {
      tile.write(announced.slot());
      ptx::mbarrier_arrive(announced.full());
    }
    announced.advance();
  }

  // The next tile is drawn and found, which takes long, as soon as the consumers have begun with the one before. Not
  // earlier: who has drawn two long tiles keeps the others waiting at the end.
  __device__ __forceinline__ void announce_all() {
    uint32 index = HopperTiles<Config>::first();
    for (;;) {
      Tile tile = tiles.find(index);
      if constexpr (kListed) tile.listed = ListedBlocks<Config>{tiles}.count(tile);
      announce(tile);
      if (tile.end_block == 0) return;
      announced.wait_empty();
      index = next(index);
    }
  }

  __device__ __forceinline__ uint32 next(uint32 index) const {
    if constexpr (Config::kScheduler != Scheduler::dynamic) return index + HopperTiles<Config>::stride();
    if constexpr (kListed) return ptx::shfl_first(leads() ? draw() : 0);
    return draw();
  }
  // Every tile is followed by one draw, so the last draw of all clears the counter.
  __device__ __forceinline__ uint32 draw() const {
    uint32* const counter = tiles.args.core.tile_counter;
    const uint32 drawn = ptx::atom_increment(counter);
    if (drawn == tiles.count() - 1) *counter = 0;
    return HopperTiles<Config>::stride() + drawn;
  }

 private:
  static constexpr bool kListed = Config::Blocks::kListed;
  __device__ __forceinline__ static bool leads() { return AnnouncingFeeder<Config>::leads(); }
};

template <class Config>
struct HopperLoader {
  using Shape = HopperShape<Config>;
  using Tile = HopperTile<Config>;
  using Keys = typename Config::Keys;
  // Where warps share rows, most keys are read once: a tile has all heads of its group. What stays in L2 are the plan,
  // the table of pages and partial results.
  static constexpr auto kKeysPolicy = kWarpsShareRows<Config> ? ptx::L2Policy::evict_first : ptx::L2Policy::evict_last;

  const HopperTiles<Config> tiles;
  const HopperArguments& args = tiles.args.core;
  const Shape shape;
  const int rank;  // in the cluster
  RingWriter<typename Shape::QRing> queries;
  RingWriter<typename Shape::KRing> keys;
  RingWriter<typename Shape::VRing> values;
  const int feeder;  // of those of its ring
  int turn = 0;

  __device__ __forceinline__ HopperLoader(const typename Config::Arguments& args_, const Shape& shape_, int feeder_ = 0)
      : tiles{args_},
        shape(shape_),
        rank(cluster_rank<Config>()),
        queries(shape.queries()),
        keys(shape.keys()),
        values(shape.loaded_values()),
        feeder(feeder_) {}

  __device__ __forceinline__ void request_query(const Tile& tile) {
    using QTile = typename Shape::QTile;
    constexpr int kColumns = QTile::kPanelColumns * Config::Products::kElementsOfWord;  // of the tensor
    if (leads()) {
      queries.wait_empty();
      ptx::mbarrier_arrive_expect_tx(queries.full(), QTile::kBytes);
#pragma unroll
      for (int panel = 0; panel < QTile::kPanels; ++panel)
        ptx::tma_load(queries.slot() + panel * QTile::kPanelBytes, args.q,
                      tiles.query_origin(tile, panel * kColumns, tile.first_row), queries.full(),
                      ptx::L2Policy::evict_first);
    }
    queries.advance();
  }
  // note: of a listed block, for the consumers.
  __device__ __forceinline__ void request_key(const Tile& tile, int block, uint32 note = 0) {
    if constexpr (Keys::kPaged) {
      if (takes_turn()) load_pages<typename Shape::KTile>(keys, args.k, tile, block);
    } else if (leads()) {
      load<typename Shape::KTile>(keys, args.k, tile, block, [this, note] {
        if constexpr (Config::Blocks::kListed) ptx::st_shared(shape.note(keys.cursor.stage()), note);
      });
    }
    keys.advance();
  }
  __device__ __forceinline__ void request_value(const Tile& tile, int block) {
    if constexpr (Keys::kPaged) {
      if (takes_turn()) load_pages<typename Shape::VTile>(values, args.v, tile, block);
    } else if constexpr (Shape::kComeTransposed) {
      if (leads()) load_dims(tile, block);
    } else if (leads()) {
      load<typename Shape::VTile>(values, args.v, tile, block, [] {});
    }
    values.advance();
  }

 private:
  // Whether the next slot of the ring is this feeder's. The first ones, which all are free, the first feeder fills: if
  // they were asked for at once the first keys would be late.
  __device__ __forceinline__ bool takes_turn() {
    constexpr int kFeeders = kFeedersOfRing<Config>;
    if constexpr (kFeeders == 1) return true;
    const int whose = turn < Config::kStages ? 0 : (turn - Config::kStages + 1) % kFeeders;
    ++turn;
    return whose == feeder;
  }
  // Of the tensor.
  template <class KvTile>
  __device__ __forceinline__ static constexpr int columns_of_panel() {
    return KvTile::kPanelColumns * Shape::kElementsOfWord;
  }

  // A tile of keys or values in pages. Boxes lie in one page each. A lane for each asks the table, before the slot is
  // free; then one lane speaks for all: copies that lanes issue themselves are a loop over these, of twice as many
  // instructions for each.
  template <class KvTile, class Writer>
  __device__ __forceinline__ void load_pages(const Writer& ring, const TensorMap& map, const Tile& tile,
                                             int block) const {
    constexpr int kMostRows = power_of_two_in(Config::kBlockKv, 256), kTogether = 4;
    const int box_rows = min(Keys(tiles.args).box_rows(), kMostRows), lane = ptx::tid_x() % kWarpSize;
    const int boxes = Config::kBlockKv >> (31 - __clz(box_rows));
    const ptx::EndedBoxOrigin of_lane = tiles.page_origin(tile, block * Config::kBlockKv + lane * box_rows);
    ring.wait_empty();
    const bool speaks = ptx::elect();
    if (speaks) ptx::mbarrier_arrive_expect_tx(ring.full(), KvTile::kBytes);
    const auto load = [&](int box, const ptx::EndedBoxOrigin& at) { load_box<KvTile>(ring, map, at, box * box_rows); };
    if (boxes % kTogether == 0)
      for_each_box<kTogether>(boxes, of_lane, speaks, load);
    else
      for_each_box<1>(boxes, of_lane, speaks, load);
  }
  // load(box, where it begins), of so many that follow each other without a branch: what says where a box lies may not
  // be written again before the copy engine has read it, which takes longer than all else.
  template <int kTogether, class Load>
  __device__ __forceinline__ static void for_each_box(int boxes, const ptx::EndedBoxOrigin& of_lane, bool speaks,
                                                      Load load) {
#pragma unroll 1
    for (int first = 0; first < boxes; first += kTogether) {
      ptx::EndedBoxOrigin at[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) at[i] = from_lane_of(first + i, of_lane);
      if (!speaks) continue;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) load(first + i, at[i]);
    }
  }
  template <class KvTile, class Writer>
  __device__ __forceinline__ void load_box(const Writer& ring, const TensorMap& map, ptx::EndedBoxOrigin at,
                                           int row) const {
#pragma unroll
    for (int panel = 0; panel < KvTile::kPanels; ++panel, at.column += columns_of_panel<KvTile>())
      ptx::tma_load(ring.slot() + panel * KvTile::kPanelBytes + row * KvTile::kRowBytes, map, at, ring.full(),
                    kKeysPolicy);
  }
  // A tile of keys or values. In a cluster each block brings its share of the rows to all. take_note: once the slot is
  // free.
  template <class KvTile, class Writer, class TakeNote>
  __device__ __forceinline__ void load(const Writer& ring, const TensorMap& map, const Tile& tile, int block,
                                       TakeNote take_note) const {
    constexpr int kShare = Config::kBlockKv / Config::kCluster;
    ring.wait_empty();
    take_note();
    ptx::mbarrier_arrive_expect_tx(ring.full(), KvTile::kBytes);
    const int first_key = block * Config::kBlockKv + rank * kShare;
#pragma unroll
    for (int panel = 0; panel < KvTile::kPanels; ++panel) {
      const SmemAddress dst = ring.slot() + panel * KvTile::kPanelBytes + rank * kShare * KvTile::kRowBytes;
      const auto at = tiles.key_origin(tile, panel * columns_of_panel<KvTile>(), first_key);
      if constexpr (Config::kCluster == 1)
        ptx::tma_load(dst, map, at, ring.full(), kKeysPolicy);
      else
        ptx::tma_load_multicast(dst, map, at, ring.full(), (1 << Config::kCluster) - 1, kKeysPolicy);
    }
  }
  // A tile of values that come transposed: of all dims the keys of a panel. Those that there are not are zeros.
  __device__ __forceinline__ void load_dims(const Tile& tile, int block) const {
    using VTile = typename Shape::VTile;
    values.wait_empty();
    ptx::mbarrier_arrive_expect_tx(values.full(), VTile::kBytes);
#pragma unroll
    for (int panel = 0; panel < VTile::kPanels; ++panel)
      ptx::tma_load(
          values.slot() + panel * VTile::kPanelBytes, args.v,
          HopperTiles<Config>::dims_origin(tile, block * Config::kBlockKv + panel * columns_of_panel<VTile>()),
          values.full(), kKeysPolicy);
  }
  __device__ __forceinline__ static bool leads() { return LoadingFeeder<Config>::leads(); }
};
