// SPDX-License-Identifier: Apache-2.0
// An open directory whose owner and mode were checked, and files in it that are whole or absent. Nothing here throws
// for what it finds on disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/file_system.h"

namespace flashjit::cache {

inline constexpr std::string_view kTemporarySuffix = ".tmp";  // of files that are being published

struct FileContent {
  enum class State {
    whole,
    absent,   // nothing there, or nothing that this process may read
    strange,  // no regular file of at most the limit, or one that the directory's owner does not own or that others may
              // write to: a symbolic link, a directory, a device, ...
  };
  State state = State::absent;
  std::string bytes;
};

struct FileStatus {
  std::string name;
  bool regular = false;
  bool directory = false;
  std::uint64_t bytes = 0;
  std::int64_t changed = 0;  // seconds since the epoch
};

// What the system says of a value of errno.
std::string message_of(int error);

// The name that the file of this name has while it is being published: <name>.<pid>.<random>.tmp.
std::string temporary_name(const std::string& name);
// The name that it would get; nothing when it is no such name.
std::optional<std::string_view> published_name(std::string_view temporary);

// Why what has this mode is not trusted, in one line that names the path: because some of these (S_IWGRP, S_IWOTH) may
// write to it. Empty when none of them may.
std::string why_writable(const std::filesystem::path& path, mode_t mode, mode_t writers);

// Whether a time is more than an hour before now, or after it, as when the clock was set back.
bool is_another_hour(std::int64_t time, std::int64_t now);

// Names are resolved against the open directory, so nobody can put another one in its place between check and use. In
// one that is not open nothing is found and nothing can be made.
class Directory {
 public:
  enum class Trust {
    own,    // this user's, and nobody else may write to it: the user's cache
    given,  // whoever's, but neither its group nor others may write to it: a system cache, trusted by being named
  };

  // Whatever path leads to, through symbolic links too.
  static Directory open(FileSystem& files, const std::filesystem::path& path, Trust trust);
  // The same with Trust::own, after making the directory and those above it that are missing, with mode 0700.
  static Directory make(FileSystem& files, const std::filesystem::path& path);

  bool is_open() const { return descriptor_.is_open(); }
  // Why it is not open, in one line that names the path; empty when there is no such directory.
  const std::string& problem() const { return problem_; }
  const std::filesystem::path& path() const { return path_; }
  // Closes it, for a reason that its user has found.
  void refuse(std::string problem);

  // A directory of that name in this one, under the same checks; no symbolic link.
  Directory below(const std::string& name) const;
  // The same, made with mode 0700 when it is missing.
  Directory make_below(const std::string& name) const;

  // Reads a file of at most limit bytes. With mark_used, notes that it was used: its time of change becomes now when it
  // is more than an hour away from now.
  FileContent read(const std::string& name, std::size_t limit, bool mark_used = false) const;
  // The first bytes of a file, at most limit.
  FileContent read_start(const std::string& name, std::size_t limit) const;
  // Writes a file of mode 0600 by way of <name>.<pid>.<random>.tmp: a reader sees the old file or the new one. False
  // when it could not be written; then nothing of it is left, and errno says why.
  enum class Durability {
    synced,    // it survives a power cut
    unsynced,  // after a power cut it may be empty; for what is written often and missed by nobody
  };
  bool publish(const std::string& name, std::string_view bytes, Durability durability = Durability::synced) const;
  bool rename(const std::string& from, const std::string& to) const;  // errno says why not
  // Renames what is damaged, so that people can look at it.
  void set_aside(const std::string& name, const std::string& bad) const;
  enum class Removal { removed, absent, failed };
  Removal remove(const std::string& name) const;     // whatever it is, but no directory
  bool remove_below(const std::string& name) const;  // a directory that is empty
  // For what is neither read nor published whole. O_NOFOLLOW is added.
  Descriptor open_file(const std::string& name, int flags, mode_t mode = 0) const;
  // All that is in it, by name; nothing when it cannot be read.
  std::optional<std::vector<FileStatus>> try_list() const;
  // The same; empty when it cannot be read.
  std::vector<FileStatus> list() const { return try_list().value_or(std::vector<FileStatus>()); }

 private:
  struct OpenFile;

  Directory(FileSystem& files, std::filesystem::path path, Trust trust, int above, const char* name, int flags);
  bool is_trusted(const struct stat& status) const;
  std::string why_refused(const struct stat& status) const;
  OpenFile open_to_read(const std::string& name) const;

  FileSystem* files_;
  std::filesystem::path path_;
  Trust trust_;
  uid_t owner_ = 0;
  std::string problem_;
  Descriptor descriptor_;
};

}  // namespace flashjit::cache
