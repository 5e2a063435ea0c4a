// SPDX-License-Identifier: Apache-2.0
// Every combination of the features in the table of generator/features.cpp, in the emulator: none is refused, and all
// agree with the reference. A new feature fails here until it has something to call it with.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cli/verify/cases.h"
#include "flashjit/flashjit.h"
#include "generator/features.h"
#include "runtime/support/parallel.h"
#include "tests/support/sample.h"

namespace {

using namespace flashjit;

struct Way {
  const char *architecture, *variant;
};
// Small blocks, so that masks leave some whole and pass over others.
constexpr Way kWays[] = {{"sm_80", "mma-q64-kv32-k2-v2"}, {"sm_90a", "hopper-q64-kv32-qs2-whole-lazy-ppoff"}};

struct Combination {
  std::uint32_t features;  // a bit for each row of the table
  Way way;
};

std::vector<Combination> all_combinations() {
  std::vector<Combination> combinations;
  for (std::uint32_t features = 0; features < 1u << generator::features().size(); ++features)
    for (const Way& way : kWays) combinations.push_back({features, way});
  return combinations;
}

Problem problem_with(std::uint32_t features) {
  Problem problem{.dtype = DType::f16, .head_dim = 32, .head_dim_v = 32};
  for (std::size_t i = 0; i < generator::features().size(); ++i)
    problem.*generator::features()[i].asked = (features >> i & 1) != 0;
  return problem;
}

// Of a call for the problem; what has a number for each head is the case's.
AttentionOptions options_for(const Problem& problem) {
  AttentionOptions options;
  options.causal = problem.causal;
  if (problem.window) options.window = {60, problem.causal ? -1 : 25};
  if (problem.chunk) options.chunk = 70;
  if (problem.softcap) options.softcap = 5;
  return options;
}

// Empty where the combination is right.
std::string try_combination(const Combination& combination) {
  try {
    const Problem problem = problem_with(combination.features);
    const cli::VerifyCase c(problem, {2, 50, 150, 4, 2}, kHostMemory, options_for(problem));
    EngineOptions options = EngineOptions::from_environment();
    options.policy = Policy::off;
    options.emulate = combination.way.architecture;
    Engine engine(options);
    std::string asked;
    const cli::CaseOutputs outputs = c.run(parse_variant(combination.way.variant), [&](const cli::CaseCall& call) {
      asked = to_string(problem_of(DType::f16, 32, 32, call.options));
      engine.attention(call.q, call.k, call.v, call.out, call.options);
    });
    if (asked != to_string(problem)) return "calls ask for " + asked + " in place of " + to_string(problem);
    const std::string what = c.problem_with(outputs);
    return what.empty() ? "" : to_string(problem) + ": " + what;
  } catch (const Error& error) {
    return to_string(problem_with(combination.features)) + ": " + error.what() + "\n" + error.log();
  }
}

}  // namespace

TEST_CASE("every combination of features runs and agrees with the reference") {
  const std::vector<Combination> combinations = tests::sample(all_combinations());
  std::vector<std::string> problems(combinations.size());
  runtime::parallel_for(combinations.size(), [&](std::size_t i) { problems[i] = try_combination(combinations[i]); });
  for (std::size_t i = 0; i < problems.size(); ++i)
    CHECK_MESSAGE(problems[i].empty(), std::string(combinations[i].way.architecture), ": ", problems[i]);
}
