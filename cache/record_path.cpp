// SPDX-License-Identifier: Apache-2.0
#include "cache/record_path.h"

#include <algorithm>

#include "cache/name_character.h"

namespace flashjit::cache {
namespace {

constexpr std::size_t kMaxRecordPartBytes = 200;  // of 255; the rest is for ".<pid>.<random>.tmp"

bool is_record_part(std::string_view text) {
  return !text.empty() && text.size() <= kMaxRecordPartBytes && text.front() != '.' &&
         std::all_of(text.begin(), text.end(), is_name_character);
}

// Takes what comes before the words off the text, and the words. False when something of it is missing.
bool skip_past(std::string_view& text, std::string_view words) {
  const std::size_t at = text.find(words);
  if (at == 0 || at == text.npos) return false;
  text.remove_prefix(at + words.size());
  return true;
}

// "<problem>.<bucket>.json", the bucket being "q<queries>-kv<keys>-w<work>".
bool is_record_file(std::string_view name) {
  if (!name.ends_with(kRecordSuffix)) return false;
  name.remove_suffix(kRecordSuffix.size());
  return skip_past(name, ".q") && skip_past(name, "-kv") && skip_past(name, "-w") && !name.empty();
}

}  // namespace

std::optional<RecordPath> parse_record_path(std::string_view path) {
  const std::size_t first = path.find('/'), last = path.rfind('/');
  if (first == path.npos || first == last || path.substr(0, first) != kRecordsDirectory) return std::nullopt;
  const std::string_view device = path.substr(first + 1, last - first - 1), file = path.substr(last + 1);
  if (!is_record_part(device) || !is_record_part(file)) return std::nullopt;
  if (!is_record_file(file)) return std::nullopt;
  return RecordPath{std::string(device), std::string(file)};
}

std::string to_string(const RecordPath& path) {
  return std::string(kRecordsDirectory) + '/' + path.device + '/' + path.file;
}

}  // namespace flashjit::cache
