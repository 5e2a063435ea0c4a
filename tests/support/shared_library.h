// SPDX-License-Identifier: Apache-2.0
// A shared library that every process has, to be taken for libnvrtc: sound, but without its functions. It is a small
// one that may be loaded twice.
#pragma once

#include <dlfcn.h>
#include <unwind.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

#include "tests/support/cache_entries.h"

namespace flashjit::tests {

inline std::string shared_library() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(&_Unwind_Backtrace), &info) == 0 || !info.dli_fname)
    throw std::runtime_error("cannot find libgcc_s");
  return read_bytes(std::filesystem::canonical(info.dli_fname));
}

// In a directory that is made, and under a name that is searched for.
inline std::filesystem::path put_library(const std::filesystem::path& directory, std::string_view bytes) {
  std::filesystem::create_directories(directory);
  write_bytes(directory / "libnvrtc.so.13", std::string(bytes));
  return directory / "libnvrtc.so.13";
}

}  // namespace flashjit::tests
