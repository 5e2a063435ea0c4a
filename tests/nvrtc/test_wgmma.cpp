// SPDX-License-Identifier: Apache-2.0
// The generated products by wgmma, and what becomes of them in a kernel.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "flashjit/engine.h"
#include "generator/source.h"
#include "generator/variant_space.h"
#include "generator/wgmma.h"
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

// The forms of a product in one kernel: A from shared memory or registers, B in both orders, with and without a sum.
std::vector<generator::WgmmaProduct> forms_of(int n) {
  std::vector<generator::WgmmaProduct> forms;
  for (const bool a_in_registers : {false, true})
    for (const bool b_n_major : {false, true})
      forms.push_back(
          {.columns = n, .steps = 2, .a_in_registers = a_in_registers, .b_n_major = b_n_major, .adds = !forms.empty()});
  return forms;
}

std::string kernel_of(DType dtype, int n) {
  std::string products, calls;
  for (const generator::WgmmaProduct& form : forms_of(n)) {
    const std::string name = fmt::format("Product{}{}", n, char('A' + (form.a_in_registers ? 2 : 0) + form.b_n_major));
    products += generator::render_wgmma(name, dtype, form);
    calls += fmt::format("  {}::issue(d, {}, b{});\n", name, form.a_in_registers ? "fragments" : "a",
                         form.adds ? ", a0 != 0" : "");
  }
  return products +
         fmt::format(
             "extern \"C\" __global__ void all_forms_{0}(float* out, uint64 a0, uint64 a1, uint64 b0, uint64 b1) {{\n"
             "  float d[{0}] = {{}};\n"
             "  const uint64 a[2] = {{a0, a1}}, b[2] = {{b0, b1}};\n"
             "  const uint32 t = threadIdx.x, fragments[8] = {{t, t + 1, t + 2, t + 3, t + 4, t + 5, t + 6, t + 7}};\n"
             "  asm volatile(\"wgmma.fence.sync.aligned;\" ::: \"memory\");\n"
             "{1}"
             "  asm volatile(\"wgmma.commit_group.sync.aligned;\" ::: \"memory\");\n"
             "  asm volatile(\"wgmma.wait_group.sync.aligned 0;\" ::: \"memory\");\n"
             "  for (int i = 0; i < {0}; ++i) out[threadIdx.x * {0} + i] = d[i];\n"
             "}}\n",
             n / 2, calls);
}

}  // namespace

TEST_SUITE_BEGIN("wgmma");

TEST_CASE("the products of every N compile in all forms, without spills") {
  Nvrtc nvrtc = make_nvrtc();
  const Disassembler disassembler;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    std::string source = "using uint32 = unsigned int;\nusing uint64 = unsigned long long;\n";
    for (int n = 8; n <= 256; n += 8) source += kernel_of(dtype, n);
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
