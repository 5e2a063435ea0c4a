// SPDX-License-Identifier: Apache-2.0
// All that the host knows of the Hopper backward kernel: tiles, what of them is legal, shared memory and source.
// docs/kernels/backward.md has the reasons.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "generator/arguments.h"
#include "generator/backward_family.h"
#include "generator/dtype.h"
#include "generator/family.h"
#include "generator/features.h"
#include "generator/matrices.h"
#include "generator/plan.h"
#include "generator/source_parts.h"
#include "generator/tunables.h"
#include "generator/variant_space.h"

namespace flashjit {
namespace generator {
namespace {

using V = HopperBackwardVariant;
constexpr auto kTunables = std::make_tuple(Number<V>{&V::block_q, "block_q", "q", "kBlockQ", 64, 128, 16},
                                           Number<V>{&V::block_kv, "block_kv", "kv", "kBlockKv", 64, 128, 64});

constexpr int kWarpgroupThreads = 128, kWarpgroupRows = 64, kWgmmaDepth = 16;
constexpr int kParts = 2;  // of a tile of dQ: one of each warpgroup
constexpr int kElementBytes = 2, kFloatBytes = 4;
constexpr int kWidestRows = 64;         // head dims of which a tile's parts are rows
constexpr int kWidestAlone = 128;       // head dims of which a warpgroup holds dK and dV of 64 keys
constexpr int kTransposedQueries = 80;  // of a tile whose dQ is transposed: the most for which there is shared memory
constexpr int kPanelColumns = 64;
constexpr int kWidePanels = 4;  // of heads that are wide: warpgroups share them out
constexpr int kThreads = kWarpgroupThreads + kParts * kWarpgroupThreads;

// Whether warpgroups share keys.
bool shares_keys(const HopperBackwardVariant& variant) { return variant.block_kv == kWarpgroupRows; }

bool parts_are_rows(const HopperBackwardVariant& variant) { return variant.block_q == kParts * kWarpgroupRows; }
// Where queries are no multiple of a warpgroup's rows dQ is transposed: its rows are dims, its columns queries.
bool parts_are_transposed(const HopperBackwardVariant& variant) { return variant.block_q % kWarpgroupRows != 0; }
// Of dQ, those that a warpgroup has.
int columns_of_part(const Problem& problem, const HopperBackwardVariant& variant) {
  if (parts_are_rows(variant)) return problem.head_dim;
  if (parts_are_transposed(variant)) return variant.block_q;
  return shares_keys(variant) ? kWidePanels / kParts * kPanelColumns : kPanelColumns;
}

// As hopper/backward_shape.cuh lays it out.
int smem_bytes(const Problem& problem, const HopperBackwardVariant& variant) {
  constexpr int kStages = 2, kPlaceBytes = 32;  // of a job's sequence
  const int barrier_bytes = 256 + (problem.ragged ? kStages * kPlaceBytes : 0);
  const int row_bytes = panels_of(problem.head_dim).row_bytes(),
            row_bytes_v = panels_of(problem.head_dim_v).row_bytes();
  const int tile_bytes = variant.block_q * variant.block_kv * kElementBytes;
  const int own = shares_keys(variant) ? 2 * kStages * tile_bytes
                                       : kStages * tile_bytes +
                                             kParts * kWarpgroupRows * columns_of_part(problem, variant) * kFloatBytes;
  return variant.block_kv * (row_bytes + row_bytes_v) +
         kStages * variant.block_q * (std::max(row_bytes, row_bytes_v) + row_bytes_v) + own +
         2 * kStages * variant.block_q * kFloatBytes + barrier_bytes;
}

// Of dK, dV and dQ a warpgroup of wide heads has some dims, and P and dS in shared memory.
std::string render_matrices(const Problem& problem, const HopperBackwardVariant& variant) {
  const auto steps = [](int columns) { return (columns + kWgmmaDepth - 1) / kWgmmaDepth; };
  const bool shares = shares_keys(variant);
  const int part_columns = columns_of_part(problem, variant);
  OutputMatrix gradient{.type = "KeyGradientMatrix",
                        .registers = "k",
                        .dtype = problem.dtype,
                        .columns = shares ? part_columns : problem.head_dim,
                        .steps = steps(variant.block_q),
                        .probabilities = shares ? "" : "g",
                        .reads = true,
                        .transposes = shares};
  std::string text = render(DerivativeMatrix{.type = "DerivativeMatrix",
                                             .scores = "s",
                                             .gradients = "t",
                                             .probabilities = "p",
                                             .derivatives = "g",
                                             .dtype = problem.dtype,
                                             .queries = shares ? variant.block_q / kParts : variant.block_q,
                                             .score_steps = steps(problem.head_dim),
                                             .gradient_steps = steps(problem.head_dim_v),
                                             .row_bytes = kPanelColumns * kElementBytes}) +
                     render(gradient);
  gradient.type = "ValueGradientMatrix", gradient.registers = "v";
  if (!shares) gradient.columns = problem.head_dim_v, gradient.probabilities = "p";
  text += render(gradient);
  return text + render(OutputMatrix{.type = "QueryGradientMatrix",
                                    .registers = "q",
                                    .dtype = problem.dtype,
                                    .columns = part_columns,
                                    .steps = steps(variant.block_kv),
                                    .probabilities = "",
                                    .stores = !shares,
                                    .adds = shares,
                                    .transposes = parts_are_transposed(variant),
                                    .rows_are_columns = parts_are_transposed(variant)});
}

std::string render_config(const Problem& problem, const HopperBackwardVariant& variant,
                          const KernelGradients& gradients) {
  ConfigText config = backward_config(problem, gradients);
  config.use("Scores", "DerivativeMatrix");
  config.use("KeyGradient", "KeyGradientMatrix");
  config.use("ValueGradient", "ValueGradientMatrix");
  config.use("QueryGradient", "QueryGradientMatrix");
  add_to(config, kTunables, variant);
  return config.text();
}

// Whether steps of other sizes may be transposed in its place.
bool may_be_transposed(const HopperBackwardVariant& variant) {
  return !parts_are_rows(variant) && !shares_keys(variant);
}

// The tiles whose steps are not transposed.
HopperBackwardVariant of_head_dims(const Problem& problem) {
  if (std::max(problem.head_dim, problem.head_dim_v) > kWidestAlone) return {.block_q = 64, .block_kv = 64};
  return {.block_q = problem.head_dim > kWidestRows ? 64 : 128};
}
HopperBackwardVariant transposed(HopperBackwardVariant variant) {
  variant.block_q = kTransposedQueries;
  return variant;
}

// Empty where tiles go with head dims.
std::string why_not_shared_out(const Problem& problem, const HopperBackwardVariant& variant) {
  const int head_dim = problem.head_dim, head_dim_v = problem.head_dim_v;
  const auto of_mma = [&](const char* what) {
    return must("family", fmt::format("mma for {}", what), family_name(variant));
  };
  const bool is_wide = std::max(head_dim, head_dim_v) > kWidestAlone;
  if (is_wide && (panels_of(head_dim).count != kWidePanels || panels_of(head_dim_v).count != kWidePanels))
    return of_mma("head dims that are not both up to 128 or both above 192");
  if (!is_wide && head_dim <= kWidestRows && head_dim_v > kWidestRows)
    return of_mma("a head_dim up to 64 and a head_dim_v above it");
  const HopperBackwardVariant right = of_head_dims(problem);
  if (variant.block_kv != right.block_kv)
    return must("block_kv", fmt::format("{} for these head dims", right.block_kv), variant.block_kv);
  if (variant.block_q == right.block_q || (may_be_transposed(right) && variant.block_q == kTransposedQueries))
    return {};
  const std::string also = may_be_transposed(right) ? fmt::format(" or {}", kTransposedQueries) : "";
  return must("block_q", fmt::format("{}{} for these head dims", right.block_q, also), variant.block_q);
}

}  // namespace

// Of few queries larger steps are padding for the most part, and the more where a mask hides much of a block. Measured:
// docs/kernels/backward.md; of ragged batches they were not.
HopperBackwardVariant default_hopper_backward(const Problem& problem, std::int64_t seqlen_q) {
  const HopperBackwardVariant variant = of_head_dims(problem);
  const std::int64_t least = has_diagonal(problem) ? kManyQueries : kManyQueries / 2;
  const bool pays = may_be_transposed(variant) && seqlen_q >= least && !problem.ragged;
  return pays ? transposed(variant) : variant;
}

std::vector<HopperBackwardVariant> hopper_backward_candidates(const Problem& problem) {
  if (is_large(problem)) return {of_head_dims(problem)};
  return {of_head_dims(problem), transposed(of_head_dims(problem))};
}

BackwardEstimate backward_estimate(const Problem& problem, const HopperBackwardVariant& variant) {
  return {.smem_bytes = is_large(problem) ? large_backward_smem_bytes(problem) : smem_bytes(problem, variant)};
}

std::string why_illegal(const Problem& problem, const HopperBackwardVariant& variant,
                        const Architecture& architecture) {
  if (!has_hopper_kernels(architecture)) return must("architecture of the hopper family", "sm_90a", architecture.name);
  if (std::string why = why_out_of_range(kTunables, variant); !why.empty()) return why;
  for (const Slot slot : {Slot::score, Slot::predicate, Slot::probability})
    if (has_part(slot, problem)) return must("family", "mma for " + to_string(problem), family_name(variant));
  if (is_large(problem)) return why_illegal_large_backward(problem, variant);
  if (std::string why = why_not_shared_out(problem, variant); !why.empty()) return why;
  if (const int bytes = smem_bytes(problem, variant); bytes > architecture.smem_per_block)
    return fmt::format("variant: {} must take at most {} bytes of shared memory on {}, takes {}",
                       spell_variant(variant), architecture.smem_per_block, architecture.name, bytes);
  return {};
}

std::size_t row_tiles_offset(const Problem& problem) {
  return argument_bytes(problem, sizeof(HopperBackwardArguments), alignof(BackwardRowTiles));
}

QueryLayout query_layout(const Problem& problem, const HopperBackwardVariant& variant) {
  // Rows go one by one before kernels of large heads, which round each sum themselves.
  if (is_large(problem)) return {.columns = 0, .adders = 1};
  const int part_columns = columns_of_part(problem, variant);
  return {.rows = variant.block_q,
          .columns = parts_are_rows(variant)         ? part_columns
                     : parts_are_transposed(variant) ? kParts * kWarpgroupRows
                                                     : kParts * part_columns,
          .is_whole = true,
          .adders = shares_keys(variant) ? 1 : kParts};
}

PlainKernel render_backward(const Problem& problem, const HopperBackwardVariant& variant,
                            const KernelGradients& gradients, const Architecture& architecture,
                            const Templates& templates) {
  if (is_large(problem)) {
    ConfigText config = backward_config(problem, gradients);
    add_to(config, kTunables, variant);
    return render_large_backward(problem, variant, gradients, std::move(config), architecture, templates);
  }
  PlainKernel kernel{};
  kernel.threads = kThreads;
  constexpr std::size_t kAlignment = alignof(HopperBackwardArguments);
  const std::size_t argument_bytes = row_tiles_offset(problem) + (problem.ragged ? sizeof(BackwardRowTiles) : 0);
  kernel.argument_bytes = (argument_bytes + kAlignment - 1) / kAlignment * kAlignment;
  kernel.smem_bytes = smem_bytes(problem, variant);
  Source& source = kernel.source;
  source = named_backward_source(problem, gradients, spell_variant(variant), architecture);
  source.device_code = templates.flatten(
      with_parts(shares_keys(variant) ? "kernels/hopper_backward_wide.cuh" : "kernels/hopper_backward.cuh", problem));
  source.generated =
      kGenerated + render_functions(problem) +
      render_arguments("HopperBackwardArguments", problem, false, problem.ragged ? "  BackwardRowTiles rows;\n" : "") +
      render_matrices(problem, variant) + render_config(problem, variant, gradients) +
      render({shares_keys(variant) ? "HopperBackwardWideShape" : "HopperBackwardShape", kernel.smem_bytes,
              kernel.threads, kernel.argument_bytes}) +
      fmt::format(
          "extern \"C\" __global__ void __launch_bounds__({}, 1)\n"
          "    {}(const __grid_constant__ Arguments args) {{\n"
          "  extern __shared__ __align__(1024) char smem[];\n"  // a swizzle repeats after 1024 bytes
          "  {}<Config>(args, ptx::cvta_to_shared(smem));\n"
          "}}\n",
          kernel.threads, source.entry, shares_keys(variant) ? "backward_hopper_wide" : "backward_hopper");
  return kernel;
}

std::string spell_variant(const HopperBackwardVariant& variant) {
  return spell_variant(kTunables, family_name(variant), variant);
}
const void* read_part(std::string_view part, HopperBackwardVariant& variant) {
  return read_part(kTunables, part, variant);
}

}  // namespace generator

bool operator==(const HopperBackwardVariant& a, const HopperBackwardVariant& b) noexcept {
  return generator::equal(generator::kTunables, a, b);
}

}  // namespace flashjit
