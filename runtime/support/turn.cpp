// SPDX-License-Identifier: Apache-2.0
#include "runtime/support/turn.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace flashjit::runtime {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kFirstPause{1}, kLongestPause{20};
constexpr milliseconds kLongWait{300};  // worth a line in the log: somebody may wonder

}  // namespace

Turn::Outcome Turn::take(milliseconds limit, const std::function<bool()>& is_published) {
  Outcome outcome;
  const Clock::time_point start = Clock::now();
  milliseconds pause = kFirstPause;
  bool told = false;
  while (lock_.try_lock() == cache::EntryLock::State::busy) {
    outcome.waited = true;
    const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - start);
    if (waited >= limit) {
      log_(LogLevel::warning, "{}: another process is still {} it after {} ms; {} it here as well", what_, doing_,
           waited.count(), doing_);
      outcome.timed_out = true;
      return outcome;
    }
    if (waited > kLongWait && !std::exchange(told, true)) {
      log_(LogLevel::info, "{}: waiting for another process that is {} it", what_, doing_);
    }
    std::this_thread::sleep_for(std::min(pause, limit - waited));
    pause = std::min(2 * pause, kLongestPause);
    if ((outcome.published = is_published())) return outcome;
  }
  outcome.published = is_published();
  return outcome;
}

}  // namespace flashjit::runtime
