// SPDX-License-Identifier: Apache-2.0
// Attention forward for Hopper where a head dim is above 256: a block has 64 query rows, and two warpgroups, its
// streams. A stream computes scores and softmax of every other block of keys, and has half of the output's columns, to
// which it adds P V of all blocks: P of its own out of registers, and of the other stream's out of shared memory, where
// the running maxima go with it. docs/kernels/large_heads.md explains who waits for whom.
#pragma once

#include "hopper/block_scores.cuh"
#include "hopper/block_walk.cuh"
#include "hopper/deferred_softmax.cuh"
#include "hopper/large_loader.cuh"
#include "hopper/large_shape.cuh"
#include "hopper/loader.cuh"
#include "hopper/store.cuh"
#include "hopper/tiles.cuh"
#include "ptx/barrier.cuh"
#include "ptx/cluster.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

// The pieces of a stream: some are used beyond the cursor's advance, and given back in their order.
template <class Ring, int kCluster>
class PieceReader {
  RingReader<Ring, kCluster> ring;
  int oldest = 0;  // of those that are not given back

 public:
  __device__ __forceinline__ explicit PieceReader(const Ring& place) : ring(place) {}
  __device__ __forceinline__ void wait_full() const { ring.wait_full(); }
  __device__ __forceinline__ int take() { return ring.take(); }
  __device__ __forceinline__ void give_back(int count) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      ring.give_back(oldest, ptx::elect());
      if (++oldest == Ring::kStages) oldest = 0;
    }
  }
};

template <class Config>
class LargeConsumer {
  using Shape = LargeShape<Config>;
  using Tile = HopperTile<Config>;
  using QTile = typename Shape::QTile;
  using KeyPiece = typename Shape::KeyPiece;
  using ValuePiece = typename Shape::ValuePiece;
  using PTile = typename Shape::PTile;
  // Generated, without members: their registers are known to PTX alone.
  using Scores = typename Config::Scores;
  using Probabilities = typename Config::Probabilities;
  using Output = typename Config::Output;
  static constexpr int kColumnsOfLane = Config::kBlockKv / 4;  // of a row
  using Softmax = DeferredSoftmax<Scores, Config::kRescale,
                                  typename Config::Products::template Probabilities<Config::kRescale, kColumnsOfLane>>;
  using OfBlock = BlockScores<Config>;

 public:
  __device__ __forceinline__ LargeConsumer(const typename Config::Arguments& args, const Shape& shape_, int stream_)
      : shape(shape_),
        tiles{args},
        stream(stream_),
        of_block{tiles, warp_row()},
        announced(shape_.tiles()),
        queries(shape_.queries()),
        pieces(shape_.pieces(stream_)),
        own_pieces(shape_.own_pieces(stream_)),
        outgoing(shape_.exchange(stream_)),
        incoming(shape_.exchange(1 - stream_)),
        softmax(Score<Config>(args).unit()),
        q(QTile::k_major(in_block(shape_.smem))),
        first_key(KeyPiece::k_major(in_block(shape_.pieces(stream_).slot(0)))),
        first_value(ValuePiece::n_major(in_block(shape_.pieces(stream_).slot(0)))),
        own_values(Shape::OwnValues::n_major(in_block(shape_.own_pieces(stream_).slot(0)))),
        p(PTile::k_major(in_block(incoming.slot()))) {}

  __device__ __forceinline__ void run() {
    Scores::declare();
    Probabilities::declare();
    Output::declare();
    const HopperStore<Config, Shape> store{tiles, stream * Shape::kOutputColumns, stream == 0};
#pragma unroll 1
    for (Visit visit = next_visit(); visit.end != 0; visit = next_visit()) {
      queries.wait_full();
      if (tiles.args.core.sizes.query_sign != 0) flip_query(tiles.args.core.sizes.query_sign);
      visit_blocks(visit);
      join_sums();
      const Tile tile = tile_of(visit);
      store.write(softmax, tile, tile.first_row + warp_row(), output_slab());
      store.wait_read();
      queries.release(ptx::elect());
      announced.give_back(visit.stage, ptx::elect());
      if constexpr (Shape::kOneTile) break;
    }
    store.finish();
  }

 private:
  // What a stream does of a tile. The tile itself stays in shared memory.
  struct Visit : OfBlock::KeptDrops {
    int stage;  // of its description
    int count;  // of the blocks that both streams visit
    int end;    // of its blocks; 0: there is no further tile
    int clean_first, clean_end;
  };
  // A block of this stream's.
  using Cursor = BlockCursor<Config>;

  __device__ __forceinline__ Visit next_visit() {
    Visit visit{};
    visit.stage = announced.take();
    const Tile tile = tile_of(visit);
    visit.end = ptx::shfl_first(tile.end_block);
    if (visit.end == 0) return visit;
    const int first_row = tile.first_row;
    const BlockRuns blocks = tiles.visited(tile, first_row, first_row + kWarpgroupRows - 1);
    visit.clean_end = ptx::shfl_first(blocks.clean_end);
    visit.count = visit.end;
    if constexpr (Mask<Config>::kBegins) {
      visit.clean_first = ptx::shfl_first(blocks.clean_first);
      visit.count = ptx::shfl_first(tile.end_block - tile.first_block);
    }
    if constexpr (Config::Blocks::kListed) visit.count = ptx::shfl_first(max(tile.listed, 1));
    static_cast<typename OfBlock::KeptDrops&>(visit) = of_block.kept_drops_of(tile);
    return visit;
  }
  __device__ __forceinline__ Tile tile_of(const Visit& visit) const {
    return Tile::read(announced.place.slot(visit.stage));
  }

  // Read where a block needs it.
  template <bool kNeeds>
  __device__ __forceinline__ Tile tile_where(const Visit& visit) const {
    if constexpr (kNeeds)
      return tile_of(visit);
    else
      return {};
  }

  // --- The blocks of a tile ----------------------------------------------------------------------------------------

  // From the stream's first block to the output. Nothing is in flight where the loop begins anew: ptxas, which has to
  // know where products land, would wait for each of its own.
  __device__ __forceinline__ void visit_blocks(const Visit& visit) {
    const typename OfBlock::KeptRows rows = of_block.kept_rows_of(tile_of(visit));
    softmax.reset();
    begun = 0;
    int visited = stream;
    Cursor at(0, visit.end - visited);
    if (visited < visit.count) issue_scores<false>(at);
#pragma unroll 1
    for (; visited < visit.count; visited += Shape::kStreams) {
      const bool follows = visited > 0;
      if (follows) issue_output_of_other();
      const bool raised = take_block(visit, rows, at, follows);
      Probabilities::keep();
      if (raised && begun != 0) Output::multiply(softmax.factor);
      uint32 pairs[kPairs];
      Probabilities::read(pairs);
      issue_output();
      send(pairs, raised);
      if (visited + Shape::kStreams < visit.count) {
        at = Cursor(0, visit.end - visited - Shape::kStreams);
        issue_scores<true>(at);
      } else {
        ptx::wgmma_wait_group<0>();
        give_back_own_values();
      }
    }
    if (visited == visit.count) {  // the last block was the other stream's
      issue_output_of_other();
      finish_output_of_other(true);
    }
  }

  // Scores to probabilities, while P V of the other stream's block is computed, and waits for that. True when the
  // output has to be rescaled.
  __device__ __forceinline__ bool take_block(const Visit& visit, const typename OfBlock::KeptRows& rows,
                                             const Cursor& at, bool follows) {
    const auto common = of_block.score(tile_where<OfBlock::kFindsRows>(visit), rows, at.block);
    hide(visit, at);
    typename Softmax::Shift shift;
    const bool raised = softmax.raise_maximum(shift, common);
    if (raised) softmax.sum[0][0] *= softmax.factor[0], softmax.sum[0][1] *= softmax.factor[1];
    if constexpr (Shape::kOutputEarly) finish_output_of_other(follows);
    float block_sum[2];
    softmax.exponentiate(shift, block_sum, of_block.stays_in(tile_where<OfBlock::kFindsDrops>(visit), visit, at.block));
    softmax.add(block_sum);
    if constexpr (!Shape::kOutputEarly) {
      pieces.wait_full();  // the values come next; and no exponential is moved behind what is waited for here
      finish_output_of_other(follows);
    }
    return raised;
  }

  __device__ __forceinline__ void hide(const Visit& visit, const Cursor& at) const {
    const bool at_begin = Mask<Config>::kBegins && at.block < visit.clean_first;
    const bool by_spans = at.block >= visit.clean_end || at_begin;
    const bool by_predicates = Config::Predicates::kAny && !at.is_whole();
    if (by_spans || by_predicates) of_block.hide(tile_of(visit), at.block, by_spans, by_predicates);
  }

  // --- Products. Between issue and wait nothing may touch their registers. -----------------------------------------

  // Of a block of this stream's, to its scores. kBehind: P V of this stream's block before is in flight.
  template <bool kBehind>
  __device__ __forceinline__ void issue_scores(Cursor& at) {
    issue_scores_from<0, kBehind>(at);
    ptx::wgmma_wait_group<0>();
    if constexpr (Shape::kOwnPieces == 0) pieces.give_back(1);
  }
  template <int kPiece, bool kBehind>
  __device__ __forceinline__ void issue_scores_from(Cursor& at) {
    constexpr bool kOwn = kPiece >= Shape::kPassingPieces;
    // The last panel passes, if it is not one of values.
    constexpr int kPanel = kOwn ? 0 : kPiece + Shape::kOwnPieces;
    constexpr int kStepsLeft = Shape::kKeySteps - kPanel * Shape::kStepsOfKeyPiece;
    constexpr int kSteps = kStepsLeft < Shape::kStepsOfKeyPiece ? kStepsLeft : Shape::kStepsOfKeyPiece;
    int stage;
    if constexpr (kOwn)
      stage = own_pieces.take();
    else
      stage = pieces.take();
    if constexpr (kPiece == 0) at.read(shape.note(stream, stage));
    const int panel =
        kOwn ? Shape::own_panel(stream, kPiece - Shape::kPassingPieces) : Shape::passing_panel(stream, kPiece);
    ptx::wgmma_fence();
    const uint64 query = ptx::made_here(q + static_cast<uint64>(panel * (QTile::kPanelBytes >> QTile::kUnitBits)));
    const uint64 key = ptx::made_here(kOwn ? own_key(stage) : of_slot(first_key, stage));
    uint64 a[kSteps], b[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      a[step] = query + QTile::k_major_step(step);
      b[step] = key + KeyPiece::k_major_step(step);
    }
    Scores::template issue<(kPiece > 0), kSteps>(a, b);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<1>();
    if constexpr (kPiece > 0 && kPiece <= Shape::kPassingPieces)
      pieces.give_back(1);
    else if constexpr (kPiece == 0 && kBehind)
      give_back_own_values();
    if constexpr (kPiece + 1 < Shape::kKeyPieces) issue_scores_from<kPiece + 1, kBehind>(at);
  }

  // P V of this stream's block.
  __device__ __forceinline__ void issue_output() {
    issue_output_from<0>();
    ptx::wgmma_commit_group();
  }
  template <int kPiece>
  __device__ __forceinline__ void issue_output_from() {
    uint64 v[Shape::kStepsOfValuePiece];
    if constexpr (Shape::kOwnPieces == 0) {
      take_values(v);
    } else {
#pragma unroll
      for (int step = 0; step < Shape::kStepsOfValuePiece; ++step)
        v[step] = own_values + Shape::OwnValues::n_major_step(kPiece * Shape::kStepsOfValuePiece + step);
    }
    ptx::wgmma_fence();
    Output::template issue<kPiece>(v, begun);
    begun = 1;
    if constexpr (kPiece + 1 < Shape::kValuePieces) issue_output_from<kPiece + 1>();
  }

  // The same of the other stream's, as soon as that has sent P, its maxima and what they rose by.
  __device__ __forceinline__ void issue_output_of_other() {
    incoming.wait_full();
    take_maxima();
#pragma unroll
    for (int piece = 0; piece < Shape::kValuePieces; ++piece) {
      uint64 v[Shape::kStepsOfValuePiece], of_other[Shape::kStepsOfValuePiece];
      take_values(v);
#pragma unroll
      for (int step = 0; step < Shape::kStepsOfValuePiece; ++step)
        of_other[step] = p + PTile::k_major_step(piece * Shape::kStepsOfValuePiece + step);
      ptx::wgmma_fence();
      Output::issue(of_other, v, begun);
      begun = 1;
    }
    ptx::wgmma_commit_group();
  }
  // issued: whether there is any. The wait has to stand outside of a branch, or ptxas does not know what it is for.
  __device__ __forceinline__ void finish_output_of_other(bool issued) {
    ptx::wgmma_wait_group<0>();
    if (!issued) return;
    pieces.give_back(Shape::kValuePieces);
    incoming.release(ptx::elect());
  }

  __device__ __forceinline__ void take_values(uint64 (&v)[Shape::kStepsOfValuePiece]) {
    const uint64 first = of_slot(first_value, pieces.take());
#pragma unroll
    for (int step = 0; step < Shape::kStepsOfValuePiece; ++step) v[step] = first + ValuePiece::n_major_step(step);
  }

  __device__ __forceinline__ void give_back_own_values() {
    if constexpr (Shape::kOwnPieces == 0)
      pieces.give_back(Shape::kValuePieces);
    else
      own_pieces.give_back(Shape::kOwnPieces);
  }

  // --- What streams send each other: P with its maxima, and at a tile's end the sums -------------------------------

  static constexpr int kPairs = Config::kBlockKv / 4;  // of probabilities, of a lane

  // The other stream has read what was sent before when it has sent P of its next block, so that this waits for
  // nothing.
  __device__ __forceinline__ void send(const uint32 (&pairs)[kPairs], bool raised) {
    constexpr int kOfStep = 4;
    outgoing.wait_empty();
    const SmemAddress row =
        outgoing.slot() + PTile::offset(warp_row() + lane() % Shape::kStoreRows, lane() / Shape::kStoreRows);
#pragma unroll
    for (int i = 0; i < kPairs; i += kOfStep)
      ptx::stmatrix_x4(PTile::move(row, 0, i / 2), pairs[i], pairs[i + 1], pairs[i + 2], pairs[i + 3]);
    if (lane() % 4 == 0)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        ptx::st_shared(maximum(stream, h), softmax.maximum[0][h], raised ? softmax.factor[h] : 1.0f);
    ptx::fence_proxy_async();
    end_sending();
  }
  // Once the rows of a warp are written, one thread says so.
  __device__ __forceinline__ void end_sending() {
    ptx::bar_warp_sync();
    if (ptx::elect()) ptx::mbarrier_arrive(outgoing.full());
    outgoing.advance();
  }

  __device__ __forceinline__ void take_maxima() {
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) ptx::ld_shared(maximum(1 - stream, h), softmax.maximum[0][h], factor[h]);
    softmax.follow(factor);
    if (begun != 0 && ptx::vote_any(factor[0] != 1.0f || factor[1] != 1.0f)) Output::multiply(factor);
  }

  // Each stream has summed the probabilities of its own blocks. When the other's sums are here it has read its last
  // keys, and no longer needs the query.
  __device__ __forceinline__ void join_sums() {
    constexpr int kBytes = 2 * sizeof(float);
    const int place = ptx::tid_x() % kWarpgroupSize * kBytes;
    outgoing.wait_empty();
    ptx::st_shared(outgoing.slot() + place, softmax.sum[0][0], softmax.sum[0][1]);
    end_sending();
    incoming.wait_full();
    float of_other[2];
    ptx::ld_shared(incoming.slot() + place, of_other[0], of_other[1]);
    softmax.add(of_other);
    ptx::bar_warp_sync();
    incoming.release(ptx::elect());
  }

  // --- The query, and places ---------------------------------------------------------------------------------------

  // For a negative scale, by both streams: the scores of -Q with the scale's magnitude, so that the softmax may take
  // maxima.
  __device__ __forceinline__ void flip_query(uint32 sign) const {
    constexpr int kChunks = kWarpgroupRows * QTile::kPanels * QTile::kChunksOfRow;
    const int thread = ptx::tid_x() % kWarpgroupSize + stream * kWarpgroupSize;
#pragma unroll 1
    for (int i = thread; i < kChunks; i += Shape::kConsumerThreads) {
      const SmemAddress at = shape.smem + QTile::offset(i % kWarpgroupRows, i / kWarpgroupRows);
      ptx::Chunk c = ptx::ld_shared(at);
      c.x ^= sign, c.y ^= sign, c.z ^= sign, c.w ^= sign;
      ptx::st_shared(at, c);
    }
    ptx::fence_proxy_async();
    ptx::bar_sync<Shape::kConsumerThreads>(NamedBarrier::query_flipped);
  }

  // In a cluster the upper bits of an address name the block, which a matrix descriptor has no place for.
  static __device__ __forceinline__ SmemAddress in_block(SmemAddress address) {
    return Config::kCluster == 1 ? address : address & QTile::kAddressMask;
  }
  static __device__ __forceinline__ uint64 of_slot(uint64 first, int stage) {
    return first + static_cast<uint64>(stage * (Shape::kPieceBytes >> QTile::kUnitBits));
  }
  __device__ __forceinline__ static int lane() { return ptx::tid_x() % kWarpSize; }
  // The first of the warp's rows.
  __device__ __forceinline__ static int warp_row() {
    return ptx::tid_x() % kWarpgroupSize / kWarpSize * Shape::kStoreRows;
  }
  // Keys of an own piece: its place is fixed, as that of a panel of values.
  __device__ __forceinline__ uint64 own_key(int stage) const {
    return KeyPiece::k_major(0) + (own_values & (KeyPiece::kAddressMask >> KeyPiece::kUnitBits)) +
           static_cast<uint64>(stage * (Shape::kPieceBytes >> KeyPiece::kUnitBits));
  }
  // Of half h of the lane's rows.
  __device__ __forceinline__ SmemAddress maximum(int of_stream, int h) const {
    return shape.maxima(of_stream) + (warp_row() + 8 * h + lane() / 4) * Shape::kBytesOfMaximum;
  }
  // In the place of the query.
  __device__ __forceinline__ SmemAddress output_slab() const {
    return shape.smem + (stream * Shape::kWarpsOfStream + warp_row() / Shape::kStoreRows) * Shape::kWarpOutputBytes;
  }

  const Shape shape;
  const HopperTiles<Config> tiles;
  const int stream;
  const OfBlock of_block;
  RingReader<typename Shape::TileRing, 1> announced;
  RingReader<typename Shape::QRing, 1> queries;
  PieceReader<typename Shape::PieceRing, Config::kCluster> pieces;
  PieceReader<typename Shape::OwnRing, Config::kCluster> own_pieces;
  RingWriter<typename Shape::ExchangeRing> outgoing;
  RingReader<typename Shape::ExchangeRing, 1> incoming;
  Softmax softmax;
  uint32 begun = 0;  // 1: the output has products of this tile; else the next ones overwrite it
  // Matrix descriptors: of the query, of the first slot of the ring as keys and as values, of what stays as values, and
  // of the other stream's P.
  const uint64 q, first_key, first_value, own_values, p;
};

// The producer's warpgroup: a feeder for each stream, and one that announces tiles.
template <class Config>
__device__ __forceinline__ void feed_large(const typename Config::Arguments& args, const LargeShape<Config>& shape) {
  using Shape = LargeShape<Config>;
  ptx::setmaxnreg_dec<Shape::kProducerRegisters>();
  const int warp = ptx::shfl_first(ptx::tid_x() / kWarpSize);
  if (warp < Shape::kStreams) {
    if (LoadingFeeder<Config>::is(warp, ptx::tid_x())) LargeLoader<Config>(args, shape, warp).run();
  } else if (AnnouncingFeeder<Config>::is(Shape::kStreams, ptx::tid_x())) {
    HopperAnnouncer<Config, Shape>(args, shape).announce_all();
  }
}

template <class Config>
__device__ __forceinline__ void open_large(const HopperArguments& args, const LargeShape<Config>& shape) {
  using Shape = LargeShape<Config>;
  if (ptx::tid_x() == 0) {
    ptx::prefetch_tensormap(args.k);
    ptx::prefetch_tensormap(args.q);
    ptx::prefetch_tensormap(args.v);
    shape.queries().init(Shape::kConsumerWarps);
#pragma unroll
    for (int stream = 0; stream < Shape::kStreams; ++stream) {
      shape.pieces(stream).init(Shape::kWarpsOfStream * Config::kCluster);
      shape.own_pieces(stream).init(Shape::kWarpsOfStream * Config::kCluster);
      shape.exchange(stream).init(Shape::kWarpsOfStream, Shape::kWarpsOfStream);
    }
    shape.tiles().init(Shape::kConsumerWarps + Shape::kStreams);
    ptx::fence_mbarrier_init();
  }
  ptx::bar_sync();
  if constexpr (Config::kCluster > 1) ptx::cluster_sync();
}

template <class Config>
__device__ __forceinline__ void forward_hopper_large(const typename Config::Arguments& args, SmemAddress smem) {
  using Shape = LargeShape<Config>;
  // A launch for a ragged batch has as many blocks as there may be tiles.
  if constexpr (Config::Sequences::kRagged)
    if (HopperTiles<Config>::first() >= HopperTiles<Config>{args}.count()) return;
  const Shape shape{smem};
  open_large<Config>(args.core, shape);
  const int warpgroup = ptx::shfl_first(ptx::tid_x() / kWarpgroupSize);
  if (warpgroup == 0) {
    feed_large<Config>(args, shape);
  } else {
    ptx::setmaxnreg_inc<Shape::kConsumerRegisters>();
    LargeConsumer<Config>(args, shape, warpgroup - 1).run();
  }
  // A block's shared memory must outlive what others of its cluster send there.
  if constexpr (Config::kCluster > 1) ptx::cluster_sync();
}
