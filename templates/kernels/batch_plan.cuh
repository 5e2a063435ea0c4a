// SPDX-License-Identifier: Apache-2.0
// Makes the list of tiles of a ragged batch: those of a sequence are neighbours, so that its keys and values are read
// once into L2 for all of them, and sequences with the most keys come first, so that the last wave is made of short
// ones. One thread block does it. Whatever stands in memory, no tile leaves the tensors: lengths and places are cut to
// them.
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
    for_each_sequence(
        [this](int sequence) { ptx::red_max_shared(ptx::cvta_to_shared(&shared.longest), keys(sequence).count); });
    ptx::bar_sync();
    for_each_sequence([this](int sequence) { take_places(sequence); });
    ptx::bar_sync();
    const uint32 tiles = add_up();
    if (thread == 0) *args.count = min(tiles, args.most_tiles);
    ptx::bar_sync();
    for (int sequence = thread / kWarpSize; sequence < args.batch; sequence += kBatchPlanThreads / kWarpSize)
      write_tiles(sequence, thread % kWarpSize);
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

  // f(sequence) for those of this thread.
  template <class F>
  __device__ __forceinline__ void for_each_sequence(F f) const {
    for (int sequence = thread; sequence < args.batch; sequence += kBatchPlanThreads) f(sequence);
  }

  __device__ __forceinline__ int tiles_of(int sequence) const {
    const int64 rows = static_cast<int64>(queries(sequence).count) << args.packed_heads_log2;
    return static_cast<int>((rows + args.block_rows - 1) / args.block_rows);
  }
  // The one of the longest sequences is the first.
  __device__ __forceinline__ int bucket(int sequence) const {
    const int shift = max(32 - __clz(shared.longest) - kBucketsLog2, 0);
    return kBuckets - 1 - (keys(sequence).count >> shift);
  }
  // For all of its tiles: before the buckets are added up they are counted, then the first place is what this gives.
  __device__ __forceinline__ uint32 take_places(int sequence) const {
    return ptx::atom_add_shared(first_of(bucket(sequence)), static_cast<uint32>(tiles_of(sequence)));
  }

  // As runtime/call/forward_arguments.cpp has it for sequences of one length.
  __device__ __forceinline__ int heads_per_section(int tiles, int keys) const {
    const int heads = max(args.section_heads, args.section_tiles / max(tiles, 1));
    const int groups = min(args.section_keys / max(keys, 1), heads / args.heads_per_group);
    return min(max(groups, 1), args.groups) * args.heads_per_group;
  }

  // By all lanes of a warp.
  __device__ __forceinline__ void write_tiles(int sequence, int lane) const {
    const int taken = lane == 0 ? static_cast<int>(take_places(sequence)) : 0;
    const uint32 first = static_cast<uint32>(ptx::shfl_first(taken));
    const int tiles = tiles_of(sequence);
    const Span rows = queries(sequence), seen = keys(sequence);
    const PlannedTile tile{sequence,
                           static_cast<int>(first),
                           tiles,
                           heads_per_section(tiles, seen.count),
                           rows.count,
                           seen.count,
                           rows.first,
                           seen.first,
                           args.query_offsets == nullptr ? sequence : 0,
                           key_batch(sequence)};
    for (int index = lane; index < tiles; index += kWarpSize)
      if (first + index < args.most_tiles) args.tiles[first + index] = tile;
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
