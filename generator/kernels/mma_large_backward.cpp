// SPDX-License-Identifier: Apache-2.0
// What the host knows of the mma.sync backward kernels of large heads: what is legal, shared memory and source.
// docs/kernels/large_heads.md has the reasons.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string>

#include "generator/arguments.h"
#include "generator/backward_family.h"
#include "generator/family.h"
#include "generator/features.h"
#include "generator/kernels/mma.h"
#include "generator/plan.h"
#include "generator/score_gradients.h"
#include "generator/source_parts.h"
#include "generator/tunables.h"

namespace flashjit::generator {
namespace {

constexpr int kTileRows = 16;       // of mma.m16n8k16
constexpr int kMostBlockRows = 64;  // more have sums that no register file holds
constexpr GradientPass kPasses[] = {GradientPass::values, GradientPass::keys, GradientPass::queries};

// A kernel's sizes, as LargeBackwardMmaShape has them.
struct Sizes {
  int rows, met_rows;              // of the gradient, and of a block that they meet
  int columns;                     // of the gradient
  int key_columns, value_columns;  // that scores are made of: of q and k; of dO and v, 0 where there is no dP
  bool stays;

  int own_bytes() const { return stays ? rows * (key_columns + value_columns) * kElementBytes : 0; }
  // Of a piece that scores are made of.
  int piece_rows() const { return met_rows + (stays ? 0 : rows); }
  int score_piece_bytes() const {
    const int most = kMostPieceBytes / (kElementBytes * piece_rows()) / kTileRows * kTileRows;
    const int width = std::max(column_piece_width(key_columns, most), column_piece_width(value_columns, most));
    return piece_rows() * width * kElementBytes;
  }
  int added_piece_bytes() const {
    const unsigned fit = static_cast<unsigned>(kMostPieceBytes / (kElementBytes * columns));
    return std::clamp(static_cast<int>(std::bit_floor(fit)), kTileRows, met_rows) * columns * kElementBytes;
  }
};

Sizes sizes_of(const Problem& problem, const MmaBackwardVariant& variant, GradientPass pass, bool stays) {
  const bool of_queries = pass == GradientPass::queries, differentiates = pass != GradientPass::values;
  const int dim = padded(problem.head_dim), dim_v = padded(problem.head_dim_v);
  return {.rows = of_queries ? variant.block_q : variant.block_kv,
          .met_rows = of_queries ? variant.block_kv : variant.block_q,
          .columns = differentiates ? dim : dim_v,
          .key_columns = dim,
          .value_columns = differentiates ? dim_v : 0,
          .stays = stays};
}

int smem_bytes(const MmaBackwardVariant& variant, const Sizes& sizes) {
  const int slot = std::max(sizes.score_piece_bytes(), sizes.added_piece_bytes());
  return sizes.own_bytes() + variant.block_q * variant.block_kv * kElementBytes + 2 * variant.stages * slot;
}

// The gradient's own rows stay where there is room for them.
Sizes sizes_on(const Problem& problem, const MmaBackwardVariant& variant, GradientPass pass,
               const Architecture& architecture) {
  const Sizes staying = sizes_of(problem, variant, pass, true);
  if (smem_bytes(variant, staying) <= architecture.smem_per_block) return staying;
  return sizes_of(problem, variant, pass, false);
}

int keys_of_warp(const MmaBackwardVariant& variant) {
  return variant.block_q * variant.block_kv / (variant.warps * kTileRows * variant.row_tiles);
}

// In which a thread has the gradient, S and dP.
int sum_registers(const MmaBackwardVariant& variant, const Sizes& sizes) {
  const int scores = variant.block_q * variant.block_kv / (variant.warps * kWarpSize);
  return sizes.rows * sizes.columns / (variant.warps * kWarpSize) + (sizes.value_columns > 0 ? 2 : 1) * scores;
}

// Of shared memory, for a block of queries and one of keys: what is filled, P or dS, and fragments of 16 x 16 as
// ldmatrix.x4 loads them.
double moved_bytes(const MmaBackwardVariant& variant, const Sizes& sizes) {
  constexpr int kFragmentBytes = 512;
  const int rows_of_warp = kTileRows * variant.row_tiles, dims = sizes.key_columns + sizes.value_columns;
  const double dim_parts = 1.0 * variant.warps * rows_of_warp / sizes.rows;
  const double of_scores = 1.0 * dims / kTileRows * (variant.row_tiles + 1.0 * keys_of_warp(variant) / kTileRows),
               of_sums = 1.0 * sizes.met_rows / kTileRows * (variant.row_tiles + sizes.columns / kTileRows / dim_parts);
  const double filled = 1.0 * sizes.piece_rows() * dims + 1.0 * sizes.met_rows * sizes.columns;
  return (of_scores + of_sums) * variant.warps * kFragmentBytes +
         (filled + 1.0 * variant.block_q * variant.block_kv) * kElementBytes;
}

std::string_view pass_name(GradientPass pass) {
  return pass == GradientPass::values ? "values" : pass == GradientPass::keys ? "keys" : "queries";
}

}  // namespace

std::string why_not_of_large_backward(const MmaBackwardVariant& variant) {
  const auto want = [](std::string_view what, std::string_view required, int was) {
    return must(what, fmt::format("{} for head dims above {}", required, kMostUsualHeadDim), was);
  };
  if (variant.block_q > kMostBlockRows) return want("block_q", "at most 64", variant.block_q);
  if (variant.block_kv > kMostBlockRows) return want("block_kv", "at most 64", variant.block_kv);
  // Scores of a warp are made at once, and which of them are dropped is decided for 32 keys or the half of them.
  if (const int keys = keys_of_warp(variant); keys != 16 && keys != 32)
    return want("warps", fmt::format("such that each has scores of 16 or 32 keys, not of {},", keys), variant.warps);
  return {};
}

// Of all three kernels, without rows that stay.
BackwardEstimate large_backward_estimate(const Problem& problem, const MmaBackwardVariant& variant) {
  BackwardEstimate estimate;
  double bytes = 0, operations = 0;
  for (const GradientPass pass : kPasses) {
    const Sizes sizes = sizes_of(problem, variant, pass, false);
    estimate.smem_bytes = std::max(estimate.smem_bytes, smem_bytes(variant, sizes));
    estimate.sum_registers = std::max(estimate.sum_registers, sum_registers(variant, sizes));
    bytes += moved_bytes(variant, sizes);
    operations += 2.0 * variant.block_q * variant.block_kv * (sizes.key_columns + sizes.value_columns + sizes.columns);
  }
  estimate.smem_bytes_per_kflop = 1000 * bytes / operations;
  return estimate;
}

PlainKernel render_large_backward(const Problem& problem, const MmaBackwardVariant& variant,
                                  const KernelGradients& gradients, ConfigText config, const Architecture& architecture,
                                  const Templates& templates) {
  const Sizes sizes = sizes_on(problem, variant, gradients.pass, architecture);
  PlainKernel kernel{};
  kernel.threads = variant.warps * kWarpSize;
  kernel.argument_bytes =
      argument_bytes(problem, sizeof(MmaLargeBackwardArguments), alignof(MmaLargeBackwardArguments)) +
      score_gradient_bytes(gradients);
  kernel.smem_bytes = smem_bytes(variant, sizes);
  config.add("LargePass", "kPass", fmt::format("LargePass::{}", pass_name(gradients.pass)));
  config.add("bool", "kStays", sizes.stays);
  Source& source = kernel.source;
  source = named_backward_source(problem, gradients, spell_variant(variant), architecture);
  source.device_code = templates.flatten(
      with_score_gradients(with_parts("kernels/mma_large_backward.cuh", problem, PartsFor::gradients), gradients));
  source.generated = kGenerated + render_functions(problem, PartsFor::gradients) +
                     render_arguments("MmaLargeBackwardArguments", problem, false, score_gradient_members(gradients)) +
                     config.text() +
                     render({"LargeBackwardMmaShape", kernel.smem_bytes, kernel.threads, kernel.argument_bytes}) +
                     fmt::format(
                         "extern \"C\" __global__ void __launch_bounds__({})\n"
                         "    {}(const __grid_constant__ Arguments args) {{\n"
                         "  extern __shared__ __align__(128) char smem[];\n"
                         "  LargeBackwardMma<Config>::run(args, ptx::cvta_to_shared(smem));\n"
                         "}}\n",
                         kernel.threads, source.entry);
  return kernel;
}

}  // namespace flashjit::generator
