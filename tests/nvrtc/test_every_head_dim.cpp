// SPDX-License-Identifier: Apache-2.0
// The defaults of all head dims: many kernels. With one NVRTC only.
#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "generator/features.h"
#include "tests/nvrtc/kernel_jobs.h"
#include "tests/support/feature.h"
#include "tests/support/sample.h"

using namespace flashjit;
using tests::add_defaults;
using tests::expect_clean;
using tests::Job;
using tests::make_engine;
using tests::problem_of;
using tests::sample;

TEST_SUITE_BEGIN("every head dim");

TEST_CASE("the defaults of every head dim compile for the H200 without spills") {
  Engine engine = make_engine();
  std::vector<Job> jobs;
  for (int head_dim = 8; head_dim <= 256; head_dim += 8)
    add_defaults(engine,
                 problem_of(head_dim, head_dim, head_dim % 16 == 0, head_dim % 3 == 0 ? DType::f16 : DType::bf16),
                 "sm_90a", jobs);
  add_defaults(engine, problem_of(192, 128, true), "sm_90a", jobs);
  add_defaults(engine, problem_of(64, 256, false), "sm_90a", jobs);
  add_defaults(engine, problem_of(40, 200, true), "sm_90a", jobs);
  add_defaults(engine, problem_of(256, 32, true), "sm_90a", jobs);
  add_defaults(engine, problem_of(16, 256, true), "sm_90a", jobs);
  expect_clean(engine, sample(jobs));
}

TEST_CASE("so do those of large heads, with each feature and each variant") {
  Engine engine = make_engine();
  std::vector<Job> jobs;
  for (int head_dim = 264; head_dim <= 512; head_dim += 56)
    add_defaults(engine, problem_of(head_dim, head_dim, head_dim % 16 == 0), "sm_90a", jobs);
  for (const auto& [head_dim, head_dim_v] : {std::pair{512, 512}, {576, 512}, {512, 64}, {64, 512}, {8, 264}, {272, 8}})
    add_defaults(engine, problem_of(head_dim, head_dim_v, true, DType::f16), "sm_90a", jobs);
  for (const generator::FeatureRow& row : generator::features()) {
    Problem problem = problem_of(512, 512, true);
    flashjit::tests::ask(problem, row);
    if (problem.prefix) problem.causal = false;
    if (!problem.e4m3 && !problem.k_rotary) add_defaults(engine, problem, "sm_90a", jobs);
  }
  for (const bool causal : {false, true})
    for (const Variant& variant : engine.variants(problem_of(512, 512, causal), "sm_90a"))
      jobs.push_back({problem_of(512, 512, causal), variant, "sm_90a"});
  expect_clean(engine, sample(jobs));
}

TEST_CASE("and those of large heads on every target") {
  Engine engine = make_engine();
  std::vector<Job> jobs;
  for (const Architecture& architecture : architectures())
    for (const auto& [head_dim, head_dim_v] : {std::pair{512, 512}, {576, 512}, {264, 264}, {64, 512}, {320, 8}})
      add_defaults(engine, problem_of(head_dim, head_dim_v, head_dim == 512), architecture.name, jobs);
  for (const char* architecture : {"sm_80", "sm_100a", "sm_120a"}) {
    for (const generator::FeatureRow& row : generator::features()) {
      Problem problem = problem_of(576, 512, true);
      flashjit::tests::ask(problem, row);
      if (problem.prefix) problem.causal = false;
      if (!problem.e4m3) add_defaults(engine, problem, architecture, jobs);
    }
    for (const Variant& variant : engine.variants(problem_of(512, 512, true), architecture))
      jobs.push_back({problem_of(512, 512, true), variant, architecture});
  }
  expect_clean(engine, sample(jobs));
}

TEST_CASE("and those of keys in two tensors, of e4m3 wherever that is an instruction's") {
  Engine engine = make_engine();
  std::vector<Job> jobs;
  for (const char* architecture : {"sm_89", "sm_90a", "sm_100a", "sm_120a"})
    for (const DType dtype : {DType::f16, DType::bf16}) {
      Problem problem = problem_of(576, 512, true, dtype);
      problem.k_rotary = problem.e4m3 = true;
      for (const bool token_scales : {false, true}) {
        problem.token_scales = token_scales;
        for (const Variant& variant : engine.variants(problem, architecture))
          jobs.push_back({problem, variant, architecture});
      }
      for (const generator::FeatureRow& row : generator::features()) {
        Problem with = problem;
        flashjit::tests::ask(with, row);
        if (with.prefix) with.causal = false;
        if (!with.e4m3_queries && !with.latent) add_defaults(engine, with, architecture, jobs);
      }
    }
  expect_clean(engine, sample(jobs));
}

TEST_SUITE_END();
