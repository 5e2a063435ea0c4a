// SPDX-License-Identifier: Apache-2.0
// An engine's counters: how they are raised, and their names, by which they are kept on disk.
#pragma once

#include <mutex>

#include "cache/totals.h"
#include "flashjit/engine.h"

namespace flashjit::runtime {

// Thread-safe.
class Tally {
 public:
  void add(std::uint64_t Counters::*counter, std::uint64_t times = 1) {
    const std::lock_guard lock(mutex_);
    counters_.*counter += times;
  }
  Counters counters() const {
    const std::lock_guard lock(mutex_);
    return counters_;
  }

 private:
  mutable std::mutex mutex_;
  Counters counters_;
};

// What was counted after before: each counter that rose, under the name of the member.
cache::Totals counted_since(const Counters& before, const Counters& now);

// Names that are no counter's, as of another release, are left out.
Counters to_counters(const cache::Totals& totals);

}  // namespace flashjit::runtime
