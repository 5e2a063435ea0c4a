// SPDX-License-Identifier: Apache-2.0
// A gate for restructuring: what NVRTC makes of plain kernels of both families. A commit that is meant to change no
// kernel leaves every digest as it is. One that changes some says in its message what that did to the kernels' speed.
#include <doctest/doctest.h>

#include <sstream>
#include <string>
#include <string_view>

#include "cache/digest.h"
#include "flashjit/flashjit.h"
#include "runtime/kernels/nvrtc.h"

using namespace flashjit;

namespace {

struct Kernel {
  std::string architecture;
  std::string problem;
  std::string variant;
  std::string digest;  // of the PTX of NVRTC 13.0
};

const Kernel kKernels[] = {
    // The defaults of usual shapes.
    {"sm_80", "fwd-bf16-d64", "mma-q128-kv96-w4-k1-v1-c2-overlap-swizzle-x4-qregs-rare-natural", "6f93bed0b8563b7a"},
    {"sm_80", "fwd-bf16-d64-causal", "mma-q128-kv32-w4-k2-v2-c3-overlap-swizzle-x4-qsmem-rare-longest",
     "2dbe5ddf49f3bf8a"},
    {"sm_80", "fwd-f16-d128", "mma-q128-kv64-w4-k2-v1-c2-overlap-swizzle-x4-qsmem-rare-natural", "3d274033cd57b954"},
    {"sm_80", "fwd-bf16-d128-causal", "mma-q128-kv64-w4-k2-v1-c2-overlap-swizzle-x4-qsmem-rare-longest",
     "52c8b47f128a83c9"},
    {"sm_80", "fwd-bf16-d256", "mma-q128-kv64-w8-k1-v1-c1-overlap-swizzle-x4-qsmem-rare-natural", "f5d4f797e1c7faa8"},
    {"sm_80", "fwd-bf16-d192-v128", "mma-q128-kv128-w8-k1-v1-c1-overlap-swizzle-x4-qsmem-rare-natural",
     "060ee4299423fe86"},
    {"sm_90a", "fwd-bf16-d128", "mma-q256-kv64-w8-k2-v3-c1-rotate-swizzle-x4-qsmem-rare-natural", "10d2c0a8e87137c7"},
    {"sm_120a", "fwd-bf16-d40-causal", "mma-q128-kv64-w4-k1-v1-c2-overlap-swizzle-x4-qregs-rare-longest",
     "9f603322fb4c09db"},
    {"sm_90a", "fwd-bf16-d64", "hopper-q256-kv64-s4-qs2-whole-2stage-ppoff-ws-pregs-cl1-lazy-fixed-natural-fused",
     "b47f29518c10643b"},
    {"sm_90a", "fwd-bf16-d64-causal",
     "hopper-q256-kv64-s4-qs2-whole-2stage-ppgemm-ws-pregs-cl1-lazy-dynamic-longest-fused", "f387528b1001707d"},
    {"sm_90a", "fwd-f16-d128", "hopper-q128-kv128-s2-qs2-whole-2stage-ppgemm-ws-pregs-cl1-lazy-fixed-natural-fused",
     "8798eef33483801e"},
    {"sm_90a", "fwd-bf16-d128-causal",
     "hopper-q128-kv128-s2-qs2-whole-2stage-ppgemm-ws-pregs-cl1-lazy-dynamic-longest-fused", "64a12a685ae5ed5a"},
    {"sm_90a", "fwd-bf16-d256", "hopper-q128-kv64-s2-qs1-half-2stage-ppgemm-ws-pregs-cl1-rare-fixed-natural-split",
     "d2f59a3a80199890"},
    {"sm_90a", "fwd-bf16-d192-v128-causal",
     "hopper-q128-kv128-s2-qs1-half-2stage-ppgemm-ws-pregs-cl1-rare-dynamic-longest-split", "0c279e4024bfbaa0"},
    {"sm_90a", "fwd-bf16-d128", "hopper-q64-kv128-s2-qs2-whole-2stage-ppoff-ws-pregs-cl1-rare-dynamic-natural-split",
     "add612013b965b39"},
    // Ways that no default takes.
    {"sm_80", "fwd-bf16-d64-causal", "mma-q64-kv64-w4-k1-v1-c1-serial-linear-x2-qregs-always-natural",
     "8b669fa84c4ba0b0"},
    {"sm_90a", "fwd-bf16-d64", "hopper-q128-kv64-s3-qs1-whole-3stage-ppoff-ws-pregs-cl1-rare-fixed-natural-split",
     "1cfd718e99c0af49"},
    {"sm_90a", "fwd-bf16-d128", "hopper-q128-kv128-s2-qs1-whole-2stage-ppgemm-nows-pregs-cl1-rare-fixed-natural-split",
     "bc04354ddfd6d7e7"},
    {"sm_90a", "fwd-bf16-d128", "hopper-q128-kv64-s2-qs1-whole-2stage-ppoff-ws-psmem-cl1-rare-fixed-natural-split",
     "740aa0384a8cdde0"},
    {"sm_90a", "fwd-bf16-d128-causal",
     "hopper-q128-kv128-s2-qs2-whole-2stage-ppgemm-ws-pregs-cl2-rare-fixed-longest-fused", "9124e633bd285509"},
};

// The instructions of the kernel alone: not where they come from, and no constants that nothing reads.
std::string instructions(const std::string& ptx) {
  std::istringstream lines(ptx.substr(ptx.find(".visible .entry")));
  std::string text;
  for (std::string line; std::getline(lines, line) && line != "}";) {
    const std::size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string::npos) continue;
    const std::string_view rest = std::string_view(line).substr(begin);
    if (!rest.starts_with("//") && !rest.starts_with(".loc")) text.append(rest) += '\n';
  }
  return text;
}

}  // namespace

TEST_CASE("the PTX of plain kernels is what it was") {
  const EngineOptions options = EngineOptions::from_environment();
  runtime::Nvrtc nvrtc({options.nvrtc_path, options.nvrtc_directories});
  if (nvrtc.version() != "13.0") {
    MESSAGE("skipped: the digests are of NVRTC 13.0, this is ", nvrtc.version());
    return;
  }
  const Engine engine;
  for (const Kernel& kernel : kKernels) {
    CAPTURE(kernel.architecture);
    CAPTURE(kernel.problem);
    CAPTURE(kernel.variant);
    const Problem problem = parse_problem(kernel.problem);
    const std::string source = engine.render(problem, parse_variant(kernel.variant), kernel.architecture);
    const std::string ptx = nvrtc.compile(source, "kernel.cu", runtime::ptx_target(kernel.architecture)).bytes;
    CHECK(cache::digest_of(instructions(ptx)).hex().substr(0, 16) == kernel.digest);
  }
}
