// SPDX-License-Identifier: Apache-2.0
// From a validated call to what its kernel is given. Needs no CUDA.
#pragma once

#include <bit>

#include "flashjit/variant.h"
#include "generator/arguments.h"
#include "generator/plan.h"
#include "runtime/call/validate.h"

namespace flashjit::runtime {

// Whether a call that has no tensor maps (has_tensor_maps) gets generator::default_without_tma in place of what others
// of its shape get. Throws Error(invalid_argument) when the call asks for a variant that needs them.
bool takes_default_without_tma(const ForwardCall& call, const Architecture& architecture);

// How the query rows of a head, or of a pack of them, are cut into tiles.
struct Tiling {
  int block_q;           // rows of a tile
  int packed_heads = 1;  // that share it: a power of two
  int cluster = 1;       // tiles that are computed together, all of the same heads
  int most_packed_heads = generator::kMaxPackedHeads;

  int cluster_rows() const noexcept { return block_q * cluster; }
  int packed_heads_log2() const noexcept { return std::countr_zero(static_cast<unsigned>(packed_heads)); }
};
Tiling tiling_of(const ForwardCall& call, const MmaVariant& variant) noexcept;
Tiling tiling_of(const ForwardCall& call, const HopperVariant& variant) noexcept;
Tiling tiling_of(const ForwardCall& call, const Variant& variant);
// Of a head, or of a pack of them, by the usual length.
std::int64_t tiles_of_head(const ForwardCall& call, const Tiling& tiling) noexcept;
// The same in clusters, where nothing else is told of single tiles.
std::int64_t clusters_of_head(const ForwardCall& call, const Tiling& tiling) noexcept;

// In bytes; of [batch, seqlen, heads, head_dim], and of [batch, head, row].
generator::RowStrides row_strides(const Tensor& tensor);
generator::RowStrides lse_strides(const Tensor& lse);
// Of [heads], or [batch, heads].
generator::HeadArguments head_arguments(const Tensor& values);

// A section of heads: what longest_first orders by length. Its K and V fit L2 together, and where heads have few tiles
// it is not much longer than two waves of thread blocks, so that loads of one section run beside arithmetic of another.
constexpr std::int64_t kSectionBytes = 32 << 20;
constexpr std::int64_t kSectionTiles = 256;
constexpr std::int64_t kSectionHeads = 32;  // that a section may have whatever their tiles
// Of a key and its value, of one head.
std::int64_t row_bytes(const Problem& problem) noexcept;

// For a call that has output elements. tiling: by the variant.
generator::MmaArguments make_forward_arguments(const ForwardCall& call, const MmaVariant& variant,
                                               const Tiling& tiling);
// The same without the tensor maps, whose bytes are not written, and the tile counter.
generator::HopperArguments make_forward_arguments(const ForwardCall& call, const HopperVariant& variant,
                                                  const Tiling& tiling);

template <class OfFamily>
auto make_forward_arguments(const ForwardCall& call, const OfFamily& variant) {
  return make_forward_arguments(call, variant, tiling_of(call, variant));
}

// Neighbouring query heads of a group that share a tile, so that it has fewer rows past the end: a power of two.
// unpacked: tiles of one head.
int choose_packed_heads(const ForwardCall& call, const Tiling& unpacked) noexcept;

// Tiles of all heads. Throws Error(invalid_argument) when there are more than a launch can have blocks.
std::int64_t count_tiles(const generator::ForwardSizes& sizes);

// Blocks of a launch; resident_blocks is how many the device runs at once.
std::int64_t grid_size(const HopperVariant& variant, std::int64_t tiles, std::int64_t resident_blocks) noexcept;

}  // namespace flashjit::runtime
