// SPDX-License-Identifier: Apache-2.0
// Jobs of rows of queries, by the warps that otherwise multiply. The loader brings what they need through the rings of
// Q and dO: before the gradients of keys O and dO, a tile a step, of which come the row sums of dO O, less the gradient
// of the LSE; beside them the LSE in binary logarithms and zeros for dQ. And behind them the sums of dQ, a part of a
// tile a step, which are rounded.
#pragma once

#include "abi.cuh"
#include "attention/gradient.cuh"
#include "hopper/backward_jobs.cuh"
#include "hopper/backward_shape.cuh"
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/special_registers.cuh"
#include "ptx/tma.cuh"
#include "tile/octet.cuh"
#include "types.cuh"

// Which rows, for the loader and for those who compute.
template <class Config>
struct HopperBackwardRows {
  static constexpr int kTileRows = Config::kBlockQ, kRows = HopperBackwardJob<Config>::kRows;

  const HopperBackwardArguments& args;
  const PlacedKeyTile<Config> beside;  // their sequence and their heads of keys
  const int head;                      // of queries
  const int first_tile, tiles;

  __device__ __forceinline__ HopperBackwardRows(const HopperBackwardArguments& args_, const PlacedKeyTile<Config>& job)
      : HopperBackwardRows(args_, job, tiles_of_head(args_, job)) {}

  __device__ __forceinline__ int first() const { return first_tile * kTileRows; }
  // Among those of all heads.
  __device__ __forceinline__ int64 first_tile_of_all() const {
    return beside.query_place(args.sizes.num_heads_q, head, args.sizes.num_q_tiles) + first_tile;
  }
  // In a tensor of queries, of a row of the sequence.
  __device__ __forceinline__ int64 offset_in(const RowStrides& strides, int row) const {
    return beside.query_batch * strides.batch + head * strides.head + (beside.first_query + row) * strides.row;
  }

 private:
  __device__ __forceinline__ static int tiles_of_head(const HopperBackwardArguments& args,
                                                      const PlacedKeyTile<Config>& job) {
    return Config::Sequences::kRagged ? ceil_div(job.sequence.queries, kTileRows) : args.sizes.num_q_tiles;
  }
  __device__ __forceinline__ HopperBackwardRows(const HopperBackwardArguments& args_, const PlacedKeyTile<Config>& job,
                                                int tiles_of_head)
      : HopperBackwardRows(args_, job, tiles_of_head, ceil_div(tiles_of_head * kTileRows, kRows)) {}
  __device__ __forceinline__ HopperBackwardRows(const HopperBackwardArguments& args_, const PlacedKeyTile<Config>& job,
                                                int tiles_of_head, int jobs_of_head)
      : args(args_),
        beside(job),
        head(job.head * args.sizes.heads_per_group + job.index / jobs_of_head),
        first_tile(job.index % jobs_of_head * (kRows / kTileRows)),
        tiles(min(tiles_of_head - first_tile, kRows / kTileRows)) {}
};

__device__ constexpr int lanes_for(int chunks) {
  int lanes = 1;
  while (lanes < chunks && lanes < kWarpSize) lanes *= 2;
  return lanes;
}

template <class Config, class Shape>
struct HopperBackwardRowsJob {
  using Rows = HopperBackwardRows<Config>;
  using Element = typename Config::Element;
  using OTile = typename Shape::OTile;
  static constexpr int kThreads = Shape::kConsumerThreads, kTileRows = Rows::kTileRows;

  const HopperBackwardArguments& args;
  const Rows rows;

  // Each warp its own. next(use): the next step of the rings, use(slot of Q, slot of dO).
  template <class Next>
  __device__ __forceinline__ void prepare(Next next) const {
    // What it reads is on its way meanwhile.
    static_assert(Rows::kRows <= kThreads, "each thread has one at most");
    const int query = rows.first() + thread();
    const float lse = query < rows.beside.sequence.queries ? number(args.lse, args.lse_strides, query) : -infinity();
    if (args.dq != nullptr) clear();
#pragma unroll 1
    for (int i = 0; i < rows.tiles; ++i) next([&](SmemAddress out, SmemAddress dout) { sum_rows(i, out, dout); });
    if (thread() < rows.tiles * kTileRows)
      args.lse_log2[rows.first_tile_of_all() * kTileRows + thread()] = backward_lse(lse);
    ptx::fence_proxy_async_global();
  }
  template <class Next>
  __device__ __forceinline__ void finish(Next next) const {
#pragma unroll 1
    for (int i = 0; i < rows.tiles * Shape::kWarpgroups; ++i)
      next([&](SmemAddress sums, SmemAddress) { round_part(i, sums); });
  }

 private:
  __device__ __forceinline__ void clear() const {
    constexpr int kTileBytes = Shape::kWarpgroups * Shape::kPartBytes;
    char* const to = reinterpret_cast<char*>(args.dq_sums) + rows.first_tile_of_all() * kTileBytes;
#pragma unroll 4
    for (int at = thread() * kChunkBytes; at < rows.tiles * kTileBytes; at += kThreads * kChunkBytes)
      ptx::st_global(to + at, ptx::Chunk{});
  }

  // Some lanes have a row, a chunk each.
  __device__ __forceinline__ void sum_rows(int tile, SmemAddress out, SmemAddress dout) const {
    constexpr int kChunks = Config::kHeadDimV / kChunkElements, kLanes = lanes_for(kChunks);
    const int lane = thread() % kLanes;
#pragma unroll
    for (int first = 0; first < kTileRows; first += kThreads / kLanes) {
      const int row = first + thread() / kLanes, query = (rows.first_tile + tile) * kTileRows + row;
      float sum = 0.0f;
      if (lane < kChunks && row < kTileRows) {
        const Octet of_out = Octets<Element>::of(ptx::ld_shared(out + OTile::offset(row, lane))),
                    of_dout = Octets<Element>::of(ptx::ld_shared(dout + OTile::offset(row, lane)));
#pragma unroll
        for (int i = 0; i < kChunkElements; ++i) sum = __fmaf_rn(of_out.x[i], of_dout.x[i], sum);
      }
#pragma unroll
      for (int lanes = kLanes; lanes > 1; lanes /= 2) sum += ptx::shfl_xor(sum, lanes / 2);
      if (lane != 0 || row >= kTileRows) continue;
      if (args.dlse != nullptr && query < rows.beside.sequence.queries)
        sum -= number(args.dlse, args.dlse_strides, query);
      args.row_sums[(rows.first_tile_of_all() + tile) * kTileRows + row] = sum;
    }
  }

  // It lies as registers of a warpgroup, [eight columns][thread][4].
  __device__ __forceinline__ void round_part(int part, SmemAddress sums) const {
    if constexpr (kTransposesQueries<Config>)
      round_transposed(part, sums);
    else
      round_rows(part, sums);
  }
  // Columns are queries: of one of them every fourth of 32 threads has one of the eight dims of a chunk.
  __device__ __forceinline__ void round_transposed(int part, SmemAddress sums) const {
    constexpr int kChunks = kWarpgroupRows / kChunkElements, kColumnsOfRow = 8, kThreadsOfRow = 4;
    const int first_row = rows.first() + part / Shape::kWarpgroups * kTileRows;
    const int first_chunk = part % Shape::kWarpgroups * kChunks;
#pragma unroll 1
    for (int i = thread(); i < kTileRows * kChunks; i += kThreads) {
      const int row = i / kChunks, chunk = i % kChunks;
      if ((first_chunk + chunk) * kChunkElements >= Config::kHeadDim) continue;
      const int of_thread = chunk / 2 * kWarpSize + row % kColumnsOfRow / 2, of_register = chunk % 2 * 2 + row % 2;
      const SmemAddress from = sums + (row / kColumnsOfRow * kWarpgroupSize + of_thread) * kChunkBytes +
                               of_register * static_cast<int>(sizeof(float));
      Octet sum;
#pragma unroll
      for (int dim = 0; dim < kChunkElements; ++dim)
        sum.x[dim] = __uint_as_float(ptx::ld_shared_word(from + dim * kThreadsOfRow * kChunkBytes));
      store(first_row + row, first_chunk + chunk, sum);
    }
  }
  // Columns are dims: four neighbouring threads have the eight of a chunk, of two rows.
  __device__ __forceinline__ void round_rows(int part, SmemAddress sums) const {
    constexpr int kPairs = kWarpgroupRows / 2, kChunks = Shape::kPartChunks, kRowsOfWarp = 16;
    constexpr bool kAreRows = Shape::kPartsAreRows;
    const int first_row = rows.first() + (kAreRows ? part : part / Shape::kWarpgroups) * kWarpgroupRows;
    const int first_chunk = kAreRows ? 0 : part % Shape::kWarpgroups * kChunks;
#pragma unroll 1
    for (int i = thread(); i < kPairs * kChunks; i += kThreads) {
      const int pair = i / kChunks, chunk = i % kChunks;
      if ((first_chunk + chunk) * kChunkElements >= Config::kHeadDim) continue;
      float x[4][4];  // of thread, register
#pragma unroll
      for (int of = 0; of < 4; ++of) load(sums + (chunk * kWarpgroupSize + pair * 4 + of) * kChunkBytes, x[of]);
      const int row = first_row + pair / 8 * kRowsOfWarp + pair % 8;
      store(row, first_chunk + chunk, {x[0][0], x[0][1], x[1][0], x[1][1], x[2][0], x[2][1], x[3][0], x[3][1]});
      store(row + 8, first_chunk + chunk, {x[0][2], x[0][3], x[1][2], x[1][3], x[2][2], x[2][3], x[3][2], x[3][3]});
    }
  }
  __device__ __forceinline__ static void load(SmemAddress at, float (&x)[4]) {
    const ptx::Chunk chunk = ptx::ld_shared(at);
    x[0] = __uint_as_float(chunk.x), x[1] = __uint_as_float(chunk.y);
    x[2] = __uint_as_float(chunk.z), x[3] = __uint_as_float(chunk.w);
  }
  __device__ __forceinline__ void store(int row, int chunk, Octet sum) const {
    if (row >= rows.beside.sequence.queries) return;
#pragma unroll
    for (float& x : sum.x) x *= args.scale;
    Octets<Element>::store(args.dq + rows.offset_in(args.dq_strides, row) + chunk * kChunkBytes, sum);
  }

  __device__ __forceinline__ float number(const char* tensor, const RowStrides& strides, int query) const {
    return ptx::ld_global_float(tensor + rows.offset_in(strides, query));
  }
  __device__ __forceinline__ static int thread() { return ptx::tid_x() - kWarpgroupSize; }
};
