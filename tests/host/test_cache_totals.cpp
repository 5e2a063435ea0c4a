// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cache/directory_layer.h"
#include "cache/entry_lock.h"
#include "cache/totals.h"
#include "runtime/kernels/counters.h"
#include "tests/support/cache_entries.h"
#include "tests/support/child_process.h"
#include "tests/support/failing_file_system.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_store.h"

using namespace flashjit;
using namespace flashjit::cache;
using namespace flashjit::tests;

namespace {

constexpr std::chrono::seconds kPatience{60};

struct OneDirectory {
  TemporaryDirectory path;
  FailingFileSystem files;  // that does not fail, and does not wait for the disk
  Directory directory = Directory::open(files, path.path(), Directory::Trust::own);

  bool add(const Totals& added) { return add_to_totals(files, directory, added, kPatience); }
};

}  // namespace

TEST_CASE("totals add up, name by name") {
  OneDirectory one;
  CHECK(read_totals(one.directory).empty());
  CHECK(one.add({{"hits", 2}, {"misses", 0}}));
  CHECK(one.add({{"hits", 3}, {"compiles", 1}}));
  CHECK(read_totals(one.directory) == Totals{{"compiles", 1}, {"hits", 5}, {"misses", 0}});
  CHECK(read_bytes(one.path / "totals.json") == R"({"compiles":1,"flashjit_totals":1,"hits":5,"misses":0})");
  CHECK(count_files(one.path.path(), "") == 2);  // and lock
}

TEST_CASE("totals saturate") {
  OneDirectory one;
  constexpr auto kMax = std::numeric_limits<std::uint64_t>::max();
  CHECK(one.add({{"bytes", kMax - 1}}));
  CHECK(one.add({{"bytes", 7}}));
  CHECK(one.add({{"bytes", kMax}}));
  CHECK(read_totals(one.directory) == Totals{{"bytes", kMax}});
}

TEST_CASE("a file of that name which is not the cache's is neither read nor replaced") {
  OneDirectory one;
  for (const char* foreign :
       {"{", "{}", "[]", "null", "1", R"({"apples":3})", R"({"misses":1,"apples":3})", R"({"misses":-1})",
        R"({"flashjit_totals":1,"misses":1.5})", R"({"flashjit_totals":1,"misses":"1"})",
        R"({"misses":18446744073709551616})", R"({"flashjit_totals":1}x)", "\xff", " "}) {
    INFO("totals ", std::string(foreign));
    write_bytes(one.path / "totals.json", foreign);
    CHECK(read_totals(one.directory).empty());
    CHECK_FALSE(one.add({{"hits", 1}}));
    CHECK(read_bytes(one.path / "totals.json") == foreign);
    CHECK_FALSE(holds_totals(one.directory));
  }
  write_bytes(one.path / "totals.json", std::string(1 << 20, ' ') + R"({"misses":1})");
  CHECK(read_totals(one.directory).empty());
  CHECK_FALSE(one.add({{"hits", 1}}));
}

TEST_CASE("totals that did not say whose they are yet are added to, and so are those that a power cut emptied") {
  OneDirectory one;
  write_bytes(one.path / "totals.json", R"({"compiles":2,"misses":5})");
  CHECK(holds_totals(one.directory));
  CHECK(one.add({{"misses", 1}}));
  CHECK(read_totals(one.directory) == Totals{{"compiles", 2}, {"misses", 6}});
  write_bytes(one.path / "totals.json", "");
  CHECK(one.add({{"misses", 1}}));
  CHECK(read_totals(one.directory) == Totals{{"misses", 1}});
}

TEST_CASE("totals that others may write to, or that are a symbolic link, are not ours") {
  OneDirectory one;
  CHECK(one.add({{"hits", 1}}));
  const auto file = one.path / "totals.json";
  SUBCASE("mode 0666") { std::filesystem::permissions(file, std::filesystem::perms(0666)); }
  SUBCASE("a link") {
    std::filesystem::rename(file, one.path / "elsewhere");
    std::filesystem::create_symlink(one.path / "elsewhere", file);
  }
  CHECK(read_totals(one.directory).empty());
  CHECK_FALSE(one.add({{"hits", 5}}));
  CHECK_FALSE(holds_totals(one.directory));
}

TEST_CASE("nothing is added while others add, or where nothing can be locked") {
  OneDirectory one;
  {
    EntryLock lock(one.files, one.directory, EntryLock::kTotalsByte);
    REQUIRE(lock.try_lock() == EntryLock::State::held);
    CHECK_FALSE(add_to_totals(one.files, one.directory, {{"hits", 1}}, std::chrono::milliseconds(3)));
  }
  CHECK(one.add({{"hits", 1}}));
  one.files.fail_each(FailingFileSystem::Call::lock, ENOLCK);
  CHECK_FALSE(one.add({{"hits", 1}}));
  CHECK(read_totals(one.directory) == Totals{{"hits", 1}});
}

TEST_CASE("nothing is added to a directory that is not there") {
  const TemporaryDirectory directory;
  const Directory missing = Directory::open(system_calls(), directory / "missing", Directory::Trust::own);
  CHECK_FALSE(add_to_totals(system_calls(), missing, {{"hits", 1}}, kPatience));
  CHECK(read_totals(missing).empty());
}

TEST_CASE("a name that is no text is not added") {
  OneDirectory one;
  CHECK_FALSE(one.add({{"\xff", 1}}));
  CHECK(count_files(one.path.path(), "totals.json") == 0);
}

TEST_CASE("what threads add at once is all counted") {
  OneDirectory one;
  constexpr int kThreads = 4, kAdditions = 25;
  std::atomic<std::uint64_t> added{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < kAdditions; ++j) added += one.add({{"hits", 1}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(added == kThreads * kAdditions);
  CHECK(read_totals(one.directory) == Totals{{"hits", added}});
}

TEST_CASE("what 32 processes add at once as they end is all counted") {
  constexpr int kProcesses = 32;
  const TemporaryDirectory directory;
  Pipe start;
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < kProcesses; ++i) {
    children.push_back(std::make_unique<Child>([&] {
      start.close_writer();
      start.wait();  // until the parent closes its end too: then all go at once
      FakeCompiler compiler;
      TestStore store(directory / "cache", compiler);
      const bool got = store.gets(1);
      store.flush_totals();
      return got;
    }));
  }
  start.close_writer();
  for (const auto& child : children) CHECK(child->succeeded());
  const Counters totals = runtime::to_counters(UserDirectoryLayer(directory / "cache").totals());
  CHECK(totals.compiles == 1);
  CHECK(totals.misses == 1);
  CHECK(totals.user_hits == kProcesses - 1);
}
