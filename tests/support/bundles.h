// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache/bundle.h"
#include "cache/bytes.h"
#include "cache/entry_name.h"

namespace flashjit::tests {

// A bundle put together by hand, with lengths that need not be true.
struct BundleParts {
  std::string manifest;
  std::string content;
  std::uint32_t version = 1;
  std::optional<std::uint32_t> manifest_bytes = {};
  std::optional<std::uint64_t> bundle_bytes = {};

  std::string bytes() const {
    std::string bytes = "FJBUNDLE";
    cache::append(bytes, version);
    cache::append(bytes, manifest_bytes.value_or(static_cast<std::uint32_t>(manifest.size())));
    cache::append(bytes, bundle_bytes.value_or(24 + manifest.size() + 16 + content.size()));
    bytes += manifest;
    bytes += cache::checksum_of(bytes);
    return bytes + content;
  }
};

// A manifest of one member without bytes, of that name and length as JSON.
inline std::string manifest_of_one(const std::string& name, const std::string& length = "0") {
  return R"({"members":[{"bytes":)" + length + R"(,"digest":")" + cache::digest_of("").hex() + R"(","name":")" + name +
         "\"}]}";
}

inline cache::NewMember make_member(const cache::Key& key, const cache::Entry& entry) {
  return {cache::path_of(key), cache::encode(cache::with_key(entry, key))};
}

}  // namespace flashjit::tests
