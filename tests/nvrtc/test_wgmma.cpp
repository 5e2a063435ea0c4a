// SPDX-License-Identifier: Apache-2.0
// The generated wrappers of wgmma, and what becomes of them in a kernel.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "flashjit/engine.h"
#include "generator/source.h"
#include "generator/variant_space.h"
#include "generator/wgmma.h"
#include "runtime/nvrtc.h"
#include "runtime/ptxas_log.h"
#include "tests/nvrtc/disassembler.h"

namespace {

using namespace flashjit;
using runtime::CompiledImage;
using runtime::Nvrtc;
using tests::contains;
using tests::Disassembler;

Nvrtc make_nvrtc() {
  const EngineOptions options = EngineOptions::from_environment();
  return Nvrtc({options.nvrtc_path, options.nvrtc_directories});
}

// A kernel of both forms, each with both orders of B.
std::string kernel_of(int n) {
  return fmt::format(
      "extern \"C\" __global__ void both_forms_{1}(float* out, uint64 a, uint64 b, bool accumulate) {{\n"
      "  float d[{1}] = {{}};\n"
      "  const uint32 fragment[4] = {{threadIdx.x, threadIdx.x + 1, threadIdx.x + 2, threadIdx.x + 3}};\n"
      "  asm volatile(\"wgmma.fence.sync.aligned;\" ::: \"memory\");\n"
      "  {0}::ss<false>(d, a, b, accumulate);\n"
      "  {0}::ss<true>(d, a, b, true);\n"
      "  {0}::rs<false>(d, fragment, b, true);\n"
      "  {0}::rs<true>(d, fragment, b, true);\n"
      "  asm volatile(\"wgmma.commit_group.sync.aligned;\" ::: \"memory\");\n"
      "  asm volatile(\"wgmma.wait_group.sync.aligned 0;\" ::: \"memory\");\n"
      "  for (int i = 0; i < {1}; ++i) out[threadIdx.x * {1} + i] = d[i];\n"
      "}}\n"
      "static_assert({0}::kN == {2}, \"\");\n",
      generator::wgmma_name(n), n / 2, n);
}

}  // namespace

TEST_SUITE_BEGIN("wgmma");

TEST_CASE("the wrappers of every N compile in both forms, without spills") {
  Nvrtc nvrtc = make_nvrtc();
  const Disassembler disassembler;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    std::string source = "using uint32 = unsigned int;\nusing uint64 = unsigned long long;\n";
    for (int n = 8; n <= 256; n += 8) source += generator::render_wgmma(dtype, n) + kernel_of(n);
    const CompiledImage cubin = nvrtc.compile(source, "wgmma.cu", "sm_90a");
    CHECK(cubin.spill_bytes == 0);
    CHECK(cubin.stack_bytes == 0);
    if (!disassembler.found()) {
      MESSAGE(std::string(Disassembler::kSkipped));
      continue;
    }
    const std::string sass = disassembler.sass(cubin.bytes);
    for (int n = 8; n <= 256; n += 8) {
      CAPTURE(n);
      CHECK(contains(sass, fmt::format("HGMMA.64x{}x16.F32{}", n, dtype == DType::bf16 ? ".BF16" : "")));
    }
  }
}

TEST_CASE("the hopper defaults run on HGMMA and touch no local memory") {
  const Disassembler disassembler;
  if (!disassembler.found()) {
    MESSAGE(std::string(Disassembler::kSkipped));
    return;
  }
  Nvrtc nvrtc = make_nvrtc();
  const Architecture& architecture = find_architecture("sm_90a");
  for (const int head_dim : {64, 128, 256})
    for (const bool causal : {false, true})
      for (const KeyRange keys : {KeyRange::below_1k, KeyRange::more}) {
        Problem problem;
        problem.head_dim = problem.head_dim_v = head_dim, problem.causal = causal;
        const Variant variant =
            generator::default_variant(problem, architecture, {QueryRange::more, keys, WorkRange::more});
        const generator::Source source = generator::render_forward({problem, variant, architecture});
        CAPTURE(source.name);
        const std::string sass = disassembler.sass(nvrtc.compile(source.text(), "kernel.cu", architecture.name).bytes);
        CHECK(contains(sass, fmt::format("HGMMA.64x{}x16.F32.BF16", block_kv(variant))));
        CHECK(contains(sass, fmt::format("HGMMA.64x{}x16.F32.BF16", head_dim)));
        CHECK(contains(sass, "UTMALDG"));
        CHECK_FALSE(contains(sass, "LDL"));
        CHECK_FALSE(contains(sass, "STL"));
      }
}

TEST_SUITE_END();
