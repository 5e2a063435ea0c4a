// SPDX-License-Identifier: Apache-2.0
// A program that carries its kernels: it needs no NVRTC, no environment, and no file that it could read or write.
// CMakeLists.txt shows how the bundle gets into it. Runs on a Hopper GPU; elsewhere, or with --emulate, in the
// emulator.
#include <flashjit/flashjit.h>
#include <flashjit_bundles/kernels.h>

#include <cstdio>
#include <string>

namespace {

using namespace flashjit;

EngineOptions sealed_options() {
  EngineOptions options;                // nothing from the environment, and no cache directory
  options.policy = Policy::cache_only;  // a kernel that is not in the bundle is an error, not a compile
  options.embedded_bundles = {flashjit_bundles::kernels()};
  options.nvrtc_path = "/nonexistent";  // to show that it is not needed
  return options;
}

// The first GPU that the bundle has kernels for, or kHostMemory, where the emulator computes.
int choose_device() {
  for (const DeviceInfo& device : Engine(sealed_options()).system().devices) {
    if (device.architecture == "sm_90a") return device.ordinal;
  }
  return kHostMemory;
}

}  // namespace

int main(int argc, char** argv) try {
  const bool emulate = argc > 1 && std::string(argv[1]) == "--emulate";
  const int device = emulate ? kHostMemory : choose_device();
  EngineOptions options = sealed_options();
  if (device == kHostMemory) options.emulate = "sm_90a";
  Engine engine(options);

  const Dims shape{1, 192, 4, 64};  // batch, seqlen, heads, head_dim
  const HostTensor q = HostTensor::random_normal(DType::bf16, shape, 1);
  const HostTensor k = HostTensor::random_normal(DType::bf16, shape, 2);
  const HostTensor v = HostTensor::random_normal(DType::bf16, shape, 3);
  AttentionOptions opts;
  opts.causal = true;
  engine.prepare({DType::bf16, 64, 64, opts.causal}, device);
  const DeviceTensor out =
      engine.attention(q.to_device(nullptr, device), k.to_device(nullptr, device), v.to_device(nullptr, device), opts);

  const auto exact = reference::attention(q.view(), k.view(), v.view(), opts);
  const auto low = reference::attention_in_low_precision(q.view(), k.view(), v.view(), opts);
  const auto comparison = reference::compare(HostTensor::from_device(out), exact, low);
  const Counters counters = engine.counters();
  std::printf("attention %s: error %.2e against fp64 (bound %.2e): %s\n",
              device == kHostMemory ? "in the emulator" : "on the GPU", comparison.max_error, comparison.bound,
              comparison.passed ? "passed" : "FAILED");
  std::printf("%d kernels from the embedded bundle, %d compiled\n", static_cast<int>(counters.embedded_hits),
              static_cast<int>(counters.compiles));
  const bool sealed = counters.embedded_hits > 0 && counters.compiles == 0;
  return comparison.passed && sealed ? 0 : 1;
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
