// SPDX-License-Identifier: Apache-2.0
#include "cli/compile_jobs.h"

#include <flashjit/error.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "cli/progress.h"

namespace flashjit::cli {
namespace {

class Pool {
 public:
  Pool(Engine& engine, const std::vector<CompileJob>& jobs)
      : engine_(engine), jobs_(jobs), outcomes_(jobs.size()), progress_("compiling", static_cast<int>(jobs.size())) {}

  std::vector<CompileOutcome> run(int threads) {
    std::vector<std::thread> workers;
    for (int i = 0; i < threads; ++i) workers.emplace_back([this] { work(); });
    for (std::thread& worker : workers) worker.join();
    if (failure_) std::rethrow_exception(failure_);
    return std::move(outcomes_);
  }

 private:
  void work() {
    try {
      for (std::size_t i = next_++; i < jobs_.size() && !stop_ && !InterruptGuard::pending(); i = next_++) {
        progress_.show(jobs_[i].architecture + " " + to_string(jobs_[i].problem));
        outcomes_[i] = compile(jobs_[i]);
        progress_.advance();
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      stop_ = true;
    }
  }

  CompileOutcome compile(const CompileJob& job) {
    CompileOutcome outcome;
    try {
      outcome.kernel = engine_.compile(job.problem, job.variant, job.architecture);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::compile_failed && error.code() != ErrorCode::unsupported) throw;
      outcome.problem = error.what();
      outcome.log = error.log();
    }
    return outcome;
  }

  Engine& engine_;
  const std::vector<CompileJob>& jobs_;
  std::vector<CompileOutcome> outcomes_;
  ProgressLine progress_;
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::exception_ptr failure_;
};

}  // namespace

int default_compile_threads() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

std::vector<CompileOutcome> compile_all(Engine& engine, const std::vector<CompileJob>& jobs, int threads,
                                        const InterruptGuard& interrupt) {
  const int useful = std::min(threads, static_cast<int>(jobs.size()));
  std::vector<CompileOutcome> outcomes = Pool(engine, jobs).run(useful);
  interrupt.check();
  return outcomes;
}

}  // namespace flashjit::cli
