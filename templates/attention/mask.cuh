// SPDX-License-Identifier: Apache-2.0
// Which keys a row sees, and which key/value blocks a tile of rows has to visit.
#pragma once

#include "attention/arguments.cuh"
#include "attention/softmax.cuh"
#include "types.cuh"

// Query row i sees the keys up to last_key(i): all of them, or with the causal mask, aligned bottom-right, those up to
// i + seqlen_kv - seqlen_q. Negative: none.
template <bool kCausal>
struct Mask {
  int last_existing_key;
  int diagonal;  // seqlen_kv - seqlen_q

  __device__ __forceinline__ explicit Mask(const ForwardSizes& sizes)
      : last_existing_key(sizes.seqlen_kv - 1), diagonal(sizes.seqlen_kv - sizes.seqlen_q) {}

  __device__ __forceinline__ int last_key(int row) const {
    return kCausal ? min(row + diagonal, last_existing_key) : last_existing_key;
  }
};

// The key/value blocks of a tile, counted from the first key. A kernel visits them from the last to the first, so that
// only the first ones it meets, the masked ones, can hold keys that do not exist or that some row must not see.
struct BlockRange {
  int count;  // blocks that some row of the tile sees
  int clean;  // of these, the ones that every row sees whole
};

// Blocks that every row from first_row on sees whole.
template <int kBlockKv, class Mask>
__device__ __forceinline__ int clean_blocks(const Mask& mask, int first_row) {
  return max(mask.last_key(first_row) + 1, 0) / kBlockKv;
}

template <int kBlockKv, class Mask>
__device__ __forceinline__ BlockRange visible_blocks(const Mask& mask, int first_row, int last_row) {
  const int count = max(mask.last_key(last_row) + kBlockKv, 0) / kBlockKv;
  return {count, clean_blocks<kBlockKv>(mask, first_row)};
}

// Puts -inf where a row must not see a key: rows from first_row, keys from first_key on.
template <int kM, int kN, class Mask>
__device__ __forceinline__ void mask_scores(Accumulator<kM, kN>& s, int first_row, int first_key, const Mask& mask,
                                            int lane) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int last = mask.last_key(first_row + 16 * m + 8 * h + lane / 4) - first_key - lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        if (8 * n > last) s.x[m][n][2 * h] = -infinity();
        if (8 * n + 1 > last) s.x[m][n][2 * h + 1] = -infinity();
      }
    }
}
