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
                    tiles.query_origin(tile, panel * QTile::kPanelColumns, tile.first_row), queries.full(),
                    ptx::L2Policy::evict_first);
    queries.advance();
  }

  // In a cluster each block brings its share of the keys to all. note: of a listed block, for the consumers.
  __device__ __forceinline__ void request_key(const Tile& tile, int block, uint32 note) {
    constexpr int kShare = Config::kBlockKv / Config::kCluster;
#pragma unroll 1
    for (int piece = 0; piece < Shape::kKeyPieces; ++piece) {
      if (leads()) {
        pieces.wait_empty();
        if constexpr (Config::Blocks::kListed)
          if (piece == 0) ptx::st_shared(shape.note(stream, pieces.cursor.stage()), note);
        ptx::mbarrier_arrive_expect_tx(pieces.full(), KeyPiece::kBytes);
        load(pieces.slot() + rank * kShare * KeyPiece::kRowBytes, tiles.args.core.k,
             tiles.key_origin(tile, piece * KeyPiece::kPanelColumns, block * Config::kBlockKv + rank * kShare));
      }
      pieces.advance();
    }
  }

  // In a cluster each block brings every other panel.
  __device__ __forceinline__ void request_value(const Tile& tile, int block) {
    const int first_column = stream * Shape::kOutputColumns;
#pragma unroll 1
    for (int piece = 0; piece < Shape::kValuePieces; ++piece) {
      if (leads()) {
        pieces.wait_empty();
        ptx::mbarrier_arrive_expect_tx(pieces.full(), ValuePiece::kBytes);
        const int first_key = first_of_piece(tile, block * Config::kBlockKv + piece * Shape::kKeysOfPiece);
#pragma unroll 1
        for (int panel = rank; panel < ValuePiece::kPanels; panel += Config::kCluster)
          load(pieces.slot() + panel * ValuePiece::kPanelBytes, tiles.args.core.v,
               tiles.key_origin(tile, column_of(first_column + panel * ValuePiece::kPanelColumns), first_key));
      }
      pieces.advance();
    }
  }

  // No box lies behind the last column as a whole, either: what such a panel makes of the output is not stored.
  __device__ __forceinline__ static int column_of(int column) {
    return min(column, Config::kHeadDimV - kChunkElements);
  }
  // Of a ragged batch no box may lie behind its sequence as a whole (HopperTiles::key_origin): it begins then with the
  // last key, as probabilities there are 0 whatever the values.
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
