// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cache/directory_layer.h"
#include "cache/entry_name.h"
#include "cache/record_path.h"

namespace flashjit::cache {
namespace {

namespace fs = std::filesystem;

// clear() may take a shard away between its making and its use, and somebody the whole directory.
constexpr int kAttempts = 2;

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

std::optional<std::string> UserDirectoryLayer::store(const Key& key, const Entry& entry) try {
  if (!is_valid(key)) return std::nullopt;
  const std::string bytes = encode(with_key(entry, key));
  if (bytes.size() > options_.max_bytes) return std::nullopt;
  const Writing writing(*this, bytes.size());
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const Directory directory = Directory::make(files_, path_);
    if (!directory.is_open()) return std::nullopt;
    make_room(directory);
    const Directory shard = directory.make_below(shard_of(key));
    if (shard.is_open() && shard.publish(file_of(key), bytes)) return (shard.path() / file_of(key)).string();
  }
  return std::nullopt;
} catch (const std::exception&) {  // out of memory, or facts that cannot be encoded
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

std::optional<std::string> UserDirectoryLayer::store_record(const std::string& path, std::string_view bytes) try {
  const auto record = parse_record_path(path);
  if (!record || bytes.size() > kMaxRecordBytes) return std::nullopt;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const Directory directory = Directory::make(files_, path_);
    if (!directory.is_open()) return std::nullopt;
    const Directory folder = directory.make_below(kRecordsDirectory).make_below(record->device);
    if (folder.is_open() && folder.publish(record->file, bytes)) return (folder.path() / record->file).string();
  }
  return std::nullopt;
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

EntryLock UserDirectoryLayer::lock(const Key& key) {
  return {files_, Directory::make(files_, path_), EntryLock::byte_of(key.inputs)};
}

Collected UserDirectoryLayer::collect(std::uint64_t max_bytes, bool dry_run) {
  Collected collected = cache::collect(open(), {.max_bytes = max_bytes, .dry_run = dry_run}, files_.now());
  if (!dry_run) evicted_ += count_evicted(collected);
  return collected;
}

Collected UserDirectoryLayer::clear(bool dry_run) { return cache::clear(open(), dry_run); }

std::optional<std::string> UserDirectoryLayer::keep_failed_source(const std::string& name, const std::string& source) {
  const Directory failed = Directory::make(files_, path_).make_below(kFailedDirectory);
  const std::string file = std::string(name).append(kSourceSuffix);
  if (!failed.publish(file, source)) return std::nullopt;
  return (failed.path() / file).string();
}

bool UserDirectoryLayer::add_to_totals(const Totals& added) {
  const Directory directory = open();
  return directory.is_open() && cache::add_to_totals(files_, directory, added);
}

}  // namespace flashjit::cache
