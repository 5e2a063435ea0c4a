// SPDX-License-Identifier: Apache-2.0
// Makes the list of tiles of a ragged batch: a tile of BLOCK_Q rows for each that a sequence has, those that see the
// most keys first. One thread block does it. Tiles have slots before any is known: those of sequence b begin at slot
// b + offset[b] / BLOCK_Q, so that no sequence has to wait for the sum of those before it. Whatever stands in memory,
// no tile leaves the tensors: lengths and places are cut to them.
#pragma once

#include "abi.cuh"
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/special_registers.cuh"
#include "types.cuh"

struct BatchPlanShared {
  uint32 first[kBatchPlanThreads];  // of each bucket, a place in the list
  uint32 of_warp[kWarpSize];        // tiles before those of a warp's buckets
  int longest;                      // keys of a sequence
};

class BatchPlan {
  static constexpr int kBucketsLog2 = 10, kBuckets = 1 << kBucketsLog2;
  static_assert(kBuckets == kBatchPlanThreads, "a thread adds up a bucket");

 public:
  __device__ __forceinline__ BatchPlan(const BatchPlanMaker& args_, BatchPlanShared& shared_)
      : args(args_), shared(shared_), thread(ptx::tid_x()) {}

  __device__ __forceinline__ void run() {
    shared.first[thread] = 0;
    if (thread == 0) shared.longest = 0;
    ptx::bar_sync();
    find_longest();
    ptx::bar_sync();
    for_each_tile([this](const PlannedTile& tile) { ptx::atom_add_shared(first_of(bucket(tile)), 1); });
    ptx::bar_sync();
    const uint32 tiles = add_up();
    if (thread == 0) *args.count = min(tiles, args.most_tiles);
    ptx::bar_sync();
    for_each_tile([this](const PlannedTile& tile) {
      const uint32 place = ptx::atom_add_shared(first_of(bucket(tile)), 1);
      if (place < args.most_tiles) args.tiles[place] = tile;
    });
  }

 private:
  struct Span {
    int first, count;
  };

  // Of the rows that there are: those from first to end, of which so many are used.
  static __device__ __forceinline__ Span inside(int rows, int first, int end, const int* used, int sequence) {
    first = min(max(first, 0), rows);
    int count = min(max(end, first), rows) - first;
    if (used != nullptr) count = min(count, max(used[sequence], 0));
    return {first, count};
  }
  __device__ __forceinline__ Span queries(int sequence) const {
    const int* const offsets = args.query_offsets;
    if (offsets == nullptr) return inside(args.query_rows, 0, args.query_rows, args.used_queries, sequence);
    return inside(args.query_rows, offsets[sequence], offsets[sequence + 1], args.used_queries, sequence);
  }
  __device__ __forceinline__ Span keys(int sequence) const {
    const int* const offsets = args.key_offsets;
    Span span = offsets == nullptr
                    ? inside(args.key_rows, 0, args.key_rows, args.used_keys, sequence)
                    : inside(args.key_rows, offsets[sequence], offsets[sequence + 1], args.used_keys, sequence);
    if (args.padding_keys != nullptr) {
      const int padding = min(max(args.padding_keys[sequence], 0), span.count);
      span.first += padding, span.count -= padding;
    }
    // The first row of all is one that kernels may read in place of none.
    if (span.count == 0) span.first = 0;
    return span;
  }
  __device__ __forceinline__ int key_batch(int sequence) const {
    if (args.key_offsets != nullptr) return 0;
    if (args.key_batches == nullptr) return sequence;
    return min(max(args.key_batches[sequence], 0), args.key_batch_count - 1);
  }

  __device__ __forceinline__ void find_longest() {
    for (int sequence = thread; sequence < args.batch; sequence += kBatchPlanThreads)
      ptx::red_max_shared(ptx::cvta_to_shared(&shared.longest), keys(sequence).count);
  }

  __device__ __forceinline__ int64 packed(int rows) const { return static_cast<int64>(rows) << args.packed_heads_log2; }
  __device__ __forceinline__ int64 first_slot(int sequence) const {
    if (args.query_offsets == nullptr)
      return sequence * ((packed(args.query_rows) + args.block_rows - 1) / args.block_rows);
    const int first = sequence < args.batch ? queries(sequence).first : args.query_rows;
    return sequence + packed(first) / args.block_rows;
  }

  // f(tile) for the tiles of this thread.
  template <class F>
  __device__ __forceinline__ void for_each_tile(F f) const {
    const int64 slots = first_slot(args.batch);
    for (int64 slot = thread; slot < slots; slot += kBatchPlanThreads) {
      const int sequence = sequence_of(slot);
      const int64 index = slot - first_slot(sequence);
      const Span rows = queries(sequence);
      if (index * args.block_rows >= packed(rows.count)) continue;
      const Span seen = keys(sequence);
      f(PlannedTile{sequence, static_cast<int>(index), rows.count, seen.count, rows.first, seen.first,
                    args.query_offsets == nullptr ? sequence : 0, key_batch(sequence)});
    }
  }
  // The last one that begins at the slot or before it.
  __device__ __forceinline__ int sequence_of(int64 slot) const {
    int first = 0, end = args.batch;
    while (end - first > 1) {
      const int middle = first + (end - first) / 2;
      if (first_slot(middle) <= slot)
        first = middle;
      else
        end = middle;
    }
    return first;
  }

  // By the keys that the last query of a tile sees, the most in the first one.
  __device__ __forceinline__ int bucket(const PlannedTile& tile) const {
    const int64 end_row = static_cast<int64>(tile.index + 1) * args.block_rows >> args.packed_heads_log2;
    const int64 last = end_row - 1 + tile.keys - tile.queries;
    const int64 seen =
        min(min(last + 1 + args.keys_behind, static_cast<int64>(tile.keys)), static_cast<int64>(args.most_keys));
    const int shift = max(32 - __clz(shared.longest) - kBucketsLog2, 0);
    return kBuckets - 1 - static_cast<int>(max(seen, static_cast<int64>(0)) >> shift);
  }

  __device__ __forceinline__ SmemAddress first_of(int bucket) const {
    return ptx::cvta_to_shared(&shared.first[bucket]);
  }

  // From the number of tiles in each bucket to the places of their first ones; the number of all. A thread for each.
  __device__ __forceinline__ uint32 add_up() {
    const int lane = thread % kWarpSize, warp = thread / kWarpSize;
    const uint32 own = shared.first[thread], up_to = add_up(own, lane);
    if (lane == kWarpSize - 1) shared.of_warp[warp] = up_to;
    ptx::bar_sync();
    if (warp == 0) {
      const uint32 of_warp = shared.of_warp[lane];
      shared.of_warp[lane] = add_up(of_warp, lane);
    }
    ptx::bar_sync();
    shared.first[thread] = up_to - own + (warp == 0 ? 0 : shared.of_warp[warp - 1]);
    return shared.of_warp[kWarpSize - 1];
  }
  // Of the values of the lanes up to this one.
  static __device__ __forceinline__ uint32 add_up(uint32 value, int lane) {
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const uint32 other = ptx::shfl_from(static_cast<uint32>(max(lane - distance, 0)), value);
      if (lane >= distance) value += other;
    }
    return value;
  }

  const BatchPlanMaker& args;
  BatchPlanShared& shared;
  const int thread;
};
