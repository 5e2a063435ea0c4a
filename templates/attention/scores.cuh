// SPDX-License-Identifier: Apache-2.0
// The seam between Q K^T and the softmax: here, and nowhere else, scores become those that the softmax takes.
#pragma once

#include "attention/softmax.cuh"
#include "types.cuh"

// Puts -inf where a row must not see a key: rows from first_row, keys from first_key on.
template <int kM, int kN, class Mask>
__device__ __forceinline__ void mask_scores(Accumulator<kM, kN>& s, int first_row, int first_key, const Mask& mask,
                                            int lane) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + 16 * m + 8 * h + lane / 4;
      const int last = mask.last_key(row) - first_key - lane % 4 * 2;
      const int first = Mask::kBegins ? mask.first_key(row) - first_key - lane % 4 * 2 : 0;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        if (8 * n > last || (Mask::kBegins && 8 * n < first)) s.x[m][n][2 * h] = -infinity();
        if (8 * n + 1 > last || (Mask::kBegins && 8 * n + 1 < first)) s.x[m][n][2 * h + 1] = -infinity();
      }
    }
}
