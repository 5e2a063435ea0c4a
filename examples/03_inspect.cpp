// SPDX-License-Identifier: Apache-2.0
// What stands behind a call: the variant, the source and the compiled kernel. Needs NVRTC, but no GPU and no driver.
#include <flashjit/flashjit.h>

#include <cstdio>

int main(int argc, char** argv) {
  try {
    using namespace flashjit;
    const char* architecture = argc > 1 ? argv[1] : "sm_90a";
    Problem problem;  // bf16, head_dim 128
    problem.causal = true;

    Engine engine;
    const Variant variant = engine.default_variant(problem, architecture);
    std::printf("problem    %s on %s\n", to_string(problem).c_str(), architecture);
    std::printf("variant    %s\n", to_string(variant).c_str());
    std::printf("legal      %zu variants\n", engine.variants(problem, architecture).size());
    std::printf("source     %zu bytes\n", engine.render(problem, variant, architecture).size());

    // From the cache if it is there, else by NVRTC.
    const KernelInfo kernel = engine.compile(problem, variant, architecture);
    std::printf("origin     %s\n", to_string(kernel.origin));
    std::printf("compile    %.0f ms\n", kernel.compile_ms);
    std::printf("registers  %d, %d bytes spilled\n", kernel.registers, kernel.spill_bytes);
    std::printf("shared     %d bytes for %d threads\n", kernel.shared_memory_bytes, kernel.threads);
    std::printf("cubin      %zu bytes in %s\n", kernel.cubin_bytes,
                kernel.cache_file.empty() ? "memory" : kernel.cache_file.c_str());
    return 0;
  } catch (const flashjit::Error& error) {
    std::fprintf(stderr, "%s\n%s", error.what(), error.log().c_str());
    return 1;
  }
}
