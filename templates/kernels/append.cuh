// SPDX-License-Identifier: Apache-2.0
// Writes new keys and values into a cache, and turns keys, and queries beside them, by their positions (rotary
// embedding: Su et al. 2021, "RoFormer"). The thread blocks of a token each find out where it goes; then some lanes of
// a warp have a row, two chunks of eight elements at a time where these turn together. Whoever writes a chunk of a
// query has read it, so it may stay where it lies. Whatever stands in memory, nothing outside of the caches is written.
#pragma once

#include "abi.cuh"
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/special_registers.cuh"
#include "tile/octet.cuh"
#include "tile/rotary.cuh"
#include "types.cuh"

struct AppendShared {
  int sequence;  // of the block's token
};

// Neighbouring lanes of a warp that have a row together.
struct RowLanes {
  int count;  // a power of two
  int own;    // of the lane, the place among them

  __device__ __forceinline__ RowLanes(int count_, int thread) : count(count_), own(thread & (count_ - 1)) {}
  __device__ __forceinline__ uint32 members() const {
    return 0xffffffffu >> (kWarpSize - count) << (ptx::tid_x() % kWarpSize - own);
  }
};

// A cache of the elements that come in.
struct SameCache {
  static constexpr bool kConverts = false;
};

// Table: of the elements of sines and cosines. Cache: what rows become there.
template <class Element, Rotary kRotary, class Table, class Cache = SameCache>
class AppendToken {
 public:
  __device__ __forceinline__ AppendToken(const AppendArguments& args_, AppendShared& shared_, const Cache& cache_ = {})
      : args(args_), shared(shared_), cache(cache_), thread(ptx::tid_x()) {}

  __device__ __forceinline__ void run() const {
    const uint32 block = ptx::ctaid_x(), blocks_of_token = static_cast<uint32>(args.blocks_of_token);
    const int64 token = block / blocks_of_token;
    const Target target = args.slots.first != nullptr ? target_of_slot(token) : target_in_sequence(token);
    const Place source{token / args.new_rows, token % args.new_rows};
    uint32 row = (block % blocks_of_token) * (kAppendThreads >> args.row_lanes_log2) +
                 static_cast<uint32>(thread >> args.row_lanes_log2);
#pragma unroll 1
    for (const AppendedRows& rows : args.rows) {
      if (row < static_cast<uint32>(rows.heads)) move(rows, static_cast<int>(row), source, target);
      row -= static_cast<uint32>(rows.heads);
    }
  }

 private:
  // A token in a tensor: in a batch entry, or on a page.
  struct Place {
    int64 batch, row;

    __device__ __forceinline__ int64 in(const RowStrides& strides) const {
      return batch * strides.batch + row * strides.row;
    }
  };
  // Where a token goes.
  struct Target {
    bool exists;  // false: it is of no sequence, and nothing of it is read or written
    bool in_cache;
    Place cache;
    int64 position;
  };

  static __device__ __forceinline__ bool is_below(int64 index, int count) { return index >= 0 && index < count; }

  __device__ __forceinline__ Target target_of(const Place& place, int64 token, int64 position) const {
    const TokenNumbers& given = args.rotary.position_of_token;
    if (given.first != nullptr) position = number_of_token(given, token);
    return {true, is_below(place.batch, args.pages) && is_below(place.row, args.page_size), place, position};
  }
  __device__ __forceinline__ Target target_of_slot(int64 token) const {
    const int64 slot = number_of_token(args.slots, token);
    return target_of({slot / args.page_size, slot % args.page_size}, token, 0);
  }
  // The last of a sequence's new tokens is its last key.
  __device__ __forceinline__ Target target_in_sequence(int64 token) const {
    const int sequence = sequence_of(token);
    if (sequence < 0) return {};
    const int64 end = args.offsets == nullptr ? (static_cast<int64>(sequence) + 1) * args.new_rows
                                              : min(args.offsets[sequence + 1], args.new_rows);
    const int64 row = args.used[sequence] - (end - token);
    const int64 position = args.padding == nullptr ? row : row - args.padding[sequence];
    return target_of(place_of(args.entries == nullptr ? sequence : args.entries[sequence], row), token, position);
  }
  // Whichever thread finds it says so.
  __device__ __forceinline__ int sequence_of(int64 token) const {
    if (args.offsets == nullptr) return static_cast<int>(token / args.new_rows);
    if (thread == 0) shared.sequence = -1;
    ptx::bar_sync();
    for (int sequence = thread; sequence < args.batch; sequence += kAppendThreads)
      if (args.offsets[sequence] <= token && token < args.offsets[sequence + 1]) shared.sequence = sequence;
    ptx::bar_sync();
    return shared.sequence;
  }
  __device__ __forceinline__ Place place_of(int entry, int64 row) const {
    if (args.table == nullptr) return {entry, row};
    const int64 rows = static_cast<int64>(args.table_entries) * args.page_size;
    if (!is_below(entry, args.table_rows) || row < 0 || row >= rows) return {-1, 0};
    return {args.table[entry * args.table_stride + row / args.page_size], row % args.page_size};
  }

  // --- Rows ----------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ void move(const AppendedRows& rows, int head, const Place& source,
                                       const Target& target) const {
    if (!target.exists || (rows.to_cache != 0 && !target.in_cache)) return;
    const char* const from = rows.from + source.in(rows.from_strides) + head * rows.from_strides.head;
    char* const to =
        rows.to + (rows.to_cache != 0 ? target.cache : source).in(rows.to_strides) + head * rows.to_strides.head;
    const int lanes = 1 << args.row_lanes_log2;
    if constexpr (Cache::kConverts)
      if (const int which = static_cast<int>(&rows - args.rows); which < kAppendedCaches)
        return convert(rows, which, head, from, to, target);
    for (int i = thread & (lanes - 1); i < rows.chunks - rows.turned; i += lanes) {
      if (kRotary != Rotary::none && i < rows.turned)
        turn(from, to, i, rows.turned, target.position);
      else
        copy(from, to, i + rows.turned);
    }
  }
  static __device__ __forceinline__ void copy(const char* from, char* to, int chunk) {
    ptx::st_global(to + chunk * kChunkBytes, ptx::ld_global(from + chunk * kChunkBytes));
  }

  __device__ __forceinline__ void convert(const AppendedRows& rows, int which, int head, const char* from, char* to,
                                          const Target& target) const {
    const RowLanes lanes(1 << args.row_lanes_log2, thread);
    const RowStrides& strides = cache.scales[which].strides;
    const int count = rows.chunks - rows.turned;
    cache.write(which, to, target.cache.in(strides) + head * strides.head, lanes, [&](auto use) {
      for (int i = lanes.own; i < count; i += lanes.count) {
        if (kRotary != Rotary::none && i < rows.turned)
          turn(from, i, rows.turned, target.position, use);
        else
          use(i + rows.turned, load(from, i + rows.turned));
      }
    });
  }

  __device__ __forceinline__ void turn(const char* from, char* to, int index, int turned, int64 position) const {
    turn(from, index, turned, position,
         [&](int chunk, const Octet& x) { Octets<Element>::store(to + chunk * kChunkBytes, x); });
  }
  // The index-th of so many times two chunks: use(chunk, octet) what becomes of both.
  template <class Use>
  __device__ __forceinline__ void turn(const char* from, int index, int turned, int64 position, Use use) const {
    const int first = kRotary == Rotary::halves ? index : 2 * index;
    const int second = kRotary == Rotary::halves ? index + turned : first + 1;
    Octet x = load(from, first), y = load(from, second);
    const Angles<Table> angles(args.rotary, position);
    turn_pairs<kRotary>(x, y, angles.cosine(index), angles.sine(index));
    use(first, x);
    use(second, y);
  }
  static __device__ __forceinline__ Octet load(const char* row, int chunk) {
    return Octets<Element>::load(row + chunk * kChunkBytes);
  }

  const AppendArguments& args;
  AppendShared& shared;
  const Cache cache;
  const int thread;
};
