// SPDX-License-Identifier: Apache-2.0
// Entries as files in a directory: see FORMAT.md, "Names".
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/collector.h"
#include "cache/directory.h"
#include "cache/entry_lock.h"
#include "cache/layer.h"
#include "cache/totals.h"

namespace flashjit::cache {

// A directory that is only read: a system cache.
class DirectoryLayer : public Layer {
 public:
  // Touches nothing. Reads what Directory::Trust::given allows.
  explicit DirectoryLayer(std::filesystem::path directory, FileSystem& files = system_calls());

  // Without a compiler in the key, the intact entry whose compiler comes last in lexicographical order.
  Lookup find(const Key& key) override;
  std::vector<StoredEntry> list() override;
  RecordLookup read_record(const std::string& path) override;
  std::vector<StoredRecord> list_records() override;
  std::string location() const override { return path_.string(); }
  std::string problem() override { return open().problem(); }

 protected:
  DirectoryLayer(std::filesystem::path directory, Directory::Trust trust, FileSystem& files);
  Directory open() const { return Directory::open(files_, path_, trust_); }

  FileSystem& files_;
  const std::filesystem::path path_;

 private:
  Lookup find_exact(const Directory& shard, const Key& key) const;
  Lookup find_any(const Directory& shard, const Key& key) const;
  StoredEntry describe(const std::string& shard, const FileStatus& file) const;

  const Directory::Trust trust_;
};

struct UserDirectoryOptions {
  std::uint64_t max_bytes = std::uint64_t{1} << 30;
};

// The user's own directory: read, written, mended and kept below a size.
class UserDirectoryLayer : public DirectoryLayer {
 public:
  explicit UserDirectoryLayer(std::filesystem::path directory, UserDirectoryOptions options = {},
                              FileSystem& files = system_calls());

  // One that holds files of others and nothing of the cache is nobody's cache: it is neither written nor cleared.
  std::string problem() override { return open_own().problem(); }

  // The file it was stored in, or nothing when it could not be; never throws, and never leaves half an entry. Makes the
  // directory (mode 0700) when it is missing. Before it writes, it looks at the directory's size: the first time, and
  // whenever it has written a 64th of max_bytes since it last looked. Then it removes down to three quarters, what was
  // not used for longest first. So up to 16 processes that write at once stay below max_bytes together, as long as no
  // entry is larger than a 64th. One that is larger than max_bytes is not stored.
  // Why it could not is told in one line to problem.
  std::optional<std::string> store(const Key& key, const Entry& entry, std::string* problem = nullptr);

  // A record, whole or not at all; replaces the one that is there. Where it was stored, or nothing when it could not
  // be: never throws. Records are small and few, and count for no size.
  std::optional<std::string> store_record(const std::string& path, std::string_view bytes,
                                          std::string* problem = nullptr);
  // Renames a record that its reader found to be damaged to *.bad.
  void set_aside_record(const std::string& path);

  // A lock for whoever makes the entry of this key. Makes the directory when it is missing.
  EntryLock lock(const Key& key);

  // Removes temporary files that are older than an hour (or from the future), entries that were set aside, and entries
  // beyond max_bytes, what was not used for longest first. dry_run removes nothing and tells the same.
  Collected collect(std::uint64_t max_bytes, bool dry_run);
  // Removes everything that the cache has put there, whatever its age, but for the lock and the directory's tag. Files
  // of others stay.
  Collected clear(bool dry_run);
  // The first place of a folder that cannot be used, its path and why; empty when there is none.
  std::string obstacle() const;
  // Keeps a source that the compiler refused, for people. The file, or nothing when it could not be written.
  std::optional<std::string> keep_failed_source(const std::string& name, const std::string& source);

  // Counters that add up over processes: see totals.h. Nothing is added to a directory that is not there yet.
  Totals totals() const { return read_totals(open()); }
  bool add_to_totals(const Totals& added, std::chrono::milliseconds patience);

  std::uint64_t evicted() const { return evicted_; }  // entries that this layer has removed for the size's sake

 private:
  class Writing;
  // The directory, when it is the cache's; with its tag when it was made, or is to be written.
  Directory open_own() const;
  Directory make_own() const;
  std::optional<std::string> publish(const std::function<Directory(const Directory&)>& make_folder,
                                     const std::string& file, std::string_view bytes, std::string* problem) const;
  void make_room(const Directory& directory);

  const UserDirectoryOptions options_;
  std::atomic<std::uint64_t> evicted_{0};
  std::mutex mutex_;                 // of what follows
  std::uint64_t being_written_ = 0;  // bytes, by threads that are in store()
  std::uint64_t unseen_ = 0;         // bytes written, and being written, since the directory was last looked at
  bool looked_ = false;
};

}  // namespace flashjit::cache
