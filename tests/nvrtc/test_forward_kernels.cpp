// SPDX-License-Identifier: Apache-2.0
// What NVRTC and ptxas make of the forward kernels. No GPU: it compiles for all targets on any machine.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "flashjit/flashjit.h"

namespace {

using namespace flashjit;

struct Job {
  Problem problem;
  Variant variant;
  std::string architecture;
};

Engine make_engine() {
  EngineOptions options = EngineOptions::from_environment();
  options.policy = Policy::off;
  return Engine(options);
}

Problem problem_of(int head_dim, int head_dim_v, bool causal, DType dtype = DType::bf16) {
  Problem problem;
  problem.dtype = dtype, problem.head_dim = head_dim, problem.head_dim_v = head_dim_v, problem.causal = causal;
  return problem;
}

// Compiles the jobs side by side and expects of each that no thread spills and nothing lives in local memory.
void expect_clean(Engine& engine, const std::vector<Job>& jobs) {
  REQUIRE(!jobs.empty());
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::vector<std::string> faults;
  const auto work = [&] {
    for (std::size_t i = next++; i < jobs.size(); i = next++) {
      const Job& job = jobs[i];
      std::string fault;
      try {
        const KernelInfo info = engine.compile(job.problem, job.variant, job.architecture);
        if (info.spill_bytes != 0 || info.stack_bytes != 0)
          fault = info.name + ": spills " + std::to_string(info.spill_bytes) + ", stack " +
                  std::to_string(info.stack_bytes);
        else if (info.registers <= 0 || info.cubin_bytes == 0)
          fault = info.name + ": no facts";
      } catch (const Error& error) {
        fault = to_string(job.problem) + " " + to_string(job.variant) + " " + job.architecture + ": " + error.what() +
                "\n" + error.log();
      }
      const std::lock_guard lock(mutex);
      if (!fault.empty()) faults.push_back(fault);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  for (const std::string& fault : faults) FAIL_CHECK(fault);
  CHECK(next >= jobs.size());
}

void add_defaults(const Engine& engine, const Problem& problem, const std::string& architecture,
                  std::vector<Job>& jobs) {
  std::vector<Variant> seen;
  for (const LengthRange range : kLengthRanges) {
    const Variant variant = engine.default_variant(problem, architecture, range);
    if (std::find(seen.begin(), seen.end(), variant) != seen.end()) continue;
    seen.push_back(variant);
    jobs.push_back({problem, variant, architecture});
  }
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

// Many kernels: with the library's own NVRTC only, scripts/test leaves it out for the others.
TEST_SUITE_BEGIN("every variant");

TEST_CASE("every legal variant of common head dims compiles for the H200 without spills") {
  Engine engine = make_engine();
  std::vector<Job> jobs;
  for (const int head_dim : {64, 128, 256})
    for (const bool causal : {false, true}) {
      const Problem problem = problem_of(head_dim, head_dim, causal);
      for (const Variant& variant : engine.variants(problem, "sm_90a")) jobs.push_back({problem, variant, "sm_90a"});
    }
  expect_clean(engine, jobs);
}

TEST_SUITE_END();
