// SPDX-License-Identifier: Apache-2.0
// Whose turn it is to compile a kernel, among all processes and engines that share a user directory. It only saves
// work: whoever does not get a turn in time compiles without one.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "cache/entry_lock.h"
#include "runtime/logger.h"

namespace flashjit::runtime {

class CompileTurn {
 public:
  struct Outcome {
    bool published = false;  // somebody else has compiled it; otherwise the caller should
    bool waited = false;     // for somebody else
    bool timed_out = false;  // and did so for as long as the limit allows
  };

  CompileTurn(cache::EntryLock lock, std::string kernel, const Logger& log)
      : lock_(std::move(lock)), kernel_(std::move(kernel)), log_(log) {}

  // is_published looks whether the kernel is in the cache by now; it is asked again and again, and always after the
  // turn was taken: who had it before may have published. The turn lasts as long as this object.
  Outcome take(std::chrono::milliseconds limit, const std::function<bool()>& is_published);

 private:
  cache::EntryLock lock_;
  const std::string kernel_;
  const Logger& log_;
};

}  // namespace flashjit::runtime
