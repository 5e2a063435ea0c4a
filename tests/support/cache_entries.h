// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "cache/layer.h"

namespace flashjit::tests {

inline cache::Key make_key(const std::string& inputs, const std::string& compiler = "nvrtc-13.0") {
  return {"fwd-bf16-d128", cache::digest_of(inputs), compiler};
}

inline cache::Entry make_entry(const std::string& payload) { return {{{"name", "fwd"}}, payload}; }

// The payload that find() gives, or "none".
inline std::string payload_of(const cache::Lookup& lookup) { return lookup.entry ? lookup.entry->payload : "none"; }

inline std::string read_bytes(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream bytes;
  bytes << stream.rdbuf();
  return bytes.str();
}

inline void write_bytes(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

// Files below a directory whose name ends so; but not the tag that every cache has.
inline int count_files(const std::filesystem::path& directory, const std::string& ending) {
  int count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    count += name.ends_with(ending) && name != "CACHEDIR.TAG" && !entry.is_directory();
  }
  return count;
}

}  // namespace flashjit::tests
