// SPDX-License-Identifier: Apache-2.0
#include "cache/totals.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "cache/entry_lock.h"

namespace flashjit::cache {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{64} << 10;
constexpr int kTries = 5;
constexpr std::chrono::milliseconds kPause{1};

bool lock_soon(EntryLock& lock) {
  for (int tries = 1;; ++tries) {
    const EntryLock::State state = lock.try_lock();
    if (state != EntryLock::State::busy || tries == kTries) return state == EntryLock::State::held;
    std::this_thread::sleep_for(kPause);
  }
}

std::uint64_t add_saturating(std::uint64_t a, std::uint64_t b) {
  return a + std::min(b, std::numeric_limits<std::uint64_t>::max() - a);
}

}  // namespace

Totals read_totals(const Directory& directory) try {
  const FileContent content = directory.read(kTotalsFile, kMaxBytes);
  const nlohmann::json json = nlohmann::json::parse(content.bytes, nullptr, false);
  if (!json.is_object()) return {};
  Totals totals;
  for (const auto& [name, value] : json.items()) {
    if (!value.is_number_unsigned()) return {};
    totals[name] = value.get<std::uint64_t>();
  }
  return totals;
} catch (const std::exception&) {  // out of memory
  return {};
}

bool add_to_totals(FileSystem& files, const Directory& directory, const Totals& added) try {
  EntryLock lock(files, directory, EntryLock::kTotalsByte);
  if (!lock_soon(lock)) return false;
  Totals totals = read_totals(directory);
  for (const auto& [name, value] : added) totals[name] = add_saturating(totals[name], value);
  return directory.publish(kTotalsFile, nlohmann::json(totals).dump());
} catch (const std::exception&) {  // out of memory, or a name that is not UTF-8
  return false;
}

}  // namespace flashjit::cache
