// SPDX-License-Identifier: Apache-2.0
// Real kernels: many processes on one cache, the same cache elsewhere, another compiler, and compilers that fail.
#include <doctest/doctest.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "flashjit/cache.h"
#include "flashjit/engine.h"
#include "flashjit/error.h"
#include "tests/nvrtc/small_kernel_engine.h"
#include "tests/support/cache_entries.h"
#include "tests/support/temporary_directory.h"

using namespace flashjit;
using namespace flashjit::tests;

namespace {

namespace fs = std::filesystem;

constexpr const char* kChildDirectory = "FLASHJIT_TEST_CHILD_DIRECTORY";
constexpr int kHeadDims[] = {32, 64};

// This program again, running one of its skipped test cases. Forking alone would not do: NVRTC has been used here.
pid_t spawn_child(const char* test_case) {
  const std::string filter = std::string("--test-case=") + test_case;
  char name[] = "test_nvrtc", no_skip[] = "--no-skip";
  std::vector<char> filter_text(filter.c_str(), filter.c_str() + filter.size() + 1);
  char* arguments[] = {name, filter_text.data(), no_skip, nullptr};
  pid_t child = 0;
  REQUIRE(posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments, environ) == 0);
  return child;
}

bool succeeds(pid_t child) {
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// A line that a child appends to a file, in one piece.
struct Report {
  std::uint64_t compiles = 0, hits = 0, waits = 0, timeouts = 0, failures = 0;
  std::size_t cubin_bytes = 0;
};

std::vector<Report> read_reports(const fs::path& file) {
  std::vector<Report> reports;
  std::ifstream stream(file);
  for (Report r; stream >> r.compiles >> r.hits >> r.waits >> r.timeouts >> r.failures >> r.cubin_bytes;)
    reports.push_back(r);
  return reports;
}

void compile_all(Engine& engine) {
  for (const int head_dim : kHeadDims) CHECK(compile_small(engine, head_dim).cubin_bytes > 0);
}

// The templates with a line more at the end of the file that the small kernel is in.
void copy_templates(const fs::path& directory, const std::string& line) {
  fs::copy(FLASHJIT_SOURCE_DIR "/templates", directory, fs::copy_options::recursive);
  std::ofstream(directory / "kernels" / "hopper_forward.cuh", std::ios::app) << "\n" << line << "\n";
}

}  // namespace

TEST_CASE("child: compiles the small kernel and reports" * doctest::skip()) {
  const char* directory = getenv(kChildDirectory);
  REQUIRE(directory != nullptr);
  EngineOptions options = options_in(fs::path(directory) / "cache");
  options.compile_wait = std::chrono::minutes(10);
  Engine engine(options);
  const KernelInfo info = compile_small(engine);
  const Counters counters = engine.counters();
  const std::string line = std::to_string(counters.compiles) + " " + std::to_string(counters.user_hits) + " " +
                           std::to_string(counters.waits) + " " + std::to_string(counters.wait_timeouts) + " " +
                           std::to_string(counters.write_failures) + " " + std::to_string(info.cubin_bytes) + "\n";
  std::ofstream(fs::path(directory) / "reports", std::ios::app) << line;
}

TEST_CASE("sixteen processes that ask for one cold kernel run NVRTC once") {
  constexpr std::size_t kProcesses = 16;
  const TemporaryDirectory directory;
  REQUIRE(setenv(kChildDirectory, directory.path().c_str(), 1) == 0);
  std::vector<pid_t> children;
  for (std::size_t i = 0; i < kProcesses; ++i)
    children.push_back(spawn_child("child: compiles the small kernel and reports"));
  for (const pid_t child : children) CHECK(succeeds(child));
  unsetenv(kChildDirectory);
  const std::vector<Report> reports = read_reports(directory / "reports");
  REQUIRE(reports.size() == kProcesses);
  Report sum;
  for (const Report& report : reports) {
    sum.compiles += report.compiles;
    sum.hits += report.hits;
    sum.waits += report.waits;
    sum.timeouts += report.timeouts;
    sum.failures += report.failures;
    CHECK(report.cubin_bytes == reports[0].cubin_bytes);
  }
  CHECK(sum.compiles == 1);
  CHECK(sum.hits == kProcesses - 1);
  CHECK(sum.timeouts == 0);
  CHECK(sum.failures == 0);
  MESSAGE(sum.waits, " of them waited for the one that compiled");
  CHECK(count_files(directory / "cache", ".fjc") == 1);
  CHECK(count_files(directory / "cache", ".tmp") == 0);
}

TEST_CASE("a cache that is copied to another place serves everything from there") {
  const TemporaryDirectory directory;
  const fs::path original = directory / "original", copy = directory / "further" / "away";
  {
    Engine engine(options_in(original));
    compile_all(engine);
  }
  fs::create_directories(copy.parent_path());
  fs::copy(original, copy, fs::copy_options::recursive);
  fs::remove_all(original);
  Engine user(options_in(copy));
  compile_all(user);
  CHECK(user.counters().user_hits == std::size(kHeadDims));
  CHECK(user.counters().misses == 0);
  EngineOptions options = options_in(directory / "empty");
  options.system_cache_directories = {copy.string()};
  Engine system(options);
  compile_all(system);
  CHECK(system.counters().system_hits == std::size(kHeadDims));
  CHECK(system.counters().misses == 0);
}

TEST_CASE("another build of NVRTC misses everything, and takes nothing away from the first one") {
  const TemporaryDirectory directory;
  const fs::path cache = directory / "cache";
  constexpr int kKernels = static_cast<int>(std::size(kHeadDims));
  Engine first(options_in(cache));
  compile_all(first);
  EngineOptions options = options_in(cache);
  options.nvrtc_path = make_other_nvrtc(first.system().nvrtc_path, directory / "nvrtc").string();
  Engine other(options);
  compile_all(other);
  CHECK(other.counters().user_hits == 0);
  CHECK(other.counters().misses == kKernels);
  CHECK(other.counters().compiles == kKernels);
  CHECK(other.counters().quarantined == 0);
  CHECK(count_files(cache, ".fjc") == 2 * kKernels);
  for (const EngineOptions& either : {options_in(cache), options}) {
    Engine again(either);
    compile_all(again);
    CHECK(again.counters().user_hits == kKernels);
  }
}

TEST_CASE("a source that does not compile publishes nothing and leaves nobody waiting") {
  const TemporaryDirectory directory;
  const fs::path cache = directory / "cache", templates = directory / "templates";
  std::string expected;
  SUBCASE("because of an error in C++") {
    copy_templates(templates, "#error broken on purpose");
    expected = "broken on purpose";
  }
  SUBCASE("because of an error in PTX") {
    copy_templates(templates, "__global__ void broken() { asm volatile(\"broken.on.purpose;\"); }");
    expected = "ptxas";
  }
  EngineOptions options = options_in(cache);
  options.template_directory = templates.string();
  options.compile_wait = std::chrono::minutes(10);  // the test's own time-out comes first
  for (int engines = 0; engines < 2; ++engines) {
    Engine engine(options);
    for (int tries = 0; tries < 2; ++tries) {
      try {
        compile_small(engine);
        FAIL("an Error was expected");
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::compile_failed);
        CHECK(error.log().find(expected) != std::string::npos);
      }
    }
    CHECK(engine.counters().misses == 2);
    CHECK(engine.counters().compiles == 0);
    CHECK(engine.counters().waits == 0);
  }
  CHECK(count_files(cache, ".fjc") == 0);
  CHECK(count_files(cache, ".tmp") == 0);
}

TEST_CASE("child: compiles the small kernel with the default engine" * doctest::skip()) {
  CHECK(compile_small(default_engine()).cubin_bytes > 0);
}

TEST_CASE("what the default engine counted is in the totals when its process has ended") {
  const TemporaryDirectory directory;
  REQUIRE(setenv("FLASHJIT_CACHE_DIR", directory.path().c_str(), 1) == 0);
  for (int i = 0; i < 2; ++i) {
    CHECK(succeeds(spawn_child("child: compiles the small kernel with the default engine")));
  }
  unsetenv("FLASHJIT_CACHE_DIR");
  const Counters totals = Cache(options_in(directory.path())).totals();
  CHECK(totals.compiles == 1);
  CHECK(totals.user_hits == 1);
}
