// SPDX-License-Identifier: Apache-2.0
// From the accumulators of a warpgroup to 64 rows of a gradient, or to some of their dims.
#pragma once

#include "attention/gradient.cuh"
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/special_registers.cuh"
#include "types.cuh"

// Of a gradient, those of a sequence.
struct GradientRows {
  int batch, head;  // of the tensor
  int first;        // of the entry, where the sequence begins
  int count;

  template <class Tile>
  __device__ __forceinline__ static GradientRows of_keys(const Tile& tile) {
    return {tile.key_batch, tile.head, tile.first_key, tile.sequence.keys};
  }
  template <class Tile>
  __device__ __forceinline__ static GradientRows of_queries(const Tile& tile, int head) {
    return {tile.query_batch, head, tile.first_query, tile.sequence.queries};
  }
};

template <class Config>
struct HopperBackwardStore {
  using Stored = typename Config::GradientElement;

  const GradientRows rows;
  const int first_row;  // of them

  // kColumns of them, from first_column on, of rows of kHeadDim.
  template <class Matrix, int kColumns, int kHeadDim>
  __device__ __forceinline__ void write(char* to, const RowStrides& strides, int first_column, float scale) const {
    if (to == nullptr) return;
    float values[kColumns / 2];
    Matrix::read(values);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int of_sequence = first_row + ptx::tid_x() % kWarpgroupSize / kWarpSize * 16 + 8 * half + lane() / 4;
      char* const row =
          to + rows.batch * strides.batch + rows.head * strides.head + (rows.first + of_sequence) * strides.row;
      const int columns = of_sequence < rows.count ? kHeadDim - first_column : 0;
      write_row<kColumns>(values, half, columns, row + first_column * Config::kGradientBytes, scale);
    }
  }

 private:
  // The first ones of them. Of eight columns a lane has two. Of 16 bits the lanes of a row exchange theirs, so that
  // each has eight of a chunk.
  template <int kColumns>
  __device__ __forceinline__ static void write_row(const float (&values)[kColumns / 2], int half, int columns,
                                                   char* row, float scale) {
    constexpr int kChunks = kColumns / 8, kWhole = Config::kGradientBytes == 2 ? kChunks / 4 * 4 : 0;
    const auto value = [&](int chunk, int e) { return values[4 * chunk + 2 * half + e] * scale; };
    if constexpr (kWhole > 0) {
#pragma unroll
      for (int chunk = 0; chunk < kWhole; chunk += 4) {
        uint32 pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[i] = ptx::cvt_rn_x2(Stored{}, value(chunk + i, 0), value(chunk + i, 1));
        transpose(pairs);
        const int of_lane = chunk + lane() % 4;
        if (8 * of_lane < columns)
          ptx::st_global(row + of_lane * kChunkBytes, ptx::Chunk{pairs[0], pairs[1], pairs[2], pairs[3]});
      }
    }
#pragma unroll
    for (int chunk = kWhole; chunk < kChunks; ++chunk)
      if (8 * chunk < columns)
        store_gradients(Stored{}, row + (8 * chunk + lane() % 4 * 2) * Config::kGradientBytes, value(chunk, 0),
                        value(chunk, 1));
  }
  // Among four lanes: to the ith one the ith pairs of all.
  __device__ __forceinline__ static void transpose(uint32 (&pairs)[4]) {
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
      const bool is_upper = (lane() & bit) != 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if ((i & bit) != 0) continue;
        const uint32 received = ptx::shfl_xor(is_upper ? pairs[i] : pairs[i + bit], bit);
        if (is_upper)
          pairs[i] = received;
        else
          pairs[i + bit] = received;
      }
    }
  }

  __device__ __forceinline__ static int lane() { return ptx::tid_x() % kWarpSize; }
};
