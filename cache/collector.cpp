// SPDX-License-Identifier: Apache-2.0
#include "cache/collector.h"

#include <algorithm>

#include "cache/entry_name.h"
#include "cache/totals.h"

namespace flashjit::cache {
namespace {

using Removed = Collected::Removed;

struct Item {
  enum class Kind {
    entry,
    damaged,
    temporary,
    lasting,  // what only clear() removes: sources, totals
  };
  Kind kind = Kind::entry;
  std::string folder;  // empty: the directory itself
  FileStatus file;
};

enum class Folder { top, failed, shard };

// Nothing for files of others.
std::optional<Item::Kind> kind_of(Folder folder, std::string_view name) {
  if (name.ends_with(kTemporarySuffix)) return Item::Kind::temporary;
  if (folder == Folder::top && name == kTotalsFile) return Item::Kind::lasting;
  if (folder == Folder::failed && name.ends_with(kSourceSuffix)) return Item::Kind::lasting;
  if (folder != Folder::shard) return std::nullopt;
  if (name.ends_with(kEntrySuffix)) return Item::Kind::entry;
  if (!name.ends_with(kDamagedSuffix)) return std::nullopt;
  name.remove_suffix(kDamagedSuffix.size());
  return name.ends_with(kEntrySuffix) ? std::optional(Item::Kind::damaged) : std::nullopt;
}

void gather(const Directory& directory, Folder folder, const std::string& name, std::vector<Item>& items) {
  for (FileStatus& file : directory.list()) {
    const auto kind = kind_of(folder, file.name);
    if (kind && !file.directory) items.push_back({*kind, name, std::move(file)});
  }
}

std::vector<std::string> folders_of(const Directory& directory) {
  std::vector<std::string> folders;
  for (const FileStatus& file : directory.list()) {
    if (file.directory && (is_shard_name(file.name) || file.name == kFailedDirectory)) folders.push_back(file.name);
  }
  return folders;
}

std::vector<Item> items_of(const Directory& directory) {
  std::vector<Item> items;
  gather(directory, Folder::top, "", items);
  for (const std::string& folder : folders_of(directory)) {
    gather(directory.below(folder), folder == kFailedDirectory ? Folder::failed : Folder::shard, folder, items);
  }
  return items;
}

// Removes items one by one and keeps the account.
class Collection {
 public:
  Collection(const Directory& directory, bool dry_run) : directory_(directory), dry_run_(dry_run) {}

  // False when it is still there.
  bool remove(const Item& item, Removed::Why why) {
    const Directory::Removal removal = dry_run_ ? Directory::Removal::removed : unlink(item);
    if (removal == Directory::Removal::removed) {
      collected_.removed.push_back({(directory_.path() / item.folder / item.file.name).string(), item.file.bytes, why});
    }
    return removal != Directory::Removal::failed;
  }

  void keep(const Item& item) {
    if (item.kind != Item::Kind::entry) return;
    ++collected_.kept_entries;
    collected_.kept_bytes += item.file.bytes;
  }

  Collected finish() { return std::move(collected_); }

 private:
  Directory::Removal unlink(const Item& item) const {
    if (item.folder.empty()) return directory_.remove(item.file.name);
    return directory_.below(item.folder).remove(item.file.name);
  }

  const Directory& directory_;
  const bool dry_run_;
  Collected collected_;
};

std::vector<Item> take(std::vector<Item>& items, Item::Kind kind) {
  const auto taken = std::stable_partition(items.begin(), items.end(), [&](const Item& i) { return i.kind != kind; });
  std::vector<Item> result(std::make_move_iterator(taken), std::make_move_iterator(items.end()));
  items.erase(taken, items.end());
  return result;
}

std::uint64_t bytes_of(const std::vector<Item>& items) {
  std::uint64_t bytes = 0;
  for (const Item& item : items) bytes += item.file.bytes;
  return bytes;
}

// What was not used for longest first. A time in the future, from before the clock was set back, counts as now.
void sort_by_use(std::vector<Item>& entries, std::int64_t now) {
  const auto rank = [now](const Item& item) { return std::pair(std::min(item.file.changed, now), item.file.name); };
  std::sort(entries.begin(), entries.end(), [&](const Item& a, const Item& b) { return rank(a) < rank(b); });
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
  std::vector<Item> items = items_of(directory);
  Collection collection(directory, options.dry_run);
  for (const Item& temporary : take(items, Item::Kind::temporary)) {
    if (is_another_hour(temporary.file.changed, now)) collection.remove(temporary, Removed::Why::temporary);
  }
  const std::vector<Item> damaged = take(items, Item::Kind::damaged);
  std::vector<Item> entries = take(items, Item::Kind::entry);
  std::uint64_t bytes = bytes_of(damaged) + bytes_of(entries);
  for (const Item& item : damaged) {
    if (options.keep_damaged && bytes <= options.max_bytes) break;
    if (collection.remove(item, Removed::Why::damaged)) bytes -= item.file.bytes;
  }
  sort_by_use(entries, now);
  for (const Item& entry : entries) {
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
  for (const Item& item : items_of(directory)) {
    if (!collection.remove(item, Removed::Why::cleared)) collection.keep(item);
  }
  if (!dry_run) {
    for (const std::string& folder : folders_of(directory)) directory.remove_below(folder);
  }
  return collection.finish();
}

}  // namespace flashjit::cache
