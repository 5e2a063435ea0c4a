// SPDX-License-Identifier: Apache-2.0
// One entry of the cache as bytes: see FORMAT.md.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace flashjit::cache {

struct Entry {
  std::map<std::string, std::string> facts;  // what the payload is, for people and checks: UTF-8
  std::string payload;
  friend bool operator==(const Entry&, const Entry&) = default;
};

std::string encode(const Entry& entry);
// Nothing when the bytes are not exactly one intact entry of this format version.
std::optional<Entry> decode(std::string_view bytes);

}  // namespace flashjit::cache
