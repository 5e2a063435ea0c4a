// SPDX-License-Identifier: Apache-2.0
// What NVRTC and ptxas make of the forward kernels. No GPU: it compiles for all targets on any machine.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/nvrtc/kernel_jobs.h"

namespace {

using namespace flashjit;
using tests::expect_clean;
using tests::Job;
using tests::make_engine;
using tests::problem_of;

void add_defaults(const Engine& engine, const Problem& problem, const std::string& architecture,
                  std::vector<Job>& jobs) {
  std::vector<Variant> seen;
  const auto add = [&](const Variant& variant) {
    if (std::find(seen.begin(), seen.end(), variant) != seen.end()) return;
    seen.push_back(variant);
    jobs.push_back({problem, variant, architecture});
  };
  for (const LengthRange range : kLengthRanges) add(engine.default_variant(problem, architecture, range));
  add(engine.default_without_tma(problem, architecture));
}

}  // namespace

TEST_SUITE_BEGIN("forward kernels");

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
  expect_clean(engine, jobs);
}

TEST_CASE("the defaults of common head dims compile for every target without spills") {
  Engine engine = make_engine();
  std::vector<Job> jobs;
  for (const Architecture& architecture : architectures())
    for (const int head_dim : {64, 128, 256})
      for (const bool causal : {false, true})
        add_defaults(engine, problem_of(head_dim, head_dim, causal), architecture.name, jobs);
  expect_clean(engine, jobs);
}

TEST_CASE("the steps of the ladder compile for every target") {
  Engine engine = make_engine();
  std::vector<Job> jobs;
  for (const Architecture& architecture : architectures())
    for (const char* step : {"v1", "v2", "v3", "v4", "v5"})
      jobs.push_back({problem_of(128, 128, false), parse_variant(step), architecture.name});
  expect_clean(engine, jobs);
}

TEST_SUITE_END();
