// SPDX-License-Identifier: Apache-2.0
#include "cache/entry_lock.h"

#include <algorithm>

namespace flashjit::cache {
namespace {

constexpr mode_t kLockFileMode = 0600;
constexpr std::uint64_t kLastByte = (std::uint64_t{1} << 62) - 1;  // file sizes are signed, and some count to here only

}  // namespace

// Two keys that share a byte wait for each other without need: once in 2^62.
std::uint64_t EntryLock::byte_of(const Digest& inputs) { return std::max(inputs.low & kLastByte, kTotalsByte + 1); }

EntryLock::EntryLock(FileSystem& files, const Directory& directory, std::uint64_t byte)
    : files_(&files), file_(directory.open_file(kLockFile, O_RDWR | O_CREAT, kLockFileMode)), byte_(byte) {}

EntryLock::State EntryLock::try_lock() {
  if (!file_.is_open()) return State::unavailable;
  if (retry([&] { return files_->lock_byte(file_.value(), byte_); }) == 0) return State::held;
  // POSIX allows EACCES for it too, but Linux says that only where a security module forbids locks.
  return errno == EAGAIN ? State::busy : State::unavailable;
}

}  // namespace flashjit::cache
