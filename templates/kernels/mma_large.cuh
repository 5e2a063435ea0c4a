// SPDX-License-Identifier: Apache-2.0
// Attention forward of large heads with mma.sync, ldmatrix and cp.async (sm_80 and later). Essay:
// docs/kernels/large_heads.md.
//
// The output of 16 rows of 512 columns would fill the registers of a warp, so four warps share 16 or 32 rows. Of a
// block of keys each computes the scores of a quarter, and it has a quarter of the output's columns: what they tell
// each other of a block, through shared memory, are maxima and probabilities. Rows of K and V do not fit shared memory
// in whole tiles, either: they come in pieces, of K some columns of a block's keys, of V some of its keys, through one
// ring in the order of their use. Every piece has a barrier of the block, behind which it is there and the one before
// it is read, so that the next piece may come in its place.
//
//   for each block of keys, the last ones first:
//     for each piece of K:  barrier; request a later piece; S += Q K^T
//     send maxima;          barrier; take the others'; P = exp(S - maximum), and send it
//     for each piece of V:  barrier; request a later piece; O += P V
#pragma once

#include "mma/forward_tile.cuh"
#include "mma/large_shape.cuh"
#include "mma/piece_ring.cuh"
#include "mma/shared_rows.cuh"
#include "mma/shared_rows_scales.cuh"
#include "ptx/barrier.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/grid_dependency.cuh"

template <class Config>
using LargeForwardTile = ForwardTile<Config, LargeMmaShape<Config>, SharedRowsAttention<Config, LargeMmaShape<Config>>,
                                     StoreOfSharedRows<Config, LargeMmaShape<Config>>>;

template <class Config>
class LargeForwardMma : public LargeForwardTile<Config> {
  using Base = LargeForwardTile<Config>;
  using Shape = LargeMmaShape<Config>;
  using Attention = SharedRowsAttention<Config, Shape>;
  using Scores = typename Attention::Scores;
  using Base::args;
  using Base::blocks;
  using Base::first_key;
  using Base::key_row;
  using Base::launch;
  using Base::mask;
  using Base::self;
  using Base::smem;
  using Base::thread;
  using typename Base::Dropouts;
  using typename Base::Keys;
  using typename Base::Sequences;
  using typename Base::Tile;

  using Ring = PieceRing<Shape>;

 public:
  __device__ __forceinline__ LargeForwardMma(const typename Config::Arguments& arguments, SmemAddress smem, bool far)
      : Base(arguments, smem, far) {}

  // False if rows went far from 0 and were not expected to: then nothing is written, and everything is to be done again
  // by a kernel that expects them.
  __device__ __forceinline__ bool run() {
    if (blocks.count() > 0) {
      find_keys(this->find_tile());
      this->bring_query();
      fill_ring();
#pragma unroll 1
      for (int i = 0; i < blocks.count(); ++i) take_block(i);
      self.send_sums(maxima());
      ptx::bar_sync();
      self.take_sums(maxima());
      scales.apply_to_output(self.o);
      // Behind this barrier nobody reads shared memory any more. The vote tells ptxas that all lanes take the same way.
      const bool went_far = ptx::vote_any(ptx::bar_sync_any(self.softmax.went_far()));
      if (went_far && !self.softmax.expects_far()) return false;
    }
    this->finish();
    return true;
  }

 private:
  // --- A block of keys ----------------------------------------------------------------------------------------------

  // Counted from the last one on. Warps whose rows see none of it keep to the barriers alone.
  __device__ __forceinline__ void take_block(int i) {
    const SeenBlock seen = this->seen_of_block(i);
    const bool sees = seen.some && this->has_rows() && this->sees_block(i) && first_key(i) <= this->last_visible_key();
    Scores s;
    s.clear();
    scales.find(first_key(i), mask.last_existing_key + 1 - first_key(i));
    multiply_keys(s, i, sees);
    Common<Shape::kM, Base::ScoreRow::kCommon> common;
    if (sees) {
      common = this->change_scores(s, i, first_own_key(i), seen.whole, i < blocks.end - blocks.clean_end);
      self.send_maxima(s, common, maxima());
    }
    ptx::bar_sync();
    if (sees) send_probabilities(s, self.raise_maximum(s, common, maxima()), i);
    multiply_values(i, sees);
  }

  template <int kPiece = 0>
  __device__ __forceinline__ void multiply_keys(Scores& s, int i, bool sees) {
    if constexpr (kPiece < Shape::kKeyPieces) {
      const SmemAddress piece = next_piece<kPiece>(i);
      if (sees) self.template multiply_keys<kPiece>(s, piece);
      if (sees && kPiece + 1 == Shape::kStoredPieces) scales.apply_to_scores(s);
      multiply_keys<kPiece + 1>(s, i, sees);
    }
  }

  __device__ __forceinline__ void send_probabilities(const Scores& s, const typename Attention::Shift& shift, int i) {
    const int lane = thread % kWarpSize;
    const auto kept = [&](int m, int h, int column) {
      if constexpr (Dropouts::kAny) {
        static_assert(Shape::kWarpKeys % kKeptKeys == 0, "random bits are drawn for as many keys at once");
        return this->kept_in(this->warp_row() + 16 * m + 8 * h + lane / 4)
            .kept(first_own_key(i) + lane % 4 * 2 + column);
      }
    };
    uint32 flips = 0;
    if constexpr (Dropouts::kAny) flips = Dropouts(launch).flips();
    const auto weights = scales.weights(self.o);
    const auto weigh = [&](float& p0, float& p1, int n) { scales.weigh(weights, p0, p1, n); };
    self.send_probabilities(s, shift, probabilities(), kept, flips, weigh);
  }

  template <int kPiece = 0>
  __device__ __forceinline__ void multiply_values(int i, bool sees) {
    if constexpr (kPiece < Shape::kValuePieces) {
      const SmemAddress piece = next_piece<Shape::kKeyPieces + kPiece>(i);
      if (sees) self.multiply_values(probabilities(), kPiece * Shape::kKeysOfPiece, piece);
      multiply_values<kPiece + 1>(i, sees);
    }
  }

  // --- The ring of pieces -------------------------------------------------------------------------------------------

  // Waits for a piece of block i.
  template <int kPiece>
  __device__ __forceinline__ SmemAddress next_piece(int i) {
    return ring.take(smem, [&](SmemAddress slot) { request<kPiece + Ring::kLead>(i, slot); });
  }

  template <int kPiece = 0>
  __device__ __forceinline__ void fill_ring() {
    if constexpr (kPiece < Ring::kLead) {
      request<kPiece>(0, Ring::slot(smem, kPiece));
      fill_ring<kPiece + 1>();
    } else {
      ring.begin(smem);
    }
  }

  // Pieces are counted from block i on. One group of copies for each, so that they are counted alike to the last one.
  template <int kPiece>
  __device__ __forceinline__ void request(int i, SmemAddress slot) const {
    constexpr int kOfBlock = kPiece % Shape::kPieces;
    i += kPiece / Shape::kPieces;
    if (i < blocks.count()) {
      if constexpr (kOfBlock < Shape::kKeyPieces)
        request_keys<kOfBlock>(i, slot);
      else
        request_values(first_key(i) + (kOfBlock - Shape::kKeyPieces) * Shape::kKeysOfPiece, slot);
    }
    ptx::cp_async_commit_group();
  }

  template <int kPiece>
  __device__ __forceinline__ void request_keys(int i, SmemAddress slot) const {
    using Piece = typename Shape::template KeyPiece<kPiece>;
    constexpr int kWords = Shape::words_of_piece(kPiece), kFirst = 2 * Shape::first_word(kPiece);
    if constexpr (Shape::is_rotary(kPiece))
      request_rows<Piece, kWords>(slot, rotary + kFirst, launch.k_rotary.strides, first_key(i));
    else
      request_rows<Piece, kWords>(slot, keys + kFirst, args.k_strides, first_key(i));
  }
  __device__ __forceinline__ void request_values(int first, SmemAddress slot) const {
    request_rows<typename Shape::ValuePiece, Shape::kValueWords>(slot, values, args.v_strides, first);
  }

  // head: of K or V, where its first key lies, or in pages that of the first one. What pads the rows is cleared each
  // time, as other pieces lay there. Keys that do not exist become zeros.
  template <class Piece, int kValidWords>
  __device__ __forceinline__ void request_rows(SmemAddress slot, const char* head, const RowStrides& strides,
                                               int first) const {
    const int existing = mask.last_existing_key + 1 - first;
    Piece::template clear_padding<kValidWords, Shape::kThreads>(slot, thread);
    if constexpr (Keys::kPaged) {
      Piece::template request_found<kValidWords, Shape::kThreads>(
          slot,
          [&](int row) {
            const KeyPlace place = Keys(launch).place(key_row, first + row);
            return head + place.batch * strides.batch + place.row * strides.row;
          },
          existing, thread);
    } else {
      Piece::template request<kValidWords, Shape::kThreads, true>(
          slot, Piece::template source<kValidWords, Shape::kThreads>(head + first * strides.row, strides.row, thread),
          strides.row, existing, thread);
    }
  }

  // --- Places -------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ void find_keys(const Tile& tile) {
    const int batch = Sequences::key_batch(tile, tile.batch), row = Sequences::first_key(tile);
    const int head = tile.head / args.sizes.heads_per_group;
    keys = args.k + head * args.k_strides.head, values = args.v + head * args.v_strides.head;
    if constexpr (Keys::kPaged) {
      key_row = Keys(launch).row(batch, this->sequence().keys);
    } else {
      keys += batch * args.k_strides.batch + row * args.k_strides.row;
      values += batch * args.v_strides.batch + row * args.v_strides.row;
    }
    const KeyRows<Config> rows{&launch, batch, row, head, key_row};
    if constexpr (Keys::kRotaryApart) {
      const RotaryKeyArguments& of = launch.k_rotary;
      rotary = Keys::kPaged ? rows.first(of.first, of.strides) : rows.of_key(of.first, of.strides, 0);
    }
    scales.begin(launch, rows, thread % kWarpSize);
  }

  // Of block i, the first key whose scores the warp makes.
  __device__ __forceinline__ int first_own_key(int i) const { return first_key(i) + Shape::part() * Shape::kWarpKeys; }
  // Of the rows that the warp shares; in the end their sums.
  __device__ __forceinline__ SmemAddress maxima() const {
    return smem + Shape::kMaxima + Shape::group() * Shape::kWarpRows * Shape::kMaximaOfRow;
  }
  __device__ __forceinline__ SmemAddress probabilities() const {
    return smem + Shape::kProbabilities + Shape::group() * Shape::PTile::kBytes;
  }

  const char* keys;
  const char* values;
  const char* rotary;  // columns of keys, where they stand apart
  SharedRowsScales<Config, Shape> scales;
  Ring ring;
};
