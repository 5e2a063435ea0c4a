// SPDX-License-Identifier: Apache-2.0
#include "cache/collector.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "cache/own_files.h"

namespace flashjit::cache {
namespace {

using Removed = Collected::Removed;
using Kind = OwnFile::Kind;

// Removes items one by one and keeps the account.
class Collection {
 public:
  Collection(const Directory& directory, bool dry_run) : directory_(directory), dry_run_(dry_run) {}

  // All that is there to choose from.
  std::vector<OwnFile> own_files() {
    if (!directory_.is_open()) return {};
    std::optional<Survey> found = survey(directory_);
    collected_.problem = found ? std::move(found->problem) : why_unread(directory_);
    return found ? std::move(found->own) : std::vector<OwnFile>{};
  }

  // False when it is still there.
  bool remove(const OwnFile& item, Removed::Why why) {
    const Directory::Removal removal = dry_run_ ? Directory::Removal::removed : unlink(item);
    const int error = errno;
    std::string path = (directory_.path() / item.folder / item.file.name).string();
    if (removal == Directory::Removal::removed) {
      collected_.removed.push_back({std::move(path), item.file.bytes, why});
    } else if (removal == Directory::Removal::failed && collected_.problem.empty()) {
      collected_.problem = fmt::format("{}: cannot be removed: {}", path, message_of(error));
    }
    return removal != Directory::Removal::failed;
  }

  void keep(const OwnFile& item) {
    if (item.kind != Kind::entry) return;
    ++collected_.kept_entries;
    collected_.kept_bytes += item.file.bytes;
  }

  Collected finish() { return std::move(collected_); }

 private:
  Directory::Removal unlink(const OwnFile& item) const {
    if (item.folder.empty()) return directory_.remove(item.file.name);
    return open_folder(directory_, item.folder).remove(item.file.name);
  }

  const Directory& directory_;
  const bool dry_run_;
  Collected collected_;
};

std::vector<OwnFile> take(std::vector<OwnFile>& items, Kind kind) {
  const auto taken =
      std::stable_partition(items.begin(), items.end(), [&](const OwnFile& i) { return i.kind != kind; });
  std::vector<OwnFile> result(std::make_move_iterator(taken), std::make_move_iterator(items.end()));
  items.erase(taken, items.end());
  return result;
}

std::uint64_t bytes_of(const std::vector<OwnFile>& items) {
  std::uint64_t bytes = 0;
  for (const OwnFile& item : items) bytes += item.file.bytes;
  return bytes;
}

// What was not used for longest first. A time in the future, from before the clock was set back, counts as now.
void sort_by_use(std::vector<OwnFile>& entries, std::int64_t now) {
  const auto rank = [now](const OwnFile& item) { return std::pair(std::min(item.file.changed, now), item.file.name); };
  std::sort(entries.begin(), entries.end(), [&](const OwnFile& a, const OwnFile& b) { return rank(a) < rank(b); });
}

}  // namespace

const char* to_string(Removed::Why why) noexcept {
  switch (why) {
    case Removed::Why::evicted:
      return "evicted";
    case Removed::Why::temporary:
      return "temporary";
    case Removed::Why::damaged:
      return "damaged";
    case Removed::Why::cleared:
      return "cleared";
  }
  return "";
}

Collected collect(const Directory& directory, const CollectOptions& options, std::int64_t now) {
  Collection collection(directory, options.dry_run);
  std::vector<OwnFile> items = collection.own_files();
  for (const OwnFile& temporary : take(items, Kind::temporary)) {
    if (is_another_hour(temporary.file.changed, now)) collection.remove(temporary, Removed::Why::temporary);
  }
  const std::vector<OwnFile> damaged = take(items, Kind::damaged);
  std::vector<OwnFile> entries = take(items, Kind::entry);
  std::uint64_t bytes = bytes_of(damaged) + bytes_of(entries);
  for (const OwnFile& item : damaged) {
    if (options.keep_damaged && bytes <= options.max_bytes) break;
    if (collection.remove(item, Removed::Why::damaged)) bytes -= item.file.bytes;
  }
  sort_by_use(entries, now);
  for (const OwnFile& entry : entries) {
    if (bytes > options.max_bytes && collection.remove(entry, Removed::Why::evicted)) {
      bytes -= entry.file.bytes;
    } else {
      collection.keep(entry);
    }
  }
  return collection.finish();
}

Collected clear(const Directory& directory, bool dry_run) {
  Collection collection(directory, dry_run);
  for (const OwnFile& item : collection.own_files()) {
    if (!is_own(directory, item)) continue;
    if (!collection.remove(item, Removed::Why::cleared)) collection.keep(item);
  }
  if (!dry_run) remove_empty_folders(directory);
  return collection.finish();
}

}  // namespace flashjit::cache
