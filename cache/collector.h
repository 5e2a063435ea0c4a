// SPDX-License-Identifier: Apache-2.0
// What is to go from the user's directory, so that it stays below its size or becomes empty.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/directory.h"

namespace flashjit::cache {

// What a collection removed or would remove, and what it left.
struct Collected {
  struct Removed {
    std::string path;
    std::uint64_t bytes = 0;
    enum class Why { evicted, temporary, damaged, cleared } why = Why::evicted;
  };
  std::vector<Removed> removed;
  std::uint64_t kept_entries = 0, kept_bytes = 0;
  // Of the first that could not be looked into or removed, its path and why; empty when there was none.
  std::string problem;
};
const char* to_string(Collected::Removed::Why why) noexcept;

struct CollectOptions {
  std::uint64_t max_bytes = 0;  // entries beyond it go, what was not used for longest first
  bool keep_damaged = false;    // entries that were set aside stay while there is room for them
  bool dry_run = false;         // nothing goes
};

// Removes temporary files that are another hour's (their writer was killed), entries that were set aside, and entries
// beyond the size. A file that others remove meanwhile is not counted at all.
Collected collect(const Directory& directory, const CollectOptions& options, std::int64_t now);

// Removes all that the cache has put into the directory, but for its tag, which says whose it is, and for the lock: a
// lock on an unlinked file excludes nobody.
Collected clear(const Directory& directory, bool dry_run);

}  // namespace flashjit::cache
