// SPDX-License-Identifier: Apache-2.0
#include "generator/variant_space.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "flashjit/error.h"
#include "generator/family_space.h"

namespace flashjit::generator {
namespace {

bool applies(const DefaultRule& rule, const Problem& problem, LengthRange range) {
  return problem.head_dim <= rule.max_head_dim && problem.head_dim_v <= rule.max_head_dim_v &&
         (rule.mask == Mask::any || (rule.mask == Mask::causal) == problem.causal) && rule.lengths.first <= range &&
         range <= rule.lengths.last;
}

std::optional<Variant> first_legal(std::span<const DefaultRule> rules, const Problem& problem,
                                   const Architecture& architecture, LengthRange range) {
  for (const DefaultRule& rule : rules) {
    if (!applies(rule, problem, range)) continue;
    Variant variant = parse_variant(rule.variant);
    std::visit([&](auto& of_family) { of_family.order = order_for(problem); }, variant);
    if (why_illegal(problem, variant, architecture).empty()) return variant;
  }
  return {};
}

}  // namespace

std::string why_illegal(const Problem& problem, const Variant& variant, const Architecture& architecture) {
  return std::visit([&](const auto& of_family) { return why_illegal(problem, of_family, architecture); }, variant);
}

void require_legal(const Problem& problem, const Variant& variant, const Architecture& architecture) {
  validate(problem);
  if (const std::string why = why_illegal(problem, variant, architecture); !why.empty())
    throw Error(ErrorCode::invalid_argument, why);
}

Variant default_variant(const Problem& problem, const Architecture& architecture, LengthRange range) {
  validate(problem);
  for (const auto rules : {hopper_default_rules(), mma_default_rules()})
    if (const auto variant = first_legal(rules, problem, architecture, range)) return *variant;
  throw Error(ErrorCode::unsupported,
              fmt::format("no default variant of {} fits {}", to_string(problem), architecture.name));
}

std::vector<Variant> legal_variants(const Problem& problem, const Architecture& architecture) {
  std::vector<Variant> variants;
  const auto add = [&](const Variant& variant) {
    if (!why_illegal(problem, variant, architecture).empty()) return;
    if (std::find(variants.begin(), variants.end(), variant) == variants.end()) variants.push_back(variant);
  };
  for (const LengthRange range : {LengthRange::long_kv, LengthRange::huge_kv, LengthRange::medium_kv,
                                  LengthRange::short_kv, LengthRange::few_queries})
    add(default_variant(problem, architecture, range));
  for (const HopperVariant& variant : hopper_candidates(problem, architecture)) add(variant);
  for (const MmaVariant& variant : mma_candidates(problem, architecture)) add(variant);
  return variants;
}

}  // namespace flashjit::generator
