// SPDX-License-Identifier: Apache-2.0
#include "cache/totals.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <thread>

#include "cache/entry_lock.h"

namespace flashjit::cache {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{64} << 10;
constexpr std::chrono::milliseconds kPause{1};
// The member which says whose file it is, with the version of its format.
constexpr const char* kFormatName = "flashjit_totals";
constexpr std::uint64_t kTotalsFormat = 1;
// The file did not say so at first, and had no others than these.
constexpr std::array<std::string_view, 17> kFirstNames = {
    "memory_hits", "user_hits", "system_hits",   "bundle_hits",    "embedded_hits", "misses",
    "compiles",    "waits",     "wait_timeouts", "write_failures", "quarantined",   "evicted",
    "bytes_read",  "tunings",   "bytes_written", "timed_launches", "records_used"};

bool lock_in_time(EntryLock& lock, std::chrono::milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  for (;;) {
    const EntryLock::State state = lock.try_lock();
    if (state != EntryLock::State::busy) return state == EntryLock::State::held;
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(kPause);
  }
}

std::uint64_t add_saturating(std::uint64_t a, std::uint64_t b) {
  return a + std::min(b, std::numeric_limits<std::uint64_t>::max() - a);
}

bool is_first_name(const std::string& name) {
  return std::find(kFirstNames.begin(), kFirstNames.end(), name) != kFirstNames.end();
}

// Nothing when the bytes are no totals of ours.
std::optional<Totals> parse_totals(std::string_view bytes) {
  const nlohmann::json json = nlohmann::json::parse(bytes, nullptr, false);
  if (!json.is_object() || json.empty()) return std::nullopt;
  const bool is_marked = json.contains(kFormatName);
  Totals totals;
  for (const auto& [name, value] : json.items()) {
    if (!value.is_number_unsigned() || (!is_marked && !is_first_name(name))) return std::nullopt;
    totals[name] = value.get<std::uint64_t>();
  }
  totals.erase(kFormatName);
  return totals;
}

// Nothing when somebody else's file has the name. An empty one is nobody's: it may be what a power cut left.
std::optional<Totals> find_totals(const Directory& directory) {
  const FileContent content = directory.read(kTotalsFile, kMaxBytes);
  if (content.state == FileContent::State::strange) return std::nullopt;
  if (content.bytes.empty()) return Totals();
  return parse_totals(content.bytes);
}

}  // namespace

Totals read_totals(const Directory& directory) try {
  return find_totals(directory).value_or(Totals());
} catch (const std::exception&) {  // out of memory
  return {};
}

bool holds_totals(const Directory& directory) {
  const FileContent content = directory.read(kTotalsFile, kMaxBytes);
  return content.state == FileContent::State::whole && (content.bytes.empty() || parse_totals(content.bytes));
}

bool add_to_totals(FileSystem& files, const Directory& directory, const Totals& added,
                   std::chrono::milliseconds patience) try {
  EntryLock lock(files, directory, EntryLock::kTotalsByte);
  if (!lock_in_time(lock, patience)) return false;
  auto totals = find_totals(directory);
  if (!totals) return false;
  for (const auto& [name, value] : added) (*totals)[name] = add_saturating((*totals)[name], value);
  (*totals)[kFormatName] = kTotalsFormat;
  // Waiting for the disk would take a hundred times as long as all else, while others wait for the lock.
  return directory.publish(kTotalsFile, nlohmann::json(*totals).dump(), Directory::Durability::unsynced);
} catch (const std::exception&) {  // out of memory, or a name that is not UTF-8
  return false;
}

}  // namespace flashjit::cache
