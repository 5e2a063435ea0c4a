// SPDX-License-Identifier: Apache-2.0
// What a user's program does first, on a machine without a GPU.
#include <flashjit/flashjit.h>

#include <cstdio>
#include <string>

extern "C" const char* version_through_c(void);

int main() {
  flashjit::Engine engine{flashjit::EngineOptions{}};
  const flashjit::Problem problem;
  const std::string source = engine.render(problem, engine.default_variant(problem, "sm_90a"), "sm_90a");
  std::printf("flashjit %s rendered %zu bytes for %s\n", flashjit::version(), source.size(),
              flashjit::to_string(problem).c_str());
  const bool rendered = source.find("__global__") != std::string::npos;
  const bool same_version = std::string(flashjit::version()) == version_through_c();
  return rendered && same_version ? 0 : 1;
}
