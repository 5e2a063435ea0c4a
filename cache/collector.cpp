// SPDX-License-Identifier: Apache-2.0
#include "cache/collector.h"

#include <algorithm>

#include "cache/entry_name.h"
#include "cache/record_path.h"
#include "cache/totals.h"

namespace flashjit::cache {
namespace {

using Removed = Collected::Removed;

struct Item {
  enum class Kind {
    entry,
    damaged,
    temporary,
    lasting,  // what only clear() removes: records, sources, totals
  };
  Kind kind = Kind::entry;
  std::string folder;  // "tuning/<device>", say; empty: the directory itself
  FileStatus file;
};

enum class Folder { top, failed, records, shard };

// What was set aside in a folder of files that end so, beside these.
std::optional<Item::Kind> kind_of(std::string_view name, std::string_view suffix, Item::Kind whole) {
  if (name.ends_with(suffix)) return whole;
  if (!name.ends_with(kDamagedSuffix)) return std::nullopt;
  name.remove_suffix(kDamagedSuffix.size());
  return name.ends_with(suffix) ? std::optional(Item::Kind::damaged) : std::nullopt;
}

// Nothing for files of others.
std::optional<Item::Kind> kind_of(Folder folder, std::string_view name) {
  if (name.ends_with(kTemporarySuffix)) return Item::Kind::temporary;
  if (folder == Folder::top && name == kTotalsFile) return Item::Kind::lasting;
  if (folder == Folder::failed && name.ends_with(kSourceSuffix)) return Item::Kind::lasting;
  if (folder == Folder::records) return kind_of(name, kRecordSuffix, Item::Kind::lasting);
  if (folder == Folder::shard) return kind_of(name, kEntrySuffix, Item::Kind::entry);
  return std::nullopt;
}

void gather(const Directory& directory, Folder folder, const std::string& name, std::vector<Item>& items) {
  for (FileStatus& file : directory.list()) {
    const auto kind = kind_of(folder, file.name);
    if (kind && !file.directory) items.push_back({*kind, name, std::move(file)});
  }
}

struct NamedFolder {
  Folder kind;
  std::string name;
};

std::vector<NamedFolder> folders_of(const Directory& directory) {
  std::vector<NamedFolder> folders;
  for (const FileStatus& file : directory.list()) {
    if (!file.directory) continue;
    if (is_shard_name(file.name)) folders.push_back({Folder::shard, file.name});
    if (file.name == kFailedDirectory) folders.push_back({Folder::failed, file.name});
    if (file.name != kRecordsDirectory) continue;
    for (const FileStatus& device : directory.below(file.name).list()) {
      if (device.directory) folders.push_back({Folder::records, file.name + '/' + device.name});
    }
  }
  return folders;
}

// Each part under the checks of a directory.
Directory open_folder(const Directory& directory, std::string_view name) {
  const std::size_t slash = name.find('/');
  Directory folder = directory.below(std::string(name.substr(0, slash)));
  return slash == name.npos ? std::move(folder) : folder.below(std::string(name.substr(slash + 1)));
}

std::vector<Item> items_of(const Directory& directory) {
  std::vector<Item> items;
  gather(directory, Folder::top, "", items);
  for (const NamedFolder& folder : folders_of(directory)) {
    gather(open_folder(directory, folder.name), folder.kind, folder.name, items);
  }
  return items;
}

void remove_folders(const Directory& directory) {
  for (const NamedFolder& folder : folders_of(directory)) {
    const std::size_t slash = folder.name.find('/');
    if (slash == folder.name.npos) {
      directory.remove_below(folder.name);
    } else {
      directory.below(kRecordsDirectory).remove_below(folder.name.substr(slash + 1));
    }
  }
  directory.remove_below(kRecordsDirectory);
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
    return open_folder(directory_, item.folder).remove(item.file.name);
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
  if (!dry_run) remove_folders(directory);
  return collection.finish();
}

}  // namespace flashjit::cache
