// SPDX-License-Identifier: Apache-2.0
// What the host knows of all kernels of the mma.sync family.
#pragma once

#include <string>
#include <vector>

#include "flashjit/problem.h"
#include "generator/family.h"
#include "generator/plan.h"

namespace flashjit::generator {

inline constexpr int kWarpSize = 32;
inline constexpr int kElementBytes = 2;

// Head dims inside the kernels: mma.sync takes 16 columns at a time.
constexpr int padded(int head_dim) { return (head_dim + 15) / 16 * 16; }

// Rows that do not fit shared memory come in pieces, as mma/column_pieces.cuh has them: of at most so many columns.
inline constexpr int kMostPieceBytes = 16 * 1024;
constexpr int column_piece_width(int columns, int most) {
  const int pieces = (padded(columns) + most - 1) / most;
  return pieces == 0 ? 0 : padded((padded(columns) + pieces - 1) / pieces);
}

// --- Large heads, which have a kernel of their own: mma_large.cpp ----------------------------------------------------

// But for the arguments, which are as ever.
Plan make_large_plan(const Problem& problem, const MmaVariant& variant);
// What of a variant the kernel has no way for. Empty: it may be legal.
std::string why_not_of_large(const Problem& problem, const MmaVariant& variant);
// Worth trying, each with as many thread blocks on an SM as there may be.
std::vector<MmaVariant> large_mma_tiles(const Problem& problem);
// How many warps share rows.
inline constexpr int kWarpsOfLargeRows = 4;

}  // namespace flashjit::generator
