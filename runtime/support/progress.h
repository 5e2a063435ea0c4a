// SPDX-License-Identifier: Apache-2.0
// Tells the caller about the kernels of one request, before and after each. What the callback throws is no error of the
// request, like a log line that cannot be written.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "flashjit/engine.h"

namespace flashjit::runtime {

using ProgressCallback = std::function<void(const Progress&)>;

class ProgressReporter {
 public:
  ProgressReporter(const ProgressCallback& callback, int total) : callback_(callback), total_(total) {}

  // Runs one kernel's work; from any thread.
  template <typename Work>
  auto around(const std::string& kernel, Work&& work) {
    tell(kernel, done_.load());
    auto result = std::forward<Work>(work)();
    tell(kernel, ++done_);
    return result;
  }

 private:
  void tell(const std::string& kernel, int done) const noexcept try {
    if (!callback_) return;
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start_;
    callback_({kernel, done, total_, elapsed.count()});
  } catch (...) {
  }

  const ProgressCallback& callback_;
  const int total_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::atomic<int> done_{0};
};

}  // namespace flashjit::runtime
