// SPDX-License-Identifier: Apache-2.0
// Makes the list of tiles of a ragged batch: those of a sequence are neighbours, so that its keys and values are read
// once into L2 for all of them, and sequences with the most keys come first, so that the last wave is made of short
// ones. One thread block does it. Whatever stands in memory, no tile leaves the tensors: lengths and places are cut to
// them.
#pragma once

#include "abi.cuh"
#include "attention/sequence_rows.cuh"
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/special_registers.cuh"
#include "types.cuh"

constexpr int kMostSearched = 256;  // sequences, among which a length of splits is looked for
constexpr float kMostOfShare = 4.0f / 3;

struct BatchPlanShared {
  uint32 first[kBatchPlanThreads];  // of each bucket, a place in the list
  uint32 of_warp[kWarpSize];        // tiles before those of a warp's buckets
  int longest;                      // keys of a sequence
  // Where keys are split:
  float sum_of_warp[kWarpSize];
  int tiles[kMostSearched], blocks[kMostSearched];  // of each sequence: tiles of all heads, and blocks of keys
  int split_keys;                                   // of a split
  uint32 slots;                                     // that are taken
  uint32 split_tiles;
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
    if (thread == 0) shared.slots = shared.split_tiles = 0, shared.split_keys = args.split_keys;
    ptx::bar_sync();
    if (args.wanted_tiles > 0) choose_split_keys();
    for_each_sequence([this](int sequence) { take_places(sequence); });
    ptx::bar_sync();
    const uint32 tiles = add_up();
    ptx::bar_sync();
    for (int sequence = thread / kWarpSize; sequence < args.batch; sequence += kBatchPlanThreads / kWarpSize)
      write_tiles(sequence, thread % kWarpSize);
    ptx::bar_sync();
    if (thread == 0) {
      args.head->tiles = min(tiles, args.most_tiles);
      args.head->split_tiles = min(shared.split_tiles, args.most_tiles);
      args.head->split_keys = shared.split_keys;
    }
  }

 private:
  using Span = RowsOfSequence;

  __device__ __forceinline__ Span queries(int sequence) const { return rows_of_sequence(args.queries, sequence); }
  __device__ __forceinline__ Span keys(int sequence) const {
    Span span = rows_of_sequence(args.keys, sequence);
    // The first row of all is one that kernels may read in place of none.
    if (span.count == 0) span.first = 0;
    return span;
  }
  __device__ __forceinline__ int key_batch(int sequence) const {
    if (args.keys.offsets != nullptr) return 0;
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
    return ptx::atom_add_shared(first_of(bucket(sequence)),
                                static_cast<uint32>(tiles_of(sequence) * splits_of(keys(sequence).count)));
  }

  // --- Split keys ----------------------------------------------------------------------------------------------------

  __device__ __forceinline__ int heads() const { return args.groups * args.heads_per_group; }
  // Of keys that a tile sees.
  __device__ __forceinline__ int blocks_of(int keys) const {
    return static_cast<int>((static_cast<int64>(min(keys, args.seen_keys)) + args.block_keys - 1) / args.block_keys);
  }
  __device__ __forceinline__ int splits_of_blocks(int blocks, int blocks_of_split) const {
    const int splits = ceil_div(blocks, blocks_of_split);
    return splits <= 1 ? 1 : splits + args.extra_splits;
  }
  __device__ __forceinline__ int splits_of(int keys) const {
    if (args.wanted_tiles == 0) return 1;
    // Of a fixed length they depend on where keys lie alone: even a few of many may lie in two of them.
    if (args.split_keys != 0 && keys > args.split_keys)
      return ceil_div(blocks_of(keys), args.split_keys / args.block_keys) + args.extra_splits;
    return splits_of_blocks(blocks_of(keys), shared.split_keys / args.block_keys);
  }

  // A split has at least the share of all keys that each of the wanted tiles would have. Where there are fewer tiles
  // than are wanted it is the shortest with which there are not more, but at most a third longer than that share, so
  // that a few long sequences do not end long after all others.
  __device__ __forceinline__ void choose_split_keys() {
    if (args.split_keys != 0) return;
    float tiles = 0.0f, work = 0.0f;
    for_each_sequence([&](int sequence) {
      const int own = tiles_of(sequence) * heads(), blocks = blocks_of(keys(sequence).count);
      if (sequence < kMostSearched) shared.tiles[sequence] = own, shared.blocks[sequence] = blocks;
      tiles += static_cast<float>(own), work += static_cast<float>(own) * static_cast<float>(blocks);
    });
    tiles = add_up(tiles), work = add_up(work);
    const int longest = max(blocks_of(shared.longest), 1);
    const float share = work / static_cast<float>(args.wanted_tiles);
    const int least = max(args.least_keys / args.block_keys, min(static_cast<int>(ceilf(share)), longest));
    const int most = max(least, min(static_cast<int>(ceilf(share * kMostOfShare)), longest));
    if (thread < kWarpSize) {
      const bool few = tiles < static_cast<float>(args.wanted_tiles) && args.batch <= kMostSearched;
      const int blocks = few ? search(least, most) : least;
      if (thread == 0) shared.split_keys = blocks * args.block_keys;
    }
    ptx::bar_sync();
  }

  // The smallest number of blocks from least to most, which is enough, that gives no more than the wanted tiles. By a
  // warp, whose lanes try a number each.
  __device__ __forceinline__ int search(int least, int most) const {
    while (least < most) {
      const int step = ceil_div(most - least, kWarpSize), own = least + thread * step;
      const uint32 enough = ptx::vote_ballot(own >= most || is_enough(own));
      if (enough == 0) {
        least += (kWarpSize - 1) * step + 1;
        continue;
      }
      const int lane = __ffs(static_cast<int>(enough)) - 1;
      most = min(most, least + lane * step);
      if (lane == 0) return most;
      least += (lane - 1) * step + 1;
    }
    return most;
  }
  __device__ __forceinline__ bool is_enough(int blocks_of_split) const {
    int64 tiles = 0;
    for (int sequence = 0; sequence < args.batch; ++sequence)
      tiles += static_cast<int64>(shared.tiles[sequence]) * splits_of_blocks(shared.blocks[sequence], blocks_of_split);
    return tiles <= args.wanted_tiles;
  }

  // Of all threads; the same in each run, as the order is.
  __device__ __forceinline__ float add_up(float value) {
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) value += ptx::shfl_xor(value, distance);
    if (thread % kWarpSize == 0) shared.sum_of_warp[thread / kWarpSize] = value;
    ptx::bar_sync();
    float sum = shared.sum_of_warp[thread % kWarpSize];
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) sum += ptx::shfl_xor(sum, distance);
    ptx::bar_sync();
    return sum;
  }

  // -------------------------------------------------------------------------------------------------------------------

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
    const int splits = splits_of(seen.count), places = tiles * splits;
    int first_slot = -1;
    if (splits > 1) {
      if (lane == 0) first_slot = static_cast<int>(take_slots(static_cast<uint32>(places * heads()), first + places));
      first_slot = ptx::shfl_first(first_slot);
      if (args.counters != nullptr) clear_counters(first_slot, tiles * heads(), lane);
    }
    const PlannedTile tile{sequence,
                           static_cast<int>(first),
                           tiles,
                           heads_per_section(tiles, seen.count),
                           rows.count,
                           seen.count,
                           rows.first,
                           seen.first,
                           args.queries.offsets == nullptr ? sequence : 0,
                           key_batch(sequence),
                           splits,
                           first_slot};
    for (int index = lane; index < places; index += kWarpSize)
      if (first + index < args.most_tiles) args.tiles[first + index] = tile;
  }

  // end: of its tiles in the list.
  __device__ __forceinline__ uint32 take_slots(uint32 count, uint32 end) const {
    ptx::red_max_shared(ptx::cvta_to_shared(&shared.split_tiles), static_cast<int>(end));
    return ptx::atom_add_shared(ptx::cvta_to_shared(&shared.slots), count);
  }

  __device__ __forceinline__ void clear_counters(int first_slot, int count, int lane) const {
    for (int index = lane; index < count; index += kWarpSize) args.counters[first_slot + index] = 0;
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
