// SPDX-License-Identifier: Apache-2.0
// Query heads of a group that share a tile, so that short sequences fill it and keys are read once for all of them: row
// r of the tiles of a pack of heads is query r >> packed_heads_log2 of its (r & (packed_heads - 1))th head.
#pragma once

#include "types.cuh"

struct PackedHeads {
  int log2;

  __device__ __forceinline__ int rows(int queries) const { return queries << log2; }
  __device__ __forceinline__ int query(int row) const { return row >> log2; }
  __device__ __forceinline__ int first(int pack) const { return pack << log2; }
  __device__ __forceinline__ int head(int pack, int row) const { return first(pack) + (row & ((1 << log2) - 1)); }
};

// The same where each has tiles of its own.
struct OneHead {
  __device__ __forceinline__ int rows(int queries) const { return queries; }
  __device__ __forceinline__ int query(int row) const { return row; }
  __device__ __forceinline__ int first(int head) const { return head; }
  __device__ __forceinline__ int head(int head, int) const { return head; }
};
