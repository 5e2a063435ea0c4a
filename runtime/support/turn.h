// SPDX-License-Identifier: Apache-2.0
// Whose turn it is to do a piece of work, among all processes and engines that share a user directory. It only saves
// work: whoever does not get a turn in time works without one.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "cache/entry_lock.h"
#include "runtime/support/logger.h"

namespace flashjit::runtime {

class Turn {
 public:
  struct Outcome {
    bool published = false;  // somebody else has done it; otherwise the caller should
    bool waited = false;     // for somebody else
    bool timed_out = false;  // and did so for as long as the limit allows
  };

  // For messages: doing is "compiling", what the name of the kernel.
  Turn(cache::EntryLock lock, const char* doing, std::string what, const Logger& log)
      : lock_(std::move(lock)), doing_(doing), what_(std::move(what)), log_(log) {}

  // is_published looks whether what the work makes is in the cache by now; it is asked again and again, and always
  // after the turn was taken: who had it before may have published. The turn lasts as long as this object.
  Outcome take(std::chrono::milliseconds limit, const std::function<bool()>& is_published);

 private:
  cache::EntryLock lock_;
  const char* const doing_;
  const std::string what_;
  const Logger& log_;
};

}  // namespace flashjit::runtime
