// SPDX-License-Identifier: Apache-2.0
// From the accumulators of one warp to its rows of the output and of the log-sum-exp. Every warp sends its own rows, so
// the end of a tile needs no barrier wider than a warp, and the copy engine works on while the next tile begins.
#pragma once

#include "abi.cuh"
#include "attention/probability.cuh"
#include "attention/products.cuh"
#include "attention/row_end.cuh"
#include "hopper/shape.cuh"
#include "hopper/tiles.cuh"
#include "ptx/barrier.cuh"
#include "ptx/convert.cuh"
#include "ptx/memory.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/tma.cuh"

template <class Config, class Shape_ = HopperShape<Config>>
struct HopperStore {
  using Shape = Shape_;
  using OutputTile = typename Shape::OutputTile;
  static constexpr int kChunks = ceil_div(Shape::kOutputColumns, kChunkElements);
  static constexpr int kElementsOfWord = Config::Written::kElementsOfWord;
  static constexpr int kTiles = kChunks * kElementsOfWord;  // of eight columns
  static constexpr int kStoreRows = Shape::kStoreRows;

  using Sequences = typename Config::Sequences;
  using Additions = typename Config::SoftmaxParts;
  using Scales = typename Config::Products::template Scales<Config>;
  using End = RowEnd<Additions::kAny>;

  const HopperTiles<Config>& tiles;
  const int first_column = 0;   // of the output, that the warpgroup has
  const bool tells_lse = true;  // of warpgroups that share their rows one does
  const HopperArguments& args = tiles.args.core;

  // Divides by the sums, writes the LSE and starts the stores: of the rows from first_row on, through the slab.
  template <class Softmax>
  __device__ __forceinline__ void write(const Softmax& softmax, const HopperTile<Config>& tile, int first_row,
                                        SmemAddress slab) const {
    const End ends[2] = {end_row(softmax, tile, first_row, 0), end_row(softmax, tile, first_row, 1)};
    float factors[2] = {factor_of(ends[0]), factor_of(ends[1])};
    if constexpr (Scales::kAny) {
      const float of_values = Scales(tiles.args, tiles.heads(), tile).of_values;
      factors[0] *= of_values, factors[1] *= of_values;
    }
    Config::Output::multiply(factors);
    if constexpr (Config::kSplitKv)
      if (tile.is_partial()) return write_partial(softmax, ends, tile, first_row);
    uint32 pairs[2 * kChunks];
    Config::Output::pack(pairs);
    Config::Written::arrange(pairs);
    if constexpr (Sequences::kRagged)
      if (tiles.sequence_of(tile).keys == 0) clear(pairs);
#pragma unroll
    for (int panel = 0; panel < OutputTile::kPanels; panel += Shape::kOutputPanels) {
      if (ptx::elect()) ptx::tma_wait_read();
      ptx::bar_warp_sync();
      stage(pairs, panel, slab);
      ptx::fence_proxy_async();
      ptx::bar_warp_sync();
      if (ptx::elect()) send(tile, first_row, panel, slab);
    }
    // Last, so that no fence has to wait for it.
    if (tells_lse && args.lse != nullptr) write_lse(softmax, ends, tile, first_row);
  }

  // Before the block ends its shared memory has to be read, and before a kernel ends its stores are done.
  __device__ __forceinline__ void finish() const {
    if (ptx::elect()) ptx::tma_wait();
  }
  __device__ __forceinline__ void wait_read() const {
    if (ptx::elect()) ptx::tma_wait_read();
  }

 private:
  template <class Softmax>
  __device__ __forceinline__ End end_row(const Softmax& softmax, const HopperTile<Config>& tile, int first_row,
                                         int h) const {
    return ::end_row(
        Additions(tiles.args), softmax, 0, h,
        [&] { return tiles.place_of(tile, first_row + 8 * h + ptx::tid_x() % kWarpSize / 4); }, tile.is_first());
  }

  // What the output is multiplied by. A row that saw no key has sum 0 and gives 0.
  __device__ __forceinline__ float factor_of(const End& end) const {
    float factor = end.total == 0.0f ? 0.0f : ptx::rcp(end.total);
    if constexpr (Additions::kAny) factor *= end.kept;
    if constexpr (Config::Dropouts::kAny) factor *= typename Config::Dropouts(tiles.args).scale();
    return factor;
  }

  // Rows without keys: what was read in place of values may be NaN, and times 0 it still is.
  __device__ __forceinline__ static void clear(uint32 (&pairs)[2 * kChunks]) {
#pragma unroll
    for (uint32& pair : pairs) pair = 0;
  }

  // The same of a split, in f32 and to a slot of its own.
  template <class Softmax>
  __device__ __forceinline__ void write_partial(const Softmax& softmax, const End (&ends)[2],
                                                const HopperTile<Config>& tile, int first_row) const {
    const int lane = ptx::tid_x() % kWarpSize;
    float values[4 * kTiles];
    Config::Output::read(values);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + lane / 4 + 8 * h, row_of_slot = tiles.row_of_slot(tile, row);
      const SplitArguments& splits = tiles.args.splits;
      if (row >> args.packed_heads_log2 >= tiles.sequence_of(tile).queries || row_of_slot >= splits.rows) continue;
      const PartialRow partial(splits, tile.slot, row_of_slot, Config::kHeadDimV);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const int column = first_column + 8 * n;
        if (column < Config::kHeadDimV)
          ptx::st_global(partial.out + column + lane % 4 * 2, values[4 * n + 2 * h], values[4 * n + 2 * h + 1]);
      }
      if (tells_lse && lane % 4 == 0) partial.write_weight(ends[h].log2_sum_exp(softmax, 0, h));
    }
  }

  // One lane of each row writes.
  template <class Softmax>
  __device__ __forceinline__ void write_lse(const Softmax& softmax, const End (&ends)[2],
                                            const HopperTile<Config>& tile, int first_row) const {
    const int lane = ptx::tid_x() % kWarpSize;
    if (lane % 4 != 0) return;
    const int last_pack = (1 << args.packed_heads_log2) - 1;
    char* const lse =
        reinterpret_cast<char*>(args.lse) + Sequences::query_batch(tile, tile.batch) * args.lse_strides.batch;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + lane / 4 + 8 * h;
      const int position = tiles.heads().query(row);
      const int head = (tile.head << args.packed_heads_log2) + (row & last_pack);
      if (position < tiles.sequence_of(tile).queries)
        ptx::st_global(
            lse + head * args.lse_strides.head + (Sequences::first_query(tile) + position) * args.lse_strides.row,
            told_lse<Config::kSplitKv>(ends[h], softmax, 0, h));
    }
  }

  // Panels first_panel on into the slab, two chunks of 8 columns at a time: lanes from 16 on say where the second goes.
  // Chunks of a row are XORed with the row, so that the even ones are found from the first by an XOR, too.
  __device__ __forceinline__ void stage(const uint32 (&pairs)[2 * kChunks], int first_panel, SmemAddress slab) const {
    constexpr int kStep = 2;
    const int lane = ptx::tid_x() % kWarpSize, row = lane % kStoreRows;
    const SmemAddress first =
        slab + row * OutputTile::kRowBytes + OutputTile::swizzled(row, lane / kStoreRows) * kChunkBytes;
    const int first_chunk = first_panel * OutputTile::kChunksOfRow;
#pragma unroll
    for (int i = 0; i < Shape::kOutputPanels * OutputTile::kChunksOfRow; i += kStep) {
      const SmemAddress place = (first ^ i % OutputTile::kChunksOfRow * kChunkBytes) +
                                i / OutputTile::kChunksOfRow * Shape::kOutputPanelBytes;
      const int n = first_chunk + i;
      if (n + 1 < kChunks)
        ptx::stmatrix_x4(place, pairs[2 * n], pairs[2 * n + 1], pairs[2 * n + 2], pairs[2 * n + 3]);
      else if (n < kChunks)
        ptx::stmatrix_x2(place, pairs[2 * n], pairs[2 * n + 1]);
    }
  }

  __device__ __forceinline__ void send(const HopperTile<Config>& tile, int first_row, int first_panel,
                                       SmemAddress slab) const {
#pragma unroll
    for (int i = 0; i < Shape::kOutputPanels; ++i)
      if (first_panel + i < OutputTile::kPanels)
        ptx::tma_store(
            args.out,
            tiles.query_origin(tile, first_column + (first_panel + i) * OutputTile::kPanelColumns * kElementsOfWord,
                               first_row),
            slab + i * Shape::kOutputPanelBytes);
    ptx::tma_commit_group();
  }
};
