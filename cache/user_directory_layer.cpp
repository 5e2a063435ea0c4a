// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "cache/directory_layer.h"
#include "cache/entry_name.h"
#include "cache/own_files.h"
#include "cache/record_path.h"
#include "cache/tag.h"

namespace flashjit::cache {
namespace {

namespace fs = std::filesystem;

// clear() may take a shard away between its making and its use, and somebody the whole directory.
constexpr int kAttempts = 2;

void tell(std::string* problem, std::string what) {
  if (problem) *problem = std::move(what);
}

std::uint64_t count_evicted(const Collected& collected) {
  return static_cast<std::uint64_t>(
      std::count_if(collected.removed.begin(), collected.removed.end(),
                    [](const Collected::Removed& removed) { return removed.why == Collected::Removed::Why::evicted; }));
}

}  // namespace

// Bytes that are about to be written, until they are or could not be.
class UserDirectoryLayer::Writing {
 public:
  Writing(UserDirectoryLayer& layer, std::uint64_t bytes) : layer_(layer), bytes_(bytes) {
    const std::lock_guard lock(layer_.mutex_);
    layer_.being_written_ += bytes_;
    layer_.unseen_ += bytes_;
  }
  ~Writing() {
    const std::lock_guard lock(layer_.mutex_);
    layer_.being_written_ -= bytes_;
  }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;

 private:
  UserDirectoryLayer& layer_;
  const std::uint64_t bytes_;
};

UserDirectoryLayer::UserDirectoryLayer(fs::path directory, UserDirectoryOptions options, FileSystem& files)
    : DirectoryLayer(std::move(directory), Directory::Trust::own, files), options_(options) {}

Directory UserDirectoryLayer::open_own() const {
  Directory directory = open();
  if (!directory.is_open()) return directory;
  if (std::string problem = why_not_ours(directory); !problem.empty()) directory.refuse(std::move(problem));
  return directory;
}

Directory UserDirectoryLayer::make_own() const {
  Directory directory = Directory::make(files_, path_);
  if (!directory.is_open()) return directory;
  if (std::string problem = claim(directory); !problem.empty()) directory.refuse(std::move(problem));
  return directory;
}

std::optional<std::string> UserDirectoryLayer::store(const Key& key, const Entry& entry, std::string* problem) try {
  if (!is_valid(key)) return std::nullopt;
  const std::string bytes = encode(with_key(entry, key));
  if (bytes.size() > options_.max_bytes) {
    tell(problem, fmt::format("{}: an entry of {} bytes is larger than its largest size, {} bytes", path_.string(),
                              bytes.size(), options_.max_bytes));
    return std::nullopt;
  }
  const Writing writing(*this, bytes.size());
  const auto make_shard = [&](const Directory& directory) {
    make_room(directory);
    return directory.make_below(shard_of(key));
  };
  return publish(make_shard, file_of(key), bytes, problem);
} catch (const std::exception& error) {  // out of memory, or facts that cannot be encoded
  tell(problem, error.what());
  return std::nullopt;
}

std::optional<std::string> UserDirectoryLayer::publish(const std::function<Directory(const Directory&)>& make_folder,
                                                       const std::string& file, std::string_view bytes,
                                                       std::string* problem) const {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const Directory directory = make_own();
    if (!directory.is_open()) {
      tell(problem, directory.problem());
      return std::nullopt;
    }
    const Directory folder = make_folder(directory);
    if (folder.is_open() && folder.publish(file, bytes)) return (folder.path() / file).string();
    const std::string why = message_of(errno);
    tell(problem,
         folder.is_open() ? fmt::format("{}: cannot be written: {}", folder.path().string(), why) : folder.problem());
  }
  return std::nullopt;
}

// Under the mutex, so that other threads do not write what this one does not see. What they are writing counts as
// unseen until somebody looks again.
void UserDirectoryLayer::make_room(const Directory& directory) {
  const std::uint64_t step = options_.max_bytes / 64;
  const std::lock_guard lock(mutex_);
  if (looked_ && unseen_ <= step) return;
  unseen_ = being_written_;
  looked_ = true;
  const std::uint64_t room = options_.max_bytes / 4 + std::max(step, being_written_) - step;
  const std::uint64_t left = options_.max_bytes - std::min(options_.max_bytes, room);
  evicted_ += count_evicted(cache::collect(directory, {.max_bytes = left, .keep_damaged = true}, files_.now()));
}

std::optional<std::string> UserDirectoryLayer::store_record(const std::string& path, std::string_view bytes,
                                                            std::string* problem) try {
  const auto record = parse_record_path(path);
  if (!record || bytes.size() > kMaxRecordBytes) return std::nullopt;
  const auto make_folder = [&](const Directory& directory) {
    return directory.make_below(kRecordsDirectory).make_below(record->device);
  };
  return publish(make_folder, record->file, bytes, problem);
} catch (const std::exception&) {  // out of memory
  return std::nullopt;
}

void UserDirectoryLayer::set_aside_record(const std::string& path) try {
  const auto record = parse_record_path(path);
  if (!record) return;
  const Directory folder = open().below(kRecordsDirectory).below(record->device);
  if (folder.is_open()) folder.set_aside(record->file, std::string(record->file).append(kDamagedSuffix));
} catch (const std::exception&) {  // out of memory
}

EntryLock UserDirectoryLayer::lock(const Key& key) { return {files_, make_own(), EntryLock::byte_of(key.inputs)}; }

Collected UserDirectoryLayer::collect(std::uint64_t max_bytes, bool dry_run) {
  Collected collected = cache::collect(open_own(), {.max_bytes = max_bytes, .dry_run = dry_run}, files_.now());
  if (!dry_run) evicted_ += count_evicted(collected);
  return collected;
}

Collected UserDirectoryLayer::clear(bool dry_run) { return cache::clear(open_own(), dry_run); }

std::string UserDirectoryLayer::obstacle() const {
  const Directory directory = open_own();
  auto found = directory.is_open() ? survey(directory) : std::nullopt;
  return found ? std::move(found->problem) : std::string();
}

std::optional<std::string> UserDirectoryLayer::keep_failed_source(const std::string& name, const std::string& source) {
  const Directory failed = make_own().make_below(kFailedDirectory);
  const std::string file = std::string(name).append(kSourceSuffix);
  if (!failed.publish(file, source)) return std::nullopt;
  return (failed.path() / file).string();
}

bool UserDirectoryLayer::add_to_totals(const Totals& added, std::chrono::milliseconds patience) {
  const Directory directory = open();
  return directory.is_open() && claim(directory).empty() && cache::add_to_totals(files_, directory, added, patience);
}

}  // namespace flashjit::cache
