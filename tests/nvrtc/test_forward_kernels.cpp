// SPDX-License-Identifier: Apache-2.0
// What NVRTC and ptxas make of the forward kernels. No GPU: it compiles for all targets on any machine.
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/nvrtc/kernel_jobs.h"
#include "tests/support/sample.h"

using namespace flashjit;
using tests::add_defaults;
using tests::expect_clean;
using tests::Job;
using tests::make_engine;
using tests::problem_of;
using tests::sample;

TEST_SUITE_BEGIN("forward kernels");

TEST_CASE("the defaults of common head dims compile for every target without spills") {
  Engine engine = make_engine();
  std::vector<Job> jobs;
  for (const Architecture& architecture : architectures())
    for (const auto& [head_dim, causal] : {std::pair{64, true}, {128, false}, {256, true}})
      add_defaults(engine, problem_of(head_dim, head_dim, causal), architecture.name, jobs);
  expect_clean(engine, sample(jobs));
}

TEST_CASE("with a window, too, the defaults of both families compile without spills") {
  Engine engine = make_engine();
  std::vector<Job> jobs;
  for (const char* architecture : {"sm_80", "sm_90a"})
    for (const auto& [head_dim, causal] : {std::pair{64, true}, {128, false}, {256, true}}) {
      Problem problem = problem_of(head_dim, head_dim, causal);
      problem.window = true;
      add_defaults(engine, problem, architecture, jobs);
    }
  expect_clean(engine, sample(jobs));
}

TEST_CASE("with a softcap and with ALiBi, too, the defaults compile for every generation without spills") {
  Engine engine = make_engine();
  std::vector<Job> jobs;
  for (const char* architecture : {"sm_80", "sm_90a", "sm_100a", "sm_120a"})
    for (const int head_dim : {64, 128})
      for (const bool causal : {false, true})
        for (const auto& [softcap, alibi] : {std::pair{true, false}, {false, true}, {true, true}}) {
          Problem problem = problem_of(head_dim, head_dim, causal);
          problem.softcap = softcap, problem.alibi = alibi;
          add_defaults(engine, problem, architecture, jobs);
        }
  expect_clean(engine, sample(jobs));
}

TEST_CASE("with dropout, too, the defaults on Hopper compile without spills") {
  Engine engine = make_engine();
  std::vector<Job> jobs;
  for (const int head_dim : {64, 128})
    for (const bool causal : {false, true}) {
      Problem problem = problem_of(head_dim, head_dim, causal);
      problem.dropout = true;
      add_defaults(engine, problem, "sm_90a", jobs);
    }
  expect_clean(engine, sample(jobs));
}

TEST_CASE(
    "on caches of e4m3, too, the defaults compile without spills, and two blocks fit an SM at head dims up to 128") {
  Engine engine = make_engine();
  std::vector<Job> jobs;
  for (const auto& [head_dim, dtype] : {std::pair{16, DType::bf16},
                                        {64, DType::bf16},
                                        {128, DType::f16},
                                        {128, DType::bf16},
                                        {192, DType::f16},
                                        {256, DType::bf16}})
    for (const bool token_scales : {false, true})
      for (const bool paged : {false, true}) {
        Problem problem = problem_of(head_dim, head_dim, true, dtype);
        problem.e4m3 = true, problem.token_scales = token_scales;
        problem.ragged = problem.paged = paged;
        add_defaults(engine, problem, "sm_90a", jobs);
      }
  expect_clean(engine, sample(jobs));
}

TEST_CASE("of products of e4m3, too, the defaults compile without spills") {
  Engine engine = make_engine();
  std::vector<Job> jobs;
  for (const int head_dim : {16, 48, 64, 96, 128, 160, 192, 256})
    for (const bool is_fast : {false, true})
      for (const bool causal : {false, true}) {
        Problem problem = problem_of(head_dim, head_dim, causal);
        problem.e4m3 = problem.e4m3_queries = true, problem.fast_sums = is_fast;
        add_defaults(engine, problem, "sm_90a", jobs);
        if (head_dim % 64 == 0)
          for (const char* architecture : {"sm_89", "sm_120a"}) add_defaults(engine, problem, architecture, jobs);
        problem.block_scales = !is_fast && (head_dim == 64 || head_dim == 128);
        if (problem.block_scales) add_defaults(engine, problem, "sm_90a", jobs);
      }
  expect_clean(engine, sample(jobs));
}

TEST_CASE("tiles of 4 and of 8 rows compile without spills, with few parts and with many") {
  Engine engine = make_engine();
  std::vector<Job> jobs;
  for (const auto& [head_dim, dtype] :
       {std::pair{16, DType::bf16}, {64, DType::f16}, {128, DType::bf16}, {192, DType::f16}, {256, DType::bf16}})
    for (const auto& [tile, many] :
         {std::pair{"q4-kv64-s2", false}, {"q4-kv128-s1", true}, {"q8-kv64-s2", false}, {"q8-kv128-s1", true}}) {
      Problem problem = problem_of(head_dim, head_dim, true, dtype);
      problem.dropout = problem.softcap = problem.alibi = problem.ragged = problem.paged = many;
      const std::string variant = "hopper-" + std::string(tile) + "-qs1-whole-serial-ppoff-rare-fixed-split-splitkv";
      jobs.push_back({problem, parse_variant(variant), "sm_90a"});
    }
  expect_clean(engine, sample(jobs));
}

TEST_CASE("the steps of the ladder compile for every target") {
  Engine engine = make_engine();
  std::vector<Job> jobs;
  for (const Architecture& architecture : architectures())
    for (const char* step : {"v1", "v2", "v3", "v4", "v5"})
      jobs.push_back({problem_of(128, 128, false), parse_variant(step), architecture.name});
  expect_clean(engine, sample(jobs));
}

TEST_SUITE_END();
