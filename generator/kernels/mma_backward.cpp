// SPDX-License-Identifier: Apache-2.0
// All that the host knows of the mma.sync backward kernel: tiles, shared memory and source. docs/kernels/backward.md
// has the reasons.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <tuple>
#include <utility>

#include "generator/arguments.h"
#include "generator/backward_family.h"
#include "generator/dtype.h"
#include "generator/family.h"
#include "generator/features.h"
#include "generator/kernels/mma.h"
#include "generator/plan.h"
#include "generator/score_gradients.h"
#include "generator/source_parts.h"
#include "generator/tunables.h"

namespace flashjit {
namespace generator {
namespace {

using V = MmaBackwardVariant;
constexpr auto kTunables = std::make_tuple(Number<V>{&V::block_q, "block_q", "q", "kBlockQ", 16, 128, 16},
                                           Number<V>{&V::block_kv, "block_kv", "kv", "kBlockKv", 16, 128, 16},
                                           Number<V>{&V::warps, "warps", "w", "kWarps", 4, 8, 4},
                                           Number<V>{&V::row_tiles, "row_tiles", "r", "kRowTiles", 1, 2},
                                           Number<V>{&V::stages, "stages", "s", "kStages", 1, 2});

// The first that is wide enough and fits the shared memory, which the last ones of their width do everywhere. By
// measurements on an H100: docs/kernels/backward.md.
struct DefaultRow {
  int max_head_dim;
  MmaBackwardVariant variant;
};
constexpr DefaultRow kDefaults[] = {{64, {128, 128, 8, 1, 1}}, {64, {64, 64, 4, 1, 2}},  {128, {64, 128, 8, 1, 1}},
                                    {128, {64, 64, 8, 1, 1}},  {256, {64, 64, 8, 1, 1}}, {256, {32, 32, 4, 1, 1}}};
// Of head dims above those: by the model of docs/kernels/large_heads.md. The second one where beside sums of so many
// columns there are too few registers for anything but full and causal masks.
constexpr MmaBackwardVariant kLargeDefault{64, 64, 8, 2, 2}, kLargeDefaultOfFewKeys{64, 32, 8, 1, 2};
constexpr int kMostColumnsBesideFeatures = 512;

MmaBackwardVariant default_large_backward(const Problem& problem) {
  const bool has_features = std::any_of(features().begin(), features().end(), [&](const FeatureRow& row) {
    return row.is_in(problem) && row.asked.flag != &Problem::causal;
  });
  return has_features && problem.head_dim > kMostColumnsBesideFeatures ? kLargeDefaultOfFewKeys : kLargeDefault;
}

// As BackwardShape lays it out.
int smem_bytes(const Problem& problem, const MmaBackwardVariant& variant) {
  const int columns = padded(problem.head_dim) + padded(problem.head_dim_v);
  const int rows = variant.block_kv + variant.stages * variant.block_q;
  return (rows * columns + 2 * variant.block_q * variant.block_kv) * kElementBytes;
}

constexpr int kTileRows = 16;   // of mma.m16n8k16
constexpr int kPieceKeys = 32;  // columns of scores that a warp takes at once, or half of them where it has no more

// Whether warps can share out both kinds of products alike.
bool can_be_shared_out(const MmaBackwardVariant& variant) {
  const int rows_of_warp = kTileRows * variant.row_tiles, query_warps = variant.block_q / rows_of_warp,
            key_warps = variant.block_kv / rows_of_warp;
  const auto are_all_of = [&](int warps, int rows) {
    return warps > 0 && warps * rows_of_warp == rows && variant.warps % warps == 0;
  };
  if (!are_all_of(query_warps, variant.block_q) || !are_all_of(key_warps, variant.block_kv)) return false;
  const int parts_of_row = variant.warps / query_warps, keys_of_warp = variant.block_kv / parts_of_row;
  return keys_of_warp * parts_of_row == variant.block_kv &&
         (keys_of_warp == kPieceKeys / 2 || (keys_of_warp > 0 && keys_of_warp % kPieceKeys == 0));
}

// Of a warp for a step of its tiles of queries and keys: fragments of 16 x 16, as ldmatrix.x4 loads them.
double loaded_fragments(const Problem& problem, const MmaBackwardVariant& variant) {
  const int rows = variant.row_tiles, rows_of_warp = kTileRows * rows;
  const double dims = 1.0 * (padded(problem.head_dim) + padded(problem.head_dim_v)) / kTileRows,
               dims_of_dq = 1.0 * padded(problem.head_dim) / kTileRows;
  const int parts_of_queries = variant.warps * rows_of_warp / variant.block_q,
            parts_of_keys = variant.warps * rows_of_warp / variant.block_kv;
  const int keys_of_warp = variant.block_kv / parts_of_queries, piece = std::min(kPieceKeys, keys_of_warp);
  const double scores = 1.0 * keys_of_warp / piece * dims * (rows + 1.0 * piece / kTileRows),
               of_keys = 1.0 * variant.block_q / kTileRows * (2 * rows + dims / parts_of_keys),
               of_queries = dims_of_dq / parts_of_queries * variant.block_kv / kTileRows * (rows + 1);
  return scores + of_keys + of_queries;
}

// Of kernels of all head dims.
ConfigText config_of(const Problem& problem, const MmaBackwardVariant& variant, const KernelGradients& gradients) {
  ConfigText config = backward_config(problem, gradients);
  config.use("ScoreParts", parts_in(Slot::score, problem, PartsFor::gradients));
  config.use("ScoreGradients", score_gradient_parts(gradients));
  config.use("Predicates", parts_in(Slot::predicate, problem));
  config.use("Dropouts", parts_in(Slot::probability, problem));
  add_to(config, kTunables, variant);
  return config;
}

}  // namespace

MmaBackwardVariant default_mma_backward(const Problem& problem, const Architecture& architecture) {
  if (is_large(problem)) return default_large_backward(problem);
  const int head_dim = std::max(problem.head_dim, problem.head_dim_v);
  const auto row = std::find_if(std::begin(kDefaults), std::end(kDefaults), [&](const DefaultRow& each) {
    return head_dim <= each.max_head_dim && smem_bytes(problem, each.variant) <= architecture.smem_per_block;
  });
  return row->variant;
}

std::vector<MmaBackwardVariant> mma_backward_candidates() {
  std::vector<MmaBackwardVariant> candidates;
  for (const int block_q : {128, 64, 32, 16})
    for (const int block_kv : {128, 64, 32, 16})
      for (const int warps : {8, 4})
        for (const int row_tiles : {1, 2})
          for (const int stages : {1, 2}) {
            const MmaBackwardVariant candidate{block_q, block_kv, warps, row_tiles, stages};
            if (can_be_shared_out(candidate)) candidates.push_back(candidate);
          }
  return candidates;
}

// P and dS go to shared memory once, Q and dO of a tile come there.
BackwardEstimate backward_estimate(const Problem& problem, const MmaBackwardVariant& variant) {
  if (is_large(problem)) return large_backward_estimate(problem, variant);
  constexpr int kFragmentBytes = 512;
  const int dim = padded(problem.head_dim), dim_v = padded(problem.head_dim_v);
  const double pairs = 1.0 * variant.block_q * variant.block_kv;
  const double bytes = loaded_fragments(problem, variant) * variant.warps * kFragmentBytes +
                       (2 * pairs + 1.0 * variant.block_q * (dim + dim_v)) * kElementBytes;
  const double operations = 2 * pairs * (3 * dim + 2 * dim_v);
  return {.smem_bytes = smem_bytes(problem, variant),
          .sum_registers = variant.block_kv * (dim + dim_v) / (variant.warps * kWarpSize) +
                           2 * variant.row_tiles * kTileRows * kPieceKeys / kWarpSize,
          .smem_bytes_per_kflop = 1000 * bytes / operations};
}

std::string why_illegal(const Problem& problem, const MmaBackwardVariant& variant, const Architecture& architecture) {
  std::string why = why_out_of_range(kTunables, variant);
  if (!why.empty()) return why;
  if (!can_be_shared_out(variant))
    return must("warps", "such that they share out rows and columns alike", spell_variant(variant));
  if (is_large(problem)) why = why_not_of_large_backward(variant);
  if (!why.empty()) return why;
  if (const int bytes = backward_estimate(problem, variant).smem_bytes; bytes > architecture.smem_per_block)
    return fmt::format("variant: {} must take at most {} bytes of shared memory on {}, takes {}",
                       spell_variant(variant), architecture.smem_per_block, architecture.name, bytes);
  return {};
}

PlainKernel render_backward(const Problem& problem, const MmaBackwardVariant& variant, const KernelGradients& gradients,
                            const Architecture& architecture, const Templates& templates) {
  ConfigText config = config_of(problem, variant, gradients);
  if (is_large(problem))
    return render_large_backward(problem, variant, gradients, std::move(config), architecture, templates);
  config.add("bool", "kReducesPairs", architecture.major >= 9);
  PlainKernel kernel{};
  kernel.threads = variant.warps * kWarpSize;
  kernel.argument_bytes =
      argument_bytes(problem, sizeof(BackwardArguments), alignof(BackwardArguments)) + score_gradient_bytes(gradients);
  kernel.smem_bytes = smem_bytes(problem, variant);
  Source& source = kernel.source;
  source = named_backward_source(problem, gradients, spell_variant(variant), architecture);
  source.device_code = templates.flatten(
      with_score_gradients(with_parts("kernels/mma_backward.cuh", problem, PartsFor::gradients), gradients));
  source.generated = kGenerated + render_functions(problem, PartsFor::gradients) +
                     render_arguments("BackwardArguments", problem, false, score_gradient_members(gradients)) +
                     config.text() +
                     render({"BackwardShape", kernel.smem_bytes, kernel.threads, kernel.argument_bytes}) +
                     fmt::format(
                         "extern \"C\" __global__ void __launch_bounds__({})\n"
                         "    {}(const __grid_constant__ Arguments args) {{\n"
                         "  extern __shared__ __align__(128) char smem[];\n"
                         "  BackwardMma<Config>::run(args, ptx::cvta_to_shared(smem));\n"
                         "}}\n",
                         kernel.threads, source.entry);
  return kernel;
}

std::string spell_variant(const MmaBackwardVariant& variant) {
  return spell_variant(kTunables, family_name(variant), variant);
}
const void* read_part(std::string_view part, MmaBackwardVariant& variant) {
  return read_part(kTunables, part, variant);
}

QueryLayout query_layout(const Problem& problem, const MmaBackwardVariant&) {
  return {.columns = is_large(problem) ? 0 : problem.head_dim, .adders = 1};
}

}  // namespace generator

bool operator==(const MmaBackwardVariant& a, const MmaBackwardVariant& b) noexcept {
  return generator::equal(generator::kTunables, a, b);
}

}  // namespace flashjit
