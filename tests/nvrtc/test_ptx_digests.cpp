// SPDX-License-Identifier: Apache-2.0
// A gate for restructuring: what NVRTC makes of plain kernels of both families. A commit that is meant to change no
// kernel leaves every digest as it is. One that changes some says in its message what that did to the kernels' speed.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
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
    {"sm_80", "fwd-bf16-d64", "mma-q128-kv96-w4-k1-v1-c2-overlap-swizzle-x4-qregs-rare-natural", "d0c10ef7b0d871ab"},
    {"sm_80", "fwd-bf16-d64-causal", "mma-q128-kv32-w4-k2-v2-c3-overlap-swizzle-x4-qsmem-rare-longest",
     "7dd72b9a8e7afa04"},
    {"sm_80", "fwd-f16-d128", "mma-q128-kv64-w4-k2-v1-c2-overlap-swizzle-x4-qsmem-rare-natural", "1749013434833f1a"},
    {"sm_80", "fwd-bf16-d128-causal", "mma-q128-kv64-w4-k2-v1-c2-overlap-swizzle-x4-qsmem-rare-longest",
     "4838a3c68b6954aa"},
    {"sm_80", "fwd-bf16-d256", "mma-q128-kv64-w8-k1-v1-c1-overlap-swizzle-x4-qsmem-rare-natural", "db07e59688f86486"},
    {"sm_80", "fwd-bf16-d192-v128", "mma-q128-kv128-w8-k1-v1-c1-overlap-swizzle-x4-qsmem-rare-natural",
     "08a8f8ea95250a8e"},
    {"sm_90a", "fwd-bf16-d128", "mma-q256-kv64-w8-k2-v3-c1-rotate-swizzle-x4-qsmem-rare-natural", "4433aad116a3c976"},
    {"sm_120a", "fwd-bf16-d40-causal", "mma-q128-kv64-w4-k1-v1-c2-overlap-swizzle-x4-qregs-rare-longest",
     "d5231dc9ed75fa69"},
    {"sm_90a", "fwd-bf16-d64", "hopper-q256-kv64-s4-qs2-whole-2stage-ppoff-ws-pregs-cl1-lazy-fixed-natural-fused",
     "15a9c57b59df26b4"},
    {"sm_90a", "fwd-bf16-d64-causal",
     "hopper-q256-kv64-s4-qs2-whole-2stage-ppgemm-ws-pregs-cl1-lazy-dynamic-longest-fused", "7b4290d13fff69ce"},
    {"sm_90a", "fwd-f16-d128", "hopper-q128-kv128-s2-qs2-whole-2stage-ppgemm-ws-pregs-cl1-lazy-fixed-natural-fused",
     "01ca9a0f03dfce88"},
    {"sm_90a", "fwd-bf16-d128-causal",
     "hopper-q128-kv128-s2-qs2-whole-2stage-ppgemm-ws-pregs-cl1-lazy-dynamic-longest-fused", "f2861e19b82b0d35"},
    {"sm_90a", "fwd-bf16-d256", "hopper-q128-kv64-s2-qs1-half-2stage-ppgemm-ws-pregs-cl1-rare-fixed-natural-split",
     "06c968d3c1267f16"},
    {"sm_90a", "fwd-bf16-d192-v128-causal",
     "hopper-q128-kv128-s2-qs1-half-2stage-ppgemm-ws-pregs-cl1-rare-dynamic-longest-split", "0ed13fe56afab17b"},
    {"sm_90a", "fwd-bf16-d128", "hopper-q64-kv128-s2-qs2-whole-2stage-ppoff-ws-pregs-cl1-rare-dynamic-natural-split",
     "c129cd89b1d31013"},
    {"sm_89", "fwd-bf16-d128-e4m3-e4m3_queries", "mma-q128-kv64-w8-k2-v2-c1-overlap-swizzle-x4-qsmem-rare-natural",
     "404dbd050abbfad0"},
    {"sm_120a", "fwd-bf16-d64-causal-e4m3-e4m3_queries-fast_sums",
     "mma-q128-kv64-w4-k2-v2-c2-overlap-swizzle-x4-qregs-rare-longest", "09b29ec48f2d958a"},
    // Ways that no default takes.
    {"sm_80", "fwd-bf16-d64-causal", "mma-q64-kv64-w4-k1-v1-c1-serial-linear-x2-qregs-always-natural",
     "4cf1c11272ae195c"},
    {"sm_90a", "fwd-bf16-d64", "hopper-q128-kv64-s3-qs1-whole-3stage-ppoff-ws-pregs-cl1-rare-fixed-natural-split",
     "2d280cdbd0a4bd02"},
    {"sm_90a", "fwd-bf16-d128", "hopper-q128-kv128-s2-qs1-whole-2stage-ppgemm-nows-pregs-cl1-rare-fixed-natural-split",
     "a44843a8fcca4f1b"},
    {"sm_90a", "fwd-bf16-d128", "hopper-q128-kv64-s2-qs1-whole-2stage-ppoff-ws-psmem-cl1-rare-fixed-natural-split",
     "6206548535d4b105"},
    {"sm_90a", "fwd-bf16-d128-causal",
     "hopper-q128-kv128-s2-qs2-whole-2stage-ppgemm-ws-pregs-cl2-rare-fixed-longest-fused", "25216b33dd1e70af"},
};

// Numbers registers in the order in which they appear. The compiler's own numbers count what it did not need, too.
class RegisterNames {
 public:
  std::string rename(std::string_view line) {
    std::string renamed;
    for (std::size_t at = 0; at < line.size();) {
      const std::size_t end = end_of_register(line, at);
      renamed += end == at ? std::string(1, line[at]) : name_of(std::string(line.substr(at, end - at)));
      at = std::max(end, at + 1);
    }
    return renamed;
  }

 private:
  // Of "%rd12" at this place; the place itself where there is none.
  static std::size_t end_of_register(std::string_view line, std::size_t at) {
    if (line[at] != '%') return at;
    const std::size_t number = line.find_first_not_of("abcdefghijklmnopqrstuvwxyz", at + 1);
    const std::size_t end = std::min(line.find_first_not_of("0123456789", number), line.size());
    return number == line.npos || number == at + 1 || end == number ? at : end;
  }
  const std::string& name_of(const std::string& name) {
    const auto [known, is_new] = names_.try_emplace(name);
    if (is_new) known->second = name.substr(0, name.find_first_of("0123456789")) + std::to_string(names_.size());
    return known->second;
  }

  std::map<std::string, std::string> names_;
};

// The instructions of the kernel alone: not where they come from, and no constants that nothing reads.
std::string instructions(const std::string& ptx) {
  std::istringstream lines(ptx.substr(ptx.find(".visible .entry")));
  RegisterNames registers;
  std::string text;
  for (std::string line; std::getline(lines, line) && line != "}";) {
    const std::size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string::npos) continue;
    const std::string_view rest = std::string_view(line).substr(begin);
    const bool says_nothing = rest.starts_with("//") || rest.starts_with(".loc") || rest.starts_with(".reg");
    if (!says_nothing) text += registers.rename(rest) + '\n';
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
