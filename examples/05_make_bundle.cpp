// SPDX-License-Identifier: Apache-2.0
// Makes the bundle that 05_embedded_bundle.cpp carries. Needs NVRTC, but no GPU and no driver. The command does it too,
//   flashjit compile --arch sm_90a --head-dim 64 --mask causal --bundle kernels.fjb
// but for the kernels of the emulator, with which the example runs on machines without that GPU.
#include <flashjit/flashjit.h>

#include <cstdio>
#include <fstream>

int main(int argc, char** argv) {
  try {
    using namespace flashjit;
    if (argc != 2) {
      std::fprintf(stderr, "usage: %s FILE\n", argv[0]);
      return 2;
    }
    const Problem problem{DType::bf16, 64, 64, true};  // head dims 64, causal

    EngineOptions options = EngineOptions::from_environment();
    options.policy = Policy::off;  // what is in this machine's cache does not matter
    options.emulate = "sm_90a";
    Engine engine(options);
    engine.prepare(problem);  // as PTX, for the emulator
    for (const Variant& variant : engine.default_variants(problem, "sm_90a")) {
      engine.compile(problem, variant, "sm_90a");  // for the GPU
    }

    std::ofstream file(argv[1], std::ios::binary);
    file << engine.bundle();
    file.close();
    if (file) return 0;
    std::fprintf(stderr, "%s: cannot be written\n", argv[1]);
    return 1;
  } catch (const flashjit::Error& error) {
    std::fprintf(stderr, "%s\n%s", error.what(), error.log().c_str());
    return 1;
  }
}
