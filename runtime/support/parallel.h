// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace flashjit::runtime {

// work(i) for every i below count, begun in this order, on at most as many threads as there are cores, the caller's
// among them. The first exception is rethrown when all threads are done; work that has not begun by then is left out.
template <typename Work>
void parallel_for(std::size_t count, Work work) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto run = [&] {
    try {
      for (std::size_t i = next++; i < count; i = next++) work(i);
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < std::min(count, cores); ++i) threads.emplace_back(run);
  run();
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

// Lets what parallel_for runs side by side end in the order of i: sums get the same rounding at every run.
class Turns {
 public:
  class Turn {
   public:
    Turn(Turns& turns, std::size_t i) : turns_(turns), i_(i) {}
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    // Each has its turn, also one that fails before it has waited.
    ~Turn() {
      wait();
      {
        const std::lock_guard lock(turns_.mutex_);
        ++turns_.next_;
      }
      turns_.changed_.notify_all();
    }

    void wait() const {
      std::unique_lock lock(turns_.mutex_);
      turns_.changed_.wait(lock, [this] { return turns_.next_ == i_; });
    }

   private:
    Turns& turns_;
    const std::size_t i_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t next_ = 0;
};

}  // namespace flashjit::runtime
