// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace flashjit::runtime {

// The parts of "a:b:c". Empty ones are left out.
inline std::vector<std::string> split_paths(std::string_view list) {
  std::vector<std::string> paths;
  for (std::size_t begin = 0; begin < list.size();) {
    const std::size_t end = std::min(list.find(':', begin), list.size());
    if (end > begin) paths.emplace_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return paths;
}

// In a working directory that was deleted a relative path stays one, and leads nowhere.
inline std::filesystem::path absolute_path(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute;
}

}  // namespace flashjit::runtime
