// SPDX-License-Identifier: Apache-2.0
// One entry of the cache as bytes: see FORMAT.md.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace flashjit::cache {

// What a payload is, for people and checks: UTF-8.
using Facts = std::map<std::string, std::string>;

struct Entry {
  Facts facts;
  std::string payload;
  friend bool operator==(const Entry&, const Entry&) = default;
};

inline constexpr std::size_t kMaxEntryBytes = std::size_t{256} << 20;  // a cubin has some hundred KB
// The facts are within so many bytes from the start.
inline constexpr std::size_t kMaxFactsEnd = std::size_t{16} << 10;

// Throws when the facts are not UTF-8, or when these limits are passed.
std::string encode(const Entry& entry);
// Nothing when the bytes are not exactly one intact entry of this format version.
std::optional<Entry> decode(std::string_view bytes);
// The facts alone, from the first kMaxFactsEnd bytes of an entry, or all where there are fewer. What decode() gives
// when the entry is intact; nothing here tells whether it is.
std::optional<Facts> decode_facts(std::string_view start);

}  // namespace flashjit::cache
