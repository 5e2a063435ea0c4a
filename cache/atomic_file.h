// SPDX-License-Identifier: Apache-2.0
// Files that are whole or absent, and the private directories they live in. Nothing here throws for what it finds.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace flashjit::cache {

struct FileContent {
  enum class State {
    whole,
    absent,   // nothing there, or nothing that this process may read
    strange,  // no regular file of at most the limit: a symbolic link, a directory, a device, ...
  };
  State state = State::absent;
  std::string bytes;
};

FileContent read_file(const std::filesystem::path& file, std::size_t limit);

// Published by rename: a reader sees the old file or the new one. False when it could not be written; then nothing of
// it is left. The directory must exist.
bool write_file(const std::filesystem::path& file, std::string_view bytes);

// Makes the directory and those above it that are missing, with mode 0700. False when it is not there afterwards.
bool make_directories(const std::filesystem::path& directory);

// Owned by this user, and nobody else may write to it. A symbolic link stands for what it points to.
bool is_private(const std::filesystem::path& directory);

bool anybody_may_write(const std::filesystem::path& directory);

}  // namespace flashjit::cache
