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

#include "attention/scores.cuh"
#include "mma/forward_tile.cuh"
#include "mma/shape.cuh"
#include "mma/store.cuh"
#include "mma/warp_attention.cuh"
#include "ptx/barrier.cuh"
#include "ptx/grid_dependency.cuh"
#include "ptx/special_registers.cuh"

template <class Config>
using MmaForwardTile = ForwardTile<Config, ForwardShape<Config>, WarpAttention<Config>,
                                   StoreOfWarp<Config, ForwardShape<Config>, WarpAttention<Config>>>;

template <class Config>
class ForwardMma : public MmaForwardTile<Config> {
  using Base = MmaForwardTile<Config>;
  using Shape = ForwardShape<Config>;
  using KTile = typename Shape::KTile;
  using VTile = typename Shape::VTile;
  using Warp = WarpAttention<Config>;
  using Base::args;
  using Base::blocks;
  using Base::find_tile;
  using Base::first_key;
  using Base::has_rows;
  using Base::kBegins;
  using Base::key_row;
  using Base::kScalesBlocks;
  using Base::last_visible_key;
  using Base::launch;
  using Base::mask;
  using Base::seen_of_block;
  using Base::sees_block;
  using Base::self;
  using Base::sequence;
  using Base::smem;
  using Base::thread;
  using Base::warp_row;
  using typename Base::Dropouts;
  using typename Base::Keys;
  using typename Base::Scales;
  using typename Base::Sequences;
  using typename Base::Tile;

  static constexpr bool kComeTransposed = Config::Values::kTransposed;
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
      : Base(arguments, smem, far) {}

  // False if rows went far from 0 and were not expected to: then nothing is written, and everything is to be done again
  // by a kernel that expects them.
  __device__ __forceinline__ bool run() {
    if (blocks.count() > 0) {
      find_keys(find_tile());
      this->bring_query();
      clear_ring_padding();
      take_blocks();
      // Behind this barrier nobody reads tiles any more. The vote tells ptxas that all lanes take the same way.
      const bool went_far = ptx::vote_any(ptx::bar_sync_any(self.softmax.went_far()));
      if (went_far && !self.softmax.expects_far()) return false;
    }
    this->finish();
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
    const auto common = this->change_scores(s, i, first_key(i) + piece, whole, kEnd);
    return self.softmax.template raise_maximum < kEnd || Score<Config>::kMayHide > (s, self.o, common);
  }

  // From the softmax to the output: the probabilities of step i from the key `piece` on.
  template <int kKeys, class Scores>
  __device__ __forceinline__ void accumulate_output(const Scores& s, const typename Warp::Shift& shift, int i,
                                                    int piece) {
    const auto kept = [&](int m, int h, int column) {
      if constexpr (Dropouts::kAny) {
        static_assert(kKeys % kKeptKeys == 0, "random bits are drawn for as many keys at once");
        const int lane = thread % kWarpSize, row = warp_row() + 16 * m + 8 * h + lane / 4;
        return this->kept_in(row).kept(first_key(i) + piece + lane % 4 * 2 + column);
      }
    };
    uint32 flips = 0;
    if constexpr (Dropouts::kAny) flips = Dropouts(launch).flips();
    float factor = 1.0f;
    if constexpr (kScalesBlocks) factor = Scales::of_value(launch, find_tile(), first_key(i));
    // Keys are rows of a tile of values, or where these came transposed, its columns.
    const int first_row = kComeTransposed ? 0 : piece, first_step = kComeTransposed ? piece / Warp::kKeysOfStep : 0;
    self.template accumulate_output<kKeys>(s, shift, v_slot(i) + first_row * VTile::kRowBytes, kept, flips, {}, factor,
                                           first_step);
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

  __device__ __forceinline__ void clear_ring_padding() {
#pragma unroll
    for (int stage = 0; stage < Config::kKStages; ++stage)
      KTile::template clear_padding<Shape::kColumns, Shape::kThreads>(k_slot(stage), thread);
#pragma unroll
    for (int stage = 0; stage < (kComeTransposed ? 0 : Config::kVStages); ++stage)
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
      } else if constexpr (kComeTransposed) {
        VTile::template request_begins<Shape::kThreads, kChecked>(v_slot(i), next_value, args.v_strides.row,
                                                                  sequence().keys - first_key(i), thread);
        next_value -= Config::kBlockKv;
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

  // Of the pieces of a masked block, the first one that some row of the warp sees.
  __device__ __forceinline__ int first_piece(int i) const {
    if constexpr (!kBegins) return 0;
    return max(mask.first_key(warp_row()) - first_key(i), 0) / Shape::kMaskedKeys * Shape::kMaskedKeys;
  }

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
    if constexpr (kComeTransposed)
      next_value = VTile::template source<VTile::kChunks * kChunkElements, Shape::kThreads>(v + first_key(0),
                                                                                            args.v_strides.row, thread);
    else
      next_value = VTile::template source<Shape::kColumnsV, Shape::kThreads>(v + first_key(0) * args.v_strides.row,
                                                                             args.v_strides.row, thread);
  }

  const char* next_key;  // this thread's part of the K and V tiles that are requested next; of pages, the first one's
  const char* next_value;
};
