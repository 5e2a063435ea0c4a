// SPDX-License-Identifier: Apache-2.0
// What a user's program does first, on a machine without a GPU.
#include <flashjit/distributed.h>
#include <flashjit/flashjit.h>
#include <flashjit_bundles/kernels.h>

#include <cstdio>
#include <string>

extern "C" const char* version_through_c(void);

int main() {
  flashjit::EngineOptions options;
  options.embedded_bundles = {flashjit_bundles::kernels()};
  flashjit::Engine engine(options);
  const flashjit::Problem problem;
  const std::string source = engine.render(problem, engine.default_variant(problem, "sm_90a"), "sm_90a");
  std::printf("flashjit %s rendered %zu bytes for %s\n", flashjit::version(), source.size(),
              flashjit::to_string(problem).c_str());
  const flashjit::CacheLayerInfo bundle = engine.system().cache.at(0);
  std::printf("%s: %d entries %s\n", bundle.location.c_str(), static_cast<int>(bundle.entries), bundle.problem.c_str());
  const bool rendered = source.find("__global__") != std::string::npos;
  const bool same_version = std::string(flashjit::version()) == version_through_c();
  // The library beside the library, which opens nothing until a group is made.
  const bool has_shards = flashjit::distributed::Sharding(flashjit::distributed::Layout::striped, 10, 4).length(3) == 2;
  return has_shards && rendered && same_version && bundle.entries > 0 && bundle.problem.empty() ? 0 : 1;
}
