// SPDX-License-Identifier: Apache-2.0
// The only file of the library that reads the environment. In a program that has more rights than whoever started it
// (set-uid, set-gid, capabilities) secure_getenv finds nothing: its user must not choose what it loads and writes.
#include <fmt/format.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "flashjit/engine.h"
#include "flashjit/error.h"
#include "runtime/support/path_list.h"

namespace flashjit {
namespace {

// Empty when the variable is not set.
std::string variable(const char* name) {
  const char* value = ::secure_getenv(name);
  return value ? value : "";
}

bool is_there(const std::filesystem::path& directory) {
  std::error_code error;
  return std::filesystem::is_directory(directory, error);
}

// Nobody has asked for the last two, so they are made below what is there: never a home, as /nonexistent of those who
// have none.
std::string find_cache_directory() {
  if (const std::string own = variable("FLASHJIT_CACHE_DIR"); !own.empty()) return own;
  // The XDG specification says to ignore a relative path.
  const std::filesystem::path xdg = variable("XDG_CACHE_HOME"), home = variable("HOME");
  if (xdg.is_absolute() && is_there((xdg / "").parent_path().parent_path())) return xdg / "flashjit";
  if (home.is_absolute() && is_there(home)) return home / ".cache/flashjit";
  return {};
}

std::vector<std::string> path_list(const char* name) { return runtime::split_paths(variable(name)); }

std::vector<std::string> find_nvrtc_directories() {
  std::vector<std::string> directories = path_list("LD_LIBRARY_PATH");
  constexpr struct {
    const char* name;
    const char* below;
  } kRoots[] = {{"CUDA_HOME", "/lib64"}, {"CUDA_PATH", "/lib64"}, {"VIRTUAL_ENV", "/lib"}, {"CONDA_PREFIX", "/lib"}};
  for (const auto& root : kRoots) {
    if (const std::string value = variable(root.name); !value.empty()) directories.push_back(value + root.below);
  }
  return directories;
}

const char* to_string(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return "debug";
    case LogLevel::info:
      return "info";
    case LogLevel::warning:
      return "warning";
  }
  return "unknown";
}

std::function<void(LogLevel, const std::string&)> log_to_stderr() {
  const std::string wanted = variable("FLASHJIT_LOG");
  if (wanted.empty()) return {};
  for (const LogLevel least : {LogLevel::debug, LogLevel::info, LogLevel::warning}) {
    if (wanted != to_string(least)) continue;
    return [least](LogLevel level, const std::string& message) {
      if (level >= least) fmt::print(stderr, "flashjit: {}: {}\n", to_string(level), message);
    };
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("FLASHJIT_LOG: must be debug, info or warning, was {}", wanted));
}

// Of a variable that must be one of a few words.
template <typename Value>
Value read_word(const char* name, Value otherwise, Value (*parse)(std::string_view)) {
  const std::string wanted = variable(name);
  if (wanted.empty()) return otherwise;
  try {
    return parse(wanted);
  } catch (const Error& error) {
    throw Error(error.code(), std::string(name) + ": " + error.what());
  }
}

std::uint64_t read_cache_size(std::uint64_t otherwise) {
  const std::string wanted = variable("FLASHJIT_CACHE_SIZE");
  if (wanted.empty()) return otherwise;
  try {
    return parse_size(wanted);
  } catch (const Error& error) {
    throw Error(error.code(), std::string("FLASHJIT_CACHE_SIZE: ") + error.what());
  }
}

bool read_flag(const char* name) {
  const std::string wanted = variable(name);
  if (wanted.empty() || wanted == "0") return false;
  if (wanted == "1") return true;
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: must be 1 or 0, was {}", name, wanted));
}

// The architecture to emulate; empty for the GPU.
std::string read_emulated_architecture() {
  constexpr std::string_view kDefault = "sm_90a", kPrefix = "emulate:";
  const std::string wanted = variable("FLASHJIT_DEVICE");
  if (wanted.empty() || wanted == "gpu") return {};
  if (wanted == "emulate") return std::string(kDefault);
  if (!wanted.starts_with(kPrefix)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("FLASHJIT_DEVICE: must be gpu, emulate or emulate:ARCHITECTURE, was {}", wanted));
  }
  try {
    return find_architecture(wanted.substr(kPrefix.size())).name;
  } catch (const Error& error) {
    throw Error(error.code(), std::string("FLASHJIT_DEVICE: ") + error.what());
  }
}

}  // namespace

EngineOptions EngineOptions::from_environment() {
  EngineOptions options;
  options.policy = read_word("FLASHJIT_POLICY", options.policy, parse_policy);
  options.cache_directory = find_cache_directory();
  options.cache_max_bytes = read_cache_size(options.cache_max_bytes);
  options.system_cache_directories = path_list("FLASHJIT_SYSTEM_CACHE");
  options.bundles = path_list("FLASHJIT_BUNDLES");
  options.tuning = read_word("FLASHJIT_TUNING", options.tuning, parse_tuning_policy);
  options.nvrtc_path = variable("FLASHJIT_NVRTC");
  options.nvrtc_directories = find_nvrtc_directories();
  options.template_directory = variable("FLASHJIT_TEMPLATE_DIR");
  options.emulate = read_emulated_architecture();
  options.check_pages = read_flag("FLASHJIT_CHECK_PAGES");
  options.log = log_to_stderr();
  return options;
}

}  // namespace flashjit
