// SPDX-License-Identifier: Apache-2.0
// Head dims above 256, by every kernel that this device has for them: on Hopper those of both families.
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "generator/features.h"
#include "tests/gpu/hopper_case.h"
#include "tests/support/feature.h"
#include "tests/support/same_bytes.h"

using namespace flashjit;
using tests::AttentionCase;
using tests::shared_engine;
using tests::Sizes;

namespace {

Problem problem_of(int head_dim, int head_dim_v, bool causal = false, DType dtype = DType::bf16) {
  return {.dtype = dtype, .head_dim = head_dim, .head_dim_v = head_dim_v, .causal = causal};
}

}  // namespace

TEST_SUITE_BEGIN("sanitizer");

TEST_CASE("large heads, on lengths that end within a block") {
  for (const bool causal : {false, true})
    tests::verify_variants(problem_of(264, 512, causal), {{1, 70, 200, 2, 1}, {1, 65, 65, 1, 1}, {1, 1, 700, 128, 1}});
}

TEST_CASE("large heads in pages") {
  if (!tests::has_hopper()) return;
  Problem problem = problem_of(576, 512, true);
  problem.ragged = problem.paged = true;
  tests::verify_variants(problem, {{3, 2, 500, 128, 1}, {2, 70, 200, 2, 1}});
}

TEST_CASE("large heads whose values are columns of their keys") {
  if (!tests::has_hopper()) return;
  Problem problem = problem_of(576, 512, true);
  problem.latent = true;
  tests::verify_variants(problem, {{1, 1, 700, 128, 1}, {2, 70, 200, 2, 1}});
  problem.ragged = problem.paged = true;
  tests::verify_variants(problem, {{3, 2, 500, 128, 1}});
}

TEST_CASE("keys in two tensors, in pages") {
  const std::string architecture = tests::test_device().architecture;
  Problem problem = problem_of(576, 512, true);
  problem.ragged = problem.paged = problem.k_rotary = true;
  problem.e4m3 = problem.token_scales = architecture != "sm_80" && architecture != "sm_86";
  tests::verify_variants(problem, {{3, 2, 500, 128, 1}, {2, 70, 200, 2, 1}});
}

TEST_SUITE_END();
TEST_SUITE_BEGIN("large heads");

TEST_CASE("every head dim") {
  for (int head_dim = 264; head_dim <= kLargestHeadDimV; head_dim += 8)
    tests::verify_variants(
        problem_of(head_dim, head_dim, head_dim % 16 == 0, head_dim % 24 == 0 ? DType::f16 : DType::bf16),
        {{1, 150, 330, 2, 1}});
}

TEST_CASE("head dims of v that differ, and those of keys up to 576") {
  for (const auto& [head_dim, head_dim_v] :
       {std::pair{576, 512}, {512, 256}, {8, 264}, {24, 512}, {264, 8}, {520, 136}})
    for (const bool causal : {false, true})
      tests::verify_variants(problem_of(head_dim, head_dim_v, causal), {{2, 90, 300, 4, 2}, {1, 1, 1000, 8, 1}});
}

TEST_CASE("lengths around the edges of blocks and of pairs of them") {
  std::vector<cli::CaseShape> shapes;
  for (const std::int64_t keys : {1, 63, 64, 65, 128, 129, 193, 1000})
    for (const std::int64_t queries : {1, 65, 129}) shapes.push_back({1, queries, keys, 2, 1});
  shapes.push_back({1, 300, 4100, 2, 1});
  for (const bool causal : {false, true}) tests::verify_variants(problem_of(512, 512, causal), shapes);
}

TEST_CASE("few queries on many keys, which are split, of heads that share tiles") {
  for (const bool causal : {false, true})
    tests::verify_variants(problem_of(576, 512, causal), {{1, 1, 5000, 16, 1}, {2, 40, 3000, 8, 2}});
}

TEST_CASE("rows far from 0, and rows that see no key") {
  for (const cli::Scores scores : {cli::Scores::jumps, cli::Scores::ramp})
    tests::verify_variants(problem_of(512, 512, true), {{1, 300, 500, 2, 1, scores}, {1, 500, 300, 2, 1, scores}});
}

TEST_CASE("each feature") {
  for (const generator::FeatureRow& row : generator::features()) {
    Problem problem = problem_of(512, 512);
    tests::ask(problem, row);
    if (problem.e4m3 || problem.k_rotary) continue;  // refused
    if (problem.block_mask) problem.documents = &tests::any_function(generator::FunctionKind::documents);
    for (const bool causal : {false, true}) {
      problem.causal = causal && !problem.prefix;
      cli::VerifyCase c(problem, {2, 300, 700, 4, 2}, tests::test_device().ordinal, tests::options_for(problem));
      if (problem.block_mask) c.make_block_mask(shared_engine());
      for (const Variant& variant : shared_engine().variants(problem, tests::test_device().architecture)) {
        CAPTURE(to_string(problem));
        CAPTURE(to_string(variant));
        CHECK(c.problem_with(shared_engine(), variant) == "");
      }
    }
  }
}

// Of the mma family alone: each way to store what is not rotary, contiguous and in pages, at MLA's head dims and
// others.
TEST_CASE("keys in two tensors") {
  const std::string architecture = tests::test_device().architecture;
  for (const auto& [head_dim, head_dim_v] : {std::pair{576, 512}, {272, 256}, {320, 80}})
    for (const bool e4m3 : {false, true})
      for (const bool token_scales : {false, true})
        for (const bool paged : {false, true}) {
          if (token_scales && !e4m3) continue;
          Problem problem = problem_of(head_dim, head_dim_v, paged);
          problem.k_rotary = true, problem.e4m3 = e4m3, problem.token_scales = token_scales;
          problem.ragged = problem.paged = paged;
          if (e4m3 && (architecture == "sm_80" || architecture == "sm_86")) continue;  // refused
          tests::verify_variants(
              problem,
              {{1, 1, 65, 128, 1}, {3, 1, 4100, 128, 1}, {2, 2, 1000, 16, 1}, {2, 40, 700, 8, 2}, {1, 1, 3001, 7, 1}});
        }
}

TEST_CASE("few queries, whose heads share tiles up to those of a pair of blocks") {
  if (!tests::has_hopper()) return;
  const std::vector<cli::CaseShape> shapes{{1, 1, 64, 128, 1},   {1, 1, 8192, 128, 1}, {8, 1, 4100, 128, 1},
                                           {3, 2, 1000, 128, 1}, {2, 1, 5000, 16, 1},  {64, 1, 700, 8, 1},
                                           {1, 1, 3000, 96, 1},  {2, 3, 2000, 12, 2}};
  for (const bool causal : {false, true}) {
    Problem problem = problem_of(576, 512, causal);
    tests::verify_variants(problem, shapes);
    problem.ragged = true;
    tests::verify_variants(problem, shapes);
    problem.paged = true;
    tests::verify_variants(problem, shapes);
    problem.latent = true;
    tests::verify_variants(problem, shapes);
    problem.paged = problem.ragged = false;
    tests::verify_variants(problem, shapes);
  }
}

TEST_CASE("many tiles, whose bits are those of every run") {
  const Problem problem = problem_of(512, 512, true);
  const AttentionCase c(Sizes{4, 2048, 2048, 4, 2, 512, 512});
  for (const Variant& variant : shared_engine().variants(problem, tests::test_device().architecture)) {
    CAPTURE(to_string(variant));
    AttentionOptions opts;
    opts.causal = true;
    opts.variant = variant;
    HostTensor first;
    for (int run = 0; run < 20; ++run) {
      const DeviceTensor out = c.poisoned_out(), lse = c.poisoned_lse();
      opts.lse = lse.view();
      shared_engine().attention(c.q, c.k, c.v, out, opts);
      const HostTensor now = HostTensor::from_device(out);
      if (run == 0) {
        first = now;
        c.check_out_and_lse(out, lse, opts);
      }
      CHECK(tests::same_bytes(now, first));
    }
  }
}

TEST_SUITE_END();
