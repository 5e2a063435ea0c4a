// SPDX-License-Identifier: Apache-2.0
// Attention forward with mma.sync, ldmatrix and cp.async (sm_80 and later). Essay: docs/kernels/forward_mma.md.
//
// A block computes BLOCK_Q rows of one head, or where keys may be split of the heads of a group that share a tile; each
// warp owns 16 or 32 of them from scores to output, so that softmax needs no exchange between warps. K and V tiles of
// BLOCK_KV keys pass through rings in shared memory, the last keys first. Blocks with keys that a row must not see or
// that do not exist, at the begin and where masks say so at the end, go through a loop of their own. The clean blocks
// between them follow one of three pipelines:
//   serial    request K, wait, S = Q K^T, request V, wait, softmax and O += P V
//   overlap   when step i begins, the tiles of a later step are requested, after one barrier
//   rotate    the same, and half of the warps pass the barrier of a step before their softmax, the other half after
//             it: on each quarter of an SM one warp multiplies Q K^T while another does softmax and P V
// The loop of clean blocks takes scores to be near 0. Where that proves wrong at the end, the block begins again.
#pragma once

#include "attention/blocks.cuh"
#include "attention/keys.cuh"
#include "attention/probability.cuh"
#include "attention/products.cuh"
#include "attention/scores.cuh"
#include "attention/splits.cuh"
#include "attention/tile_scheduler.cuh"
#include "mma/shape.cuh"
#include "mma/store.cuh"
#include "mma/warp_attention.cuh"
#include "ptx/barrier.cuh"
#include "ptx/grid_dependency.cuh"
#include "ptx/special_registers.cuh"

template <class Config>
class ForwardMma {
  using Shape = ForwardShape<Config>;
  using QTile = typename Shape::QTile;
  using KTile = typename Shape::KTile;
  using VTile = typename Shape::VTile;
  using OTile = typename Shape::OTile;
  using Warp = WarpAttention<Config>;
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
  using Columns = typename Warp::Fragments::Columns;
  using Sequences = typename Config::Sequences;
  using Keys = typename Config::Keys;
  using Tile = typename Sequences::Tile;

  static constexpr bool kBegins = Mask<Config>::kBegins;
  static constexpr bool kSerial = Config::kPipeline == Pipeline::serial;
  static constexpr bool kRotate = Config::kPipeline == Pipeline::rotate;
  // How many blocks ahead of the one at hand K and V are requested. A ring of one tile is refilled within the step,
  // after its last reader. With rotate, late warps still read V of the block before: that tile stays.
  static constexpr int kKeyLead = Config::kKStages > 1 ? Config::kKStages - 1 : 1;
  static constexpr int kValueLead = kRotate ? Config::kVStages - 2 : Config::kVStages > 1 ? Config::kVStages - 1 : 1;
  static constexpr int kLead = kKeyLead > kValueLead ? kKeyLead : kValueLead;
  // Groups of copies that may still be under way when a step begins: those of the later steps. A step commits V's group
  // and then K's.
  static constexpr int kKeyPending = 2 * (kKeyLead - 1);
  static constexpr int kValuePending = Config::kVStages > 1 ? 1 + 2 * (kValueLead - 1) : kKeyPending;
  static constexpr int kPending = kKeyPending < kValuePending ? kKeyPending : kValuePending;

 public:
  __device__ __forceinline__ ForwardMma(const typename Config::Arguments& arguments, SmemAddress smem, bool far)
      : launch(arguments),
        args(arguments.core),
        smem(smem),
        thread(ptx::tid_x()),
        mask(
            arguments, sequence(), [this] { return find_tile().batch; }, keys_of_tile()),
        kept_rows(keep_rows()),
        listed(arguments),
        additions(arguments),
        self(scoring(arguments).unit(), smem + thread / kWarpSize * Shape::kWarpRows * QTile::kRowBytes,
             thread % kWarpSize) {
    const Tile tile = find_tile();
    first_row = tile.index * Config::kBlockQ;
    const int last_row = min(first_row + Config::kBlockQ, heads().rows(sequence().queries)) - 1;
    blocks = block_runs<Config::kBlockKv, 0>(mask, first_row, last_row);
    if (far) self.softmax.expect_far(), blocks.clean_end = blocks.first;
  }

  // Whether rows are to be taken as if they were far from 0, by a way on which none depends on others of its tile.
  __device__ __forceinline__ static bool expects_far(const typename Config::Arguments& arguments) {
    if constexpr (Config::kSplitKv) return arguments.splits.fixed != 0;
    return false;
  }
  // Whether there is a tile for this block: a launch for a ragged batch has as many blocks as there may be tiles.
  __device__ __forceinline__ static bool has_tile(const typename Config::Arguments& arguments) {
    return !Sequences::kRagged || ptx::ctaid_x() < Sequences(arguments).count(arguments.core.sizes);
  }

  // False if rows went far from 0 and were not expected to: then nothing is written, and everything is to be done again
  // by a kernel that expects them.
  __device__ __forceinline__ bool run() {
    if (blocks.count() > 0) {
      find_keys(find_tile());
      bring_query();
      clear_ring_padding();
      take_blocks();
      // Behind this barrier nobody reads tiles any more. The vote tells ptxas that all lanes take the same way.
      const bool went_far = ptx::vote_any(ptx::bar_sync_any(self.softmax.went_far()));
      if (went_far && !self.softmax.expects_far()) return false;
    }
    finish();
    return true;
  }

 private:
  // --- Pipelines ----------------------------------------------------------------------------------------------------

  // Steps are counted from the last block on. Only the steps that mask the end of rows are right for far rows, and for
  // rows that see none of a block's keys before they have seen any.
  __device__ __forceinline__ void take_blocks() {
    if constexpr (!kSerial) fill_rings();
    const int first_clean = blocks.end - blocks.clean_end;
#pragma unroll 1
    for (int i = 0; i < first_clean; ++i) masked_step(i);
    if constexpr (kRotate) {
      const int end_clean = kBegins ? max(first_clean, blocks.end - blocks.clean_first) : blocks.count();
      rotate(first_clean, end_clean);
#pragma unroll 1
      for (int i = end_clean; i < blocks.count(); ++i) masked_step(i);
    } else {
#pragma unroll 1
      for (int i = first_clean; i < blocks.count(); ++i) kSerial ? serial_step(i) : overlapped_step(i, i > first_clean);
    }
  }

  __device__ __forceinline__ void masked_step(int i) {
    if constexpr (kSerial) {
      request_key<true>(i);
      request_value<true>(i);
    }
    ptx::cp_async_wait_group<0>();
    ptx::bar_sync();
    if constexpr (Config::kVStages > 1) request_value<false>(i + kValueLead);
    if constexpr (Config::kKStages > 1) request_key<false>(i + kKeyLead);
    const SeenBlock seen = seen_of_block(i);
#pragma unroll 1
    for (int piece = first_piece(i); piece < Config::kBlockKv; piece += Shape::kMaskedKeys) {
      if (!seen.some || !has_rows() || first_key(i) + piece > last_visible_key()) break;
      typename Warp::template Scores<Shape::kMaskedKeys> s;
      self.template compute_scores<Shape::kMaskedKeys>(s, k_slot(i) + piece * KTile::kRowBytes);
      const auto shift = finish_scores<true>(s, i, piece, seen.whole);
      accumulate_output<Shape::kMaskedKeys>(s, shift, i, piece);
    }
    if constexpr (Config::kVStages == 1 || Config::kKStages == 1) ptx::bar_sync();
    if constexpr (!kSerial && Config::kVStages == 1) request_value<false>(i + 1);
    if constexpr (!kSerial && Config::kKStages == 1) request_key<false>(i + 1);
  }

  __device__ __forceinline__ void serial_step(int i) {
    typename Warp::template Scores<Config::kBlockKv> s;
    request_key<false>(i);
    ptx::cp_async_wait_group<0>();
    ptx::bar_sync();
    self.template compute_scores<Config::kBlockKv>(s, k_slot(i));
    const auto shift = finish_scores<false>(s, i, 0, seen_of_block(i).whole);
    request_value<false>(i);
    ptx::cp_async_wait_group<0>();
    ptx::bar_sync();
    accumulate_output<Config::kBlockKv>(s, shift, i, 0);
    ptx::bar_sync();
  }

  __device__ __forceinline__ void overlapped_step(int i, bool after_clean) {
    typename Warp::template Scores<Config::kBlockKv> s;
    ptx::cp_async_wait_group<kPending>();
    ptx::bar_sync();
    if constexpr (Config::kVStages > 1) {
      request_value<false>(i + kValueLead);
    } else {
      // A ring of one tile is refilled here, now that the step before is done; its first block is there already.
      if (after_clean)
        request_value<false>(i);
      else
        ptx::cp_async_commit_group();
    }
    if constexpr (Config::kKStages > 1) request_key<false>(i + kKeyLead);
    const SeenBlock seen = seen_of_block(i);
    const bool sees = seen.some && has_rows() && sees_block(i);
    if (sees) self.template compute_scores<Config::kBlockKv>(s, k_slot(i));
    if constexpr (Config::kKStages == 1) {
      ptx::bar_sync();
      request_key<false>(i + 1);
    }
    typename Warp::Shift shift;
    if (sees) shift = finish_scores<false>(s, i, 0, seen.whole);
    if constexpr (Config::kVStages == 1) {
      ptx::cp_async_wait_group<1>();
      ptx::bar_sync();
    }
    if (sees) accumulate_output<Config::kBlockKv>(s, shift, i, 0);
  }

  // The clean steps from the first on.
  __device__ __forceinline__ void rotate(int first, int end) {
    if (first == end) return;
    typename Warp::template Scores<Config::kBlockKv> s;
    pass_barrier(first, [] { ptx::bar_sync(); });
    self.template compute_scores<Config::kBlockKv>(s, k_slot(first));
#pragma unroll 1
    for (int i = first + 1; i < end; ++i) {
      if (is_late()) pass_barrier(i, [] { meet_early_warps(); });
      const auto shift = finish_scores<false>(s, i - 1, 0, seen_of_block(i - 1).whole);
      accumulate_output<Config::kBlockKv>(s, shift, i - 1, 0);
      if (!is_late()) pass_barrier(i, [] { meet_late_warps(); });
      self.template compute_scores<Config::kBlockKv>(s, k_slot(i));
    }
    const auto shift = finish_scores<false>(s, end - 1, 0, seen_of_block(end - 1).whole);
    accumulate_output<Config::kBlockKv>(s, shift, end - 1, 0);
  }

  // From Q K^T to the softmax: the scores of step i from the key `piece` on, which also raise the maxima. whole: no
  // predicate hides any key of the block.
  template <bool kEnd, class Scores>
  __device__ __forceinline__ auto finish_scores(Scores& s, int i, int piece, bool whole) {
    const int first_of_scores = first_key(i) + piece;
    if constexpr (kScalesBlocks) s.multiply(scale_of_products(first_of_scores));
    Common<Shape::kM, ScoreRow::kCommon> common;
    if constexpr (Score<Config>::kIsLong)
      common = score(s, rows(), first_of_scores);
    else if constexpr (ScoreRow::kChanges)
      common = score(s, kept_rows, first_of_scores);
    if constexpr (Config::Predicates::kAny)
      if (!whole) hide(s, first_of_scores);
    if constexpr (kEnd) mask_end(s, warp_row(), first_of_scores, mask, thread % kWarpSize);
    if (kBegins && first_key(i) < blocks.clean_first * Config::kBlockKv)
      mask_begin(s, warp_row(), first_of_scores, mask, thread % kWarpSize);
    return self.softmax.template raise_maximum < kEnd || Score<Config>::kMayHide > (s, self.o, common);
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

  // From the softmax to the output: the probabilities of step i from the key `piece` on.
  template <int kKeys, class Scores>
  __device__ __forceinline__ void accumulate_output(const Scores& s, const typename Warp::Shift& shift, int i,
                                                    int piece) {
    const auto kept = [&](int m, int h, int column) {
      if constexpr (Dropouts::kAny) {
        static_assert(kKeys % kKeptKeys == 0, "random bits are drawn for as many keys at once");
        const int lane = thread % kWarpSize, row = warp_row() + 16 * m + 8 * h + lane / 4;
        return kept_in(row).kept(first_key(i) + piece + lane % 4 * 2 + column);
      }
    };
    uint32 flips = 0;
    if constexpr (Dropouts::kAny) flips = Dropouts(launch).flips();
    float factor = 1.0f;
    if constexpr (kScalesBlocks) factor = Scales::of_value(launch, find_tile(), first_key(i));
    self.template accumulate_output<kKeys>(s, shift, v_slot(i) + piece * VTile::kRowBytes, kept, flips, {}, factor);
  }

  __device__ __forceinline__ auto kept_in(int row) const {
    if constexpr (kPacks)
      return Dropouts(launch).row([&] { return place_of(row); });
    else
      return Dropouts(launch).row([this] { return place(); }).at(mask.position(row));
  }

  // Asked for each time: the loop has no register to keep the answer in.
  __device__ __forceinline__ static bool is_late() { return ptx::tid_x() >= Shape::kThreads / 2; }

  // Block i is complete and nobody reads the tiles that block i + 1 replaces.
  template <class Meet>
  __device__ __forceinline__ void pass_barrier(int i, Meet meet) {
    ptx::cp_async_wait_group<0>();
    meet();
    request_value<false>(i + kValueLead);
    request_key<false>(i + kKeyLead);
  }

  // One barrier of the whole block for halves that stand in different places of the program. Late warps give their word
  // only after they have taken the other's, so nobody comes to the next step while a warp still waits in this one.
  __device__ __forceinline__ static void meet_late_warps() {
    ptx::bar_arrive<Shape::kThreads>(NamedBarrier::early_arrived);
    ptx::bar_sync<Shape::kThreads>(NamedBarrier::late_arrived);
  }
  __device__ __forceinline__ static void meet_early_warps() {
    ptx::bar_sync<Shape::kThreads>(NamedBarrier::early_arrived);
    ptx::bar_arrive<Shape::kThreads>(NamedBarrier::late_arrived);
  }

  // --- Copies into shared memory -----------------------------------------------------------------------------------

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

  __device__ __forceinline__ void clear_ring_padding() {
#pragma unroll
    for (int stage = 0; stage < Config::kKStages; ++stage)
      KTile::template clear_padding<Shape::kColumns, Shape::kThreads>(k_slot(stage), thread);
#pragma unroll
    for (int stage = 0; stage < Config::kVStages; ++stage)
      VTile::template clear_padding<Shape::kColumnsV, Shape::kThreads>(v_slot(stage), thread);
  }

  // Makes the requests of the steps before the first, so that groups are counted alike from the first step on.
  template <int kStep = -kLead>
  __device__ __forceinline__ void fill_rings() {
    if constexpr (kStep < 0) {
      constexpr int kValue = kStep + kValueLead;
      constexpr int kKey = kStep + kKeyLead;
      if constexpr (kValue >= 0)
        request_value<kValue == 0>(kValue);
      else
        ptx::cp_async_commit_group();
      if constexpr (kKey >= 0)
        request_key<kKey == 0>(kKey);
      else
        ptx::cp_async_commit_group();
      fill_rings<kStep + 1>();
    }
  }

  // Block i of the visit, counted from the last keys; blocks are requested in order. Only block 0 may reach past the
  // last key: kChecked.
  template <bool kChecked>
  __device__ __forceinline__ void request_key(int i) {
    if (i < blocks.count()) {
      if constexpr (Keys::kPaged) {
        request_pages<KTile, Shape::kColumns>(k_slot(i), next_key, args.k_strides, i);
      } else {
        KTile::template request<Shape::kColumns, Shape::kThreads, kChecked>(k_slot(i), next_key, args.k_strides.row,
                                                                            sequence().keys - first_key(i), thread);
        next_key -= Config::kBlockKv * args.k_strides.row;
      }
    }
    ptx::cp_async_commit_group();
  }

  template <bool kChecked>
  __device__ __forceinline__ void request_value(int i) {
    if (i < blocks.count()) {
      if constexpr (Keys::kPaged) {
        request_pages<VTile, Shape::kColumnsV>(v_slot(i), next_value, args.v_strides, i);
      } else {
        VTile::template request<Shape::kColumnsV, Shape::kThreads, kChecked>(v_slot(i), next_value, args.v_strides.row,
                                                                             sequence().keys - first_key(i), thread);
        next_value -= Config::kBlockKv * args.v_strides.row;
      }
    }
    ptx::cp_async_commit_group();
  }

  // head: where the rows of its first page begin.
  template <class KvTile, int kValidColumns>
  __device__ __forceinline__ void request_pages(SmemAddress slot, const char* head, const RowStrides& strides,
                                                int i) const {
    KvTile::template request_found<kValidColumns, Shape::kThreads>(
        slot,
        [&](int row) {
          const KeyPlace place = Keys(launch).place(key_row, first_key(i) + row);
          return head + place.batch * strides.batch + place.row * strides.row;
        },
        key_row.keys - first_key(i), thread);
  }

  __device__ __forceinline__ SmemAddress k_slot(int i) const {
    return smem + Shape::kKRing + static_cast<uint32>(i) % Config::kKStages * KTile::kBytes;
  }
  __device__ __forceinline__ SmemAddress v_slot(int i) const {
    return smem + Shape::kVRing + static_cast<uint32>(i) % Config::kVStages * VTile::kBytes;
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
  __device__ __forceinline__ int warp_row() const { return first_row + thread / kWarpSize * Shape::kWarpRows; }
  // The same by who has not kept where the tile begins.
  __device__ __forceinline__ int found_warp_row() const {
    return find_tile().index * Config::kBlockQ + thread / kWarpSize * Shape::kWarpRows;
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
  // Of the pieces of a masked block, the first one that some row of the warp sees.
  __device__ __forceinline__ int first_piece(int i) const {
    if constexpr (!kBegins) return 0;
    return max(mask.first_key(warp_row()) - first_key(i), 0) / Shape::kMaskedKeys * Shape::kMaskedKeys;
  }
  __device__ __forceinline__ int last_visible_key() const { return mask.last_key(warp_row() + Shape::kWarpRows - 1); }

  // Where the requests of K and V begin.
  __device__ __forceinline__ void find_keys(const Tile& tile) {
    const int kv_head = tile.head / args.sizes.heads_per_group;
    const int batch = Sequences::key_batch(tile, tile.batch), row = Sequences::first_key(tile);
    if constexpr (Keys::kPaged) {
      key_row = Keys(launch).row(batch, sequence().keys);
      next_key = args.k + kv_head * args.k_strides.head, next_value = args.v + kv_head * args.v_strides.head;
      return;
    }
    const char* k = args.k + batch * args.k_strides.batch + kv_head * args.k_strides.head + row * args.k_strides.row;
    const char* v = args.v + batch * args.v_strides.batch + kv_head * args.v_strides.head + row * args.v_strides.row;
    next_key = KTile::template source<Shape::kColumns, Shape::kThreads>(k + first_key(0) * args.k_strides.row,
                                                                        args.k_strides.row, thread);
    next_value = VTile::template source<Shape::kColumnsV, Shape::kThreads>(v + first_key(0) * args.v_strides.row,
                                                                           args.v_strides.row, thread);
  }

  // Finds its place anew: the loop had no register to keep it in.
  __device__ __forceinline__ void finish() {
    const Tile tile = find_tile();
    const int lane = ptx::tid_x() % kWarpSize;
    const int warp = ptx::tid_x() / kWarpSize;
    const int row = tile.index * Config::kBlockQ + warp * Shape::kWarpRows;
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
        [this](int) { return place(); }, valid_rows, lane, true, lse != nullptr,
        [lse, stride = args.lse_strides.row, this](int of_warp, const auto& end, int m, int h) {
          *reinterpret_cast<float*>(lse + of_warp * stride) = told_lse<false>(end, self.softmax, m, h);
        });
    const SmemAddress slab = smem + warp * OTile::kBytes;
    char* rows = args.out + batch * args.out_strides.batch + tile.head * args.out_strides.head +
                 row * args.out_strides.row + before * args.out_strides.row;
    store_rows<typename Config::Element, Columns, OTile, Config::kHeadDimV>(self.o, slab, rows, args.out_strides.row,
                                                                            valid_rows, lane);
  }

  // row: the warp's first one.
  __device__ __forceinline__ void finish_packed(const Tile& tile, int row, int valid_rows, int lane) {
    normalize(
        self.o, self.softmax, additions, Dropouts(launch), Scales(launch, heads(), tile),
        [&](int of_warp) { return place_of(row + of_warp); }, valid_rows, lane, true, args.lse != nullptr,
        [&](int of_warp, const auto& end, int m, int h) {
          char* const lse = in_tile(reinterpret_cast<char*>(args.lse), args.lse_strides, tile, row + of_warp);
          *reinterpret_cast<float*>(lse) = told_lse<true>(end, self.softmax, m, h);
        });
    store_found_rows<typename Config::Element, Columns, OTile, Config::kHeadDimV>(
        self.o, smem + ptx::tid_x() / kWarpSize * OTile::kBytes,
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
          [&](int of_warp) { return place_of(row + of_warp); }, valid_rows, lane, tile.split == 0, true,
          [&](int of_warp, const auto& end, int m, int h) {
            PartialRow(launch.splits, tile.slot, of_tile + of_warp, Config::kHeadDimV)
                .write_weight(end.log2_sum_exp(self.softmax, m, h));
          });
      store_partial_rows<Columns, Config::kHeadDimV>(self.o, partial.out, valid_rows, lane);
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
  const char* next_key;  // this thread's part of the K and V tiles that are requested next; of pages, the first one's
  const char* next_value;
  typename Keys::Row key_row;
  Warp self;
};
