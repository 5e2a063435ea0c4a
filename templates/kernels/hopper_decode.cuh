// SPDX-License-Identifier: Apache-2.0
// Attention forward for Hopper where a tile has few rows: 16, which four warps share, each with a quarter of a block's
// keys. They multiply with mma.sync out of what the copy engine brings, and none waits for another before the end,
// where what they have made is joined in shared memory. So is what the blocks of a cluster have made, which split a
// tile's keys among them; how many they are is known at launch. Tiles of 4 and of 8 rows differ in nothing but that
// FFMA multiplies. docs/kernels/decode.md has the reasons.
#pragma once

#include "attention/probability.cuh"
#include "attention/row_end.cuh"
#include "attention/scores.cuh"
#include "attention/stored.cuh"
#include "hopper/block.cuh"
#include "hopper/block_walk.cuh"
#include "hopper/cluster_join.cuh"
#include "hopper/fma_attention.cuh"
#include "hopper/joined_row.cuh"
#include "hopper/loader.cuh"
#include "hopper/tiles.cuh"
#include "hopper/warp_softmax.cuh"
#include "mma/warp_attention.cuh"
#include "ptx/grid_dependency.cuh"

template <class Config>
struct DecodeWarpShape : HopperShape<Config> {
  static constexpr int kM = 1;
  static constexpr int kPaddedColumns = round_up(Config::kHeadDim, 16);
  static constexpr int kPaddedHeadDimV = round_up(Config::kHeadDimV, 16);
  static constexpr bool kQueryInRegisters = Config::kHeadDim <= 128 || !kUsesTensorCores<Config>;
  static constexpr int kLdmatrix = 4;
};

// The tiles of this thread block, from the given one on: use(tile), by feeders or by consumers. No feeder begins with
// the next one before all consumers have ended.
template <bool kFeeds, class Config, class Use>
__device__ __forceinline__ void for_each_tile(const HopperTiles<Config>& tiles, HopperTile<Config> tile, Use use) {
  // There and back, as the list of a ragged batch has the longest ones first.
  uint32 step = 2 * (HopperTiles<Config>::stride() - HopperTiles<Config>::first()) - 1;
#pragma unroll 1
  for (uint32 index = HopperTiles<Config>::first();;) {
    if constexpr (Config::Blocks::kListed) tile.listed = ListedBlocks<Config>{tiles}.count(tile);
    use(tile);
    index += step;
    if (index >= tiles.count()) return;
    step = 2 * HopperTiles<Config>::stride() - step;
    if constexpr (kFeeds) {
      ptx::bar_sync<HopperShape<Config>::kThreads>(NamedBarrier::tile_done);
    } else {
      ptx::fence_proxy_async();  // what was joined lies where the next keys go
      ptx::bar_arrive<HopperShape<Config>::kThreads>(NamedBarrier::tile_done);
    }
    tile = tiles.find(index);
  }
}

// --- The feeders: of the keys and the query, and of the values ------------------------------------------------------

template <class Config>
__device__ __forceinline__ bool feeds_keys(int warp) {
  return warp < kFeedersOfRing<Config>;
}

// What needs no consumer, as slots are empty.
template <class Config>
__device__ __forceinline__ void begin_feeding(HopperLoader<Config>& loader, BlockWalk<Config>& walk,
                                              const HopperTile<Config>& tile, int warp) {
  const int first = walk.begin(tile);
  if (feeds_keys<Config>(warp)) loader.request_key(tile, first, walk.note());
  if (warp == 0) loader.request_query(tile);
}

template <class Config>
__device__ __forceinline__ void go_on_feeding(HopperLoader<Config>& loader, BlockWalk<Config>& walk,
                                              const HopperTile<Config>& tile, int warp) {
  if (feeds_keys<Config>(warp))
    walk.go(tile, [&](int, int next) { loader.request_key(tile, next, walk.note()); });
  else
    loader.request_value(tile, walk.go(tile, [&](int block, int) { loader.request_value(tile, block); }));
}

// By one thread of a warp, or by all of it.
template <class Config>
__device__ __forceinline__ void feed(const HopperTiles<Config>& tiles, const HopperShape<Config>& shape,
                                     const HopperTile<Config>& first, int warp) {
  HopperLoader<Config> loader(tiles.args, shape, warp % kFeedersOfRing<Config>);
  ClusterJoin<HopperShape<Config>> cluster(shape);
  const bool loads = LoadingFeeder<Config>::is(warp, ptx::tid_x());
  for_each_tile<true>(tiles, first, [&](const HopperTile<Config>& tile) {
    BlockWalk<Config> walk(tiles.args);
    if (loads) begin_feeding(loader, walk, tile, warp);
    cluster.meet();
    if (loads) go_on_feeding(loader, walk, tile, warp);
  });
}

// --- The consumers --------------------------------------------------------------------------------------------------

template <class Config>
struct DecodeRings {
  using Shape = HopperShape<Config>;

  RingReader<typename Shape::QRing, 1> queries;
  RingReader<typename Shape::KRing, 1> keys;
  RingReader<typename Shape::VRing, 1> values;

  __device__ __forceinline__ explicit DecodeRings(const Shape& shape)
      : queries(shape.queries()), keys(shape.keys()), values(shape.values()) {}
};

// Of one tile, a warp.
template <class Config>
class DecodeConsumer {
  using Shape = HopperShape<Config>;
  using Tile = HopperTile<Config>;
  using KTile = typename Shape::KTile;
  using VTile = typename Shape::VTile;
  using Fragments = typename Config::Stored::template Fragments<Config, DecodeWarpShape<Config>>;
  using Softmax = WarpSoftmax<Config::kRescale>;
  using Warp =
      typename Choose<kUsesTensorCores<Config>, WarpAttention<Config, DecodeWarpShape<Config>, Softmax, Fragments>,
                      FmaAttention<Config, Shape, Softmax>>::type;
  static constexpr int kKeys = Config::kBlockKv / Shape::kConsumerWarps;  // of a block, a warp's
  using Scores = typename Warp::template Scores<kKeys>;
  using ScoreRow = typename Score<Config>::Row;
  using Rows = LaneRows<ScoreRow>;
  struct NoRows {};
  // What is kept of them from block to block.
  using KeptRows = typename Choose<Score<Config>::kIsLong, NoRows, Rows>::type;
  using InCommon = Common<1, ScoreRow::kCommon>;
  using Dropouts = typename Config::Dropouts;
  using Additions = typename Config::SoftmaxParts;
  using Sequences = typename Config::Sequences;
  using Part = typename Shape::Part;
  using Row = JoinedRow<Part>;
  using Join = ClusterJoin<Shape>;

 public:
  __device__ __forceinline__ DecodeConsumer(const HopperTiles<Config>& tiles_, const Shape& shape_,
                                            DecodeRings<Config>& rings_, Join& cluster_, const Tile& tile_, int warp_)
      : args(tiles_.args),
        shape(shape_),
        tiles(tiles_),
        rings(rings_),
        cluster(cluster_),
        tile(tile_),
        blocks(tiles.visited(tile, tile.first_row, tile.first_row + Config::kBlockQ - 1)),
        warp(warp_),
        lane(ptx::tid_x() % kWarpSize),
        scales(tiles, tile, lane),
        self(score().unit(), rings_.queries.slot(), lane) {}

  __device__ __forceinline__ void run() {
    take_query();
    visit_blocks();
    meet_warps();  // nobody reads keys and values any more
    if (Join::blocks() > 1 && Join::rank() == 0 && warp == 0) cluster.make_room(rows(), lane);
    scales.apply_to_output(self.o);
    shape.part(warp).template write<typename Fragments::Columns>(self.softmax, self.o, lane);
    meet_warps();
    if (Join::rank() > 0)
      return join<Shape::kConsumerWarps>(Shape::kConsumerWarps,
                                         [&](const Row& row, int at) { cluster.send(row, at, lane); });
    join_cluster();
    if (tile.is_partial() && args.splits.counters != nullptr && comes_last()) join_splits();
  }

 private:
  // --- The blocks of the tile ----------------------------------------------------------------------------------------

  __device__ __forceinline__ void take_query() {
    rings.queries.wait_full();
    if constexpr (DecodeWarpShape<Config>::kQueryInRegisters) self.keep_query();
  }

  __device__ __forceinline__ void visit_blocks() {
    BlockCursor<Config> at(tile.listed, blocks.end);
    const KeptRows kept = kept_rows();
#pragma unroll 1
    do {
      rings.keys.wait_full();
      at.read(shape.note(rings.keys.stage()));
      scales.find(first_key_of(at.block));
      Scores s;
      self.template compute_scores<kKeys>(s, rings.keys.slot() + warp * kKeys * KTile::kRowBytes);
      rings.keys.release(ptx::elect());
      scales.apply_to_scores(s);
      const auto shift = self.softmax.raise_maximum(s, self.o, finish_scores(s, rows_now(kept), at));
      scales.raise(self.o);
      rings.values.wait_full();
      accumulate_output(s, shift, rings.values.slot() + warp * kKeys * VTile::kRowBytes, at.block);
      rings.values.release(ptx::elect());
      scales.look_ahead();
    } while (at.go_on(blocks.first));
    rings.queries.release(ptx::elect());
  }

  // From Q K^T to the softmax, but for what the scores of a row have in common.
  __device__ __forceinline__ InCommon finish_scores(Scores& s, const Rows& rows, const BlockCursor<Config>& at) const {
    const int first_key = first_key_of(at.block);
    InCommon common;
    if (args.core.sizes.query_sign != 0) change_sign(s);
    if constexpr (ScoreRow::kChanges) common = score_products(s, rows, first_key, lane);
    if constexpr (Config::Predicates::kAny)
      if (!at.is_whole()) hide_by_predicates(s, first_key);
    const auto mask = tiles.mask_of(tile);
    if (at.block >= blocks.clean_end) mask_end(s, tile.first_row, first_key, mask, lane);
    if (at.block < blocks.clean_first) mask_begin(s, tile.first_row, first_key, mask, lane);
    return common;
  }
  // For a negative scale: the scores of -Q with the scale's magnitude, so that the softmax may take maxima.
  __device__ __forceinline__ static void change_sign(Scores& s) {
#pragma unroll
    for (auto& column : s.x[0])
#pragma unroll
      for (float& x : column) x = -x;
  }
  __device__ __forceinline__ void hide_by_predicates(Scores& s, int first_key) const {
    const auto rows = rows_of_lane(typename Config::Predicates(args), tile.first_row, lane,
                                   [&](int row) { return tiles.place_of(tile, row); });
    ::hide_by_predicates(s, 0, rows.upper, rows.lower.beside(rows.upper), first_key, lane);
  }

  __device__ __forceinline__ void accumulate_output(const Scores& s, const typename Warp::Shift& shift,
                                                    SmemAddress values, int block) {
    const auto kept = [&](int, int h, int column) {
      if constexpr (Dropouts::kAny) {
        static_assert(kKeys % kKeptKeys == 0, "random bits are drawn for as many keys at once");
        return Dropouts(args)
            .row([&] { return tiles.place_of(tile, tile.first_row + 8 * h + lane / 4); })
            .kept(first_key_of(block) + lane % 4 * 2 + column);
      }
    };
    uint32 flips = 0;
    if constexpr (Dropouts::kAny) flips = Dropouts(args).flips();
    self.template accumulate_output<kKeys>(s, shift, values, kept, flips, scales);
  }

  // What the parts in the slot of scores know of the lane's rows.
  __device__ __forceinline__ Rows rows_of_tile() const {
    if constexpr (!ScoreRow::kChanges)
      return {};
    else
      return rows_of_lane(score(), tile.first_row, lane, [&](int row) { return tiles.place_of(tile, row); });
  }
  __device__ __forceinline__ KeptRows kept_rows() const {
    if constexpr (Score<Config>::kIsLong)
      return {};
    else
      return rows_of_tile();
  }
  __device__ __forceinline__ Rows rows_now(const KeptRows& kept) const {
    if constexpr (Score<Config>::kIsLong)
      return rows_of_tile();
    else
      return kept;
  }

  // --- The end of the tile -------------------------------------------------------------------------------------------

  // The rows that there are: make(row, which) by half a warp each, of which some may have no row and make another's,
  // and use(row, which).
  template <class Make, class Use>
  __device__ __forceinline__ void for_each_row(Make make, Use use) const {
    const int last = rows() - 1;
#pragma unroll 1
    for (int first = warp; first <= last; first += Row::kRowsOfWarp * Shape::kConsumerWarps) {
      const int at = first + lane / Row::kLanes * Shape::kConsumerWarps;
      Row row(self.softmax.scale_log2);
      make(row, min(at, last));
      if (at <= last) use(row, at);
    }
  }

  // The rows of so many parts to use(row, which).
  template <int kMostParts, class Use>
  __device__ __forceinline__ void join(int parts, Use use) const {
    for_each_row(
        [&](Row& row, int at) { row.template join<kMostParts>(parts, at, lane, [&](int i) { return shape.part(i); }); },
        use);
  }

  __device__ __forceinline__ void join_cluster() const {
    cluster.wait_for_rows();
    join<Shape::kMostParts>(Shape::kConsumerWarps + Join::blocks() - 1, [&](Row& row, int at) { finish(row, at); });
  }

  // Whether all other splits of the tile have been written before this one. What they have written is seen then.
  __device__ __forceinline__ bool comes_last() const {
    const SmemAddress answer = shape.part(0).place;
    meet_warps();  // the split's rows are written, and parts have been read
    if (warp == 0 && lane == 0) {
      uint32* const counter = args.splits.counters + tile.first_slot();
      const bool last = ptx::atom_increment_acq_rel(counter) + 1 == static_cast<uint32>(tile.count);
      if (last) *counter = 0;
      ptx::st_shared(answer, static_cast<uint32>(last));
    }
    meet_warps();
    return ptx::ld_shared_word(answer) != 0;
  }

  __device__ __forceinline__ void join_splits() const {
    SplitSum sum;
    for_each_row(
        [&](Row& row, int at) {
          sum = row.join_splits(PartialRow::of_all(args.splits, tile, at, Config::kHeadDimV), lane);
        },
        [&](const Row& row, int at) { write(row, tile.first_row + at, sum.natural_lse()); });
  }

  // Divides by the sum, and writes the row and its LSE.
  __device__ __forceinline__ void finish(Row& row, int at) const {
    const int of_sequence = tile.first_row + at;
    const auto end = end_row(
        Additions(args), row, 0, 0, [&] { return tiles.place_of(tile, of_sequence); }, tile.is_first());
    float factor = end.total == 0.0f ? 0.0f : ptx::rcp(end.total);
    if constexpr (Additions::kAny) factor *= end.kept;
    if constexpr (Dropouts::kAny) factor *= Dropouts(args).scale();
    // Without keys what was read in place of values may be NaN, and times 0 it still is.
    const bool has_keys = tiles.sequence_of(tile).keys > 0;
#pragma unroll
    for (auto& pass : row.o)
#pragma unroll
      for (float& x : pass) x = has_keys ? x * factor : 0.0f;
    if (tile.is_partial())
      write_partial(row, at, end.log2_sum_exp(row, 0, 0));
    else
      write(row, of_sequence, told_lse<true>(end, row, 0, 0));
  }

  __device__ __forceinline__ void write(const Row& row, int of_sequence, float lse) const {
    const PackedHeads heads = tiles.heads();
    const int head = heads.head(tile.head, of_sequence);
    const int query = Sequences::first_query(tile) + heads.query(of_sequence);
    const int batch = Sequences::query_batch(tile, tile.batch);
    const auto in = [&](const RowStrides& strides) {
      return batch * strides.batch + query * strides.row + head * strides.head;
    };
    char* const out = args.splits.out + in(args.splits.out_strides);
    for_each_pass([&](int pass, int column) {
      const auto& o = row.o[pass];
      ptx::st_global(out + 2 * column, ptx::cvt_rn_x2(typename Config::Element{}, o[0], o[1]),
                     ptx::cvt_rn_x2(typename Config::Element{}, o[2], o[3]));
    });
    if (Row::is_first_lane(lane) && args.core.lse != nullptr)
      ptx::st_global(reinterpret_cast<char*>(args.core.lse) + in(args.core.lse_strides), lse);
  }
  __device__ __forceinline__ void write_partial(const Row& row, int at, const Log2& weight) const {
    const PartialRow partial(args.splits, tile.slot, at, Config::kHeadDimV);
    for_each_pass([&](int pass, int column) {
      const auto& o = row.o[pass];
      ptx::st_global(partial.out + column, ptx::Chunk{__float_as_uint(o[0]), __float_as_uint(o[1]),
                                                      __float_as_uint(o[2]), __float_as_uint(o[3])});
    });
    if (Row::is_first_lane(lane)) partial.write_weight(weight);
  }
  // Of the lane's columns that there are: body(pass, first of them).
  template <class Body>
  __device__ __forceinline__ void for_each_pass(Body body) const {
#pragma unroll
    for (int pass = 0; pass < Row::kPasses; ++pass)
      if (Row::column(pass, lane) < Config::kHeadDimV) body(pass, Row::column(pass, lane));
  }

  __device__ __forceinline__ static void meet_warps() {
    ptx::bar_sync<Shape::kConsumerThreads>(NamedBarrier::first_warpgroup);
  }

  // --- Places ------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ Score<Config> score() const { return Score<Config>(args); }
  // Of a block, the first one of this warp.
  __device__ __forceinline__ int first_key_of(int block) const { return block * Config::kBlockKv + warp * kKeys; }
  // Of the tile, those that there are. A sequence may have more queries than the call said: its slot has no room for
  // them.
  __device__ __forceinline__ int rows() const {
    const int most = tile.is_partial() ? args.splits.rows : Config::kBlockQ;
    return min(tiles.heads().rows(tiles.sequence_of(tile).queries) - tile.first_row, most);
  }

  const typename Config::Arguments& args;
  const Shape shape;
  const HopperTiles<Config>& tiles;
  DecodeRings<Config>& rings;
  Join& cluster;
  const Tile& tile;
  const BlockRuns blocks;
  const int warp, lane;
  typename Config::Stored::template Scales<Config> scales;
  Warp self;
};

template <class Config>
__device__ __forceinline__ void forward_hopper_decode(const typename Config::Arguments& args, SmemAddress smem) {
  // Launches are short: the next one may begin before this one ends. It finds its tile meanwhile, unless that is said
  // by what this one may write.
  constexpr bool kTileInMemory = Config::Sequences::kRagged || Config::Masks::kInMemory;
  ptx::launch_dependents();
  const HopperShape<Config> shape{smem};
  open_block<Config>(args.core, shape, 0);
  const HopperTiles<Config> tiles{args};
  if constexpr (kTileInMemory) ptx::wait_for_grids();
  // A launch for a ragged batch has as many blocks as there may be tiles.
  const HopperTile<Config> first = tiles.find_first();
  if (Config::Sequences::kRagged && first.end_block == 0) return;
  using Join = ClusterJoin<HopperShape<Config>>;
  Join::announce();
  if constexpr (!kTileInMemory) ptx::wait_for_grids();
  const int warp = ptx::shfl_first(ptx::tid_x() / kWarpSize);
  if (warp < HopperShape<Config>::kProducerWarps) return feed(tiles, shape, first, warp);
  DecodeRings<Config> rings(shape);
  Join cluster(shape);
  cluster.meet();
  for_each_tile<false>(tiles, first, [&](const HopperTile<Config>& tile) {
    DecodeConsumer<Config>(tiles, shape, rings, cluster, tile, warp - HopperShape<Config>::kProducerWarps).run();
    cluster.end_tile();
  });
}
