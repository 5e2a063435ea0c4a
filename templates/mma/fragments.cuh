// SPDX-License-Identifier: Apache-2.0
// The operands of a warp's products, out of shared memory where Q, K and V lie in the elements that are multiplied.
#pragma once

#include "mma/columns.cuh"
#include "ptx/ldmatrix.cuh"
#include "types.cuh"

// Shape: of the tiles, and how many matrices an ldmatrix brings.
template <class Config, class Shape>
struct ElementFragments {
  using QTile = typename Shape::QTile;
  using KTile = typename Shape::KTile;
  using VTile = typename Shape::VTile;
  // What keys are multiplied as, and so the queries that they meet; and values, and so probabilities.
  using Key = typename Config::Element;
  using Value = typename Config::Element;
  using Columns = ColumnsInOrder;
  static constexpr int kM = Shape::kM;

  // Dims 16k..16k+15 as A operands.
  __device__ __forceinline__ static void load_query(uint32 (&q)[kM][4], const SmemAddress& rows, int lane, int k) {
    const uint32 at = QTile::offset(lane % 16, lane / 16);
#pragma unroll
    for (int m = 0; m < kM; ++m) ptx::ldmatrix_x4(q[m], rows + QTile::move(at, 16 * m, 2 * k));
  }

  // Keys 16n..16n+15, dims 16k..16k+15 as two B operands.
  __device__ __forceinline__ static void load_keys(uint32 (&b)[4], SmemAddress keys, int lane, int n, int k) {
    if constexpr (Shape::kLdmatrix == 4) {
      const uint32 at = KTile::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
      ptx::ldmatrix_x4(b, keys + KTile::move(at, 16 * n, 2 * k));
    } else {
      const uint32 at = KTile::offset(lane % 8, lane / 8 % 2);
      ptx::ldmatrix_x2(b[0], b[1], keys + KTile::move(at, 16 * n, 2 * k));
      ptx::ldmatrix_x2(b[2], b[3], keys + KTile::move(at, 16 * n + 8, 2 * k));
    }
  }

  // Keys 16j..16j+15, dims 16n..16n+15 of V as two B operands.
  __device__ __forceinline__ static void load_values(uint32 (&b)[4], SmemAddress values, int lane, int j, int n) {
    load_values_from(b, values, place_of_values(lane, 0), j, n);
  }
  // The same where a warp begins with the first-th sixteen dims, from which n is counted: where a lane reads.
  __device__ __forceinline__ static uint32 place_of_values(int lane, int first) {
    return VTile::offset(lane % 16, 2 * first + (Shape::kLdmatrix == 4 ? lane / 16 : 0));
  }
  __device__ __forceinline__ static void load_values_from(uint32 (&b)[4], SmemAddress values, uint32 at, int j, int n) {
    if constexpr (Shape::kLdmatrix == 4) {
      ptx::ldmatrix_x4_trans(b, values + VTile::move(at, 16 * j, 2 * n));
    } else {
      ptx::ldmatrix_x2_trans(b[0], b[1], values + VTile::move(at, 16 * j, 2 * n));
      ptx::ldmatrix_x2_trans(b[2], b[3], values + VTile::move(at, 16 * j, 2 * n + 1));
    }
  }
};
