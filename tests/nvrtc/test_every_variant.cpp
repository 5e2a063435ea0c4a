// SPDX-License-Identifier: Apache-2.0
// All legal variants: many kernels, with the mask, as their code has the loop without it too. scripts/test --all
// compiles them, with one NVRTC only.
#include <doctest/doctest.h>

#include <vector>

#include "tests/nvrtc/kernel_jobs.h"
#include "tests/support/sample.h"

using namespace flashjit;
using tests::expect_clean;
using tests::Job;
using tests::make_engine;
using tests::problem_of;
using tests::sample;

TEST_SUITE_BEGIN("every variant");

TEST_CASE("every legal variant of common head dims compiles for the H200 without spills") {
  Engine engine = make_engine();
  std::vector<Job> jobs;
  for (const int head_dim : {64, 128, 256}) {
    const Problem problem = problem_of(head_dim, head_dim, true);
    for (const Variant& variant : engine.variants(problem, "sm_90a")) jobs.push_back({problem, variant, "sm_90a"});
  }
  expect_clean(engine, sample(jobs));
}

TEST_SUITE_END();
