// SPDX-License-Identifier: Apache-2.0
// Small files of a cache that are no entries: tuning/<device>/<record>.json in directories and bundles. The cache keeps
// their bytes and knows nothing of what they say.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace flashjit::cache {

inline constexpr const char* kRecordsDirectory = "tuning";
inline constexpr std::string_view kRecordSuffix = ".json";
inline constexpr std::size_t kMaxRecordBytes = std::size_t{1} << 20;

struct RecordPath {
  std::string device;  // the folder
  std::string file;    // with the suffix
};

// Both parts are of a-z 0-9 _ . - and at most as long as a file system allows, beside the suffixes that the cache adds;
// neither begins with a dot. The file is <problem>.q<...>-kv<...>-w<...>.json: a name that nobody else gives. Nothing
// for any other path.
std::optional<RecordPath> parse_record_path(std::string_view path);
std::string to_string(const RecordPath& path);

}  // namespace flashjit::cache
