// SPDX-License-Identifier: Apache-2.0
// Operands of mma.m16n8k16 out of tiles in shared memory, of which rows or columns are what is summed over.
#pragma once

#include "attention/softmax.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"
#include "types.cuh"

template <class Tile>
struct Operands {
  // A: rows from row on, which is a multiple of 16; summed over: columns 16k..16k+15.
  __device__ __forceinline__ static void rows_as_a(uint32 (&a)[4], SmemAddress tile, int row, int k, int lane) {
    ptx::ldmatrix_x4(a, tile + Tile::move(Tile::offset(lane % 16, lane / 16), row, 2 * k));
  }
  // A: columns 16m..16m+15 as rows; summed over: rows from row on.
  __device__ __forceinline__ static void columns_as_a(uint32 (&a)[4], SmemAddress tile, int m, int row, int lane) {
    ptx::ldmatrix_x4_trans(a, tile + Tile::move(Tile::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2), row, 2 * m));
  }
  // Two B: rows from row on as columns; summed over: columns 16k..16k+15.
  __device__ __forceinline__ static void rows_as_b(uint32 (&b)[4], SmemAddress tile, int row, int k, int lane) {
    ptx::ldmatrix_x4(b, tile + Tile::move(Tile::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2), row, 2 * k));
  }
  // Two B: columns 16n..16n+15; summed over: rows from row on.
  __device__ __forceinline__ static void columns_as_b(uint32 (&b)[4], SmemAddress tile, int n, int row, int lane) {
    ptx::ldmatrix_x4_trans(b, tile + Tile::move(Tile::offset(lane % 16, lane / 16), row, 2 * n));
  }
};

// Of all tiles of rows with the n-th two of columns.
template <class Element, int kM, int kN>
__device__ __forceinline__ void add_products(Accumulator<kM, kN>& sum, int n, const uint32 (&a)[kM][4],
                                             const uint32 (&b)[4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    ptx::mma(Element{}, sum.x[m][2 * n], a[m], b[0], b[1]);
    ptx::mma(Element{}, sum.x[m][2 * n + 1], a[m], b[2], b[3]);
  }
}
