// SPDX-License-Identifier: Apache-2.0
// A random combination of features, and a call of it: what flashjit verify --random compares. Both follow from a seed
// alone, so that what failed can be run again.
#pragma once

#include <flashjit/engine.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cli/io/text_options.h"
#include "cli/verify/backward_case.h"
#include "cli/verify/cases.h"

namespace flashjit::cli {

struct RandomCase {
  Problem problem;
  CaseShape shape;
  CaseInputs inputs;
  Texts texts;
  std::optional<CallShape> block_mask;  // what it is to be made for; none where the problem has none
};
// What some have and others do without.
struct RandomScope {
  bool e4m3_keys = true;      // and values, beside other queries
  bool e4m3_products = true;  // queries, keys and values
  bool pages = true;          // of keys
  bool block_masks = true;
  bool far_scores = true;    // infinite ones, such that f32 tells no neighbours apart, and NaN
  bool rotary_e4m3 = true;   // k and v of e4m3 where keys are in two tensors
  bool large_heads = false;  // head dims above 256 alone, and at times as many heads of a group as share a tile then
  bool spans_alone = false;  // equal head dims, of masks spans of keys, and no scores, predicates and dropout
  bool mla_caches = true;    // beside large heads: keys in two tensors, and values where keys are
};
// What backward kernels take, those of large heads, and of these the Hopper family's.
inline constexpr RandomScope kBackwardScope{false, false, false, false, false, false};
inline constexpr RandomScope kLargeBackwardScope{false, false, false, false, false, false, true, false, false};
inline constexpr RandomScope kHopperLargeBackwardScope{false, false, false, false, false, false, true, true, false};
RandomCase random_case(std::uint64_t seed, const RandomScope& scope = {});

// What a call for gradients of the case asks for; at least one.
GradientChoices random_gradients(std::uint64_t seed);

// One that can run the case, of either family where the architecture has both; or none, which leaves it to the library.
std::optional<Variant> random_variant(const Engine& engine, const RandomCase& random, std::string_view architecture,
                                      std::uint64_t seed);

// Likewise for gradients of the case.
std::optional<BackwardVariant> random_backward_variant(const Engine& engine, const RandomCase& random,
                                                       std::string_view architecture, std::uint64_t seed);

// In one line: shape, options and texts.
std::string describe(const RandomCase& random);

}  // namespace flashjit::cli
