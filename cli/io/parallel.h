// SPDX-License-Identifier: Apache-2.0
// Many independent pieces of work on several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "cli/io/interrupt.h"

namespace flashjit::cli {

// work(i) for every i below count, on so many threads. After an exception, or Ctrl-C, no further work begins; when all
// threads are done it is rethrown.
template <typename Work>
void run_parallel(std::size_t count, int threads, const InterruptGuard& interrupt, Work work) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto run = [&] {
    try {
      for (std::size_t i = next++; i < count && !InterruptGuard::pending(); i = next++) work(i);
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::thread> workers;
  for (std::size_t i = 0; i < std::min(count, static_cast<std::size_t>(threads)); ++i) workers.emplace_back(run);
  for (std::thread& worker : workers) worker.join();
  if (failure) std::rethrow_exception(failure);
  interrupt.check();
}

}  // namespace flashjit::cli
