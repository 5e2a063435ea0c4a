// SPDX-License-Identifier: Apache-2.0
// Split keys (Dao et al. 2023, "Flash-Decoding"): where a launch has fewer tiles than a GPU computes at once, the keys
// of a tile are cut into spans of equal length, and each is a tile of its own to the scheduler. What it makes is a
// partial result, which kernels/combine.cuh joins with the others, or the block that comes last. Spans begin at
// multiples of their length, the first one with the first key that the tile sees, so that where a span ends depends on
// nothing else.
#pragma once

#include "abi.cuh"
#include "attention/mask.cuh"
#include "attention/sequence.cuh"
#include "attention/softmax.cuh"
#include "attention/split_rows.cuh"
#include "attention/tile_scheduler.cuh"
#include "ptx/memory.cuh"
#include "types.cuh"

// What a tile has of its keys: all of them.
template <bool kSplit>
struct TileSplit {
  static constexpr int kBytes = 0;

  __device__ __forceinline__ KeySpan<false> keys() const { return {}; }
  __device__ __forceinline__ constexpr bool is_first() const { return true; }
  __device__ __forceinline__ void write(SmemAddress) const {}
  __device__ __forceinline__ void read(SmemAddress) {}
};

template <>
struct TileSplit<true> {
  static constexpr int kBytes = sizeof(ptx::Chunk);

  int index;  // among those of the tile
  int slot;   // of the partial result; below 0: the tile is not split, and its result goes where the call wants it
  KeySpan<true> span;
  // How many the tile has, and how far apart their slots are. For who has found the tile; nobody is told them.
  int count = 1, stride = 0;

  __device__ __forceinline__ const KeySpan<true>& keys() const { return span; }
  __device__ __forceinline__ bool is_first() const { return index == 0; }
  __device__ __forceinline__ bool is_partial() const { return slot >= 0; }
  __device__ __forceinline__ int first_slot() const { return slot - index * stride; }
  __device__ __forceinline__ void write(SmemAddress at) const {
    ptx::st_shared(at, ptx::Chunk{static_cast<uint32>(index), static_cast<uint32>(slot),
                                  static_cast<uint32>(span.first), static_cast<uint32>(span.end)});
  }
  __device__ __forceinline__ void read(SmemAddress at) {
    const ptx::Chunk c = ptx::ld_shared(at);
    index = static_cast<int>(c.x), slot = static_cast<int>(c.y);
    span = {static_cast<int>(c.z), static_cast<int>(c.w)};
  }
};

// The tile of an index among all, of those that sizes say, by what the list has of it.
template <class Config>
__device__ __forceinline__ auto scheduled_tile(const typename Config::Arguments& args, const ForwardSizes& sizes,
                                               uint32 index, const typename Config::Sequences::Entry& entry) {
  using Sequences = typename Config::Sequences;
  auto tile =
      Sequences::template tile<Config::Masks::kEnds, Config::kLongestFirst, Config::kSplitKv>(sizes, index, entry);
  // To the scheduler the batch has its entries once for each split.
  if constexpr (Config::kSplitKv && !Sequences::kRagged) {
    if (args.splits.partials != nullptr) {
      tile.slot = (tile.batch * sizes.num_heads_q + tile.head) * sizes.num_q_tiles + tile.index;
      tile.split = tile.batch / args.splits.batch;
      tile.batch %= args.splits.batch;
      tile.splits = sizes.batch / args.splits.batch;
      tile.slot_stride = args.splits.batch * sizes.num_heads_q * sizes.num_q_tiles;
    }
  }
  return tile;
}

// Its split. first_key: the first one that some row sees.
template <class Config, class Tile>
__device__ __forceinline__ TileSplit<true> split_of(const typename Config::Arguments& args, const Tile& tile,
                                                    int first_key) {
  if (tile.slot < 0) return {0, tile.slot, KeySpan<true>::all()};
  const int keys = args.splits.planned_keys == nullptr ? args.splits.keys : *args.splits.planned_keys;
  const int first = (first_key / keys + tile.split) * keys;
  return {tile.split, tile.slot, {first, first + keys}, tile.splits, tile.slot_stride};
}

// Of a row of a partial result.
struct PartialRow {
  float* out;
  float* weight;

  __device__ __forceinline__ PartialRow(const SplitArguments& splits, int slot, int row, int columns) {
    const int64 at = static_cast<int64>(slot) * splits.rows + row;
    out = splits.partials + at * columns, weight = splits.weights + 2 * at;
  }
  // The same row of all splits of the tile.
  __device__ __forceinline__ static SplitRow of_all(const SplitArguments& splits, const TileSplit<true>& tile, int row,
                                                    int columns) {
    const PartialRow first(splits, tile.first_slot(), row, columns);
    return {first.out, first.weight, tile.count, static_cast<int64>(tile.stride) * splits.rows, columns};
  }
  __device__ __forceinline__ void write_weight(const Log2& log2) const { ptx::st_global(weight, log2.high, log2.low); }
};
