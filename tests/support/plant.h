// SPDX-License-Identifier: Apache-2.0
// Device code with a fault in it, for engines that read templates from a directory.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

#include "flashjit/engine.h"

namespace flashjit::tests {

inline const std::filesystem::path kTemplates = std::filesystem::path(FLASHJIT_SOURCE_DIR) / "templates";

inline std::string read_template(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// Where the text stands in a template, which it does once. Throws std::runtime_error.
inline std::size_t place_of_fault(const std::string& file, const std::string& text, const std::string& original) {
  const std::size_t at = text.find(original);
  if (at == std::string::npos || text.find(original, at + 1) != std::string::npos)
    throw std::runtime_error(file + " must have this text once: " + original);
  return at;
}

// All templates in the directory, one of them with another text in place of one that stands in it once.
inline void plant(const std::string& file, const std::string& original, const std::string& replacement,
                  const std::filesystem::path& directory) {
  namespace fs = std::filesystem;
  fs::copy(kTemplates, directory, fs::copy_options::recursive);
  std::string text = read_template(directory / file);
  text.replace(place_of_fault(file, text, original), original.size(), replacement);
  std::ofstream(directory / file, std::ios::binary | std::ios::trunc) << text;
}

struct PlantedFault {
  const char *file, *original, *replacement;
};

// Of an engine whose kernels have the fault, from templates in the directory.
inline EngineOptions with_fault(EngineOptions options, const PlantedFault& fault,
                                const std::filesystem::path& directory) {
  plant(fault.file, fault.original, fault.replacement, directory / "templates");
  options.template_directory = (directory / "templates").string();
  options.policy = Policy::off;
  return options;
}

}  // namespace flashjit::tests
