// SPDX-License-Identifier: Apache-2.0
// Entries as files in a directory: <dir>/<first two hex digits>/<name>.<inputs>.<compiler>.fjc
#pragma once

#include <filesystem>

#include "cache/layer.h"

namespace flashjit::cache {

class DirectoryLayer : public Layer {
 public:
  // Touches nothing; directories are made (mode 0700) when the first entry is stored.
  explicit DirectoryLayer(std::filesystem::path directory);

  // Sets a damaged entry aside, as <file>.bad. Reads nothing from a directory that anybody may write to. Without a
  // compiler in the key, the intact entry whose compiler comes last in lexicographical order.
  Lookup find(const Key& key) override;
  // Adds the facts "inputs" and "compiler", which find() compares with the key. Writes only to a directory that belongs
  // to this user and that nobody else may write to.
  std::optional<std::string> store(const Key& key, const Entry& entry) override;

 private:
  std::filesystem::path directory_;
};

}  // namespace flashjit::cache
