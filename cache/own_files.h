// SPDX-License-Identifier: Apache-2.0
// Which files in a directory are the cache's own. Entries and records are known by their names, which nobody else gives
// and which damaged ones have too: a digest, or a bucket of shapes. totals.json and failed/kernel.cu are known by what
// is in them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/directory.h"

namespace flashjit::cache {

// The folder of that name holds sources that the compiler refused, one <name>.cu each. They are kept for people.
inline constexpr const char* kFailedDirectory = "failed";
inline constexpr std::string_view kSourceSuffix = ".cu";
inline constexpr std::string_view kDamagedSuffix = ".bad";  // of entries and records that were set aside
// What every source of the generator has in its heading.
inline constexpr std::string_view kSourceHeading = "// Rendered by libflashjit.";
// Tells backup programs, and the cache itself, what the directory is: https://bford.info/cachedir/
inline constexpr const char* kTagFile = "CACHEDIR.TAG";

struct OwnFile {
  enum class Kind {
    entry,
    damaged,    // set aside
    temporary,  // being published, or left by a writer that was killed
    lasting,    // what only clear() removes: records, sources, totals
  };
  Kind kind = Kind::entry;
  std::string folder;  // "tuning/<device>", say; empty: the directory itself
  FileStatus file;
};

struct Survey {
  std::vector<OwnFile> own;         // by their names
  std::vector<std::string> others;  // the rest, and folders that cannot be read
  bool has_tag = false;
  // Of the first place of a folder that the cache cannot use, its path and why: a file of others stands there, say.
  std::string problem;
};

// Of a directory and of the folders that the cache makes in it. Nothing when it cannot be read.
std::optional<Survey> survey(const Directory& directory);

// For a directory that cannot be listed: its path and errno.
std::string why_unread(const Directory& directory);

// Whether what is in the file says so too.
bool is_own(const Directory& directory, const OwnFile& file);

// "failed", or "tuning/<device>", each part under the checks of a directory.
Directory open_folder(const Directory& directory, std::string_view folder);

// Removes the folders that the cache makes, where they are empty.
void remove_empty_folders(const Directory& directory);

}  // namespace flashjit::cache
