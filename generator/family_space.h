// SPDX-License-Identifier: Apache-2.0
// What the variant space asks of each family: its rules, its defaults and what of it is worth trying.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flashjit/problem.h"

namespace flashjit::generator {

enum class Mask { any, full, causal };

// Length ranges from first to last.
struct LengthSpan {
  LengthRange first, last;
};
inline constexpr LengthSpan kAnyLength{LengthRange::few_queries, LengthRange::huge_kv};
inline constexpr LengthSpan kFewQueries{LengthRange::few_queries, LengthRange::few_queries};
inline constexpr LengthSpan kManyQueries{LengthRange::short_kv, LengthRange::huge_kv};
inline constexpr LengthSpan kBelow1k{LengthRange::short_kv, LengthRange::short_kv};
inline constexpr LengthSpan kFrom1k{LengthRange::medium_kv, LengthRange::huge_kv};
inline constexpr LengthSpan kBelow2k{LengthRange::short_kv, LengthRange::medium_kv};
inline constexpr LengthSpan kFrom2k{LengthRange::long_kv, LengthRange::huge_kv};

// Of a family's rules the first one that applies and is legal wins.
struct DefaultRule {
  int max_head_dim, max_head_dim_v;
  Mask mask;
  LengthSpan lengths;
  const char* variant;
};
std::span<const DefaultRule> mma_default_rules();
std::span<const DefaultRule> hopper_default_rules();

// Causal tiles differ in length, and only they do.
inline TileOrder order_for(const Problem& problem) {
  return problem.causal ? TileOrder::longest_first : TileOrder::natural;
}

// The line that says why a variant is not legal.
template <class Was>
std::string must(std::string_view what, std::string_view required, const Was& was) {
  return fmt::format("variant: {} must be {}, was {}", what, required, was);
}

// why_illegal of variant_space.h for one family.
std::string why_illegal(const Problem& problem, const MmaVariant& variant, const Architecture& architecture);
std::string why_illegal(const Problem& problem, const HopperVariant& variant, const Architecture& architecture);

// Considered beside the defaults. Some may be listed twice, and some may be illegal.
struct Candidate {
  Variant variant;
  std::optional<Variant> instead;  // what is tried in its place, where they differ only in how resources are shared out
};
std::vector<Candidate> mma_candidates(const Problem& problem, const Architecture& architecture);
std::vector<Candidate> hopper_candidates(const Problem& problem, const Architecture& architecture);

}  // namespace flashjit::generator
