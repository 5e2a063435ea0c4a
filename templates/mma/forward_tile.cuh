// SPDX-License-Identifier: Apache-2.0
// What a forward kernel of the family has around its loop, whoever brings keys and values and multiplies with them: its
// tile's rows and their places, the query, what becomes of products between Q K^T and the softmax, and the way of the
// rows to the output.
#pragma once

#include "attention/blocks.cuh"
#include "attention/keys.cuh"
#include "attention/probability.cuh"
#include "attention/products.cuh"
#include "attention/scores.cuh"
#include "attention/splits.cuh"
#include "attention/stored.cuh"
#include "attention/tile_scheduler.cuh"
#include "attention/values.cuh"
#include "attention/written.cuh"
#include "mma/store.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/special_registers.cuh"

// Shape: of the block. Warp: a warp's arithmetic. Store: how its rows leave.
template <class Config, class Shape, class Warp, class Store>
class ForwardTile {
 public:
  // Whether rows are to be taken as if they were far from 0, by a way on which none depends on others of its tile.
  __device__ __forceinline__ static bool expects_far(const typename Config::Arguments& arguments) {
    if constexpr (Config::kSplitKv) return arguments.splits.fixed != 0;
    return false;
  }
  // Whether there is a tile for this block: a launch for a ragged batch has as many blocks as there may be tiles.
  __device__ __forceinline__ static bool has_tile(const typename Config::Arguments& arguments) {
    return !Sequences::kRagged || ptx::ctaid_x() < Sequences(arguments).count(arguments.core.sizes);
  }

 protected:
  using QTile = typename Shape::QTile;
  using ScoreRow = typename Score<Config>::Row;
  // Heads share tiles. Then the parts in the slots have to be asked for each of a lane's two rows, else for any row of
  // the tile, whose position is all that differs.
  static constexpr bool kPacks = Config::kSplitKv;
  using TileMask = typename Choose<kPacks, PackedMask<Config>, Mask<Config>>::type;
  using ScoreRows = typename Choose<kPacks, LaneRows<ScoreRow>, ScoreRow>::type;
  // What is kept of them from block to block.
  struct NoRows {};
  using KeptRows = typename Choose<Score<Config>::kIsLong, NoRows, ScoreRows>::type;
  using Dropouts = typename Config::Dropouts;
  using Scales = typename Config::Products::template Scales<Config>;
  static constexpr bool kScalesBlocks = Config::Products::kScalesBlocks;
  using Sequences = typename Config::Sequences;
  using Keys = typename Config::Keys;
  using Tile = typename Sequences::Tile;

  static constexpr bool kBegins = Mask<Config>::kBegins;

  __device__ __forceinline__ ForwardTile(const typename Config::Arguments& arguments, SmemAddress smem, bool far)
      : launch(arguments),
        args(arguments.core),
        smem(smem),
        thread(ptx::tid_x()),
        mask(
            arguments, sequence(), [this] { return find_tile().batch; }, keys_of_tile()),
        kept_rows(keep_rows()),
        listed(arguments),
        additions(arguments),
        self(scoring(arguments).unit(),
             smem + thread / kWarpSize / Shape::kWarpsOfRows * Shape::kWarpRows * QTile::kRowBytes,
             thread % kWarpSize) {
    const Tile tile = find_tile();
    first_row = tile.index * Config::kBlockQ;
    const int last_row = min(first_row + Config::kBlockQ, heads().rows(sequence().queries)) - 1;
    blocks = block_runs<Config::kBlockKv, 0>(mask, first_row, last_row);
    if (far) self.softmax.expect_far(), blocks.clean_end = blocks.first;
  }

  // --- From Q K^T to the softmax ------------------------------------------------------------------------------------

  // What the parts make of the products of step i, whose first key is this one; and what all scores of a row lack.
  // whole: no predicate hides any key of the block.
  template <class Scores>
  __device__ __forceinline__ auto change_scores(Scores& s, int i, int first_of_scores, bool whole, bool masks_end) {
    if constexpr (kScalesBlocks) s.multiply(scale_of_products(first_of_scores));
    Common<Shape::kM, ScoreRow::kCommon> common;
    if constexpr (Score<Config>::kIsLong)
      common = score(s, rows(), first_of_scores);
    else if constexpr (ScoreRow::kChanges)
      common = score(s, kept_rows, first_of_scores);
    if constexpr (Config::Predicates::kAny)
      if (!whole) hide(s, first_of_scores);
    if (masks_end) mask_end(s, warp_row(), first_of_scores, mask, thread % kWarpSize);
    if (kBegins && first_key(i) < blocks.clean_first * Config::kBlockKv)
      mask_begin(s, warp_row(), first_of_scores, mask, thread % kWarpSize);
    return common;
  }

  // Of the warp's rows, which are of one block of them.
  __device__ __forceinline__ float scale_of_products(int key) const {
    const Tile tile = find_tile();
    return Scales::of_query(launch, heads(), tile, min(warp_row(), rows_of_sequence() - 1)) *
           Scales::of_key(launch, tile, key);
  }
  template <class Scores>
  __device__ __forceinline__ auto score(Scores& s, const ScoreRows& of, int first_of_scores) const {
    if constexpr (kPacks)
      return score_products(s, of, first_of_scores, thread % kWarpSize);
    else
      return score_products(s, of, warp_row(), first_of_scores, thread % kWarpSize,
                            [this](int query) { return mask.position(query); });
  }
  template <class Scores>
  __device__ __forceinline__ void hide(Scores& s, int first_of_scores) const {
    const auto of = rows_in(typename Config::Predicates(launch));
    if constexpr (kPacks)
      hide_by_predicates(s, 0, of.upper, of.lower.beside(of.upper), first_of_scores, thread % kWarpSize);
    else
      hide_by_predicates(s, of, warp_row(), first_of_scores, thread % kWarpSize,
                         [this](int query) { return mask.position(query); });
  }

  __device__ __forceinline__ auto kept_in(int row) const {
    if constexpr (kPacks)
      return Dropouts(launch).row([&] { return place_of(row); });
    else
      return Dropouts(launch).row([this] { return place(); }).at(mask.position(row));
  }

  // --- The query -----------------------------------------------------------------------------------------------------

  __device__ __forceinline__ void bring_query() {
    const Tile tile = find_tile();
    const char* rows = args.q + Sequences::query_batch(tile, tile.batch) * args.q_strides.batch +
                       tile.head * args.q_strides.head + first_row * args.q_strides.row +
                       Sequences::first_query(tile) * args.q_strides.row;
    QTile::template clear_padding<Shape::kColumns, Shape::kThreads>(smem, thread);
    if constexpr (kPacks)
      QTile::template request_found<Shape::kColumns, Shape::kThreads>(
          smem, [&](int row) { return in_tile(args.q, args.q_strides, tile, first_row + row); },
          rows_of_sequence() - first_row, thread);
    else
      QTile::template request<Shape::kColumns, Shape::kThreads, true>(
          smem, QTile::template source<Shape::kColumns, Shape::kThreads>(rows, args.q_strides.row, thread),
          args.q_strides.row, sequence().queries - first_row, thread);
    ptx::cp_async_commit_group();
    if (args.sizes.query_sign != 0) flip_query();
    if constexpr (Config::kQueryInRegisters) {
      ptx::cp_async_wait_group<0>();
      ptx::bar_sync();
      self.keep_query();
      ptx::bar_sync();
    }
  }

  // For a negative scale: the scores of -Q with the scale's magnitude, so that the softmax may take maxima. A thread
  // flips the chunks that it requested itself.
  __device__ __forceinline__ void flip_query() {
    ptx::cp_async_wait_group<0>();
    for_each_band<Shape::kColumns / kChunkElements, Shape::kThreads>(thread, [&](int row, int chunk, auto step) {
#pragma unroll 1
      for (int at_row = row; at_row < Config::kBlockQ; at_row += decltype(step)::value) {
        const SmemAddress at = smem + QTile::offset(at_row, chunk);
        ptx::Chunk c = ptx::ld_shared(at);
        c.x ^= args.sizes.query_sign, c.y ^= args.sizes.query_sign, c.z ^= args.sizes.query_sign,
            c.w ^= args.sizes.query_sign;
        ptx::st_shared(at, c);
      }
    });
  }

  // --- Places ------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ Tile find_tile() const {
    const uint32 index = ptx::ctaid_x();
    return scheduled_tile<Config>(launch, args.sizes, index, Sequences(launch).entry(args.sizes, index));
  }
  __device__ __forceinline__ KeySpan<Config::kSplitKv> keys_of_tile() const {
    if constexpr (Config::kSplitKv) {
      const Tile tile = find_tile();
      const TileMask unsplit(
          launch, sequence(), [&] { return tile.batch; }, KeySpan<true>::all());
      return split_of<Config>(launch, tile, unsplit.first_key(tile.index * Config::kBlockQ)).keys();
    } else {
      return {};
    }
  }
  // What the parts in a slot, of scores or of predicates, know of rows.
  template <class Slot>
  __device__ __forceinline__ auto rows_in(const Slot& slot) const {
    if constexpr (kPacks)
      return rows_of_lane(slot, found_warp_row(), thread % kWarpSize, [this](int row) { return place_of(row); });
    else
      return slot.row([this] { return place(); });
  }
  // What parts make of the tile's products.
  __device__ __forceinline__ auto scoring(const typename Config::Arguments& arguments) const {
    if constexpr (Scales::kAny)
      return ScaledScore<Config>(arguments, Scales(arguments, heads(), find_tile()).of_products);
    else
      return Score<Config>(arguments);
  }
  __device__ __forceinline__ ScoreRows rows() const { return rows_in(scoring(launch)); }
  __device__ __forceinline__ KeptRows keep_rows() const {
    if constexpr (Score<Config>::kIsLong)
      return {};
    else
      return rows();
  }
  // Of all rows but for their position.
  __device__ __forceinline__ RowPlace place() const {
    const Tile tile = find_tile();
    return {tile.batch, tile.head, 0, sequence()};
  }
  __device__ __forceinline__ RowPlace place_of(int row) const {
    const Tile tile = find_tile();
    return {tile.batch, heads().head(tile.head, row), mask.position(heads().query(row)), sequence()};
  }
  __device__ __forceinline__ auto heads() const {
    if constexpr (kPacks)
      return PackedHeads{args.packed_heads_log2};
    else
      return OneHead{};
  }
  // Of a tile's heads together.
  __device__ __forceinline__ int rows_of_sequence() const { return heads().rows(sequence().queries); }
  // A row of the tile's in a tensor of queries, by what the tensor begins with.
  template <class T>
  __device__ __forceinline__ T* in_tile(T* first, const RowStrides& strides, const Tile& tile, int row) const {
    return first + Sequences::query_batch(tile, tile.batch) * strides.batch +
           heads().head(tile.head, row) * strides.head +
           (Sequences::first_query(tile) + heads().query(row)) * strides.row;
  }
  __device__ __forceinline__ Sequence sequence() const {
    return Sequences::sequence(args.sizes, [this] { return find_tile(); });
  }
  __device__ __forceinline__ int first_key(int i) const { return (blocks.end - 1 - i) * Config::kBlockKv; }
  __device__ __forceinline__ int warp_row() const {
    return first_row + thread / kWarpSize / Shape::kWarpsOfRows * Shape::kWarpRows;
  }
  // The same by who has not kept where the tile begins.
  __device__ __forceinline__ int found_warp_row() const {
    return find_tile().index * Config::kBlockQ + thread / kWarpSize / Shape::kWarpsOfRows * Shape::kWarpRows;
  }
  // Whether the warp has any: of few it helps to load keys alone.
  __device__ __forceinline__ bool has_rows() const { return !kPacks || warp_row() < rows_of_sequence(); }
  // Whether some row of the warp sees a key of a block below those that are masked at the end.
  __device__ __forceinline__ bool sees_block(int i) const {
    return !kBegins || first_key(i) + Config::kBlockKv > mask.first_key(warp_row());
  }
  // By the predicates, where blocks are listed.
  __device__ __forceinline__ SeenBlock seen_of_block(int i) const {
    if constexpr (Config::Blocks::kListed) {
      const Tile tile = find_tile();
      const int last_row = min(first_row + Config::kBlockQ, heads().rows(sequence().queries)) - 1;
      return listed.template seen<Config::kBlockKv>(tile.batch, heads().first(tile.head), heads().query(first_row),
                                                    heads().query(last_row), first_key(i));
    } else {
      return {true, false};
    }
  }
  __device__ __forceinline__ int last_visible_key() const { return mask.last_key(warp_row() + Shape::kWarpRows - 1); }

  // --- The output ----------------------------------------------------------------------------------------------------

  // Finds its place anew: the loop had no register to keep it in.
  __device__ __forceinline__ void finish() {
    const Tile tile = find_tile();
    const int lane = ptx::tid_x() % kWarpSize;
    const int warp = ptx::tid_x() / kWarpSize;
    const int row = tile.index * Config::kBlockQ + warp / Shape::kWarpsOfRows * Shape::kWarpRows;
    const int valid_rows = rows_of_sequence() - row;
    if constexpr (kPacks)
      return tile.slot < 0 ? finish_packed(tile, row, valid_rows, lane) : finish_partial(tile, row, valid_rows, lane);
    const int batch = Sequences::query_batch(tile, tile.batch), before = Sequences::first_query(tile);
    char* lse = reinterpret_cast<char*>(args.lse);
    if (lse != nullptr)
      lse += batch * args.lse_strides.batch + tile.head * args.lse_strides.head + row * args.lse_strides.row +
             before * args.lse_strides.row;
    normalize(
        self.o, self.softmax, additions, Dropouts(launch), Scales(launch, heads(), tile),
        [this](int) { return place(); }, valid_rows, lane, true, lse != nullptr && Store::tells(),
        [lse, stride = args.lse_strides.row, this](int of_warp, const auto& end, int m, int h) {
          *reinterpret_cast<float*>(lse + of_warp * stride) = told_lse<false>(end, self.softmax, m, h);
        });
    const SmemAddress slab = Store::slab(smem, warp);
    char* rows = args.out + batch * args.out_strides.batch + tile.head * args.out_strides.head +
                 row * args.out_strides.row + before * args.out_strides.row;
    Store::rows(self.o, slab, rows, args.out_strides.row, valid_rows, lane);
  }

  // row: the warp's first one.
  __device__ __forceinline__ void finish_packed(const Tile& tile, int row, int valid_rows, int lane) {
    normalize(
        self.o, self.softmax, additions, Dropouts(launch), Scales(launch, heads(), tile),
        [&](int of_warp) { return place_of(row + of_warp); }, valid_rows, lane, true,
        args.lse != nullptr && Store::tells(),
        [&](int of_warp, const auto& end, int m, int h) {
          char* const lse = in_tile(reinterpret_cast<char*>(args.lse), args.lse_strides, tile, row + of_warp);
          *reinterpret_cast<float*>(lse) = told_lse<true>(end, self.softmax, m, h);
        });
    Store::found_rows(
        self.o, Store::slab(smem, ptx::tid_x() / kWarpSize),
        [&](int of_warp) { return in_tile(args.out, args.out_strides, tile, row + of_warp); }, valid_rows, lane);
  }

  // The same of a split.
  __device__ __forceinline__ void finish_partial(const Tile& tile, int row, int valid_rows, int lane) {
    if constexpr (Config::kSplitKv) {
      const int of_tile = row - tile.index * Config::kBlockQ;
      valid_rows = min(valid_rows, launch.splits.rows - of_tile);
      if (valid_rows <= 0) return;
      const PartialRow partial(launch.splits, tile.slot, of_tile, Config::kHeadDimV);
      normalize(
          self.o, self.softmax, additions, Dropouts(launch), Scales(launch, heads(), tile),
          [&](int of_warp) { return place_of(row + of_warp); }, valid_rows, lane, tile.split == 0, Store::tells(),
          [&](int of_warp, const auto& end, int m, int h) {
            PartialRow(launch.splits, tile.slot, of_tile + of_warp, Config::kHeadDimV)
                .write_weight(end.log2_sum_exp(self.softmax, m, h));
          });
      Store::partial_rows(self.o, partial.out, valid_rows, lane);
    }
  }

  const typename Config::Arguments& launch;
  const MmaArguments& args;
  const SmemAddress smem;
  const int thread;
  const TileMask mask;
  const KeptRows kept_rows;
  const typename Config::Blocks listed;
  const typename Config::SoftmaxParts additions;
  int first_row;  // of the block
  BlockRuns blocks;
  typename Keys::Row key_row;
  Warp self;
};
