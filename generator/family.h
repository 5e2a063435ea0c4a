// SPDX-License-Identifier: Apache-2.0
// What is asked of each family. generator/kernels/ has the answers, one file for each kernel.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flashjit/problem.h"
#include "generator/arguments.h"
#include "generator/bucket_words.h"
#include "generator/features.h"

namespace flashjit::generator {

// The family's spelling. read_part changes the field that the part names and gives its address; null when no field is
// spelled so.
inline constexpr const char* family_name(const MmaVariant&) { return "mma"; }
inline constexpr const char* family_name(const HopperVariant&) { return "hopper"; }
std::string spell_variant(const MmaVariant& variant);
std::string spell_variant(const HopperVariant& variant);
const void* read_part(std::string_view part, MmaVariant& variant);
const void* read_part(std::string_view part, HopperVariant& variant);
// Equal for equal variants alone, of those that are legal.
std::array<std::uint64_t, 2> key_of(const MmaVariant& variant) noexcept;
std::array<std::uint64_t, 2> key_of(const HopperVariant& variant) noexcept;

// Of a problem; `causal` for any diagonal. With `band`, where keys of some query begin behind the first one, it is one
// of full and causal, too.
enum class Mask { any, full, causal, band };
inline bool has_band(const Problem& problem) { return problem.window || problem.chunk; }
// Whether rows see fewer keys the earlier they are.
inline bool has_diagonal(const Problem& problem) { return problem.causal || problem.prefix; }
// What is done to each score: by a feature, or by a user's text that says the same.
inline bool has_slopes(const Problem& problem) { return problem.alibi || feature_of_score(problem) == &Problem::alibi; }
inline bool has_cap(const Problem& problem) {
  return problem.softcap || feature_of_score(problem) == &Problem::softcap;
}
// Whether a text is computed for each score.
inline bool has_score_text(const Problem& problem) {
  return problem.bias || (problem.score && !feature_of_score(problem));
}

// The values of one part of a bucket, from first to last.
template <class Range>
struct RangeSpan {
  Range first, last;

  constexpr bool contains(Range range) const noexcept { return first <= range && range <= last; }
};

// "w1", "w2-w4" or "kv8k+", which is that and all that follow. Not a constant expression when it is nothing of these.
template <class Range, std::size_t kCount>
consteval RangeSpan<Range> parse_range_span(std::string_view text, const std::string_view (&words)[kCount]) {
  const auto value_of = [&](std::string_view word) {
    return static_cast<Range>(std::find(words, words + kCount, word) - words);
  };
  const bool is_open = text.ends_with('+');
  if (is_open) text.remove_suffix(1);
  const std::size_t dash = text.find('-');
  const Range first = value_of(text.substr(0, dash));
  const Range last = value_of(is_open ? words[kCount - 1] : text.substr(dash == text.npos ? 0 : dash + 1));
  return first <= last && last < Range{kCount} ? RangeSpan<Range>{first, last} : throw text;
}

// Buckets, in the words of their names: "q128+ kv8k+ w2-w4". What of a part is not named may be anything.
struct BucketSpan {
  RangeSpan<QueryRange> queries = parse_range_span<QueryRange>("q16+", kQueryWords);
  RangeSpan<KeyRange> keys = parse_range_span<KeyRange>("kv1k+", kKeyWords);
  RangeSpan<WorkRange> work = parse_range_span<WorkRange>("w05+", kWorkWords);

  consteval BucketSpan(const char* text) {
    for (std::string_view rest = text; !rest.empty();) {
      const std::size_t space = std::min(rest.find(' '), rest.size());
      read(rest.substr(0, space));
      rest.remove_prefix(std::min(space + 1, rest.size()));
    }
  }

  constexpr bool contains(const ShapeBucket& bucket) const noexcept {
    return queries.contains(bucket.queries) && keys.contains(bucket.keys) && work.contains(bucket.work);
  }

 private:
  consteval void read(std::string_view part) {
    if (part.starts_with('q')) {
      queries = parse_range_span<QueryRange>(part, kQueryWords);
    } else if (part.starts_with('k')) {
      keys = parse_range_span<KeyRange>(part, kKeyWords);
    } else {
      work = parse_range_span<WorkRange>(part, kWorkWords);
    }
  }
};

// Of a family's rules the first one that applies and is legal wins.
struct DefaultRule {
  int max_head_dim, max_head_dim_v;
  Mask mask;
  BucketSpan buckets;
  const char* variant;
  bool (*asks)(const Problem&) = nullptr;  // only for such problems; null: for all
};
std::span<const DefaultRule> mma_default_rules();
std::span<const DefaultRule> hopper_default_rules();
// Likewise, where what comes of a row is to depend on it alone: variants of which equal rows are equal bit by bit.
std::span<const DefaultRule> mma_invariant_rules();
std::span<const DefaultRule> hopper_invariant_rules();

// Tiles below a diagonal differ in length, and only they do.
inline TileOrder order_for(const Problem& problem) {
  return has_diagonal(problem) ? TileOrder::longest_first : TileOrder::natural;
}

inline bool splits_kv(const Variant& variant) {
  return std::visit([](const auto& of_family) { return of_family.split_kv; }, variant);
}
// Whether its tiles have so few rows that warps share them, and blocks of a cluster split a tile's keys.
bool shares_rows(const Variant& variant) noexcept;
// Whether the block that comes last of those that have a tile can join their partial results of split keys, so that no
// other kernel has to. Someone must have cleared what such blocks are counted with: who makes a plan, or the list of a
// ragged batch.
inline bool can_join_splits(const Variant& variant) noexcept { return splits_kv(variant) && shares_rows(variant); }
// Whether the variant takes a way that only measurements take, for which there is a kernel of its own.
bool serves_ablation(const HopperVariant& variant) noexcept;

// Whether products are of 8 bits, and whether sums of them with values stand apart from the output, in f32.
inline bool is_of_8_bits(const Problem& problem) { return problem.e4m3_queries; }
inline bool sums_apart(const Problem& problem) { return is_of_8_bits(problem) && !problem.fast_sums; }
// Keys of a block that products are made with have one scale.
inline std::string why_not_of_one_scale(const Problem& problem, int block_kv) {
  if (!problem.block_scales || kRowsOfScale % block_kv == 0) return {};
  return "variant: block_kv must divide " + std::to_string(kRowsOfScale) + " where these rows have a scale, was " +
         std::to_string(block_kv);
}

// Whether no kernel of the mma family serves it there, which reads what the copy engine cannot be told of, too.
bool needs_tma(const Problem& problem, const Architecture& architecture) noexcept;

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
