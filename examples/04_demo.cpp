// SPDX-License-Identifier: Apache-2.0
// What scripts/demo runs: the main job step by step, from the problem to the number. On a GPU it computes, checks and
// times attention; without one it renders, compiles and caches kernels for several architectures, and runs those of two
// of them in the emulator, which checks what no GPU checks.
#include <flashjit/emulator.h>
#include <flashjit/flashjit.h>

#include <cstdio>
#include <cstring>

namespace {

using namespace flashjit;

void print_system(const SystemInfo& system) {
  std::printf("flashjit %s\n", system.version.c_str());
  std::printf("  driver   %s\n", system.driver_version.empty() ? "none" : system.driver_version.c_str());
  std::printf("  NVRTC    %s %s\n", system.nvrtc_version.empty() ? "none" : system.nvrtc_version.c_str(),
              system.nvrtc_path.c_str());
  std::printf("  cache    %s\n", system.cache.empty() ? "in memory only" : system.cache.front().location.c_str());
}

// Source, cubin and cache entry of one kernel, each made if it is not there yet.
void make_kernel(Engine& engine, const Problem& problem, const char* architecture) {
  const Variant variant = engine.default_variant(problem, architecture);
  const std::string source = engine.render(problem, variant, architecture);
  std::printf("  %-7s %s\n          source %zu bytes; ", architecture, to_string(variant).c_str(), source.size());
  std::fflush(stdout);
  const KernelInfo kernel = engine.compile(problem, variant, architecture);
  const bool compiled = kernel.origin == KernelInfo::Origin::compiled;
  std::printf("%s %.0f ms; %d registers, %d bytes of shared memory; cubin %zu bytes\n",
              compiled ? "compiled in" : "from the cache, once compiled in", kernel.compile_ms, kernel.registers,
              kernel.shared_memory_bytes, kernel.cubin_bytes);
  if (!kernel.cache_file.empty()) std::printf("          %s\n", kernel.cache_file.c_str());
}

// Rows [first, first + count) of packed [batch, seqlen, heads, head_dim], packed again.
HostTensor rows(const HostTensor& tensor, std::int64_t first, std::int64_t count) {
  const Dims& shape = tensor.shape();
  HostTensor slice(tensor.dtype(), {shape[0], count, shape[2], shape[3]});
  const std::size_t row_bytes = static_cast<std::size_t>(shape[2] * shape[3]) * size_of(tensor.dtype());
  for (std::int64_t batch = 0; batch < shape[0]; ++batch) {
    std::memcpy(static_cast<char*>(slice.data()) + batch * count * row_bytes,
                static_cast<const char*>(tensor.data()) + (batch * shape[1] + first) * row_bytes, count * row_bytes);
  }
  return slice;
}

// The mask is aligned bottom-right, so the last queries alone, with all keys, are a causal problem of their own.
reference::Comparison check_last_rows(const HostTensor& q, const HostTensor& k, const HostTensor& v,
                                      const HostTensor& out, std::int64_t count, const AttentionOptions& opts) {
  const std::int64_t first = q.shape()[1] - count;
  const HostTensor last_q = rows(q, first, count);
  const reference::Result exact = reference::attention(last_q.view(), k.view(), v.view(), opts);
  const reference::Result low = reference::attention_in_low_precision(last_q.view(), k.view(), v.view(), opts);
  return reference::compare(rows(out, first, count), exact, low);
}

bool run_on_gpu(Engine& engine, const DeviceInfo& device) {
  constexpr std::int64_t kBatch = 2, kHeads = 16, kSeqlen = 4096, kHeadDim = 128, kCheckedRows = 64;
  const Dims shape = {kBatch, kSeqlen, kHeads, kHeadDim};
  AttentionOptions opts;
  opts.causal = true;
  Problem problem;
  problem.causal = true;
  std::printf("\nAttention on %s: bf16, causal, [batch, seqlen, heads, head_dim] = %s\n", device.name.c_str(),
              to_string(shape).c_str());
  make_kernel(engine, problem, device.architecture.c_str());

  const HostTensor q = HostTensor::random_normal(DType::bf16, shape, 1);
  const HostTensor k = HostTensor::random_normal(DType::bf16, shape, 2);
  const HostTensor v = HostTensor::random_normal(DType::bf16, shape, 3);
  const DeviceTensor q_gpu = q.to_device(nullptr, device.ordinal), k_gpu = k.to_device(nullptr, device.ordinal),
                     v_gpu = v.to_device(nullptr, device.ordinal);
  const DeviceTensor out = engine.attention(q_gpu, k_gpu, v_gpu, opts);
  const auto comparison = check_last_rows(q, k, v, HostTensor::from_device(out), kCheckedRows, opts);
  std::printf("  error    %.2e in the last %d rows of every head, against fp64 (bound %.2e): %s\n",
              comparison.max_error, static_cast<int>(kCheckedRows), comparison.bound,
              comparison.passed ? "passed" : "FAILED");

  const Timing timing = engine.measure(q_gpu, k_gpu, v_gpu, out, opts);
  constexpr double kFlops = 4.0 * kBatch * kHeads * kSeqlen * kSeqlen * kHeadDim / 2;  // half is masked
  const double tflops = kFlops / timing.median_us / 1e6;
  const double ceiling = engine.measure_mma_ceiling(DType::bf16, device.ordinal);
  std::printf("  time     %.0f us (median of %d launches, cold L2)\n", timing.median_us, timing.repeats);
  std::printf("  speed    %.0f TFLOPS: %.0f%% of the %.0f TFLOPS that a loop of nothing but mma.sync reaches here\n",
              tflops, 100 * tflops / ceiling, ceiling);
  return comparison.passed;
}

// The default kernel of an architecture in the emulator, under several schedules, each compared with the reference.
bool run_in_emulator(const char* architecture) {
  constexpr std::int64_t kSeqlenQ = 200, kSeqlenKv = 300, kHeadsQ = 4, kHeadsKv = 2, kHeadDim = 64;
  constexpr std::uint64_t kSchedules = 3;
  EngineOptions options = EngineOptions::from_environment();
  options.emulate = architecture;
  Engine engine(options);
  AttentionOptions opts;
  opts.causal = true;
  const HostTensor q = HostTensor::random_normal(DType::bf16, {1, kSeqlenQ, kHeadsQ, kHeadDim}, 1);
  const HostTensor k = HostTensor::random_normal(DType::bf16, {1, kSeqlenKv, kHeadsKv, kHeadDim}, 2);
  const HostTensor v = HostTensor::random_normal(DType::bf16, {1, kSeqlenKv, kHeadsKv, kHeadDim}, 3);
  const reference::Result exact = reference::attention(q.view(), k.view(), v.view(), opts);
  const reference::Result low = reference::attention_in_low_precision(q.view(), k.view(), v.view(), opts);
  const Problem problem{DType::bf16, kHeadDim, kHeadDim, opts.causal};
  const CallShape shape{1, kSeqlenQ, kSeqlenKv, kHeadsQ, kHeadsKv};
  const int sm_count = engine.system().devices.front().sm_count;
  opts.variant = engine.default_variant(problem, architecture, shape_bucket(shape, sm_count));
  std::printf("  %-7s %s\n", architecture, to_string(*opts.variant).c_str());
  bool passed = true;
  for (std::uint64_t seed = 0; seed < kSchedules; ++seed) {
    EmulationOptions emulation;
    emulation.seed = seed;
    HostTensor out(q.dtype(), q.shape());
    const emulator::Report report = engine.emulate(q.view(), k.view(), v.view(), out.view(), opts, emulation);
    const reference::Comparison comparison = reference::compare(out, exact, low);
    std::printf("          schedule %d: %.2f million warp instructions in %.2f s, error %.2e (bound %.2e), %s\n",
                static_cast<int>(seed), static_cast<double>(report.counters.warp_instructions) / 1e6, report.seconds,
                comparison.max_error, comparison.bound, to_string(report).c_str());
    passed = passed && comparison.passed && report.clean();
  }
  std::printf("          %s\n", passed ? "passed" : "FAILED");
  return passed;
}

bool run_without_gpu(Engine& engine) {
  Problem problem;
  problem.causal = true;
  std::printf("\nKernels for other machines: bf16, head_dim 128, causal\n");
  for (const char* architecture : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"}) {
    make_kernel(engine, problem, architecture);
  }
  std::printf("\nKernels in the emulator: bf16, head_dim 64, causal, 200 queries of 4 heads, 300 keys of 2\n");
  const bool mma_passed = run_in_emulator("sm_80");
  const bool hopper_passed = run_in_emulator("sm_90a");
  return mma_passed && hopper_passed;
}

}  // namespace

int main() try {
  EngineOptions options = EngineOptions::from_environment();
  options.emulate.clear();
  Engine engine(options);
  const SystemInfo system = engine.system();
  print_system(system);
  for (const DeviceInfo& device : system.devices) {
    if (!device.architecture.empty()) return run_on_gpu(engine, device) ? 0 : 1;
  }
  std::printf(
      "\nThere is no GPU here that a kernel could run on (%s).\nKernels are rendered, compiled and cached all the "
      "same, and an emulator of the GPU runs them.\n",
      system.driver_problem.empty() ? "the driver reports none" : system.driver_problem.c_str());
  return run_without_gpu(engine) ? 0 : 1;
} catch (const Error& error) {
  std::fprintf(stderr, "demo: %s\n%s", error.what(), error.log().c_str());
  return 1;
}
