// SPDX-License-Identifier: Apache-2.0
// The features in the table of generator/features.cpp with each other, in the emulator: each alone, all pairs, of which
// the kernels of the hopper family share one out, and a sample of all combinations agree with the reference, and what
// is refused is named here. A new feature fails here until it has something to call it with. What only large heads have
// is in test_rotary_keys.cpp.
#include <doctest/doctest.h>

#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "cli/verify/cases.h"
#include "flashjit/flashjit.h"
#include "generator/features.h"
#include "runtime/support/parallel.h"
#include "tests/support/feature.h"
#include "tests/support/kept_kernels.h"
#include "tests/support/sample.h"

namespace {

using namespace flashjit;

struct Way {
  const char *architecture, *variant;
  bool reads_e4m3 = false, multiplies_e4m3 = false;
};
// Small blocks, so that masks leave some whole and pass over others.
constexpr Way kWays[] = {{"sm_89", "mma-q64-kv32-k2-v2", false, true},
                         {"sm_90a", "hopper-q64-kv32-qs2-whole-lazy-ppoff", false, true},
                         {"sm_90a", "hopper-q16-kv128-s2-qs1-whole-serial-ppoff-rare-fixed-splitkv", true},
                         {"sm_90a", "hopper-q4-kv128-s2-qs1-whole-serial-ppoff-rare-fixed-splitkv"}};

struct Combination {
  std::uint32_t features;  // a bit for each row of the table
  Way way;
};

// A block mask is made of predicates, for one length of all sequences.
bool is_refused(const Problem& problem, const Way& way) {
  const bool has_predicate = problem.boolean_mask || problem.documents || problem.tree || problem.mask;
  const bool takes_e4m3 = problem.e4m3_queries ? way.multiplies_e4m3 : way.reads_e4m3;
  return (problem.block_mask && (!has_predicate || problem.ragged)) || (problem.e4m3 && !takes_e4m3);
}

Problem problem_with(std::uint32_t features) {
  Problem problem{.dtype = DType::f16, .head_dim = 32, .head_dim_v = 32};
  for (std::size_t i = 0; i < generator::features().size(); ++i)
    if ((features >> i & 1) != 0 && !tests::is_of_large_heads(generator::features()[i]))
      tests::ask(problem, generator::features()[i]);
  // A prefix stands in place of a causal mask.
  if (problem.prefix) problem.causal = false;
  return problem;
}

// What only queries of 8 bits have; values in the memory of the keys are of large heads.
bool is_of_products(generator::Slot slot) {
  return slot == generator::Slot::products || slot == generator::Slot::values || slot == generator::Slot::written;
}

// All, and all that go with 16-bit queries.
std::vector<std::uint32_t> none_singles_and_all() {
  const std::size_t rows = generator::features().size();
  std::vector<std::uint32_t> chosen{0, (1u << rows) - 1, 0};
  for (std::size_t i = 0; i < rows; ++i)
    if (!is_of_products(generator::features()[i].slot)) chosen.back() |= 1u << i;
  for (std::size_t i = 0; i < rows; ++i) chosen.push_back(1u << i);
  return chosen;
}

std::vector<std::uint32_t> pairs() {
  std::vector<std::uint32_t> chosen;
  for (std::size_t i = 0; i < generator::features().size(); ++i)
    for (std::size_t j = 0; j < i; ++j) chosen.push_back(1u << i | 1u << j);
  return chosen;
}

// So many of all, by a seed.
std::vector<std::uint32_t> any_combinations(int count) {
  std::mt19937 random(18);
  std::vector<std::uint32_t> chosen;
  for (int i = 0; i < count; ++i) chosen.push_back(random() & ((1u << generator::features().size()) - 1));
  return chosen;
}

std::vector<Combination> in_all_ways(const std::vector<std::uint32_t>& all) {
  std::vector<Combination> combinations;
  for (const Way& way : kWays)  // way by way, so that a sample has all
    for (const std::uint32_t features : all) combinations.push_back({features, way});
  return combinations;
}

// In the mma family, and in the others by turns.
std::vector<Combination> in_each_family(const std::vector<std::uint32_t>& all) {
  constexpr std::size_t kHopperWays = std::size(kWays) - 1;
  std::vector<Combination> combinations;
  for (const std::uint32_t features : all) combinations.push_back({features, kWays[0]});
  for (std::size_t turn = 0; turn < kHopperWays; ++turn)
    for (std::size_t i = turn; i < all.size(); i += kHopperWays) combinations.push_back({all[i], kWays[1 + turn]});
  return combinations;
}

Engine engine_for(const Way& way) {
  EngineOptions options = tests::options_with_kept_kernels();
  options.emulate = way.architecture;
  return Engine(options);
}

// Empty where the combination is right, or refused as it should be.
std::string try_combination(const Combination& combination) {
  try {
    const Problem problem = problem_with(combination.features);
    const std::string name = to_string(problem);
    Engine engine = engine_for(combination.way);
    cli::VerifyCase c(problem, {2, 50, 150, 4, 2}, kHostMemory, tests::options_for(problem),
                      cli::references_by(engine));
    if (problem.block_mask) c.make_block_mask(engine);
    std::string asked;
    const cli::CaseOutputs outputs = c.run(parse_variant(combination.way.variant), [&](const cli::CaseCall& call) {
      Problem of_call = problem_of(call.q.dtype, 32, 32, call.options, call.k.dtype);
      of_call.values_transposed = problem.values_transposed;  // which strides say
      asked = to_string(of_call);
      engine.attention(call.q, call.k, call.v, call.out, call.options);
    });
    if (is_refused(problem, combination.way)) return name + ": must be refused";
    if (asked != name) return "calls ask for " + asked + " in place of " + name;
    const std::string what = c.problem_with(outputs);
    return what.empty() ? "" : name + ": " + what;
  } catch (const Error& error) {
    const Problem problem = problem_with(combination.features);
    if (is_refused(problem, combination.way) && error.code() == ErrorCode::invalid_argument) return "";
    return to_string(problem) + ": " + error.what() + "\n" + error.log();
  }
}

void expect_right(const std::vector<Combination>& combinations) {
  std::vector<std::string> problems(combinations.size());
  runtime::parallel_for(combinations.size(), [&](std::size_t i) { problems[i] = try_combination(combinations[i]); });
  for (std::size_t i = 0; i < problems.size(); ++i)
    CHECK_MESSAGE(problems[i].empty(), std::string(combinations[i].way.architecture), ": ", problems[i]);
}

}  // namespace

TEST_CASE("each feature and all together agree with the reference, or are refused") {
  expect_right(tests::sample(in_all_ways(none_singles_and_all())));
}

TEST_CASE("each pair of features agrees with the reference, or is refused") {
  expect_right(tests::sample(in_each_family(pairs())));
}

TEST_CASE("combinations of features agree with the reference, or are refused") {
  expect_right(tests::sample(in_all_ways(any_combinations(64))));
}
