// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/support/job_pool.h"

using namespace flashjit::runtime;

namespace {

bool never() { return false; }

std::vector<int> up_to(int last) {
  std::vector<int> numbers;
  for (int i = 1; i <= last; ++i) numbers.push_back(i);
  return numbers;
}

}  // namespace

TEST_CASE("each job runs once, on other threads, and the caller's thread hears of each that has ended") {
  constexpr int kJobs = 50;
  const auto caller = std::this_thread::get_id();
  for (const int threads : {1, 4, 200, 0}) {
    CAPTURE(threads);
    std::vector<std::atomic<int>> runs(kJobs);
    std::atomic<bool> on_caller{false};
    std::vector<int> told;
    bool told_elsewhere = false;
    run_jobs(
        kJobs, threads,
        [&](std::size_t i) {
          ++runs[i];
          if (std::this_thread::get_id() == caller) on_caller = true;
        },
        [&] {
          told_elsewhere |= std::this_thread::get_id() != caller;
          return false;
        },
        [&](int done) {
          told_elsewhere |= std::this_thread::get_id() != caller;
          told.push_back(done);
        });
    for (const std::atomic<int>& count : runs) CHECK(count == 1);
    CHECK(told == up_to(kJobs));
    CHECK_FALSE(on_caller);
    CHECK_FALSE(told_elsewhere);
  }
}

TEST_CASE("jobs begin in their order") {
  std::vector<std::size_t> order;
  run_jobs(
      20, 1, [&](std::size_t i) { order.push_back(i); }, never, [](int) {});
  for (std::size_t i = 0; i < order.size(); ++i) CHECK(order[i] == i);
  CHECK(order.size() == 20);
}

TEST_CASE("no job at all") {
  int told = 0;
  run_jobs(
      0, 3, [](std::size_t) { FAIL("there is no job"); }, never, [&](int) { ++told; });
  CHECK(told == 0);
}

TEST_CASE("told to stop at once, nothing runs") {
  std::atomic<int> runs{0};
  run_jobs(
      9, 3, [&](std::size_t) { ++runs; }, [] { return true; }, [](int) { FAIL("nothing was done"); });
  CHECK(runs == 0);
}

TEST_CASE("told to stop in the middle, jobs that run are waited for and told of, and hardly any other begins") {
  constexpr int kJobs = 2000;  // of a millisecond or more: by the end of all of them a stop would long have worked
  std::atomic<int> begun{0}, ended{0};
  std::vector<int> told;
  run_jobs(
      kJobs, 3,
      [&](std::size_t) {
        ++begun;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ++ended;
      },
      [&] { return !told.empty(); }, [&](int done) { told.push_back(done); });
  CHECK(begun < kJobs);
  CHECK(ended == begun);
  CHECK(told == up_to(ended));
}

TEST_CASE("a job that takes long does not keep the caller from stopping") {
  std::atomic<bool> asked{false};
  std::atomic<int> begun{0};
  int questions = 0;
  run_jobs(
      5, 1,
      [&](std::size_t) {
        ++begun;
        while (!asked) std::this_thread::yield();  // until stop() was asked while it ran
      },
      [&] {
        if (++questions == 1) return false;  // before the first job
        asked = true;
        return true;
      },
      [](int) {});
  CHECK(questions >= 2);
  CHECK(begun >= 1);
}

TEST_CASE("when the caller's function throws, its exception comes out after the running jobs have ended") {
  std::atomic<int> begun{0}, ended{0};
  const auto run = [&] {
    run_jobs(
        2000, 2,
        [&](std::size_t) {
          ++begun;
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          ++ended;
        },
        never, [](int) { throw std::runtime_error("enough"); });
  };
  CHECK_THROWS_WITH_AS(run(), "enough", std::runtime_error);
  CHECK(ended == begun);
  CHECK(begun < 2000);
}

TEST_CASE("as many kernels are compiled at once as there are cores, and fewer where memory is short") {
  const auto meminfo = [](const char* kib) {
    return std::string("MemTotal:       99999999 kB\nMemFree:        7 kB\nMemAvailable:   ") + kib +
           " kB\nBuffers:        5 kB\n";
  };
  CHECK(compile_jobs(16, meminfo("99999999")) == 16);
  CHECK(compile_jobs(16, meminfo("1228800")) == 4);  // 1200 MiB
  CHECK(compile_jobs(16, meminfo("1228799")) == 3);
  CHECK(compile_jobs(16, meminfo("0")) == 1);
  CHECK(compile_jobs(0, meminfo("99999999")) == 1);
  for (const char* unknown : {"", "MemTotal: 5 kB\n", "MemAvailable:", "MemAvailable: much\n"}) {
    CAPTURE(unknown);
    CHECK(compile_jobs(6, unknown) == 6);
  }
  CHECK(compile_jobs_of_machine() >= 1);
}
