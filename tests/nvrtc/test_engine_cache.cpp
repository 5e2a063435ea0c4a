// SPDX-License-Identifier: Apache-2.0
// From an engine to NVRTC and the disk and back.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "flashjit/engine.h"
#include "flashjit/error.h"
#include "tests/nvrtc/small_kernel_engine.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;
using namespace flashjit::tests;
namespace fs = std::filesystem;

ErrorCode code_of_compiling(Engine& engine) {
  try {
    compile_small(engine);
  } catch (const Error& error) {
    return error.code();
  }
  FAIL("an Error was expected");
  return ErrorCode::io;
}

std::vector<fs::path> files_below(const fs::path& directory) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(directory, error)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  return files;
}

std::size_t count_entries(const fs::path& directory) {
  const auto files = files_below(directory);
  return static_cast<std::size_t>(
      std::count_if(files.begin(), files.end(), [](const fs::path& file) { return file.extension() == ".fjc"; }));
}

}  // namespace

TEST_CASE("a second engine compiles nothing: the first one filled the disk") {
  const TemporaryDirectory directory;
  Engine first(options_in(directory.path()));
  const KernelInfo compiled = compile_small(first);
  CHECK(compiled.origin == KernelInfo::Origin::compiled);
  CHECK(compiled.compile_ms > 0);
  CHECK(compiled.registers > 0);
  CHECK(compiled.spill_bytes == 0);
  CHECK(compiled.cubin_bytes > 0);
  CHECK(fs::exists(compiled.cache_file));
  CHECK(first.counters().misses == 1);
  CHECK(first.counters().compiles == 1);
  CHECK(compile_small(first).origin == KernelInfo::Origin::memory);
  CHECK(first.counters().memory_hits == 1);

  Engine second(options_in(directory.path()));
  const KernelInfo loaded = compile_small(second);
  CHECK(loaded.origin == KernelInfo::Origin::disk);
  CHECK(loaded.name == compiled.name);
  CHECK(loaded.cache_file == compiled.cache_file);
  CHECK(loaded.cubin_bytes == compiled.cubin_bytes);
  CHECK(loaded.registers == compiled.registers);
  CHECK(loaded.stack_bytes == compiled.stack_bytes);
  CHECK(loaded.threads == compiled.threads);
  CHECK(loaded.shared_memory_bytes == compiled.shared_memory_bytes);
  CHECK(loaded.compile_ms == doctest::Approx(compiled.compile_ms).epsilon(0.001));
  CHECK(second.counters().user_hits == 1);
  CHECK(second.counters().compiles == 0);
}

TEST_CASE("another problem, variant or architecture is another kernel") {
  const TemporaryDirectory directory;
  Engine engine(options_in(directory.path()));
  const Problem problem = small_problem();
  Problem causal = problem;
  causal.causal = true;
  for (const Problem& each : {problem, causal}) {
    engine.compile(each, engine.default_variant(each, "sm_80"), "sm_80");
  }
  engine.compile(problem, engine.default_variant(problem, "sm_89"), "sm_89");
  engine.compile(problem, parse_variant("v3"), "sm_80");
  CHECK(engine.counters().compiles == 4);
  CHECK(count_entries(directory.path()) == 4);
}

TEST_CASE("a problem with a block mask is compiled with what makes one, which kernels of the same predicates share") {
  const TemporaryDirectory directory;
  Engine engine(options_in(directory.path()));
  Problem problem = small_problem();
  problem.mask = Mask("query / 16 == key / 16").source();
  engine.compile(problem, engine.default_variant(problem, "sm_80"), "sm_80");
  CHECK(engine.counters().compiles == 1);
  problem.block_mask = true;
  engine.compile(problem, engine.default_variant(problem, "sm_80"), "sm_80");
  CHECK(engine.counters().compiles == 3);
  problem.head_dim = 32;
  problem.causal = true;
  engine.compile(problem, engine.default_variant(problem, "sm_80"), "sm_80");
  CHECK(engine.counters().compiles == 4);
  CHECK(count_entries(directory.path()) == 4);
}

TEST_CASE("sixteen threads that ask for one cold kernel compile it once") {
  const TemporaryDirectory directory;
  Engine engine(options_in(directory.path()));
  std::vector<KernelInfo> infos(16);
  std::vector<std::thread> threads;
  for (KernelInfo& info : infos) threads.emplace_back([&] { info = compile_small(engine); });
  for (std::thread& thread : threads) thread.join();
  for (const KernelInfo& info : infos) CHECK(info.cubin_bytes == infos[0].cubin_bytes);
  CHECK(infos[0].cubin_bytes > 0);
  CHECK(engine.counters().compiles == 1);
  CHECK(engine.counters().misses == 1);
  CHECK(engine.counters().memory_hits == 15);
}

TEST_CASE("threads that ask for different cold kernels get each its own") {
  const TemporaryDirectory directory;
  Engine engine(options_in(directory.path()));
  std::vector<KernelInfo> infos(4);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] { infos[static_cast<std::size_t>(i)] = compile_small(engine, 16 * (i + 1)); });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 4; ++i) CHECK(infos[static_cast<std::size_t>(i)].problem.head_dim == 16 * (i + 1));
  CHECK(engine.counters().compiles == 4);
}

TEST_CASE("a damaged entry is compiled anew, counted and replaced") {
  const TemporaryDirectory directory;
  Engine first(options_in(directory.path()));
  const fs::path file = compile_small(first).cache_file;
  const std::string intact = read(file);
  const std::string damages[] = {intact.substr(0, intact.size() / 2), "", intact + "x",
                                 std::string(intact.size(), 'x')};
  for (const std::string& damage : damages) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << damage;
    Engine second(options_in(directory.path()));
    CHECK(compile_small(second).origin == KernelInfo::Origin::compiled);
    CHECK(second.counters().quarantined == 1);
    CHECK(second.counters().compiles == 1);
    Engine third(options_in(directory.path()));
    CHECK(compile_small(third).origin == KernelInfo::Origin::disk);
    CHECK(third.counters().quarantined == 0);
  }
}

TEST_CASE("policy off neither reads nor writes the disk") {
  const TemporaryDirectory filled, empty;
  Engine filler(options_in(filled.path()));
  compile_small(filler);
  for (const fs::path& directory : {filled.path(), empty.path()}) {
    EngineOptions options = options_in(directory);
    options.policy = Policy::off;
    Engine engine(options);
    const KernelInfo info = compile_small(engine);
    CHECK(info.origin == KernelInfo::Origin::compiled);
    CHECK(info.cache_file.empty());
  }
  CHECK(files_below(empty.path()).empty());
}

TEST_CASE("policy cache_only takes what is there and compiles nothing") {
  const TemporaryDirectory directory;
  EngineOptions options = options_in(directory.path());
  options.policy = Policy::cache_only;
  Engine early(options);
  CHECK(code_of_compiling(early) == ErrorCode::cache_miss);
  CHECK(files_below(directory.path()).empty());
  Engine filler(options_in(directory.path()));
  compile_small(filler);
  CHECK(compile_small(early).origin == KernelInfo::Origin::disk);
  CHECK(early.counters().compiles == 0);
}

TEST_CASE("a filled cache serves a machine without NVRTC, and one with another NVRTC that only serves") {
  const TemporaryDirectory directory;
  Engine filler(options_in(directory.path()));
  const fs::path file = compile_small(filler).cache_file;

  EngineOptions without = options_in(directory.path());
  without.nvrtc_path = "/nowhere/libnvrtc.so";
  Engine bare(without);
  CHECK(compile_small(bare).cache_file == file.string());
  CHECK(bare.counters().compiles == 0);

  EngineOptions serving = options_in(directory.path());
  serving.nvrtc_path = make_other_nvrtc(filler.system().nvrtc_path, directory / "other").string();
  serving.policy = Policy::cache_only;
  Engine server(serving);
  CHECK(compile_small(server).cache_file == file.string());
  CHECK(server.counters().user_hits == 1);
}

TEST_CASE("a kernel that cannot be stored is used from memory, and the failure is told once") {
  const TemporaryDirectory directory;
  const fs::path file = directory.path() / "file";
  std::ofstream(file) << "in the way";
  EngineOptions options = options_in(file / "cache");
  int warnings = 0;
  options.log = [&](LogLevel level, const std::string&) { warnings += level == LogLevel::warning ? 1 : 0; };
  Engine engine(options);
  CHECK(compile_small(engine).cache_file.empty());
  CHECK(compile_small(engine, 32).cubin_bytes > 0);
  CHECK(compile_small(engine).origin == KernelInfo::Origin::memory);
  CHECK(engine.counters().write_failures == 2);
  CHECK(warnings == 1);
}

TEST_CASE("a source that NVRTC refuses is kept, with the log in the error, and is tried again") {
  const TemporaryDirectory templates, directory;
  fs::copy(FLASHJIT_SOURCE_DIR "/templates", templates.path(), fs::copy_options::recursive);
  const fs::path kernel = templates.path() / "kernels" / "hopper_forward.cuh";
  const std::string good = read(kernel);
  std::ofstream(kernel) << good << "\n#error broken on purpose\n";
  EngineOptions options = options_in(directory.path());
  options.template_directory = templates.path().string();
  Engine engine(options);
  for (int i = 0; i < 2; ++i) {
    try {
      compile_small(engine);
      FAIL("an Error was expected");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::compile_failed);
      CHECK(error.log().find("broken on purpose") != std::string::npos);
      CHECK(error.log().find("hopper_forward.cuh") != std::string::npos);
      CHECK(read(error.source_path()).find("broken on purpose") != std::string::npos);
      CHECK(std::string(error.what()).find(error.source_path()) != std::string::npos);
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
    }
  }
  CHECK(engine.counters().misses == 2);
  CHECK(engine.counters().compiles == 0);
}

TEST_CASE("progress is told before and after each kernel of a request") {
  const TemporaryDirectory directory;
  EngineOptions options = options_in(directory.path());
  std::vector<Progress> told;
  options.progress = [&](const Progress& progress) { told.push_back(progress); };
  Engine engine(options);
  const KernelInfo info = compile_small(engine);
  REQUIRE(told.size() == 2);
  CHECK(told[0].kernel == info.name);
  CHECK(told[0].done == 0);
  CHECK(told[1].done == 1);
  CHECK(told[1].total == 1);
  CHECK(told[1].elapsed_ms >= told[0].elapsed_ms);
}
