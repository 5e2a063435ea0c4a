// SPDX-License-Identifier: Apache-2.0
// Engines that compile a small kernel for Hopper.
#pragma once

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "flashjit/engine.h"

namespace flashjit::tests {

inline constexpr const char* kArchitecture = "sm_90a";

// The NVRTC that the environment names, and a cache of the test's own.
inline EngineOptions options_in(const std::filesystem::path& directory) {
  EngineOptions options = EngineOptions::from_environment();
  options.policy = Policy::compile;
  options.cache_directory = directory.string();
  options.system_cache_directories.clear();
  options.bundles.clear();
  options.template_directory.clear();
  options.log = nullptr;
  return options;
}

inline Problem small_problem(int head_dim = 64) {
  Problem problem;
  problem.head_dim = problem.head_dim_v = head_dim;
  return problem;
}

inline KernelInfo compile_small(Engine& engine, int head_dim = 64) {
  const Problem problem = small_problem(head_dim);
  return engine.compile(problem, engine.default_variant(problem, kArchitecture), kArchitecture);
}

inline std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// A copy of an NVRTC with one byte of its build id changed: it stands for another build.
inline std::filesystem::path make_other_nvrtc(const std::filesystem::path& nvrtc,
                                              const std::filesystem::path& directory) {
  std::filesystem::create_directories(directory);
  for (const auto& file : std::filesystem::directory_iterator(nvrtc.parent_path())) {
    const std::string name = file.path().filename().string();
    if (name.find("nvrtc-builtins") != std::string::npos)
      std::filesystem::create_symlink(file.path(), directory / name);
  }
  std::string library = read(nvrtc);
  // The note's type and owner: where it stands differs between a toolkit's library and a wheel's.
  const std::size_t note = library.find(std::string("\x03\0\0\0GNU\0", 8));
  REQUIRE(note != std::string::npos);
  library[note + 8] = static_cast<char>(library[note + 8] ^ 1);
  std::ofstream(directory / "libnvrtc.so", std::ios::binary) << library;
  return directory / "libnvrtc.so";
}

}  // namespace flashjit::tests
