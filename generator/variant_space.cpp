// SPDX-License-Identifier: Apache-2.0
#include "generator/variant_space.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "flashjit/error.h"
#include "generator/family.h"
#include "generator/features.h"
#include "generator/plan.h"
#include "generator/pruning.h"
#include "generator/source.h"
#include "generator/tunables.h"

namespace flashjit::generator {
namespace {

constexpr std::string_view kNatural = "-natural";  // at the end of a rule's variant

bool has_mask(const Problem& problem, Mask mask) {
  if (mask == Mask::band) return has_band(problem);
  return mask == Mask::any || (mask == Mask::causal) == has_diagonal(problem);
}

bool applies(const DefaultRule& rule, const Problem& problem, const ShapeBucket& bucket) {
  return problem.head_dim <= rule.max_head_dim && problem.head_dim_v <= rule.max_head_dim_v &&
         has_mask(problem, rule.mask) && rule.buckets.contains(bucket) && (!rule.asks || rule.asks(problem));
}

// The order of tiles is that of the problem, unless the rule names one.
Variant variant_of(const DefaultRule& rule, const Problem& problem) {
  Variant variant = parse_variant(rule.variant);
  if (!std::string_view(rule.variant).ends_with(kNatural))
    std::visit([&](auto& of_family) { of_family.order = order_for(problem); }, variant);
  return variant;
}

std::optional<Variant> first_legal(std::span<const DefaultRule> rules, const Problem& problem,
                                   const Architecture& architecture, const ShapeBucket& bucket) {
  for (const DefaultRule& rule : rules) {
    if (!applies(rule, problem, bucket)) continue;
    const Variant variant = variant_of(rule, problem);
    if (why_illegal(problem, variant, architecture).empty()) return variant;
  }
  return {};
}

[[noreturn]] void no_default(const Problem& problem, const Architecture& architecture) {
  const std::string why =
      problem.e4m3_queries
          ? fmt::format(": products of {} need sm_89 or a later architecture", to_string(q_dtype(problem)))
      : problem.e4m3 && problem.k_rotary
          ? ": keys and values of e4m3 beside k_rotary need sm_89 or a later architecture"
      : problem.e4m3
          ? fmt::format(": keys and values of {} beside queries of 16 bits need the hopper family, of sm_90a",
                        to_string(kv_dtype(problem)))
          : "";
  throw Error(ErrorCode::unsupported,
              fmt::format("no default variant of {} fits {}{}", to_string(problem), architecture.name, why));
}

// Which probabilities are dropped is decided for so many keys at once: templates/attention/probability.cuh.
template <class OfFamily>
std::string why_not_dropping(const Problem& problem, const OfFamily& variant) {
  constexpr int kKeptKeys = 32;
  if (!has_part(Slot::probability, problem) || variant.block_kv % kKeptKeys == 0) return {};
  return must("block_kv", fmt::format("a multiple of {} with dropout", kKeptKeys), variant.block_kv);
}

using Verdict = VariantExplanation::Verdict;

// The verdicts so far, each variant once.
class Explanations {
 public:
  Explanations(const Problem& problem, const Architecture& architecture)
      : problem_(problem), architecture_(architecture) {}

  void add(const Candidate& candidate) {
    if (seen_.insert(candidate.variant).second) list.push_back(explain(candidate));
  }

  std::vector<VariantExplanation> list;

 private:
  VariantExplanation explain(const Candidate& candidate) const {
    const Plan plan = make_plan(problem_, candidate.variant);
    VariantExplanation made;
    made.variant = candidate.variant;
    made.smem_bytes = plan.smem_bytes;
    made.registers = plan.registers;
    made.smem_bytes_per_kflop = smem_bytes_per_kflop(problem_, candidate.variant);
    made.attainable_rate = attainable_rate(problem_, candidate.variant, architecture_);
    made.reason = why_illegal(problem_, candidate.variant, architecture_);
    if (!made.reason.empty()) {
      made.verdict = Verdict::illegal;
    } else if (candidate.instead) {
      made.verdict = Verdict::replaced;
      made.reason = fmt::format("{} is tried instead", to_string(*candidate.instead));
    }
    return made;
  }

  const Problem& problem_;
  const Architecture& architecture_;
  std::set<Variant> seen_;
};

}  // namespace

// Products of e4m3 are mma.sync's, too, but not where wgmma has them at twice the rate; keys in two tensors are its
// alone.
bool needs_tma(const Problem& problem, const Architecture& architecture) noexcept {
  const bool by_mma = problem.k_rotary ||
                      (problem.e4m3_queries && converts_to_8_bits(architecture) && !has_hopper_kernels(architecture));
  return has_part(Slot::stored, problem) && !by_mma;
}

std::string why_illegal(const Problem& problem, const Variant& variant, const Architecture& architecture) {
  return std::visit(
      [&](const auto& of_family) {
        if (std::string why = why_not_dropping(problem, of_family); !why.empty()) return why;
        return why_illegal(problem, of_family, architecture);
      },
      variant);
}

void require_legal(const Problem& problem, const Variant& variant, const Architecture& architecture) {
  validate(problem);
  if (const std::string why = why_illegal(problem, variant, architecture); !why.empty())
    throw Error(ErrorCode::invalid_argument, why);
}

Variant default_variant(const Problem& problem, const Architecture& architecture, const ShapeBucket& bucket) {
  validate(problem);
  for (const auto rules : {hopper_default_rules(), mma_default_rules()})
    if (const auto variant = first_legal(rules, problem, architecture, bucket)) return *variant;
  no_default(problem, architecture);
}

Variant default_without_tma(const Problem& problem, const Architecture& architecture) {
  validate(problem);
  // Most such calls are odd corners (no keys, repeated rows): one kernel for all of their shapes will do.
  constexpr ShapeBucket kOddCorner{QueryRange::up_to_16, KeyRange::below_1k, WorkRange::up_to_half};
  if (const auto variant = first_legal(mma_default_rules(), problem, architecture, kOddCorner)) return *variant;
  no_default(problem, architecture);
}

Variant invariant_variant(const Problem& problem, const Architecture& architecture, const ShapeBucket& bucket,
                          bool with_tma) {
  validate(problem);
  if (with_tma)
    if (const auto variant = first_legal(hopper_invariant_rules(), problem, architecture, bucket)) return *variant;
  if (const auto variant = first_legal(mma_invariant_rules(), problem, architecture, bucket)) return *variant;
  no_default(problem, architecture);
}

// Otherwise a row's maximum depends on those of other rows, and where warps share rows what is added to what on how
// many queries there are.
std::string why_not_invariant(const Variant& variant) {
  const bool always = std::visit([](const auto& of) { return of.rescale == Rescale::always; }, variant);
  if (!always) return must("rescale", "always with fixed_split_size", to_string(variant));
  if (!splits_kv(variant)) return must("split_kv", "splitkv with fixed_split_size", to_string(variant));
  if (shares_rows(variant)) return must("block_q", "64 or more with fixed_split_size", block_q(variant));
  return {};
}

std::vector<Variant> default_variants(const Problem& problem, const Architecture& architecture) {
  std::vector<Variant> variants;
  const auto add = [&](const Variant& variant) {
    if (std::find(variants.begin(), variants.end(), variant) == variants.end()) variants.push_back(variant);
  };
  const std::vector<ShapeBucket> buckets = shape_buckets();
  std::for_each(buckets.rbegin(), buckets.rend(),
                [&](const ShapeBucket& bucket) { add(default_variant(problem, architecture, bucket)); });
  if (!needs_tma(problem, architecture)) add(default_without_tma(problem, architecture));
  return variants;
}

std::vector<VariantExplanation> explain_variants(const Problem& problem, const Architecture& architecture) {
  Explanations considered(problem, architecture);
  for (const Variant& variant : default_variants(problem, architecture)) considered.add({variant, {}});
  const std::size_t defaults = considered.list.size();
  std::vector<Candidate> candidates = hopper_candidates(problem, architecture);
  const std::vector<Candidate> of_mma = mma_candidates(problem, architecture);
  candidates.insert(candidates.end(), of_mma.begin(), of_mma.end());
  // What one candidate replaces may be another in its own right.
  std::stable_partition(candidates.begin(), candidates.end(), [](const Candidate& each) { return !each.instead; });
  for (const Candidate& candidate : candidates) considered.add(candidate);
  prune(considered.list, defaults);
  std::stable_partition(considered.list.begin(), considered.list.end(),
                        [](const VariantExplanation& each) { return each.verdict == Verdict::kept; });
  return considered.list;
}

std::vector<Variant> legal_variants(const Problem& problem, const Architecture& architecture) {
  std::vector<Variant> variants;
  for (const VariantExplanation& each : explain_variants(problem, architecture))
    if (each.verdict == Verdict::kept) variants.push_back(each.variant);
  return variants;
}

}  // namespace flashjit::generator
