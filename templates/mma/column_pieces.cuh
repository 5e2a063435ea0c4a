// SPDX-License-Identifier: Apache-2.0
// How the columns of rows are cut that do not fit shared memory: into pieces of equal width but for the last one, each
// of whole products of 16 columns.
#pragma once

#include "types.cuh"

struct ColumnPieces {
  int count, width;  // of one, but for the last one

  // most: columns of one, a multiple of 16.
  __device__ static constexpr ColumnPieces of(int columns, int most) {
    const int padded = round_up(columns, 16), count = ceil_div(padded, most);
    return {count, count == 0 ? 0 : round_up(ceil_div(padded, count), 16)};
  }
};
