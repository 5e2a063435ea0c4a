// SPDX-License-Identifier: Apache-2.0
// From the accumulators of one warp to its rows of the output and of the log-sum-exp.
#pragma once

#include "abi.cuh"
#include "attention/row_end.cuh"
#include "attention/softmax.cuh"
#include "attention/splits.cuh"
#include "mma/columns.cuh"
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"
#include "tile/shared_tile.cuh"

// Divides by the sums. A row that saw no key has sum 0 and gives 0. scales: of products. place_of(row): by who asks for
// its head. adds: see end_row. Where it tells: tell(row, end, m, h) of the rows that there are, by one lane of each.
template <int kM, int kN, class Softmax, class Additions, class Dropouts, class Scales, class PlaceOf, class Tell>
__device__ __forceinline__ void normalize(Accumulator<kM, kN>& o, const Softmax& softmax, const Additions& additions,
                                          const Dropouts& dropouts, const Scales& scales, PlaceOf place_of,
                                          int valid_rows, int lane, bool adds, bool tells, Tell tell) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const auto end = end_row(
          additions, softmax, m, h, [&] { return place_of(16 * m + 8 * h + lane / 4); }, adds);
      float inverse = end.total == 0.0f ? 0.0f : __frcp_rn(end.total);
      if constexpr (Additions::kAny) inverse *= end.kept;
      if constexpr (Dropouts::kAny) inverse *= dropouts.scale();
      if constexpr (Scales::kAny) inverse *= scales.of_values;
#pragma unroll
      for (int n = 0; n < kN; ++n) o.x[m][n][2 * h] *= inverse, o.x[m][n][2 * h + 1] *= inverse;
      const int row = 16 * m + 8 * h + lane / 4;
      if (tells && lane % 4 == 0 && row < valid_rows) tell(row, end, m, h);
    }
}

// The output of a split, in f32; row: where the first one goes.
template <class Columns, int kHeadDimV, int kM, int kN>
__device__ __forceinline__ void store_partial_rows(const Accumulator<kM, kN>& o, float* rows, int valid_rows,
                                                   int lane) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = 16 * m + 8 * h + lane / 4;
      if (row >= valid_rows) continue;
#pragma unroll
      for (int n = 0; n < kHeadDimV / 8; n += Columns::kTiles)
        Columns::put(rows + row * kHeadDimV + 8 * n + Columns::first(lane), o.x[m], n, h);
    }
}

// The warp's rows into its own slab of shared memory, through which they leave, so that global memory sees whole
// chunks.
template <class Element, class Columns, class Tile, int kM, int kN>
__device__ __forceinline__ void gather_rows(const Accumulator<kM, kN>& o, SmemAddress slab, int lane) {
  ptx::bar_warp_sync();
  const SmemAddress at = slab + Tile::offset(lane / 4, Columns::chunk(lane)) + Columns::of_chunk(lane) * 2;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; n += Columns::kTiles)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        Columns::template put_elements<Element>(Tile::move(at, 16 * m + 8 * h, n), o.x[m], n, h);
  ptx::bar_warp_sync();
}

// The same of e4m3, of which a chunk has two tiles.
template <class Columns, class Tile, int kM, int kN>
__device__ __forceinline__ void gather_bytes(const Accumulator<kM, kN>& o, SmemAddress slab, int lane) {
  constexpr int kTileBytes = 8;
  ptx::bar_warp_sync();
  const SmemAddress at = slab + Tile::offset(lane / 4, 0) + Columns::first(lane);
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; n += Columns::kTiles)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        Columns::put_bytes(Tile::move(at, 16 * m + 8 * h, n / 2) + n % 2 * kTileBytes, o.x[m], n, h);
  ptx::bar_warp_sync();
}

// Rows leave by way of a slab of shared memory that kThreads threads have together, of which this is one. gather()
// brings them there.
template <class Tile, int kHeadDimV, int kThreads, class Gather>
__device__ __forceinline__ void store_rows(Gather gather, SmemAddress slab, char* rows, int64 row_stride,
                                           int valid_rows, int thread) {
  gather();
  for_each_band<kHeadDimV / kChunkElements, kThreads>(thread, [&](int row, int chunk, auto step) {
    constexpr int kStep = decltype(step)::value;
    char* dst = rows + row * row_stride + chunk * kChunkBytes;
#pragma unroll 4
    for (int i = 0; i < Tile::kRows; i += kStep, dst += kStep * row_stride)
      if (row + i < valid_rows && row + i < Tile::kRows)
        ptx::st_global(dst, ptx::ld_shared(slab + Tile::offset(row + i, chunk)));
  });
}

// The same where rows lie anywhere: row_at(row) is where that one begins.
template <class Tile, int kHeadDimV, int kThreads, class Gather, class RowAt>
__device__ __forceinline__ void store_found_rows(Gather gather, SmemAddress slab, RowAt row_at, int valid_rows,
                                                 int thread) {
  gather();
  for_each_band<kHeadDimV / kChunkElements, kThreads>(thread, [&](int row, int chunk, auto step) {
#pragma unroll 1
    for (int at = row; at < min(Tile::kRows, valid_rows); at += decltype(step)::value)
      ptx::st_global(row_at(at) + chunk * kChunkBytes, ptx::ld_shared(slab + Tile::offset(at, chunk)));
  });
}

// How the rows of a warp leave that has them alone, by way of its slab at the start of shared memory.
template <class Config, class Shape, class Warp>
struct StoreOfWarp {
  using Element = typename Config::Element;
  using Columns = typename Warp::Fragments::Columns;
  using Tile = typename Shape::OTile;

  template <class Output>
  __device__ __forceinline__ static void gather(const Output& o, SmemAddress slab, int lane) {
    if constexpr (Config::Written::kElementsOfWord == 2)
      gather_bytes<Columns, Tile>(o, slab, lane);
    else
      gather_rows<Element, Columns, Tile>(o, slab, lane);
  }
  __device__ __forceinline__ static SmemAddress slab(SmemAddress smem, int warp) { return smem + warp * Tile::kBytes; }
  // Whether the warp says what the sums of its rows are.
  __device__ __forceinline__ static constexpr bool tells() { return true; }

  template <class Output>
  __device__ __forceinline__ static void rows(const Output& o, SmemAddress slab, char* rows, int64 row_stride,
                                              int valid_rows, int lane) {
    store_rows<Tile, Shape::kOutputColumns, kWarpSize>([&] { gather(o, slab, lane); }, slab, rows, row_stride,
                                                       valid_rows, lane);
  }
  template <class Output, class RowAt>
  __device__ __forceinline__ static void found_rows(const Output& o, SmemAddress slab, RowAt row_at, int valid_rows,
                                                    int lane) {
    store_found_rows<Tile, Shape::kOutputColumns, kWarpSize>([&] { gather(o, slab, lane); }, slab, row_at, valid_rows,
                                                             lane);
  }
  template <class Output>
  __device__ __forceinline__ static void partial_rows(const Output& o, float* rows, int valid_rows, int lane) {
    store_partial_rows<Columns, Config::kHeadDimV>(o, rows, valid_rows, lane);
  }
};
