// SPDX-License-Identifier: Apache-2.0
// Joins the partial results of tiles whose keys are split (attention/splits.cuh; Dao et al. 2023, "Flash-Decoding"). A
// thread block has a row, of which each of its warps adds up every eighth split, from the first on. Or, where what
// comes of a row is to depend on it alone, each thread adds up all splits in their order: then those that see none of
// its keys change nothing, wherever they stand.
#pragma once

#include "abi.cuh"
#include "attention/packed_heads.cuh"
#include "attention/row_place.cuh"
#include "attention/split_rows.cuh"
#include "ptx/barrier.cuh"
#include "ptx/convert.cuh"
#include "ptx/grid_dependency.cuh"
#include "ptx/memory.cuh"
#include "ptx/special_registers.cuh"
#include "types.cuh"

constexpr int kCombineWarps = kCombineThreads / kWarpSize;
constexpr int kColumnsOfLane = 4;

// kMostColumns: of a row.
template <int kMostColumns>
struct CombineShared {
  float sums[kCombineWarps][kMostColumns];
};

// kWaits: starts while the kernel in front still runs.
template <class Element, int kMostColumns, bool kWaits>
class CombineRows {
  using Shared = CombineShared<kMostColumns>;

 public:
  __device__ __forceinline__ CombineRows(const CombineArguments& args_, Shared& shared_)
      : args(args_), shared(shared_), thread(ptx::tid_x()) {}

  __device__ __forceinline__ void run() const {
    if constexpr (kWaits) ptx::launch_dependents(), ptx::wait_for_grids();
    const int64 tiles = args.planned == nullptr ? static_cast<int64>(args.batch) * args.heads * args.tiles
                                                : static_cast<int64>(args.head->split_tiles) * args.heads;
    for (int64 at = ptx::ctaid_x(); at < tiles * args.rows; at += ptx::nctaid_x()) {
      const Row row = find(at / args.rows, static_cast<int>(at % args.rows));
      if (row.from.splits > 1) args.fixed != 0 ? combine_in_order(row) : combine(row);
    }
  }

 private:
  // Of the result; there are no splits where there is none.
  struct Row {
    SplitRow from;
    int64 out, lse;  // where it goes
  };

  __device__ __forceinline__ Row find(int64 tile, int row) const {
    return args.planned == nullptr ? find_in_batch(tile, row) : find_in_list(tile, row);
  }
  __device__ __forceinline__ Row find_in_batch(int64 tile, int row) const {
    const int index = static_cast<int>(tile % args.tiles), head = static_cast<int>(tile / args.tiles % args.heads);
    const int batch = static_cast<int>(tile / args.tiles / args.heads);
    const int64 of_split = static_cast<int64>(args.batch) * args.heads * args.tiles;
    return place({args.splits, tile, of_split}, row, index, head, batch, 0, args.queries);
  }
  // The first of a sequence's tiles in the list are those of its first split.
  __device__ __forceinline__ Row find_in_list(int64 tile, int row) const {
    const int at = static_cast<int>(tile / args.heads), head = static_cast<int>(tile % args.heads);
    const PlannedTile& planned = args.planned[at];
    const int index = at - planned.first;
    if (planned.first_slot < 0 || index >= planned.tiles) return {};
    const int64 first = planned.first_slot + static_cast<int64>(head) * planned.tiles + index;
    return place({planned.splits, first, static_cast<int64>(args.heads) * planned.tiles}, row, index, head,
                 planned.query_batch, planned.first_query, planned.queries);
  }

  struct Slots {
    int splits;
    int64 first, stride;
  };
  __device__ __forceinline__ Row place(const Slots& slots, int row, int index, int head, int batch, int first_query,
                                       int queries) const {
    const int of_tile = index * args.block_rows + row;
    const PackedHeads heads{args.packed_heads_log2};
    const int position = heads.query(of_tile);
    if (position >= queries) return {};
    const int query_head = heads.head(head, of_tile);
    const auto in = [&](const RowStrides& strides) {
      return batch * strides.batch + static_cast<int64>(first_query + position) * strides.row +
             query_head * strides.head;
    };
    const int64 first = slots.first * args.rows + row;
    return {{args.partials + first * args.head_dim_v, args.weights_of_partials + 2 * first, slots.splits,
             slots.stride * args.rows, args.head_dim_v},
            in(args.out_strides),
            in(args.lse_strides)};
  }

  // By the lanes of each warp, all of which find the same.
  __device__ __forceinline__ SplitSum sum_of(const SplitRow& row) const {
    const int lane = thread % kWarpSize;
    SplitSum sum = SplitSum::none_above(largest_weight<kWarpSize>(row, lane));
    for (int split = lane; split < row.splits; split += kWarpSize) sum.total += row.share(split, sum.shift);
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) sum.total += ptx::shfl_xor(sum.total, distance);
    return sum;
  }

  __device__ __forceinline__ void combine(const Row& row) const {
    const SplitSum sum = sum_of(row.from);
    add_up_own(row.from, sum);
    ptx::bar_sync();
    const float factor = sum.total == 0.0f ? 0.0f : __frcp_rn(sum.total);
    for (int column = 2 * thread; column < args.head_dim_v; column += 2 * kCombineThreads)
      put(Element{}, row, column, factor * sum_at(column), factor * sum_at(column + 1));
    if (thread == 0 && args.lse != nullptr) ptx::st_global(args.lse + row.lse, sum.natural_lse());
    ptx::bar_sync();  // the sums are read
  }

  __device__ __forceinline__ void combine_in_order(const Row& row) const {
    const SplitRow& from = row.from;
    Log2 largest{-infinity(), 0.0f};
    for (int split = 0; split < from.splits; ++split) largest = larger(largest, from.weight(split));
    SplitSum sum = SplitSum::none_above(largest);
#pragma unroll 4
    for (int split = 0; split < from.splits; ++split) sum.total += from.share(split, sum.shift);
    const float factor = sum.total == 0.0f ? 0.0f : __frcp_rn(sum.total);
    for (int column = 2 * thread; column < args.head_dim_v; column += 2 * kCombineThreads) {
      float added[2] = {};
#pragma unroll 4
      for (int split = 0; split < from.splits; ++split) {
        const float share = from.share(split, sum.shift);
        float partial[2];
        ptx::ld_global(from.partial(split) + column, partial[0], partial[1]);
        if (share != 0.0f)
          added[0] = __fmaf_rn(share, partial[0], added[0]), added[1] = __fmaf_rn(share, partial[1], added[1]);
      }
      put(Element{}, row, column, factor * added[0], factor * added[1]);
    }
    if (thread == 0 && args.lse != nullptr) ptx::st_global(args.lse + row.lse, sum.natural_lse());
  }

  // Two neighbours of the result.
  template <class Element16>
  __device__ __forceinline__ void put(Element16, const Row& row, int column, float x, float y) const {
    ptx::st_global(args.out + row.out + column * 2, ptx::cvt_rn_x2(Element16{}, x, y));
  }
  __device__ __forceinline__ void put(E4m3Element, const Row& row, int column, float x, float y) const {
    ptx::st_global_16(args.out + row.out + column, ptx::cvt_rn_satfinite_e4m3x2(x, y));
  }

  // The splits of this warp, to shared memory.
  __device__ __forceinline__ void add_up_own(const SplitRow& row, const SplitSum& sum) const {
    constexpr int kStep = kWarpSize * kColumnsOfLane,
                  kSteps = kMostColumns / kStep;  // all of a row are asked for at once
    const int warp = thread / kWarpSize, first = thread % kWarpSize * kColumnsOfLane;
    float added[kSteps][kColumnsOfLane] = {};
#pragma unroll 2
    for (int split = warp; split < row.splits; split += kCombineWarps) {
      const float share = row.share(split, sum.shift);
      if (share == 0.0f) continue;
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        if (first + step * kStep < args.head_dim_v) add(added[step], share, row.partial(split) + first + step * kStep);
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      if (first + step * kStep < args.head_dim_v)
#pragma unroll
        for (int i = 0; i < kColumnsOfLane; ++i) shared.sums[warp][first + step * kStep + i] = added[step][i];
  }
  static __device__ __forceinline__ void add(float (&to)[kColumnsOfLane], float share, const float* from) {
    const ptx::Chunk c = ptx::ld_global(from);
    to[0] = __fmaf_rn(share, __uint_as_float(c.x), to[0]);
    to[1] = __fmaf_rn(share, __uint_as_float(c.y), to[1]);
    to[2] = __fmaf_rn(share, __uint_as_float(c.z), to[2]);
    to[3] = __fmaf_rn(share, __uint_as_float(c.w), to[3]);
  }
  __device__ __forceinline__ float sum_at(int column) const {
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kCombineWarps; ++warp) sum += shared.sums[warp][column];
    return sum;
  }

  const CombineArguments& args;
  Shared& shared;
  const int thread;
};
