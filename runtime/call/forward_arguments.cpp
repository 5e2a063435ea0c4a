// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/forward_arguments.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include "generator/family.h"
#include "generator/plan.h"
#include "generator/variant_space.h"
#include "runtime/call/ragged.h"
#include "runtime/call/tensor_dims.h"
#include "runtime/call/tensor_map.h"
#include "runtime/support/ceil_quotient.h"

namespace flashjit::runtime {
namespace {

// In place of a scale of 0: the kernel multiplies masked scores of -infinity by it, and 0 would make them NaN. No score
// times this is more than 2^-21.
constexpr float kSmallestScaleLog2 = std::numeric_limits<float>::denorm_min();
// The sign bits of two 16-bit numbers, and of four of 8 bits.
constexpr std::uint32_t kNegatePair = 0x80008000, kNegateFour = 0x80808080;
constexpr std::int64_t kMaxRows = std::int64_t{1} << 30;  // of packed heads: kernels add tiles to them in 32 bits

// In bytes. The stride of a dimension of size 1 or 0 may be anything and is never used.
std::int64_t byte_stride(const Tensor& tensor, int dim, std::int64_t element) {
  return tensor.shape[dim] > 1 ? tensor.strides[dim] * element : 0;
}

// Key/value heads of a section. It may go across batch entries.
std::int64_t groups_per_section(const ForwardCall& call, std::int64_t tiles_of_head, std::int64_t heads_per_group) {
  const std::int64_t head_bytes = std::max<std::int64_t>(1, call.seqlen_kv * row_bytes(call.problem));
  const std::int64_t heads = std::max(kSectionHeads, kSectionTiles / std::max<std::int64_t>(1, tiles_of_head));
  const std::int64_t groups = std::min(kSectionBytes / head_bytes, heads / heads_per_group);
  return std::clamp<std::int64_t>(groups, 1, call.batch * call.num_heads_kv);
}

// Heads are counted in packs.
generator::ForwardSizes make_sizes(const ForwardCall& call, const Tiling& tiling) {
  const std::int64_t heads = call.num_heads_q / tiling.packed_heads, heads_per_group = heads / call.num_heads_kv;
  generator::ForwardSizes sizes{};
  sizes.scale_log2 = std::max(std::fabs(call.softmax_scale) * std::numbers::log2e_v<float>, kSmallestScaleLog2);
  sizes.query_sign = call.softmax_scale >= 0 ? 0 : call.problem.e4m3_queries ? kNegateFour : kNegatePair;
  sizes.batch = static_cast<std::int32_t>(call.batch);
  sizes.seqlen_q = static_cast<std::int32_t>(call.seqlen_q);
  sizes.seqlen_kv = static_cast<std::int32_t>(call.seqlen_kv);
  sizes.num_heads_q = static_cast<std::int32_t>(heads);
  sizes.heads_per_group = static_cast<std::int32_t>(heads_per_group);
  sizes.num_q_tiles = static_cast<std::int32_t>(tiles_of_head(call, tiling));
  if (call.problem.ragged) {
    sizes.batch = 1;
    sizes.num_q_tiles = static_cast<std::int32_t>(most_clusters(call, tiling) * tiling.cluster);
  }
  sizes.heads_per_section =
      static_cast<std::int32_t>(groups_per_section(call, sizes.num_q_tiles, heads_per_group) * heads_per_group);
  return sizes;
}

}  // namespace

generator::RowStrides row_strides(const Tensor& tensor) {
  const auto element = static_cast<std::int64_t>(size_of(tensor.dtype));
  return {byte_stride(tensor, batch_dim, element), byte_stride(tensor, row_dim(tensor), element),
          byte_stride(tensor, heads_dim, element)};
}

generator::RowStrides lse_strides(const Tensor& lse) {
  constexpr std::int64_t kElement = sizeof(float);
  return {byte_stride(lse, 0, kElement), byte_stride(lse, 2, kElement), byte_stride(lse, 1, kElement)};
}

generator::HeadArguments head_arguments(const Tensor& values) {
  const bool of_batch = values.shape.size() > 1 && values.shape[0] > 1;
  return {static_cast<const char*>(values.data),
          of_batch ? values.strides[0] * static_cast<std::int64_t>(sizeof(float)) : 0};
}

std::int64_t tiles_of_head(const ForwardCall& call, const Tiling& tiling) noexcept {
  return clusters_of_head(call, tiling) * tiling.cluster;
}
std::int64_t clusters_of_head(const ForwardCall& call, const Tiling& tiling) noexcept {
  return ceil_quotient(call.usual_seqlen_q * tiling.packed_heads, tiling.cluster_rows());
}

bool takes_default_without_tma(const ForwardCall& call, const Architecture& architecture) {
  const bool of_hopper = call.variant ? std::holds_alternative<HopperVariant>(*call.variant)
                                      : generator::needs_tma(call.problem, architecture);
  if (of_hopper) require_tensor_maps(call);
  return !call.variant && generator::has_hopper_kernels(architecture);
}

generator::MmaArguments make_forward_arguments(const ForwardCall& call, const MmaVariant&, const Tiling& tiling) {
  generator::MmaArguments arguments{};
  arguments.q = static_cast<const char*>(call.q->data);
  arguments.k = static_cast<const char*>(call.k->data);
  arguments.v = static_cast<const char*>(call.v->data);
  arguments.out = static_cast<char*>(call.out->data);
  arguments.q_strides = row_strides(*call.q);
  arguments.k_strides = row_strides(*call.k);
  arguments.v_strides = row_strides(*call.v);
  arguments.out_strides = row_strides(*call.out);
  if (call.lse) {
    arguments.lse = static_cast<float*>(call.lse->data);
    arguments.lse_strides = lse_strides(*call.lse);
  }
  arguments.sizes = make_sizes(call, tiling);
  arguments.packed_heads_log2 = tiling.packed_heads_log2();
  return arguments;
}

generator::HopperArguments make_forward_arguments(const ForwardCall& call, const HopperVariant&, const Tiling& tiling) {
  generator::HopperArguments arguments;
  arguments.lse = call.lse ? static_cast<float*>(call.lse->data) : nullptr;
  arguments.lse_strides = call.lse ? lse_strides(*call.lse) : generator::RowStrides{};
  arguments.tile_counter = nullptr;
  arguments.sizes = make_sizes(call, tiling);
  arguments.packed_heads_log2 = tiling.packed_heads_log2();
  return arguments;
}

std::int64_t row_bytes(const Problem& problem) noexcept {
  const int apart = problem.k_rotary ? problem.head_dim - problem.head_dim_v : 0;
  return (problem.head_dim - apart + problem.head_dim_v) * static_cast<std::int64_t>(size_of(kv_dtype(problem))) +
         apart * static_cast<std::int64_t>(size_of(problem.dtype));
}

Tiling tiling_of(const ForwardCall& call, const Variant& variant) {
  return std::visit([&](const auto& of_family) { return tiling_of(call, of_family); }, variant);
}
Tiling tiling_of(const ForwardCall& call, const MmaVariant& variant) noexcept {
  Tiling tiling{.block_q = variant.block_q};
  // Tiles of 32 rows, as MLA has them.
  if (call.problem.k_rotary) tiling.most_packed_heads = generator::kMaxPackedLargeHeads;
  if (variant.split_kv) tiling.packed_heads = choose_packed_heads(call, tiling);
  return tiling;
}
Tiling tiling_of(const ForwardCall& call, const HopperVariant& variant) noexcept {
  Tiling tiling{.block_q = variant.block_q, .cluster = variant.cluster};
  if (variant.split_kv && generator::is_large(call.problem)) tiling.most_packed_heads = generator::kMaxPackedLargeHeads;
  tiling.packed_heads = choose_packed_heads(call, tiling);
  return tiling;
}

int choose_packed_heads(const ForwardCall& call, const Tiling& unpacked) noexcept {
  // Heads that share a tile visit the same blocks, and have one scale.
  if (call.block_mask && call.block_mask->shape[1] > 1) return 1;
  if (call.q_scale.data && call.q_scale.strides[heads_dim] != 0) return 1;
  if (call.num_heads_kv == 0) return 1;  // of no heads at all
  const std::int64_t heads_per_group = call.num_heads_q / call.num_heads_kv;
  int best = 1;
  std::int64_t fewest = std::numeric_limits<std::int64_t>::max();
  for (int packed = 1; packed <= unpacked.most_packed_heads && heads_per_group % packed == 0; packed *= 2) {
    if (packed > 1 && call.q->shape[seqlen_dim] * packed > kMaxRows) break;
    Tiling tiling = unpacked;
    tiling.packed_heads = packed;
    const std::int64_t tiles = tiles_of_head(call, tiling) * (call.num_heads_q / packed);
    if (tiles < fewest) best = packed, fewest = tiles;
  }
  return best;
}

std::int64_t count_tiles(const generator::ForwardSizes& sizes) {
  return generator::tile_count({.batch = sizes.batch, .heads = sizes.num_heads_q, .tiles_per_head = sizes.num_q_tiles});
}

std::int64_t grid_size(const HopperVariant& variant, std::int64_t tiles, std::int64_t resident_blocks) noexcept {
  if (variant.scheduler == Scheduler::single) return tiles;
  const std::int64_t clusters = std::min(tiles, resident_blocks) / variant.cluster;
  return std::max<std::int64_t>(1, clusters) * variant.cluster;
}

}  // namespace flashjit::runtime
