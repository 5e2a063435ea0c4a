// SPDX-License-Identifier: Apache-2.0
#include "generator/backward_space.h"

#include <fmt/format.h>

#include <algorithm>

#include "generator/backward.h"
#include "generator/backward_family.h"
#include "generator/pruning.h"
#include "generator/variant_space.h"

namespace flashjit::generator {
namespace {

using Explanation = BackwardVariantExplanation;
using Verdict = VariantVerdict;

// Of 255, of which addresses and what else a loop has take the rest.
constexpr int kMostSumRegisters = 216;
// Tiles of so few queries serve calls of few queries. There memory decides, and the tensor cores wait whatever feeds
// them.
constexpr int kFewQueries = 32;
// By measurement tiles that move 1.4 times as much take 1.1 to 1.3 times as long.
constexpr double kFarBelowBest = 1.75;

Explanation explain(const Problem& problem, const BackwardVariant& variant, const Architecture& architecture) {
  const BackwardEstimate estimate =
      std::visit([&](const auto& of_family) { return backward_estimate(problem, of_family); }, variant);
  Explanation made;
  made.variant = variant;
  made.smem_bytes = estimate.smem_bytes;
  made.registers = estimate.sum_registers;
  made.smem_bytes_per_kflop = estimate.smem_bytes_per_kflop;
  if (has_hopper_kernels(architecture))
    made.attainable_rate = std::holds_alternative<MmaBackwardVariant>(variant)
                               ? mma_attainable_rate(estimate.smem_bytes_per_kflop)
                               : 1;  // what limits wgmma here has no model
  made.reason = why_illegal(problem, variant, architecture);
  if (!made.reason.empty()) {
    made.verdict = Verdict::illegal;
  } else if (estimate.sum_registers > kMostSumRegisters) {
    made.verdict = Verdict::pruned;
    made.reason = fmt::format("has sums in {} registers of a thread, of which more than {} spill",
                              estimate.sum_registers, kMostSumRegisters);
  }
  return made;
}

// Not the first so many.
void prune_slow(std::vector<Explanation>& variants, std::size_t spared) {
  double best = 0;
  for (const Explanation& each : variants)
    if (each.verdict == Verdict::kept) best = std::max(best, each.attainable_rate);
  for (std::size_t i = spared; i < variants.size(); ++i) {
    Explanation& each = variants[i];
    const bool far_below = each.attainable_rate * kFarBelowBest < best;
    if (each.verdict != Verdict::kept || !far_below || block_q(each.variant) <= kFewQueries) continue;
    each.verdict = Verdict::pruned;
    each.reason = why_far_below(each.attainable_rate, best);
  }
}

}  // namespace

std::vector<Explanation> explain_backward_variants(const Problem& problem, const Architecture& architecture) {
  std::vector<Explanation> considered;
  const auto add = [&](const BackwardVariant& variant) {
    const auto is_same = [&](const Explanation& other) { return other.variant == variant; };
    if (std::none_of(considered.begin(), considered.end(), is_same))
      considered.push_back(explain(problem, variant, architecture));
  };
  for (const BackwardVariant& variant : default_backward_variants(problem, architecture)) add(variant);
  const std::size_t defaults = considered.size();
  for (const HopperBackwardVariant& variant : hopper_backward_candidates(problem)) add(variant);
  for (const MmaBackwardVariant& variant : mma_backward_candidates()) add(variant);
  prune_slow(considered, defaults);
  std::stable_partition(considered.begin(), considered.end(),
                        [](const Explanation& each) { return each.verdict == Verdict::kept; });
  return considered;
}

std::vector<BackwardVariant> legal_backward_variants(const Problem& problem, const Architecture& architecture) {
  std::vector<BackwardVariant> variants;
  for (const Explanation& each : explain_backward_variants(problem, architecture))
    if (each.verdict == Verdict::kept) variants.push_back(each.variant);
  return variants;
}

}  // namespace flashjit::generator
