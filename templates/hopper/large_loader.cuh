// SPDX-License-Identifier: Apache-2.0
// Who feeds a stream of the kernel of large heads: the keys of its own blocks, and of all values its own columns, piece
// by piece in the order of their use.
#pragma once

#include "hopper/block_walk.cuh"
#include "hopper/large_shape.cuh"
#include "hopper/loader.cuh"
#include "hopper/tiles.cuh"
#include "ptx/barrier.cuh"
#include "ptx/tma.cuh"

template <class Config>
class LargeLoader {
  using Shape = LargeShape<Config>;
  using Tile = HopperTile<Config>;
  using KeyPiece = typename Shape::KeyPiece;
  using ValuePiece = typename Shape::ValuePiece;
  static constexpr auto kKeysPolicy = ptx::L2Policy::evict_last;
  static constexpr int kKeysOfShare = Config::kBlockKv / Config::kCluster;

 public:
  __device__ __forceinline__ LargeLoader(const typename Config::Arguments& args_, const Shape& shape_, int stream_)
      : tiles{args_},
        shape(shape_),
        stream(stream_),
        rank(cluster_rank<Config>()),
        queries(shape_.queries()),
        pieces(shape_.pieces(stream_)) {}

  __device__ __forceinline__ void run() {
    RingReader<typename Shape::TileRing, 1> announced(shape.tiles());
    for (;;) {
      const int stage = announced.take();
      const Tile tile = Tile::read_with_kv_head(announced.place.slot(stage));
      if (tile.end_block == 0) return;
      request(tile);
      if constexpr (Shape::kOneTile) return;
      if constexpr (LoadingFeeder<Config>::kWarp) ptx::bar_warp_sync();  // all of its lanes have read the tile
      announced.give_back(stage, leads());
    }
  }

 private:
  // Of the blocks in the order of visits. Those that a stream computes it begins with two blocks ahead of their values.
  __device__ __forceinline__ void request(const Tile& tile) {
    BlockWalk<Config> walk(tiles.args);
    int visited = 0, last = 0, last_but_one = 0;
    const auto visit = [&](int block) {
      if (visited >= Shape::kStreams) request_value(tile, last_but_one);
      const bool is_first = visited == 0 && stream == 0;
      if (is_first && !Shape::kKeysFirst) request_query(tile);
      if (visited % Shape::kStreams == stream) request_key(tile, block, walk.note());
      if (is_first && Shape::kKeysFirst) request_query(tile);
      last_but_one = last, last = block;
      ++visited;
    };
    visit(walk.begin(tile));
    walk.go(tile, [&](int, int next) { visit(next); });
    if (visited >= Shape::kStreams) request_value(tile, last_but_one);
    request_value(tile, last);
  }

  __device__ __forceinline__ void request_query(const Tile& tile) {
    using QTile = typename Shape::QTile;
    if (!leads()) return;
    queries.wait_empty();
    ptx::mbarrier_arrive_expect_tx(queries.full(), QTile::kBytes);
#pragma unroll 1
    for (int panel = 0; panel < QTile::kPanels; ++panel)
      ptx::tma_load(queries.slot() + panel * QTile::kPanelBytes, tiles.args.core.q,
                    tiles.query_origin(tile, panel * QTile::kPanelColumns, first_query_row(tile)), queries.full(),
                    ptx::L2Policy::evict_first);
    queries.advance();
  }

  // In a cluster each block brings its share of the keys to all. note: of a listed block, for the consumers.
  __device__ __forceinline__ void request_key(const Tile& tile, int block, uint32 note) {
    const Boxes<kKeysOfShare> boxes(tiles, tile, block);
#pragma unroll 1
    for (int piece = 0; piece < Shape::kKeyPieces; ++piece) {
      if (leads()) {
        pieces.wait_empty();
        if constexpr (Config::Blocks::kListed)
          if (piece == 0) ptx::st_shared(shape.note(stream, pieces.cursor.stage()), note);
        ptx::mbarrier_arrive_expect_tx(pieces.full(), KeyPiece::kBytes);
        if constexpr (!Config::Keys::kPaged)
          load(pieces.slot() + rank * kKeysOfShare * KeyPiece::kRowBytes, tiles.args.core.k,
               tiles.key_origin(tile, piece * KeyPiece::kPanelColumns, first_of_share(tile, block)));
      }
      if constexpr (Config::Keys::kPaged)
        for_each_page<kKeysOfShare>(boxes, rank, [&](ptx::EndedBoxOrigin at, int key) {
          at.column = piece * KeyPiece::kPanelColumns;
          load(pieces.slot() + (rank * kKeysOfShare + key) * KeyPiece::kRowBytes, tiles.args.core.k, at);
        });
      pieces.advance();
    }
  }

  // In a cluster each block brings every other panel.
  __device__ __forceinline__ void request_value(const Tile& tile, int block) {
    const Boxes<Shape::kKeysOfPiece> boxes(tiles, tile, block);
    const int first_column = stream * Shape::kOutputColumns;
    const auto column = [first_column](int panel) {
      return column_of(first_column + panel * ValuePiece::kPanelColumns);
    };
#pragma unroll 1
    for (int piece = 0; piece < Shape::kValuePieces; ++piece) {
      if (leads()) {
        pieces.wait_empty();
        ptx::mbarrier_arrive_expect_tx(pieces.full(), ValuePiece::kBytes);
        const int first_key = first_of_piece(tile, block * Config::kBlockKv + piece * Shape::kKeysOfPiece);
        if constexpr (!Config::Keys::kPaged)
#pragma unroll 1
          for (int panel = rank; panel < ValuePiece::kPanels; panel += Config::kCluster)
            load(pieces.slot() + panel * ValuePiece::kPanelBytes, tiles.args.core.v,
                 tiles.key_origin(tile, column(panel), first_key));
      }
      if constexpr (Config::Keys::kPaged)
        for_each_page<Shape::kKeysOfPiece>(boxes, piece, [&](ptx::EndedBoxOrigin at, int key) {
#pragma unroll 1
          for (int panel = rank; panel < ValuePiece::kPanels; panel += Config::kCluster) {
            at.column = column(panel);
            load(pieces.slot() + panel * ValuePiece::kPanelBytes + key * ValuePiece::kRowBytes, tiles.args.core.v, at);
          }
        });
      pieces.advance();
    }
  }

  // --- Keys in pages, by a whole warp ------------------------------------------------------------------------------

  // Of a block, boxes of up to so many keys, each in one page: a lane for each asks the table.
  template <int kMostKeys, bool kPaged = Config::Keys::kPaged>
  struct Boxes {
    __device__ __forceinline__ Boxes(const HopperTiles<Config>&, const Tile&, int) {}
  };
  template <int kMostKeys>
  struct Boxes<kMostKeys, true> {
    const int keys;
    const ptx::EndedBoxOrigin of_lane;

    __device__ __forceinline__ Boxes(const HopperTiles<Config>& tiles, const Tile& tile, int block)
        : keys(min(typename Config::Keys(tiles.args).box_rows(), kMostKeys)),
          of_lane(tiles.page_origin(tile, block * Config::kBlockKv + ptx::tid_x() % kWarpSize * keys)) {}
  };

  // The part'th kKeys keys of a block: load(where a box begins, its first one of these), by the lane that leads.
  template <int kKeys, class Load>
  __device__ __forceinline__ static void for_each_page(const Boxes<kKeys>& boxes, int part, Load load) {
    const int count = kKeys / boxes.keys;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const ptx::EndedBoxOrigin at = from_lane_of(part * count + i, boxes.of_lane);
      if (leads()) load(at, i * boxes.keys);
    }
  }

  // A block of a cluster that has no rows of its sequence brings those of the first one, and stores nothing.
  __device__ __forceinline__ int first_query_row(const Tile& tile) const {
    if constexpr (Config::Sequences::kRagged && Config::kCluster > 1)
      return tile.first_row < tiles.heads().rows(tile.of.queries) ? tile.first_row : 0;
    return tile.first_row;
  }
  // No box lies behind the last column as a whole, either: what such a panel makes of the output is not stored.
  __device__ __forceinline__ static int column_of(int column) {
    return min(column, Config::kHeadDimV - kChunkElements);
  }
  // The keys that this block of the cluster brings.
  __device__ __forceinline__ int first_of_share(const Tile& tile, int block) const {
    const int first = block * Config::kBlockKv + rank * kKeysOfShare;
    if constexpr (Config::kCluster > 1) return first_of_piece(tile, first);
    return first;
  }
  // Of a ragged batch no box may lie behind its sequence as a whole (HopperTiles::key_origin): it begins then with the
  // last key, as scores there are masked, and probabilities 0 whatever the values.
  __device__ __forceinline__ static int first_of_piece(const Tile& tile, int key) {
    if constexpr (Config::Sequences::kRagged) return min(key, max(tile.of.keys, 1) - 1);
    return key;
  }

  template <class Origin>
  __device__ __forceinline__ void load(SmemAddress dst, const TensorMap& map, const Origin& at) const {
    if constexpr (Config::kCluster == 1)
      ptx::tma_load(dst, map, at, pieces.full(), kKeysPolicy);
    else
      ptx::tma_load_multicast(dst, map, at, pieces.full(), (1 << Config::kCluster) - 1, kKeysPolicy);
  }
  __device__ __forceinline__ static bool leads() { return LoadingFeeder<Config>::leads(); }

  const HopperTiles<Config> tiles;
  const Shape shape;
  const int stream, rank;  // rank: in the cluster
  RingWriter<typename Shape::QRing> queries;
  RingWriter<typename Shape::PieceRing> pieces;
};
