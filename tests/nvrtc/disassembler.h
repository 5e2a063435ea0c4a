// SPDX-License-Identifier: Apache-2.0
// SASS of a cubin, where cuobjdump is at hand: FLASHJIT_CUOBJDUMP names it, else it is on the path.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

#include "tests/support/temporary_directory.h"

namespace flashjit::tests {

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class Disassembler {
 public:
  static constexpr const char* kSkipped = "skipped: no cuobjdump (FLASHJIT_CUOBJDUMP, PATH)";

  Disassembler() {
    const char* const named = std::getenv("FLASHJIT_CUOBJDUMP");
    const char* const path = std::getenv("PATH");
    if (named != nullptr && *named != '\0') {
      program_ = named;
      if (!std::filesystem::is_regular_file(program_))
        throw std::runtime_error("FLASHJIT_CUOBJDUMP: must be a file, was " + program_);
      return;
    }
    std::istringstream directories(path == nullptr ? "" : path);
    for (std::string directory; program_.empty() && std::getline(directories, directory, ':');)
      if (std::filesystem::is_regular_file(directory + "/cuobjdump")) program_ = directory + "/cuobjdump";
  }

  bool found() const { return !program_.empty(); }

  // Throws where cuobjdump fails.
  std::string sass(const std::string& cubin) const {
    const TemporaryDirectory directory;
    const std::string file = (directory.path() / "kernel.cubin").string();
    std::ofstream(file, std::ios::binary) << cubin;
    std::FILE* const pipe = popen(("'" + program_ + "' -sass '" + file + "'").c_str(), "r");
    if (pipe == nullptr) throw std::runtime_error(program_ + " could not be started");
    std::string text;
    char buffer[4096];
    for (std::size_t read; (read = std::fread(buffer, 1, sizeof buffer, pipe)) != 0;) text.append(buffer, read);
    if (pclose(pipe) != 0) throw std::runtime_error(program_ + " failed");
    return text;
  }

 private:
  std::string program_;
};

}  // namespace flashjit::tests
