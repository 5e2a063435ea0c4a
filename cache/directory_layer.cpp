// SPDX-License-Identifier: Apache-2.0
#include "cache/directory_layer.h"

#include <algorithm>

#include "cache/entry_name.h"
#include "cache/own_files.h"
#include "cache/record_path.h"

namespace flashjit::cache {
namespace {

namespace fs = std::filesystem;
using Trust = Directory::Trust;

// The keys of the entries that any compiler made of these inputs, the last compiler first.
std::vector<Key> keys_of_any_compiler(const Directory& shard, const Key& key) {
  const std::string stem = stem_of(key);
  std::vector<Key> keys;
  for (const FileStatus& file : shard.list()) {
    if (!file.name.starts_with(stem) || !file.name.ends_with(kEntrySuffix)) continue;
    if (file.name.size() <= stem.size() + kEntrySuffix.size()) continue;
    const std::size_t compiler_size = file.name.size() - stem.size() - kEntrySuffix.size();
    Key found = {key.name, key.inputs, file.name.substr(stem.size(), compiler_size)};
    if (is_valid(found)) keys.push_back(std::move(found));
  }
  std::sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) { return a.compiler > b.compiler; });
  return keys;
}

}  // namespace

DirectoryLayer::DirectoryLayer(fs::path directory, FileSystem& files)
    : DirectoryLayer(std::move(directory), Trust::given, files) {}

DirectoryLayer::DirectoryLayer(fs::path directory, Trust trust, FileSystem& files)
    : files_(files), path_(std::move(directory)), trust_(trust) {}

Lookup DirectoryLayer::find(const Key& key) try {
  const bool any_compiler = key.compiler.empty();
  if (!is_valid({key.name, key.inputs, any_compiler ? "any" : key.compiler})) return {};
  const Directory directory = open();
  if (!directory.is_open()) return {};
  const Directory shard = directory.below(shard_of(key));
  if (!shard.is_open()) return {};
  return any_compiler ? find_any(shard, key) : find_exact(shard, key);
} catch (const std::exception&) {  // out of memory: the caller can still do without the cache
  return {};
}

Lookup DirectoryLayer::find_exact(const Directory& shard, const Key& key) const {
  using State = FileContent::State;
  const std::string file = file_of(key);
  const FileContent content = shard.read(file, kMaxEntryBytes, trust_ == Trust::own);
  Lookup lookup;
  if (content.state == State::absent) return lookup;
  if (content.state == State::whole) lookup.entry = decode_for(key, content.bytes);
  if (lookup.entry) {
    lookup.location = (shard.path() / file).string();
    lookup.bytes = content.bytes.size();
    return lookup;
  }
  lookup.damaged = true;
  if (trust_ == Trust::own) shard.set_aside(file, std::string(file).append(kDamagedSuffix));
  return lookup;
}

Lookup DirectoryLayer::find_any(const Directory& shard, const Key& key) const {
  Lookup lookup;
  for (const Key& exact : keys_of_any_compiler(shard, key)) {
    const bool damaged_before = lookup.damaged;
    lookup = find_exact(shard, exact);
    lookup.damaged |= damaged_before;
    if (lookup.entry) break;
  }
  return lookup;
}

std::vector<StoredEntry> DirectoryLayer::list() try {
  std::vector<StoredEntry> entries;
  const Directory directory = open();
  for (const FileStatus& shard : directory.list()) {
    if (!is_shard_name(shard.name)) continue;
    for (const FileStatus& file : directory.below(shard.name).list()) {
      const auto key = parse_file_name(file.name);
      if (key && shard_of(*key) == shard.name) entries.push_back(describe(shard.name, file));
    }
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
} catch (const std::exception&) {  // out of memory
  return {};
}

// The functions open the directory again: hundreds of open ones would not do, and the layer may be gone by then.
StoredEntry DirectoryLayer::describe(const std::string& shard, const FileStatus& file) const {
  const auto read_with = [files = &files_, path = path_, trust = trust_, shard, name = file.name](auto how) {
    return how(Directory::open(*files, path, trust).below(shard), name);
  };
  StoredEntry entry;
  entry.name = file.name.substr(0, file.name.size() - kEntrySuffix.size());
  entry.location = (path_ / shard / file.name).string();
  entry.bytes = file.regular ? file.bytes : 0;
  entry.last_used = trust_ == Trust::own ? file.changed : 0;
  entry.read = [read_with]() -> std::optional<std::string> {
    FileContent content =
        read_with([](const Directory& at, const std::string& name) { return at.read(name, kMaxEntryBytes); });
    if (content.state != FileContent::State::whole) return std::nullopt;
    return std::move(content.bytes);
  };
  entry.facts = [read_with] {
    const FileContent content =
        read_with([](const Directory& at, const std::string& name) { return at.read_start(name, kMaxFactsEnd); });
    return decode_facts(content.bytes).value_or(Facts());
  };
  return entry;
}

RecordLookup DirectoryLayer::read_record(const std::string& path) try {
  using State = FileContent::State;
  RecordLookup lookup;
  const auto record = parse_record_path(path);
  if (!record) return lookup;
  const Directory folder = open().below(kRecordsDirectory).below(record->device);
  FileContent content = folder.read(record->file, kMaxRecordBytes);
  if (content.state == State::absent) return lookup;
  lookup.location = (folder.path() / record->file).string();
  lookup.damaged = content.state != State::whole;
  if (!lookup.damaged) lookup.bytes = std::move(content.bytes);
  return lookup;
} catch (const std::exception&) {  // out of memory
  return {};
}

std::vector<StoredRecord> DirectoryLayer::list_records() try {
  std::vector<StoredRecord> records;
  const Directory all = open().below(kRecordsDirectory);
  for (const FileStatus& folder : all.list()) {
    if (!folder.directory) continue;
    for (const FileStatus& file : all.below(folder.name).list()) {
      const std::string path = to_string(RecordPath{folder.name, file.name});
      if (!parse_record_path(path)) continue;
      records.push_back({path, (all.path() / folder.name / file.name).string(), file.regular ? file.bytes : 0});
    }
  }
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return records;
} catch (const std::exception&) {  // out of memory
  return {};
}

}  // namespace flashjit::cache
