// SPDX-License-Identifier: Apache-2.0
// Says to other processes, and to other engines of this one, that an entry is being made. It only saves work: whoever
// cannot have it makes the entry all the same. See docs/cache.md.
#pragma once

#include "cache/digest.h"
#include "cache/directory.h"

namespace flashjit::cache {

inline constexpr const char* kLockFile = "lock";

// One byte of the file <directory>/lock, at an offset that follows from the key's inputs. The file is never unlinked,
// because a lock on an unlinked file excludes nobody. The lock ends with this object, and with the process however it
// ends.
class EntryLock {
 public:
  enum class State {
    held,
    busy,         // somebody else has it: try again later
    unavailable,  // no lock file, or a file system that cannot lock: do without
  };

  static constexpr std::uint64_t kTotalsByte = 0;  // of no entry
  static std::uint64_t byte_of(const Digest& inputs);

  EntryLock(FileSystem& files, const Directory& directory, std::uint64_t byte);

  // Does not wait.
  State try_lock();

 private:
  FileSystem* files_;
  Descriptor file_;
  std::uint64_t byte_;
};

}  // namespace flashjit::cache
