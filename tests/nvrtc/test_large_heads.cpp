// SPDX-License-Identifier: Apache-2.0
// The kernel of head dims above 256 in the emulator, against the reference.
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "cli/verify/cases.h"
#include "generator/features.h"
#include "runtime/support/parallel.h"
#include "tests/support/emulating_engine.h"
#include "tests/support/feature.h"
#include "tests/support/sample.h"

using namespace flashjit;
using tests::engine_for;

namespace {

constexpr const char* kAlone = "hopper-q64-kv64-s1-ppoff-rare-single";
constexpr const char* kPersistent = "hopper-q64-kv64-s1-ppoff-always-dynamic";
constexpr const char* kPair = "hopper-q64-kv64-s1-ppoff-cl2-rare-fixed";
constexpr const char* kSplit = "hopper-q64-kv64-s1-ppoff-rare-single-splitkv";
constexpr const char* kSplitPair = "hopper-q64-kv64-s1-ppoff-cl2-rare-single-splitkv";

struct Call {
  Problem problem;
  cli::CaseShape shape;
  const char* variant;
};

Problem problem_of(int head_dim, int head_dim_v, bool causal = false, DType dtype = DType::bf16) {
  return {.dtype = dtype, .head_dim = head_dim, .head_dim_v = head_dim_v, .causal = causal};
}

std::string problem_with(const Call& call) {
  Engine& engine = engine_for("sm_90a");
  cli::VerifyCase c(call.problem, call.shape, kHostMemory, tests::options_for(call.problem),
                    cli::references_by(engine));
  if (call.problem.block_mask) c.make_block_mask(engine);
  return c.problem_with(engine, parse_variant(call.variant));
}

void check(const std::vector<Call>& all) {
  const std::vector<Call> calls = tests::sample(all);
  std::vector<std::string> problems(calls.size());
  runtime::parallel_for(calls.size(), [&](std::size_t i) { problems[i] = problem_with(calls[i]); });
  for (std::size_t i = 0; i < calls.size(); ++i)
    CHECK_MESSAGE(problems[i] == "", to_string(calls[i].problem), ", ", to_string(calls[i].shape), ", ",
                  std::string(calls[i].variant));
}

}  // namespace

TEST_SUITE_BEGIN("large heads");

TEST_CASE("head dims, equal and not") {
  std::vector<Call> calls;
  for (const auto& [head_dim, head_dim_v] : {std::pair{264, 264},
                                             {320, 320},
                                             {384, 384},
                                             {448, 448},
                                             {512, 512},
                                             {576, 512},
                                             {512, 256},
                                             {264, 8},
                                             {8, 264},
                                             {24, 512},
                                             {128, 320},
                                             {272, 136},
                                             {520, 24}})
    for (const char* variant : {kAlone, kPair})
      calls.push_back(
          {problem_of(head_dim, head_dim_v, head_dim % 16 == 0, head_dim % 5 == 0 ? DType::f16 : DType::bf16),
           {1, 90, 210, 4, 2},
           variant});
  check(calls);
}

TEST_CASE("lengths of one block, of two, and between, for each stream alone and both") {
  std::vector<Call> calls;
  for (const std::int64_t keys : {1, 63, 64, 65, 127, 128, 129, 192, 193, 300})
    for (const std::int64_t queries : {1, 64, 65, 129, 300})
      for (const char* variant : {kAlone, kPersistent, kPair})
        calls.push_back({problem_of(264, 264, queries % 2 == 1), {1, queries, keys, 2, 1}, variant});
  check(calls);
}

TEST_CASE("more tiles than blocks that run at once, of heads that share tiles too") {
  std::vector<Call> calls;
  for (const bool causal : {false, true})
    for (const char* variant : {kPersistent, kPair}) {
      calls.push_back({problem_of(512, 512, causal), {2, 200, 200, 6, 3}, variant});
      calls.push_back({problem_of(320, 264, causal), {3, 7, 140, 16, 2}, variant});
    }
  check(calls);
}

TEST_CASE("each feature") {
  std::vector<Call> calls;
  for (const generator::FeatureRow& row : generator::features())
    for (const char* variant : {kPersistent, kPair}) {
      Problem problem = problem_of(264, 320);
      tests::ask(problem, row);
      if (problem.block_mask) problem.documents = &tests::any_function(generator::FunctionKind::documents);
      if (problem.e4m3 || (variant == kPair && problem.block_mask)) continue;  // refused
      calls.push_back({problem, {2, 150, 230, 4, 2}, variant});
      problem.causal = !problem.prefix, problem.window = true;
      calls.push_back({problem, {1, 150, 230, 4, 2}, variant});
    }
  check(calls);
}

TEST_CASE("keys are split for few queries, whose heads share tiles up to those of a pair of blocks") {
  std::vector<Call> calls;
  for (const auto& [heads, queries] :
       {std::pair{1, 1}, {1, 7}, {8, 1}, {16, 3}, {12, 5}, {32, 2}, {64, 1}, {128, 1}, {128, 2}, {96, 1}})
    for (const std::int64_t keys : {64, 300, 640})
      for (const char* variant : {kSplit, kSplitPair})
        calls.push_back({problem_of(576, 512, queries > 2), {1, queries, keys, heads, 1}, variant});
  for (const char* variant : {kSplit, kSplitPair}) {
    calls.push_back({problem_of(264, 264, true), {2, 100, 500, 4, 2}, variant});
    calls.push_back({problem_of(512, 8), {2, 1, 500, 4, 2}, variant});
    calls.push_back({problem_of(8, 264), {2, 3, 500, 128, 2}, variant});
  }
  check(calls);
}

TEST_CASE("sequences of any length, and keys in pages of any size") {
  std::vector<Call> calls;
  for (const bool paged : {false, true})
    for (const auto& [heads, queries] : {std::pair{1, 100}, {8, 3}, {128, 1}, {128, 2}})
      for (const std::int64_t keys : {40, 300, 900})
        for (const char* variant : {kAlone, kPair, kSplit, kSplitPair}) {
          Problem problem = problem_of(576, 512, queries > 1);
          problem.ragged = true, problem.paged = paged;
          calls.push_back({problem, {3, queries, keys, heads, 1}, variant});
        }
  check(calls);
}

TEST_CASE("each feature beside split keys") {
  std::vector<Call> calls;
  for (const generator::FeatureRow& row : generator::features())
    for (const char* variant : {kSplit, kSplitPair}) {
      Problem problem = problem_of(320, 264);
      tests::ask(problem, row);
      if (problem.block_mask) problem.documents = &tests::any_function(generator::FunctionKind::documents);
      if (problem.e4m3 || (variant == kSplitPair && problem.block_mask)) continue;  // refused
      calls.push_back({problem, {1, 5, 700, 32, 1}, variant});
      problem.causal = !problem.prefix, problem.window = true;
      calls.push_back({problem, {2, 5, 700, 4, 2}, variant});
    }
  check(calls);
}

TEST_SUITE_END();
