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
  static constexpr int kPanelsOfShare = ceil_div(ValuePiece::kPanels, Config::kCluster);
  static constexpr bool kWarp = LoadingFeeder<Config>::kWarp;

 public:
  __device__ __forceinline__ LargeLoader(const typename Config::Arguments& args_, const Shape& shape_, int stream_)
      : tiles{args_},
        shape(shape_),
        stream(stream_),
        rank(cluster_rank<Config>()),
        queries(shape_.queries()),
        pieces(shape_.pieces(stream_)),
        own_pieces(shape_.own_pieces(stream_)) {}

  __device__ __forceinline__ void run() {
    RingReader<typename Shape::TileRing, 1> announced(shape.tiles());
    for (;;) {
      const int stage = announced.take();
      const Tile tile = Tile::read_with_kv_head(announced.place.slot(stage));
      if (tile.end_block == 0) return;
      request(tile);
      if constexpr (Shape::kOneTile) return;
      if constexpr (kWarp) ptx::bar_warp_sync();  // all of its lanes have read the tile
      announced.give_back(stage, leads());
    }
  }

 private:
  struct Block {
    int number;
    int page_of_lane;  // where keys stand in pages: of some keys, asked for early, as the table answers late
    __device__ __forceinline__ int first_key() const { return number * Config::kBlockKv; }
  };

  // Of the blocks in the order of visits. Those that a stream computes it begins with two blocks ahead of their values.
  __device__ __forceinline__ void request(const Tile& tile) {
    BlockWalk<Config> walk(tiles.args);
    int visited = 0;
    Block last{}, last_but_one{};
    const auto visit = [&](int number) {
      const Block block = find(tile, number);
      if (visited >= Shape::kStreams) request_value(tile, last_but_one, visited);
      const bool is_first = visited == 0 && stream == 0;
      if (is_first && !Shape::kKeysFirst) request_query(tile);
      if (visited % Shape::kStreams == stream) request_key(tile, block, walk.note());
      if (is_first && Shape::kKeysFirst) request_query(tile);
      last_but_one = last, last = block;
      ++visited;
    };
    visit(walk.begin(tile));
    walk.go(tile, [&](int, int next) { visit(next); });
    if (visited >= Shape::kStreams) request_value(tile, last_but_one, visited);
    request_value(tile, last, visited + 1);
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

  // note: of a listed block, for the consumers. What stays until P V is requested when there is room for it, which is
  // when that of this stream's block before is through, and so before what the first products make room for.
  __device__ __forceinline__ void request_key(const Tile& tile, const Block& block, uint32 note) {
    int keys = kKeysOfShare;  // of a box
    auto at = key_boxes(tile, block, keys);
    const auto request_panel = [&](auto& ring, int panel) {
      begin_piece(ring, KeyPiece::kBytes);
      at.column = panel * KeyPiece::kPanelColumns;
      const int first = lane() * keys;
      if (first < kKeysOfShare) load(ring, (rank * kKeysOfShare + first) * KeyPiece::kRowBytes, tiles.args.core.k, at);
      ring.advance();
    };
    if constexpr (Config::Blocks::kListed)
      if (leads()) {
        pieces.wait_empty();
        ptx::st_shared(shape.note(stream, pieces.cursor.stage()), note);
      }
    if constexpr (Shape::kOwnPieces != 0) {
#pragma unroll 1
      for (int i = 0; i < Shape::kPassingBeforeOwn; ++i) request_panel(pieces, shape.passing_panel(stream, i));
#pragma unroll 1
      for (int i = 0; i < Shape::kOwnPieces; ++i) request_panel(own_pieces, shape.own_panel(stream, i));
    }
#pragma unroll 1
    for (int i = Shape::kPassingBeforeOwn; i < Shape::kPassingPieces; ++i)
      request_panel(pieces, shape.passing_panel(stream, i));
  }

  // Of the keys that this block of the cluster brings to all: one box, or in pages one of each lane, of so many keys.
  __device__ __forceinline__ auto key_boxes(const Tile& tile, const Block& block, int& keys) const {
    if constexpr (Config::Keys::kPaged) {
      keys = min(box_rows(), kKeysOfShare);
      return page_origin(tile, block, rank * kKeysOfShare + lane() * keys % kKeysOfShare);
    } else {
      return tiles.key_origin(tile, 0, first_of_share(tile, block));
    }
  }

  // Of a block that was visited two before this one. In a cluster each block brings every other panel.
  __device__ __forceinline__ void request_value(const Tile& tile, const Block& block, int visited) {
    if (Shape::kOwnPieces != 0 && visited % Shape::kStreams == stream) return;  // they are there
#pragma unroll 1
    for (int piece = 0; piece < Shape::kValuePieces; ++piece) {
      const int first_key = piece * Shape::kKeysOfPiece;
      const auto load_box = [&](auto at, int panel, int key) {
        at.column = column_of(stream * Shape::kOutputColumns + panel * ValuePiece::kPanelColumns);
        load(pieces, panel * ValuePiece::kPanelBytes + key * ValuePiece::kRowBytes, tiles.args.core.v, at);
      };
      if constexpr (Config::Keys::kPaged) {
        const int keys = min(box_rows(), Shape::kKeysOfPiece);
        const int panel = rank + lane() % kPanelsOfShare * Config::kCluster, key = lane() / kPanelsOfShare * keys;
        const auto at = page_origin(tile, block, first_key + key % Shape::kKeysOfPiece);  // while the slot is in use
        begin_piece(pieces, ValuePiece::kBytes);
        if (key < Shape::kKeysOfPiece && panel < ValuePiece::kPanels) load_box(at, panel, key);
      } else {
        begin_piece(pieces, ValuePiece::kBytes);
        const auto at = tiles.key_origin(tile, 0, first_of_piece(tile, block.first_key() + first_key));
        if (leads())
#pragma unroll 1
          for (int panel = rank; panel < ValuePiece::kPanels; panel += Config::kCluster) load_box(at, panel, 0);
      }
      pieces.advance();
    }
  }

  // Before copies of any lane.
  template <class Ring>
  __device__ __forceinline__ static void begin_piece(const Ring& ring, int bytes) {
    if (leads()) {
      ring.wait_empty();
      ptx::mbarrier_arrive_expect_tx(ring.full(), bytes);
    }
    if constexpr (kWarp) ptx::bar_warp_sync();
  }

  // --- Where the keys of a block lie -------------------------------------------------------------------------------

  __device__ __forceinline__ Block find(const Tile& tile, int number) const {
    Block block{number, 0};
    if constexpr (Config::Keys::kPaged) {
      const int key_of_lane = (lane() << keys_of_lane_log2()) % Config::kBlockKv;
      block.page_of_lane = tiles.page_of(tile, block.first_key() + key_of_lane);
    }
    return block;
  }
  // Of a lane's box, which begins with this key of the block. By all lanes together.
  __device__ __forceinline__ ptx::EndedBoxOrigin page_origin(const Tile& tile, const Block& block, int key) const {
    const int page = ptx::shfl_from(key >> keys_of_lane_log2(), block.page_of_lane);
    return tiles.page_origin(tile, block.first_key() + key, page);
  }
  // Which lie in one page: as many as a box has, of keys or of values.
  __device__ __forceinline__ int keys_of_lane_log2() const {
    return 31 - __clz(min(box_rows(), min(kKeysOfShare, Shape::kKeysOfPiece)));
  }
  __device__ __forceinline__ int box_rows() const { return typename Config::Keys(tiles.args).box_rows(); }

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
  __device__ __forceinline__ int first_of_share(const Tile& tile, const Block& block) const {
    const int first = block.first_key() + rank * kKeysOfShare;
    if constexpr (Config::kCluster > 1) return first_of_piece(tile, first);
    return first;
  }
  // Of a ragged batch no box may lie behind its sequence as a whole (HopperTiles::key_origin): it begins then with the
  // last key, as scores there are masked, and probabilities 0 whatever the values.
  __device__ __forceinline__ static int first_of_piece(const Tile& tile, int key) {
    if constexpr (Config::Sequences::kRagged) return min(key, max(tile.of.keys, 1) - 1);
    return key;
  }

  // Into a ring's slot, so many bytes behind its begin.
  template <class Ring, class Origin>
  __device__ __forceinline__ static void load(const Ring& ring, int offset, const TensorMap& map, const Origin& at) {
    if constexpr (Config::kCluster == 1)
      ptx::tma_load(ring.slot() + offset, map, at, ring.full(), kKeysPolicy);
    else
      ptx::tma_load_multicast(ring.slot() + offset, map, at, ring.full(), (1 << Config::kCluster) - 1, kKeysPolicy);
  }
  __device__ __forceinline__ static bool leads() { return LoadingFeeder<Config>::leads(); }
  // Of who loads: a thread that is alone is the first one.
  __device__ __forceinline__ static int lane() { return kWarp ? ptx::tid_x() % kWarpSize : 0; }

  const HopperTiles<Config> tiles;
  const Shape shape;
  const int stream, rank;  // rank: in the cluster
  RingWriter<typename Shape::QRing> queries;
  RingWriter<typename Shape::PieceRing> pieces;
  RingWriter<typename Shape::OwnRing> own_pieces;
};
