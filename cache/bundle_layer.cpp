// SPDX-License-Identifier: Apache-2.0
#include "cache/bundle_layer.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "cache/entry_name.h"
#include "cache/record_path.h"

namespace flashjit::cache {
namespace {

std::string location_of(const Bundle& bundle, const Bundle::Member& member) {
  return bundle.name() + ':' + member.name;
}

std::string_view file_part(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

Lookup find_exact(const Bundle& bundle, const Key& key) {
  Lookup lookup;
  const Bundle::Member* const member = bundle.find(path_of(key));
  if (!member) return lookup;
  const auto bytes = bundle.read(*member);
  if (bytes) lookup.entry = decode_for(key, *bytes);
  lookup.damaged = !lookup.entry;
  if (lookup.damaged) return lookup;
  lookup.location = location_of(bundle, *member);
  lookup.bytes = bytes->size();
  return lookup;
}

// The compilers that have an entry for these inputs, the last one first.
std::vector<std::string> compilers_of(const Bundle& bundle, const Key& key) {
  const std::string begin = shard_of(key) + '/' + stem_of(key);
  const auto& members = bundle.members();
  auto member = std::lower_bound(members.begin(), members.end(), begin,
                                 [](const auto& candidate, const auto& name) { return candidate.name < name; });
  std::vector<std::string> compilers;
  for (; member != members.end() && member->name.starts_with(begin); ++member) {
    std::string_view compiler = std::string_view(member->name).substr(begin.size());
    if (!compiler.ends_with(kEntrySuffix)) continue;
    compiler.remove_suffix(kEntrySuffix.size());
    if (is_valid({key.name, key.inputs, std::string(compiler)})) compilers.emplace_back(compiler);
  }
  std::sort(compilers.rbegin(), compilers.rend());
  return compilers;
}

Lookup find_any(const Bundle& bundle, Key key) {
  Lookup lookup;
  for (std::string& compiler : compilers_of(bundle, key)) {
    key.compiler = std::move(compiler);
    const bool damaged_before = lookup.damaged;
    lookup = find_exact(bundle, key);
    lookup.damaged |= damaged_before;
    if (lookup.entry) break;
  }
  return lookup;
}

StoredEntry stored_entry(std::shared_ptr<const Bundle> bundle, const Bundle::Member& member) {
  StoredEntry stored;
  stored.name = file_part(member.name);
  stored.name.resize(stored.name.size() - kEntrySuffix.size());
  stored.location = location_of(*bundle, member);
  stored.bytes = member.bytes;
  stored.read = [bundle, &member] { return bundle->read(member); };
  stored.facts = [bundle, &member] {
    const auto start = bundle->read_start(member, kMaxFactsEnd);
    return start ? decode_facts(*start).value_or(Facts{}) : Facts{};
  };
  return stored;
}

}  // namespace

BundleLayer::BundleLayer(const std::filesystem::path& file, FileSystem& files)
    : location_(file.string()), bundle_(Bundle::open(file, problem_, files)) {}

BundleLayer::BundleLayer(std::string_view bytes, const std::string& name)
    : location_(name), bundle_(Bundle::open(bytes, name, problem_)) {}

Lookup BundleLayer::find(const Key& key) try {
  if (!bundle_) return {};
  if (key.compiler.empty()) return find_any(*bundle_, key);
  return find_exact(*bundle_, key);
} catch (const std::exception&) {  // out of memory: the caller can still do without the cache
  return {};
}

std::vector<StoredEntry> BundleLayer::list() try {
  std::vector<StoredEntry> entries;
  if (!bundle_) return entries;
  for (const auto& member : bundle_->members()) {
    const auto key = parse_file_name(file_part(member.name));
    if (key && path_of(*key) == member.name) entries.push_back(stored_entry(bundle_, member));
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
} catch (const std::exception&) {  // out of memory
  return {};
}

RecordLookup BundleLayer::read_record(const std::string& path) try {
  RecordLookup lookup;
  const Bundle::Member* const member = bundle_ && parse_record_path(path) ? bundle_->find(path) : nullptr;
  if (!member) return lookup;
  lookup.location = location_of(*bundle_, *member);
  if (member->bytes <= kMaxRecordBytes) lookup.bytes = bundle_->read(*member);
  lookup.damaged = !lookup.bytes;
  return lookup;
} catch (const std::exception&) {  // out of memory
  return {};
}

std::vector<StoredRecord> BundleLayer::list_records() try {
  std::vector<StoredRecord> records;
  if (!bundle_) return records;
  for (const auto& member : bundle_->members()) {
    if (parse_record_path(member.name)) {
      records.push_back({member.name, location_of(*bundle_, member), member.bytes});
    }
  }
  return records;
} catch (const std::exception&) {  // out of memory
  return {};
}

}  // namespace flashjit::cache
