// SPDX-License-Identifier: Apache-2.0
#include "cache/entry_name.h"

#include <algorithm>
#include <charconv>

#include "cache/name_character.h"

namespace flashjit::cache {
namespace {

constexpr std::size_t kDigestDigits = 32;
// The facts of every entry repeat what its name says: a file under another's name is found out.
constexpr const char* kInputsFact = "inputs";
constexpr const char* kCompilerFact = "compiler";

bool is_name_part(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_name_character);
}

std::uint64_t parse_half(std::string_view digits) {
  std::uint64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  return value;
}

// Nothing but the spelling that Digest::hex() has.
std::optional<Digest> parse_digest(std::string_view text) {
  if (text.size() != kDigestDigits) return std::nullopt;
  const Digest digest = {parse_half(text.substr(0, kDigestDigits / 2)), parse_half(text.substr(kDigestDigits / 2))};
  if (digest.hex() != text) return std::nullopt;
  return digest;
}

bool is_fact(const Entry& entry, const char* name, std::string_view value) {
  const auto fact = entry.facts.find(name);
  return fact != entry.facts.end() && fact->second == value;
}

}  // namespace

bool is_valid(const Key& key) { return is_name_part(key.name) && is_name_part(key.compiler); }

std::string shard_of(const Key& key) { return key.inputs.hex().substr(0, 2); }

bool is_shard_name(std::string_view name) {
  return name.size() == 2 && name.find_first_not_of("0123456789abcdef") == name.npos;
}

std::string stem_of(const Key& key) { return key.name + '.' + key.inputs.hex() + '.'; }

std::string file_of(const Key& key) { return (stem_of(key) + key.compiler).append(kEntrySuffix); }

std::string path_of(const Key& key) { return shard_of(key) + '/' + file_of(key); }

std::optional<Key> parse_file_name(std::string_view file) {
  if (!file.ends_with(kEntrySuffix)) return std::nullopt;
  file.remove_suffix(kEntrySuffix.size());
  // Name and compiler may have dots of their own; the first part that looks like a digest is it.
  for (std::size_t dot = file.find('.'); dot != file.npos; dot = file.find('.', dot + 1)) {
    const auto inputs = parse_digest(file.substr(dot + 1, kDigestDigits));
    const std::size_t end = dot + 1 + kDigestDigits;
    if (!inputs || end >= file.size() || file[end] != '.') continue;
    Key key = {std::string(file.substr(0, dot)), *inputs, std::string(file.substr(end + 1))};
    if (is_valid(key)) return key;
  }
  return std::nullopt;
}

Entry with_key(Entry entry, const Key& key) {
  entry.facts[kInputsFact] = key.inputs.hex();
  entry.facts[kCompilerFact] = key.compiler;
  return entry;
}

std::optional<Entry> decode_for(const Key& key, std::string_view bytes) {
  auto entry = decode(bytes);
  if (!entry || !is_fact(*entry, kInputsFact, key.inputs.hex()) || !is_fact(*entry, kCompilerFact, key.compiler)) {
    return std::nullopt;
  }
  return entry;
}

}  // namespace flashjit::cache
