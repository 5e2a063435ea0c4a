// SPDX-License-Identifier: Apache-2.0
// The compiler itself.
#include <doctest/doctest.h>
#include <locale.h>

#include <filesystem>
#include <string>
#include <vector>

#include "flashjit/engine.h"
#include "flashjit/error.h"
#include "flashjit/function.h"
#include "generator/source.h"
#include "generator/variant_space.h"
#include "runtime/kernels/nvrtc.h"
#include "runtime/kernels/ptxas_log.h"
#include "tests/support/cache_entries.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;
using runtime::Nvrtc;

Nvrtc make_nvrtc() {
  const EngineOptions options = EngineOptions::from_environment();
  return Nvrtc({options.nvrtc_path, options.nvrtc_directories});
}

constexpr const char* kGood = "extern \"C\" __global__ void add(float* x) { x[threadIdx.x] += 1.0f; }\n";

// Reads a local array at indices that only the run knows.
constexpr const char* kWithStack =
    "extern \"C\" __global__ void pick(float* x, int n) {\n"
    "  float a[64];\n"
    "  for (int i = 0; i < n; ++i) a[i % 64] = x[i];\n"
    "  for (int i = 0; i < n; ++i) x[i] = a[(i * 7) % 64];\n"
    "}\n";

ErrorCode code_of(Nvrtc& nvrtc, const char* source, const char* target) {
  try {
    nvrtc.compile(source, "test.cu", target);
  } catch (const Error& error) {
    return error.code();
  }
  FAIL("an Error was expected");
  return ErrorCode::io;
}

}  // namespace

TEST_CASE("the library is identified by its build without being opened") {
  Nvrtc nvrtc = make_nvrtc();
  const std::string identity = nvrtc.identity();
  CHECK(identity.starts_with("nvrtc-"));
  CHECK(identity.size() == 6 + 16);
  CHECK(identity.find_first_not_of("0123456789abcdef", 6) == std::string::npos);
  CHECK(make_nvrtc().identity() == identity);
  CHECK(nvrtc.path().find("nvrtc") != std::string::npos);
}

TEST_CASE("a kernel compiles to a cubin with its use of registers and stack") {
  Nvrtc nvrtc = make_nvrtc();
  const runtime::CompiledImage cubin = nvrtc.compile(kGood, "test.cu", "sm_80");
  CHECK(cubin.bytes.starts_with("\177ELF"));
  CHECK(cubin.registers > 0);
  CHECK(cubin.stack_bytes == 0);
  CHECK(cubin.spill_bytes == 0);
  CHECK(nvrtc.compile(kWithStack, "test.cu", "sm_80").stack_bytes == 256);
}

TEST_CASE("a virtual target gives PTX with the lines of the source") {
  Nvrtc nvrtc = make_nvrtc();
  const runtime::CompiledImage ptx = nvrtc.compile(kGood, "test.cu", "compute_90a");
  CHECK(ptx.bytes.find(".target sm_90a") != std::string::npos);
  CHECK(ptx.bytes.find(".entry add(") != std::string::npos);
  CHECK(ptx.bytes.find("test.cu") != std::string::npos);
  CHECK(ptx.bytes.find(".loc") != std::string::npos);
  CHECK(ptx.bytes.find('\0') == std::string::npos);
  CHECK(code_of(nvrtc, "", "compute_10") == ErrorCode::unsupported);
}

TEST_CASE("a quotient in a user's text is one instruction, and rows are still divided exactly") {
  Nvrtc nvrtc = make_nvrtc();
  Problem problem;
  problem.score = Score("cap * sin(score / cap)", {{"cap", 20.0}}).source();
  const Architecture& architecture = find_architecture("sm_80");
  const Variant variant = generator::default_variant(problem, architecture, {});
  const generator::Source source = generator::render_forward({problem, variant, architecture});
  const std::string ptx = nvrtc.compile(source.text(), "kernel.cu", "compute_80").bytes;
  CHECK(ptx.find("div.full.f32") != std::string::npos);
  CHECK(ptx.find("div.rn.f32") == std::string::npos);
  CHECK(ptx.find("rcp.rn.f32") != std::string::npos);
}

TEST_CASE("equal sources give equal cubins") {
  Nvrtc nvrtc = make_nvrtc();
  const bool same = nvrtc.compile(kGood, "test.cu", "sm_90a").bytes == nvrtc.compile(kGood, "test.cu", "sm_90a").bytes;
  CHECK(same);
}

TEST_CASE("bad sources and unknown architectures get their own errors, and the next compile succeeds") {
  Nvrtc nvrtc = make_nvrtc();
  CHECK(code_of(nvrtc, "nonsense", "sm_80") == ErrorCode::compile_failed);
  CHECK(code_of(nvrtc, "", "sm_10") == ErrorCode::unsupported);
  CHECK(code_of(nvrtc, "extern \"C\" __global__ void f() { asm(\"no.such.instruction;\"); }", "sm_80") ==
        ErrorCode::compile_failed);
  CHECK_FALSE(nvrtc.compile(kGood, "test.cu", "sm_80").bytes.empty());
}

TEST_CASE("compiling leaves the thread's locale as it was") {
  const locale_t before = uselocale(locale_t{});
  make_nvrtc().compile(kGood, "test.cu", "sm_80");
  CHECK(uselocale(locale_t{}) == before);
}

TEST_CASE("a library that is cut, or whose builtins are, does not serve, and the next one is taken") {
  namespace fs = std::filesystem;
  const tests::TemporaryDirectory directory;
  const fs::path real = make_nvrtc().path(), cut = directory / "cut", without = directory / "without";
  for (const fs::path& made : {cut, without}) fs::create_directory(made);
  const std::string library = tests::read_bytes(real);
  tests::write_bytes(cut / "libnvrtc.so.13", library.substr(0, library.size() / 2));
  fs::copy_file(real, without / "libnvrtc.so.13");
  for (const auto& file : fs::directory_iterator(real.parent_path())) {
    const std::string name = file.path().filename().string();
    if (name.find("nvrtc-builtins.so.") == std::string::npos) continue;
    const std::string builtins = tests::read_bytes(file.path());
    tests::write_bytes(without / name, builtins.substr(0, builtins.size() / 2));
  }
  Nvrtc nvrtc({"", {cut.string(), without.string(), real.parent_path().string()}});
  CHECK(nvrtc.path() == (without / "libnvrtc.so.13").string());
  CHECK_FALSE(nvrtc.compile(kGood, "test.cu", "sm_80").bytes.empty());
  CHECK(nvrtc.path() == real.string());
  const std::vector<std::string> refused = nvrtc.refused();
  REQUIRE(refused.size() == 2);
  CHECK(refused[0].find((cut / "libnvrtc.so.13: is cut: it has ").string()) == 0);
  CHECK(refused[1].find((without / "libnvrtc.so.13: needs libnvrtc-builtins.so.").string()) == 0);
  CHECK(refused[1].find(": is cut: it has ") != std::string::npos);
}
