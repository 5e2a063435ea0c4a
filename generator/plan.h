// SPDX-License-Identifier: Apache-2.0
// What the host derives from problem and variant. The device computes the same, and the source asserts that they agree.
#pragma once

#include <cstddef>
#include <cstdint>

#include "flashjit/problem.h"
#include "generator/arguments.h"

namespace flashjit::generator {

struct Plan {
  int threads;                 // of a block
  int smem_bytes;              // dynamic shared memory of a block
  int registers;               // estimate per thread, by the family's model
  std::size_t argument_bytes;  // of a launch
  // hopper: columns of one TMA box: 64, 32 or 16 of 16 bits each, or twice as many of 8; of values that come
  // transposed, keys. 0 in other families.
  struct {
    int q, k, v, out;
  } box_columns;
  int box_keys_of_values = 0;  // hopper: of a box of v; 0: as of one of k
};

Plan make_plan(const Problem& problem, const Variant& variant);
Plan make_plan(const Problem& problem, const MmaVariant& variant);
Plan make_plan(const Problem& problem, const HopperVariant& variant);

// How the copy engine lays a row of head_dim elements: panels of so many columns side by side. It fills missing columns
// with zeros.
struct Panels {
  int columns;  // of one: 64, 32 or 16, which are rows of 128, 64 or 32 bytes, each with a swizzle of its own
  int count;
  int row_bytes() const;  // of all panels
};
Panels panels_of(int head_dim);
// Of the output.
DType out_dtype(const Problem& problem) noexcept;
// The same of queries, of keys and values, and of the output, whose elements may be smaller: so many are in 16 bits.
int q_elements_of_word(const Problem& problem);
int kv_elements_of_word(const Problem& problem);
int out_elements_of_word(const Problem& problem);
Panels q_panels_of(const Problem& problem);
Panels kv_panels_of(const Problem& problem, int head_dim);
Panels out_panels_of(const Problem& problem);

// Registers that a consumer thread of a hopper variant may have.
int available_registers(const HopperVariant& variant);

constexpr bool is_large(const Problem& problem) {
  return problem.head_dim > kMostUsualHeadDim || problem.head_dim_v > kMostUsualHeadDim;
}

// Whether a call whose v is the first columns of k is of a problem of its own: a stream of the kernel that is gained by
// it has whole panels of keys then.
inline constexpr int kColumnsOfLatent = 128;
constexpr bool may_be_latent(const Problem& problem) {
  return problem.head_dim > kMostUsualHeadDim && problem.head_dim_v <= problem.head_dim &&
         problem.head_dim_v % kColumnsOfLatent == 0 && !problem.e4m3 && !problem.k_rotary;
}

// Of queries of e4m3, whose rows are copied 16 bytes at a time.
inline constexpr int kHeadDimStepOfE4m3 = 16;

// Heads of a group that may share a tile: as many as a warp stores rows at once, or where large heads are decoded, as
// many as a pair of blocks has rows.
inline constexpr int kMaxPackedHeads = 16, kMaxPackedLargeHeads = 128;

// How a call is cut into tiles of query rows.
struct TileGrid {
  std::int64_t batch;
  std::int64_t heads;           // query heads, or packs of them that share a tile
  std::int64_t tiles_per_head;  // and per pack
};
// Throws Error(invalid_argument) when there are more than a launch can have blocks.
std::int64_t tile_count(const TileGrid& grid);

}  // namespace flashjit::generator
