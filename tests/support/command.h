// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/support/cache_entries.h"
#include "tests/support/temporary_directory.h"

namespace flashjit::tests {

struct Outcome {
  int exit_code;
  std::string out, err;
};

// Away from the user's settings and cache, from GPUs and from NVRTC.
inline constexpr const char* kBareEnvironment =
    "CUDA_VISIBLE_DEVICES= FLASHJIT_POLICY= FLASHJIT_LOG= FLASHJIT_CHECK_PAGES= FLASHJIT_TEMPLATE_DIR= "
    "FLASHJIT_DEVICE= FLASHJIT_CACHE_DIR= "
    "FLASHJIT_CACHE_SIZE= FLASHJIT_SYSTEM_CACHE= FLASHJIT_BUNDLES= FLASHJIT_TUNING= XDG_CACHE_HOME= HOME= "
    "FLASHJIT_NVRTC=/nowhere/libnvrtc.so";

// Runs the built command flashjit. Environment: assignments in the shell's spelling, of which the last of a name
// counts.
inline Outcome run_command(const std::filesystem::path& directory, const std::string& environment,
                           const std::string& arguments) {
  const TemporaryDirectory output;
  const std::string line =
      fmt::format("cd '{}' && {} '{}' {} >'{}' 2>'{}' </dev/null", directory.string(), environment, FLASHJIT_COMMAND,
                  arguments, (output / "out").string(), (output / "err").string());
  const int status = std::system(line.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_bytes(output / "out"), read_bytes(output / "err")};
}

inline bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// What must fail: exit code 2, one line on stderr, nothing on stdout. Gives that line.
inline std::string expect_refusal(const std::string& arguments, const Outcome& outcome) {
  CAPTURE(arguments);
  CAPTURE(outcome.err);
  CHECK(outcome.exit_code == 2);
  CHECK(outcome.out.empty());
  CHECK(outcome.err.rfind("flashjit: ", 0) == 0);
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  return outcome.err;
}

}  // namespace flashjit::tests
