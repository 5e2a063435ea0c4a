// SPDX-License-Identifier: Apache-2.0
// Tests that need NVRTC but no GPU. Exit status 77: skipped. With FLASHJIT_REQUIRE_NVRTC=1 a missing NVRTC is a
// failure.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "flashjit/engine.h"

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  const flashjit::SystemInfo system = flashjit::Engine().system();
  if (system.nvrtc_version.empty()) {
    const char* required = std::getenv("FLASHJIT_REQUIRE_NVRTC");
    const bool failed = required != nullptr && std::string(required) == "1";
    std::printf("%s: no NVRTC (%s)\n", failed ? "failed" : "skipped", system.nvrtc_problem.c_str());
    return failed ? EXIT_FAILURE : kSkipped;
  }
  std::printf("NVRTC %s, %s\n", system.nvrtc_version.c_str(), system.nvrtc_path.c_str());
  return doctest::Context(argc, argv).run();
}
