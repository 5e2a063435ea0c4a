// SPDX-License-Identifier: Apache-2.0
#include "cache/directory_layer.h"

#include <algorithm>
#include <vector>

#include "cache/atomic_file.h"

namespace flashjit::cache {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxFileBytes = std::size_t{256} << 20;  // a cubin has some hundred KB
constexpr std::string_view kSuffix = ".fjc";
constexpr std::string_view kDamagedSuffix = ".bad";
// The facts of every entry repeat what its name says: a file under another's name is found out.
constexpr const char* kInputsFact = "inputs";
constexpr const char* kCompilerFact = "compiler";

bool is_name_part(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
  });
}

fs::path shard_of(const fs::path& directory, const Key& key) { return directory / key.inputs.hex().substr(0, 2); }

// What the names of all entries of these inputs begin with; the compiler and the suffix follow.
std::string stem_of(const Key& key) { return key.name + '.' + key.inputs.hex() + '.'; }

fs::path file_of(const fs::path& directory, const Key& key) {
  return shard_of(directory, key) / (stem_of(key) + key.compiler).append(kSuffix);
}

bool is_fact(const Entry& entry, const char* name, std::string_view value) {
  const auto fact = entry.facts.find(name);
  return fact != entry.facts.end() && fact->second == value;
}

void set_aside(const fs::path& file) {
  std::error_code ignored;  // in a read-only directory it stays, and stays a miss
  fs::rename(file, fs::path(file).concat(kDamagedSuffix), ignored);
}

Lookup find_exact(const fs::path& directory, const Key& key) {
  const fs::path file = file_of(directory, key);
  const FileContent content = read_file(file, kMaxFileBytes);
  Lookup lookup;
  if (content.state == FileContent::State::absent) return lookup;
  if (content.state == FileContent::State::whole) lookup.entry = decode(content.bytes);
  if (lookup.entry && is_fact(*lookup.entry, kInputsFact, key.inputs.hex()) &&
      is_fact(*lookup.entry, kCompilerFact, key.compiler)) {
    lookup.location = file.string();
    return lookup;
  }
  set_aside(file);
  lookup.entry.reset();
  lookup.rejected = true;
  return lookup;
}

// The compilers that have an entry for these inputs, the last one first.
std::vector<std::string> compilers_of(const fs::path& directory, const Key& key) {
  const std::string stem = stem_of(key);
  std::vector<std::string> compilers;
  std::error_code error;
  for (fs::directory_iterator it(shard_of(directory, key), error), end; !error && it != end; it.increment(error)) {
    const std::string file = it->path().filename().string();
    if (file.size() <= stem.size() + kSuffix.size() || !file.starts_with(stem) || !file.ends_with(kSuffix)) continue;
    std::string compiler = file.substr(stem.size(), file.size() - stem.size() - kSuffix.size());
    if (is_name_part(compiler)) compilers.push_back(std::move(compiler));
  }
  std::sort(compilers.rbegin(), compilers.rend());
  return compilers;
}

Lookup find_any(const fs::path& directory, Key key) {
  Lookup lookup;
  for (std::string& compiler : compilers_of(directory, key)) {
    key.compiler = std::move(compiler);
    const bool rejected_before = lookup.rejected;
    lookup = find_exact(directory, key);
    lookup.rejected |= rejected_before;
    if (lookup.entry) break;
  }
  return lookup;
}

}  // namespace

DirectoryLayer::DirectoryLayer(fs::path directory) : directory_(std::move(directory)) {}

Lookup DirectoryLayer::find(const Key& key) try {
  if (!is_name_part(key.name) || anybody_may_write(directory_)) return {};
  if (key.compiler.empty()) return find_any(directory_, key);
  return is_name_part(key.compiler) ? find_exact(directory_, key) : Lookup{};
} catch (const std::exception&) {  // out of memory: the caller can still do without the cache
  return {};
}

std::optional<std::string> DirectoryLayer::store(const Key& key, const Entry& entry) try {
  if (!is_name_part(key.name) || !is_name_part(key.compiler)) return std::nullopt;
  if (!make_directories(directory_) || !is_private(directory_)) return std::nullopt;
  Entry named = entry;
  named.facts[kInputsFact] = key.inputs.hex();
  named.facts[kCompilerFact] = key.compiler;
  const std::string bytes = encode(named);
  const fs::path file = file_of(directory_, key);
  if (bytes.size() > kMaxFileBytes || !make_directories(file.parent_path())) return std::nullopt;
  if (!write_file(file, bytes)) return std::nullopt;
  return file.string();
} catch (const std::exception&) {  // out of memory, or facts that are not UTF-8
  return std::nullopt;
}

}  // namespace flashjit::cache
