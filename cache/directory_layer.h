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

  Lookup find(const Key& key) override;
  std::optional<std::string> store(const Key& key, const Entry& entry) override;

 private:
  std::filesystem::path directory_;
};

}  // namespace flashjit::cache
