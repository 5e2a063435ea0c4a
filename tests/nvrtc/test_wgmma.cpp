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

// Text of an asm statement that sets the registers s0 and on.
std::string scores_set_to_operand(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += fmt::format("mov.f32 s{}, %0; ", i);
  return text;
}

constexpr const char* kWait =
    "  asm volatile(\"wgmma.commit_group.sync.aligned;\" ::: \"memory\");\n"
    "  asm volatile(\"wgmma.wait_group.sync.aligned 0;\" ::: \"memory\");\n";
constexpr const char* kFence = "  asm volatile(\"wgmma.fence.sync.aligned;\" ::: \"memory\");\n";

// A kernel that uses all functions of the scores of so many keys.
std::string kernel_of_scores(DType dtype, int keys) {
  const std::string type = fmt::format("Scores{}", keys);
  const bool drops = keys % 32 == 0;
  const std::string drop = fmt::format(
      "  asm volatile(\".reg .b32 p<{0}>;\");\n"
      "  const auto kept = [&](int column) {{ return KeptPairs{{{{hidden, hidden, hidden, uint32(column)}}}}; }};\n"
      "  if (hidden != 1) Scores{1}::exponentiate(0.5f, {{x[0], x[1]}}, x, kept, kept, hidden);\n"
      "  asm volatile(\"mov.b32 %0, p{2};\" : \"=r\"(fragment[0]));\n",
      keys / 4, keys, keys / 4 - 1);
  return generator::render(generator::ScoreMatrix{.type = type,
                                                  .registers = "s",
                                                  .dtype = dtype,
                                                  .keys = keys,
                                                  .steps = 2,
                                                  .key_row_bytes = 128,
                                                  .packs = true,
                                                  .probabilities = drops ? "p" : ""}) +
         fmt::format(
             "extern \"C\" __global__ void scores_{0}(uint32* out, uint64 q, uint64 k, uint32 hidden) {{\n"
             "  const uint64 a[2] = {{q, q + 2}}, b[2] = {{k, k + 2}};\n"
             "  const uint32 words[2][{1}] = {{{{hidden}}, {{hidden}}}};\n"
             "  uint32 fragment[4] = {{hidden, 1, 2, 3}};\n"
             "  float x[2];\n"
             "  uint32 pairs[{2}];\n"
             "  Scores{0}::declare();\n"
             "{3}  Scores{0}::issue(a, b);\n{4}"
             "  if (hidden != 0) {{\n    Scores{0}::clear();\n    Scores{0}::add(fragment, hidden);\n  }}\n"
             "  Scores{0}::hide(words);\n  Scores{0}::maximum(x);\n  Scores{0}::subtract(x);\n"
             "{5}  Scores{0}::exponentiate(0.5f, {{x[0], x[1]}}, x);\n"
             "  Scores{0}::pack(pairs);\n"
             "  for (int i = 0; i < {2}; ++i) out[threadIdx.x * {2} + i] = pairs[i] + (x[0] > x[1]) + fragment[0];\n"
             "}}\n",
             keys, (keys + 127) / 128, keys / 4, kFence, kWait, drops ? drop : "");
}

// One that uses all functions of an output of so many columns, and of probabilities in registers.
std::string kernel_of_output(DType dtype, int columns, bool p_in_registers) {
  constexpr int kKeys = 32;
  const std::string name = fmt::format("{}{}", p_in_registers ? "Kept" : "Stored", columns);
  const std::string output = "Output" + name, probabilities = "Probabilities" + name;
  return generator::render(generator::ProbabilityMatrix{
             .type = probabilities, .registers = "p", .dtype = dtype, .keys = kKeys, .scores = "s"}) +
         generator::render(generator::OutputMatrix{.type = output,
                                                   .registers = "o",
                                                   .dtype = dtype,
                                                   .columns = columns,
                                                   .steps = kKeys / 16,
                                                   .probabilities = p_in_registers ? "p" : ""}) +
         fmt::format(
             "extern \"C\" __global__ void output_{0}(uint32* out, uint64 p, uint64 v, float x, uint32 adds) {{\n"
             "  const uint64 a[2] = {{p, p + 2}}, b[2] = {{v, v + 2}};\n"
             "  uint32 pairs[{1}];\n"
             "  asm volatile(\".reg .f32 s<{2}>;\");\n"
             "  asm volatile(\"{3}\" ::\"f\"(x));\n"
             "  Probabilities{0}::declare();\n  Output{0}::declare();\n  Probabilities{0}::keep();\n"
             "{4}  Output{0}::issue({5}b, 0);\n  Output{0}::issue({5}b, adds);\n{6}"
             "  Output{0}::multiply({{x, x}});\n  Output{0}::pack(pairs);\n"
             "  for (int i = 0; i < {1}; ++i) out[threadIdx.x * {1} + i] = pairs[i] + (a[0] == a[1]);\n"
             "}}\n",
             name, columns / 4, kKeys / 2, scores_set_to_operand(kKeys / 2), kFence, p_in_registers ? "" : "a, ",
             kWait);
}

}  // namespace

TEST_SUITE_BEGIN("wgmma");

TEST_CASE("matrices of all widths compile, without spills") {
  Nvrtc nvrtc = make_nvrtc();
  const Disassembler disassembler;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    std::string source =
        "using uint32 = unsigned int;\nusing uint64 = unsigned long long;\nusing SmemAddress = uint32;\n"
        "struct KeptPairs {\n  uint32 x[4];\n};\n";
    for (int keys = 16; keys <= 256; keys += 16) source += kernel_of_scores(dtype, keys);
    for (int columns = 8; columns <= 256; columns += 8)
      for (const bool p_in_registers : {false, true}) source += kernel_of_output(dtype, columns, p_in_registers);
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
