// SPDX-License-Identifier: Apache-2.0
// Compiles many kernels side by side and expects them to be clean.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "flashjit/flashjit.h"
#include "tests/support/kept_kernels.h"

namespace flashjit::tests {

struct Job {
  Problem problem;
  Variant variant;
  std::string architecture;
};

inline Engine make_engine() { return Engine(options_with_kept_kernels()); }

inline Problem problem_of(int head_dim, int head_dim_v, bool causal, DType dtype = DType::bf16) {
  Problem problem;
  problem.dtype = dtype, problem.head_dim = head_dim, problem.head_dim_v = head_dim_v, problem.causal = causal;
  return problem;
}

// Those of every bucket, and of calls that TMA cannot describe; each once.
inline void add_defaults(const Engine& engine, const Problem& problem, const std::string& architecture,
                         std::vector<Job>& jobs) {
  for (const Variant& variant : engine.default_variants(problem, architecture))
    jobs.push_back({problem, variant, architecture});
}

// Kernels that spill with one version of NVRTC, and how much at most: less is no fault, as a release of the newest
// version or a line elsewhere may free a register. With 13.0, with which kernels are timed, one default spills, on one
// target; the other row of that version is a variant which is listed for the tuner, and which the model of registers
// does not tell from others that do not spill.
struct KnownSpill {
  const char* nvrtc;
  const char* kernel;
  int spill_bytes;
};
inline constexpr KnownSpill kKnownSpills[] = {
    {"13.0",
     "fwd-bf16-d256-causal.hopper-q128-kv64-s2-qs1-half-2stage-ppoff-ws-pregs-cl1-lazy-dynamic-longest-fused.sm_90a",
     20},
    {"13.0", "fwd-bf16-d128-alibi.mma-q128-kv48-w4-k2-v2-c2-overlap-swizzle-x4-qsmem-rare-natural.sm_80", 24},
    {"12.9", "fwd-bf16-d128-alibi.mma-q128-kv48-w4-k2-v2-c2-overlap-swizzle-x4-qsmem-rare-natural.sm_80", 24},
    {"13.5", "fwd-bf16-d128-alibi.mma-q128-kv48-w4-k2-v2-c2-overlap-swizzle-x4-qsmem-rare-natural.sm_80", 24},
    {"12.9", "fwd-bf16-d128-causal-alibi.mma-q128-kv32-w4-k2-v1-c1-overlap-swizzle-x4-qsmem-rare-longest.sm_120a", 20},
    {"12.9", "fwd-bf16-d128-causal-alibi.mma-q128-kv32-w4-k2-v1-c1-overlap-swizzle-x4-qsmem-rare-longest.sm_121a", 20},
    {"13.5", "fwd-bf16-d64-causal-window.mma-q128-kv32-w4-k2-v2-c3-overlap-swizzle-x4-qsmem-rare-natural.sm_80", 140},
    {"13.5", "fwd-bf16-d128-window.mma-q128-kv32-w4-k2-v2-c2-overlap-swizzle-x4-qsmem-rare-natural.sm_80", 164},
    {"13.5",
     "fwd-bf16-d192-causal-e4m3-e4m3_queries.mma-q128-kv64-w8-k2-v2-c1-overlap-swizzle-x4-qsmem-rare-longest.sm_120a",
     8},
    {"13.5",
     "fwd-bf16-d256-e4m3-e4m3_queries.mma-q64-kv32-w4-k2-v2-c1-overlap-swizzle-x4-qsmem-rare-natural-splitkv.sm_120a",
     80},
    {"13.5",
     "fwd-bf16-d256-causal-e4m3-e4m3_queries.mma-q64-kv32-w4-k2-v2-c1-overlap-swizzle-x4-qsmem-rare-longest-splitkv."
     "sm_120a",
     40},
    {"13.5", "bwd-bf16-d96.mma-q64-kv64-w8-r1-s1.sm_120a", 8},
    {"13.5", "bwd-bf16-d96.mma-q64-kv64-w8-r1-s1.sm_121a", 8},
    {"13.5", "bwd-bf16-d64-causal-bias.bf16-dbias.mma-q64-kv64-w4-r1-s2.sm_120a", 32},
    {"13.5", "bwd-bf16-d64-causal-bias.bf16-dbias.mma-q64-kv64-w4-r1-s2.sm_121a", 32},
};

// Of steps of 80 queries at both head dims of 128 the warps that load have 24 registers, and spill a few outside of the
// loop over steps, with each compiler.
inline int known_spill_of_loads(const std::string& kernel) {
  const bool has_few_registers = kernel.find("-d128") != std::string::npos &&
                                 kernel.find("-d128-v") == std::string::npos &&
                                 kernel.find(".hopper-q80-kv128.") != std::string::npos;
  if (!has_few_registers) return 0;
  return kernel.find("-deterministic.") != std::string::npos ? 72 : 40;
}

inline int known_spill(const std::string& nvrtc, const std::string& kernel) {
  for (const KnownSpill& known : kKnownSpills)
    if (nvrtc == known.nvrtc && kernel == known.kernel) return known.spill_bytes;
  return known_spill_of_loads(kernel);
}

// Compiles the jobs side by side and expects of each that no thread spills and nothing lives in local memory.
inline void expect_clean(Engine& engine, const std::vector<Job>& jobs) {
  REQUIRE(!jobs.empty());
  const std::string nvrtc = engine.system().nvrtc_version;
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::vector<std::string> faults;
  const auto work = [&] {
    for (std::size_t i = next++; i < jobs.size(); i = next++) {
      const Job& job = jobs[i];
      std::string fault;
      try {
        const KernelInfo info = engine.compile(job.problem, job.variant, job.architecture);
        const int known = known_spill(nvrtc, info.name);
        if (info.spill_bytes > known || (info.stack_bytes != 0 && known == 0))
          fault = info.name + ": spills " + std::to_string(info.spill_bytes) + ", stack " +
                  std::to_string(info.stack_bytes);
        else if (info.registers <= 0 || info.cubin_bytes == 0)
          fault = info.name + ": no facts";
      } catch (const Error& error) {
        fault = to_string(job.problem) + " " + to_string(job.variant) + " " + job.architecture + ": " + error.what() +
                "\n" + error.log();
      }
      const std::lock_guard lock(mutex);
      if (!fault.empty()) faults.push_back(fault);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  for (const std::string& fault : faults) FAIL_CHECK(fault);
  CHECK(next >= jobs.size());
}

}  // namespace flashjit::tests
