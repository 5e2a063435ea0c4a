// SPDX-License-Identifier: Apache-2.0
// The generated matrices of a warpgroup, and what becomes of them in a kernel.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "flashjit/engine.h"
#include "generator/matrices.h"
#include "generator/source.h"
#include "generator/variant_space.h"
#include "runtime/kernels/nvrtc.h"
#include "runtime/kernels/ptxas_log.h"
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

// A kernel of scores with so many keys, and of an output with as many columns, that uses all of their functions.
std::string kernel_of(DType dtype, int n) {
  const std::string scores = fmt::format("Scores{}", n), probabilities = fmt::format("Probabilities{}", n),
                    output = fmt::format("Output{}", n);
  return generator::render(generator::ScoreMatrix{.type = scores,
                                                  .registers = "s",
                                                  .dtype = dtype,
                                                  .keys = n,
                                                  .steps = 2,
                                                  .key_row_bytes = 128,
                                                  .packs = true}) +
         generator::render(generator::ProbabilityMatrix{
             .type = probabilities, .registers = "p", .dtype = dtype, .keys = n, .scores = "s"}) +
         generator::render(generator::OutputMatrix{
             .type = output, .registers = "o", .dtype = dtype, .columns = n, .steps = n / 16, .probabilities = "p"}) +
         fmt::format(
             "extern \"C\" __global__ void all_of_{0}(float* out, uint64 q, uint64 k, uint32 hidden) {{\n"
             "  const uint64 a[2] = {{q, q + 2}}, b[2] = {{k, k + 2}};\n"
             "  uint64 v[{1}];\n"
             "  for (int i = 0; i < {1}; ++i) v[i] = k + i;\n"
             "  float x[2];\n"
             "  const uint32 words[2][{2}] = {{{{hidden}}, {{hidden}}}};\n"
             "  Scores{0}::declare();\n  Probabilities{0}::declare();\n  Output{0}::declare();\n"
             "  asm volatile(\"wgmma.fence.sync.aligned;\" ::: \"memory\");\n"
             "  Scores{0}::issue(a, b);\n"
             "  asm volatile(\"wgmma.commit_group.sync.aligned;\" ::: \"memory\");\n"
             "  asm volatile(\"wgmma.wait_group.sync.aligned 0;\" ::: \"memory\");\n"
             "  Scores{0}::hide(words);\n  Scores{0}::maximum(x);\n  Scores{0}::subtract(x);\n"
             "  Scores{0}::exponentiate(0.5f, {{x[0], x[1]}}, x);\n"
             "  Probabilities{0}::keep();\n"
             "  asm volatile(\"wgmma.fence.sync.aligned;\" ::: \"memory\");\n"
             "  Output{0}::issue(v, hidden);\n"
             "  asm volatile(\"wgmma.commit_group.sync.aligned;\" ::: \"memory\");\n"
             "  asm volatile(\"wgmma.wait_group.sync.aligned 0;\" ::: \"memory\");\n"
             "  Output{0}::multiply(x);\n"
             "  uint32 pairs[{3}];\n"
             "  Output{0}::pack(pairs);\n"
             "  for (int i = 0; i < {3}; ++i) out[threadIdx.x * {3} + i] = pairs[i];\n"
             "}}\n",
             n, n / 16, (n + 127) / 128, n / 4);
}

}  // namespace

TEST_SUITE_BEGIN("wgmma");

TEST_CASE("matrices of all widths compile, without spills") {
  Nvrtc nvrtc = make_nvrtc();
  const Disassembler disassembler;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    std::string source =
        "using uint32 = unsigned int;\nusing uint64 = unsigned long long;\nusing SmemAddress = uint32;\n";
    for (int n = 16; n <= 176; n += 16) source += kernel_of(dtype, n);
    const CompiledImage cubin = nvrtc.compile(source, "wgmma.cu", "sm_90a");
    CHECK(cubin.spill_bytes == 0);
    CHECK(cubin.stack_bytes == 0);
    if (!disassembler.found()) {
      MESSAGE(std::string(Disassembler::kSkipped));
      continue;
    }
    const std::string sass = disassembler.sass(cubin.bytes);
    for (int n = 16; n <= 176; n += 16) {
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
