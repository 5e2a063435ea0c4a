// SPDX-License-Identifier: Apache-2.0
// Device code with a fault in it, for engines that read templates from a directory.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace flashjit::tests {

inline const std::filesystem::path kTemplates = std::filesystem::path(FLASHJIT_SOURCE_DIR) / "templates";

// All templates in the directory, one of them with another text in place of one that stands in it once.
inline void plant(const std::string& file, const std::string& original, const std::string& replacement,
                  const std::filesystem::path& directory) {
  namespace fs = std::filesystem;
  fs::copy(kTemplates, directory, fs::copy_options::recursive);
  std::ifstream stream(directory / file, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(stream), {});
  const std::size_t at = text.find(original);
  if (at == std::string::npos || text.find(original, at + 1) != std::string::npos)
    throw std::runtime_error(file + " must have this text once: " + original);
  text.replace(at, original.size(), replacement);
  std::ofstream(directory / file, std::ios::binary | std::ios::trunc) << text;
}

}  // namespace flashjit::tests
