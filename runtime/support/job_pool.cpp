// SPDX-License-Identifier: Apache-2.0
#include "runtime/support/job_pool.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace flashjit::runtime {
namespace {

constexpr std::chrono::milliseconds kBetweenQuestions{50};
constexpr std::uint64_t kKibPerCompilation = 300 * 1024;  // what NVRTC takes for one of the larger kernels

class JobPool {
 public:
  JobPool(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& work)
      : count_(count), work_(work), running_(threads) {
    for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  }
  ~JobPool() { begin_no_more(); }

  // Until all have ended.
  void watch(const std::function<bool()>& stop, const std::function<void(int)>& done) {
    for (int told = 0;;) {
      const State state = wait(told);
      while (told < state.done) done(++told);
      if (state.ended) return;
      if (stop()) begin_no_more();
    }
  }

 private:
  struct State {
    int done;
    bool ended;
  };

  void run() {
    for (std::size_t i = next_++; i < count_; i = next_++) {
      work_(i);
      const std::lock_guard lock(mutex_);
      ++done_;
      changed_.notify_one();
    }
    const std::lock_guard lock(mutex_);
    --running_;
    changed_.notify_one();
  }

  State wait(int told) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kBetweenQuestions, [&] { return done_ > told || running_ == 0; });
    return {done_, running_ == 0};
  }

  void begin_no_more() { next_ = count_; }

  const std::size_t count_;
  const std::function<void(std::size_t)>& work_;
  std::atomic<std::size_t> next_{0};
  std::mutex mutex_;  // of the next two
  std::condition_variable changed_;
  int done_ = 0;
  std::size_t running_;
  std::vector<std::jthread> threads_;  // ends first: they use the rest
};

}  // namespace

void run_jobs(std::size_t count, int jobs, const std::function<void(std::size_t)>& work,
              const std::function<bool()>& stop, const std::function<void(int)>& done) {
  if (stop()) return;
  JobPool(count, std::min(count, static_cast<std::size_t>(std::max(1, jobs))), work).watch(stop, done);
}

int compile_jobs_of_machine() {
  std::ifstream file("/proc/meminfo");
  const std::string meminfo{std::istreambuf_iterator<char>(file), {}};
  return compile_jobs(std::thread::hardware_concurrency(), meminfo);
}

int compile_jobs(unsigned cores, std::string_view meminfo) {
  constexpr std::string_view kName = "MemAvailable:";
  std::uint64_t jobs = std::max(1u, cores);
  if (const std::size_t found = meminfo.find(kName); found != std::string_view::npos) {
    const std::string_view rest = meminfo.substr(found + kName.size());
    const std::string_view value = rest.substr(std::min(rest.find_first_not_of(' '), rest.size()));
    std::uint64_t kib = 0;
    if (std::from_chars(value.data(), value.data() + value.size(), kib).ec == std::errc{})
      jobs = std::clamp<std::uint64_t>(kib / kKibPerCompilation, 1, jobs);
  }
  return static_cast<int>(jobs);
}

}  // namespace flashjit::runtime
