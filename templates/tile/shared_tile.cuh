// SPDX-License-Identifier: Apache-2.0
// A tile of 16-bit elements in shared memory that knows its layout, and the ways in and out of it.
#pragma once

#include "ptx/cp_async.cuh"
#include "ptx/memory.cuh"
#include "ptx/special_registers.cuh"
#include "types.cuh"

// The largest power of two, at most limit, that is not larger than n.
__device__ constexpr int power_of_two_below(int n, int limit) {
  return n >= limit ? limit : power_of_two_below(n, limit / 2);
}

// Spreads the 16-byte chunks of a kRows x kChunks tile over kThreads threads so that neighbouring threads touch
// neighbouring chunks. The columns are cut into bands whose widths are powers of two; for each band, body(row, chunk,
// Step) is told the thread's first row and chunk, and that its further rows follow every Step::value rows. So every
// index is a constant plus one that depends on the thread alone, for any head dim and without a division.
template <int kValue>
struct Int {
  static constexpr int value = kValue;
};

__device__ constexpr int band_width(int chunks) { return power_of_two_below(chunks, 16); }

template <int kChunks, int kThreads, int kFirst = 0, class Body>
__device__ __forceinline__ void for_each_band(int thread, Body body) {
  if constexpr (kFirst < kChunks) {
    constexpr int kWidth = band_width(kChunks - kFirst);
    // Asked anew for the narrow bands, so that no loop keeps their indices in registers.
    const int self = kFirst == 0 ? thread : ptx::tid_x() % kThreads;
    body(self / kWidth, kFirst + self % kWidth, Int<kThreads / kWidth>{});
    for_each_band<kChunks, kThreads, kFirst + kWidth>(thread, body);
  }
}

// kColumns elements a row, a multiple of 16. With kSwizzle the chunks of a row are permuted by XOR with the row so that
// the eight rows which one 8x8 matrix of ldmatrix reads lie in eight different groups of four banks. Rows of 64k
// elements need all eight groups permuted; shorter powers of two spread over the banks by themselves in part.
template <int kRows_, int kColumns, bool kSwizzle>
struct SharedTile {
  static_assert(kColumns % 16 == 0, "a row must hold whole pairs of chunks");
  static constexpr int kRows = kRows_;
  static constexpr int kChunks = kColumns / kChunkElements;
  static constexpr int kRowBytes = kColumns * 2;
  static constexpr int kBytes = kRows * kRowBytes;
  static constexpr int kSpan = kSwizzle ? power_of_two_in(kChunks, 8) : 1;  // chunks permuted among themselves
  static constexpr int kRowsPerPhase = 8 / kSpan;                           // rows with the same permutation

  // Byte offset of a chunk.
  static __device__ __forceinline__ uint32 offset(uint32 row, uint32 chunk) {
    return row * kRowBytes + (chunk ^ (row / kRowsPerPhase % kSpan)) * kChunkBytes;
  }

  // Byte offset of chunk + moved_chunks in row + moved_rows, from the offset of (row, chunk), where moved_rows is a
  // multiple of 8, moved_chunks is constant and chunk is less than the power of two that divides moved_chunks.
  static __device__ __forceinline__ uint32 move(uint32 lane_offset, int moved_rows, int moved_chunks) {
    return (lane_offset ^ (moved_chunks % kSpan * kChunkBytes)) + moved_rows * kRowBytes +
           moved_chunks / kSpan * kSpan * kChunkBytes;
  }

  // Where a thread's part of the rows begins in global memory: what request() is given.
  template <int kValidColumns, int kThreads>
  static __device__ __forceinline__ const char* source(const char* rows, int64 row_stride, int thread) {
    constexpr int kWidth = band_width(kValidColumns / kChunkElements);
    return rows + thread / kWidth * row_stride + thread % kWidth * kChunkBytes;
  }

  // Requests the tile's rows from global memory, kValidColumns elements each. kChecked: rows from valid_rows on, which
  // do not exist, become zeros and are not read.
  template <int kValidColumns, int kThreads, bool kChecked>
  static __device__ __forceinline__ void request(SmemAddress tile, const char* source, int64 row_stride, int valid_rows,
                                                 int thread) {
    request_chunks<kValidColumns / kChunkElements, kThreads, kChecked, false>(tile, source, row_stride, valid_rows,
                                                                              thread);
  }

  // The same of whole rows that all exist, of which kChecked only the first bytes do.
  template <int kThreads, bool kChecked>
  static __device__ __forceinline__ void request_begins(SmemAddress tile, const char* source, int64 row_stride,
                                                        int valid_bytes, int thread) {
    request_chunks<kChunks, kThreads, kChecked, true>(tile, source, row_stride, valid_bytes, thread);
  }

  // The same where rows lie anywhere: row_at(row) is where that one begins.
  template <int kValidColumns, int kThreads, class RowAt>
  static __device__ __forceinline__ void request_found(SmemAddress tile, RowAt row_at, int valid_rows, int thread) {
    for_each_band<kValidColumns / kChunkElements, kThreads>(thread, [&](int row, int chunk, auto step) {
      constexpr int kStep = decltype(step)::value;
#pragma unroll 1
      for (int at = row; at < kRows; at += kStep)
        ptx::cp_async_16_zero_fill(tile + offset(at, chunk), row_at(at) + chunk * kChunkBytes,
                                   at < valid_rows ? kChunkBytes : 0);
    });
  }

  // Zeroes the columns that pad kValidColumns to kColumns. Requests never touch them again.
  template <int kValidColumns, int kThreads>
  static __device__ __forceinline__ void clear_padding(SmemAddress tile, int thread) {
    if constexpr (kValidColumns < kColumns) {
#pragma unroll
      for (int row = 0; row < kRows; row += kThreads) {
        if (row + thread < kRows) ptx::st_shared(tile + offset(row + thread, kChunks - 1), ptx::Chunk{0, 0, 0, 0});
      }
    }
  }

 private:
  // valid: how many rows there are, or, where all do and kOfBytes, how many bytes of each. Where kChecked, the rest
  // becomes zeros.
  template <int kChunksOfRow, int kThreads, bool kChecked, bool kOfBytes>
  static __device__ __forceinline__ void request_chunks(SmemAddress tile, const char* source, int64 row_stride,
                                                        int valid, int thread) {
    constexpr int kWidth = band_width(kChunksOfRow);
    for_each_band<kChunksOfRow, kThreads>(thread, [&](int row, int chunk, auto step) {
      constexpr int kStep = decltype(step)::value;
      static_assert(kStep % 8 == 0, "a thread's rows must share one permutation");
      const SmemAddress dst = tile + offset(row, chunk);
      const char* src = source + (row - thread / kWidth) * row_stride + (chunk - thread % kWidth) * kChunkBytes;
#pragma unroll
      for (int i = 0; i < kRows; i += kStep, src += kStep * row_stride) {
        if (i + kStep > kRows && row + i >= kRows) continue;
        if constexpr (kChecked && kOfBytes)
          ptx::cp_async_16_zero_fill(dst + i * kRowBytes, src, min(max(valid - chunk * kChunkBytes, 0), kChunkBytes));
        else if constexpr (kChecked)
          ptx::cp_async_16_zero_fill(dst + i * kRowBytes, src, row + i < valid ? kChunkBytes : 0);
        else
          ptx::cp_async_16(dst + i * kRowBytes, src);
      }
    });
  }
};
