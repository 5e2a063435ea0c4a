// SPDX-License-Identifier: Apache-2.0
// Every feature of the table under 20 schedules of the emulator, in all ways in which warps and warpgroups wait for
// each other: no findings, and the same bits under each. A new row of the table is in this test at once.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "cli/io/problem_options.h"
#include "cli/verify/cases.h"
#include "cli/verify/schedules.h"
#include "generator/plan.h"
#include "runtime/support/parallel.h"
#include "tests/support/feature.h"
#include "tests/support/kept_kernels.h"
#include "tests/support/sample.h"

using namespace flashjit;

namespace {

struct Way {
  const char *architecture, *variant;
  bool clustered = false, reads_e4m3 = false, multiplies_e4m3 = false;
  int head_dim = 16;
};
constexpr Way kWays[] = {
    {"sm_89", "mma-q64-kv32-k2-v2", false, false, true},
    {"sm_80", "mma-q128-kv32-w8-k2-v3-c1-rotate-qsmem"},
    {"sm_90a", "hopper-q64-kv32-qs2-whole-lazy-ppoff", false, false, true},
    {"sm_90a", "hopper-q128-kv32-s2-qs2-whole-lazy-ppgemm-dynamic-fused", false, false, true},
    {"sm_90a", "hopper-q128-kv32-qs1-whole-rare-ppgemm-single-split", false, false, true},
    {"sm_90a", "hopper-q128-kv32-serial-ppsoftmax-whole", false, false, true},
    {"sm_90a", "hopper-q64-kv32-qs2-whole-cl2-fixed-ppoff-fused", true},
    {"sm_90a", "hopper-q16-kv128-s2-qs1-whole-serial-ppoff-rare-fixed-splitkv", false, true},
    {"sm_90a", "hopper-q8-kv128-s2-qs1-whole-serial-ppoff-rare-fixed-splitkv"},
    {"sm_90a", "hopper-q64-kv64-s1-ppoff-rare-dynamic", false, false, false, 264},
    {"sm_90a", "hopper-q64-kv64-s1-ppoff-cl2-always-fixed", true, false, false, 264},
    {"sm_80", "mma-q32-kv128-w4-k2-v1", false, false, false, 264},
    {"sm_80", "mma-q16-kv128-w4-k2-v1-splitkv", false, false, false, 264},
};

struct Scheduled {
  Problem problem;
  Way way;
};

// A block mask is made of predicates.
void complete(Problem& problem) {
  if (!problem.block_mask || cli::has_predicate(problem)) return;
  problem.documents = &tests::any_function(generator::FunctionKind::documents);
}

// Queries of e4m3 go without dropout and scales of tokens, so what is for them alone is not among all.
std::vector<Problem> each_feature_and_all(int head_dim) {
  const Problem plain{.dtype = DType::bf16, .head_dim = head_dim, .head_dim_v = head_dim};
  std::vector<Problem> problems;
  Problem all = plain;
  for (const generator::FeatureRow& row : generator::features()) {
    if (tests::is_of_large_heads(row)) continue;
    tests::ask(problems.emplace_back(plain), row);
    if (!problems.back().e4m3_queries) tests::ask(all, row);
    complete(problems.back());
  }
  all.causal = false;  // its prefix stands in place of a causal mask
  // A block mask is for one length of all sequences.
  for (const bool ragged : {false, true}) {
    all.ragged = all.paged = ragged, all.block_mask = !ragged;
    problems.push_back(all);
  }
  return problems;
}

std::vector<Scheduled> all_ways() {
  std::vector<Scheduled> all;
  for (const Way& way : kWays)
    for (Problem problem : each_feature_and_all(way.head_dim)) {
      const bool is_large = generator::is_large(problem);
      if (is_large && std::holds_alternative<HopperVariant>(parse_variant(way.variant)))
        problem.paged = false;  // refused
      if (problem.e4m3_queries && !way.multiplies_e4m3) continue;
      if (!way.reads_e4m3 && !problem.e4m3_queries) problem.e4m3 = problem.token_scales = false;
      if (!way.clustered || !(problem.block_mask || problem.ragged)) all.push_back({problem, way});  // refused
    }
  return all;
}

std::string problem_of_schedules(const Scheduled& scheduled) {
  EngineOptions options = tests::options_with_kept_kernels();
  options.emulate = scheduled.way.architecture;
  Engine engine(options);
  cli::VerifyCase c(scheduled.problem, {1, 200, 230, 2, 1}, kHostMemory, tests::options_for(scheduled.problem),
                    cli::references_by(engine));
  if (scheduled.problem.block_mask) c.make_block_mask(engine);
  const cli::ScheduleOutcome outcome = run_schedules(engine, c, parse_variant(scheduled.way.variant), {.count = 20});
  if (outcome.problems.empty()) return outcome.runs == 20 ? "" : fmt::format("{} schedules", outcome.runs);
  return outcome.problems.front();
}

}  // namespace

TEST_CASE("under every schedule each feature gives the same bits, and nothing is read before it is there") {
  const std::vector<Scheduled> chosen = tests::sample(all_ways());
  std::vector<std::string> problems(chosen.size());
  runtime::parallel_for(chosen.size(), [&](std::size_t i) { problems[i] = problem_of_schedules(chosen[i]); });
  for (std::size_t i = 0; i < chosen.size(); ++i)
    CHECK_MESSAGE(problems[i].empty(), to_string(chosen[i].problem), ", ", std::string(chosen[i].way.variant), ": ",
                  problems[i]);
}
