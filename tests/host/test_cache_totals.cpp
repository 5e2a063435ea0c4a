// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <filesystem>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "cache/entry_lock.h"
#include "cache/totals.h"
#include "tests/support/cache_entries.h"
#include "tests/support/failing_file_system.h"
#include "tests/support/temporary_directory.h"

using namespace flashjit::cache;
using namespace flashjit::tests;

namespace {

struct OneDirectory {
  TemporaryDirectory path;
  FailingFileSystem files;  // that does not fail, and does not wait for the disk
  Directory directory = Directory::open(files, path.path(), Directory::Trust::own);

  bool add(const Totals& added) { return add_to_totals(files, directory, added); }
};

}  // namespace

TEST_CASE("totals add up, name by name") {
  OneDirectory one;
  CHECK(read_totals(one.directory).empty());
  CHECK(one.add({{"hits", 2}, {"misses", 0}}));
  CHECK(one.add({{"hits", 3}, {"compiles", 1}}));
  CHECK(read_totals(one.directory) == Totals{{"compiles", 1}, {"hits", 5}, {"misses", 0}});
  CHECK(read_bytes(one.path / "totals.json") == R"({"compiles":1,"hits":5,"misses":0})");
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

TEST_CASE("damaged totals are none, and are replaced") {
  OneDirectory one;
  for (const char* damaged : {"", "{", "[]", "null", "1", R"({"hits":-1})", R"({"hits":1.5})", R"({"hits":"1"})",
                              R"({"hits":18446744073709551616})", R"({"hits":1}x)", "\xff"}) {
    INFO("totals ", std::string(damaged));
    write_bytes(one.path / "totals.json", damaged);
    CHECK(read_totals(one.directory).empty());
    CHECK(one.add({{"hits", 1}}));
    CHECK(read_totals(one.directory) == Totals{{"hits", 1}});
  }
  write_bytes(one.path / "totals.json", std::string(1 << 20, ' ') + "{}");
  CHECK(read_totals(one.directory).empty());
}

TEST_CASE("totals that others may write to, or that are a symbolic link, are none") {
  OneDirectory one;
  CHECK(one.add({{"hits", 1}}));
  const auto file = one.path / "totals.json";
  SUBCASE("mode 0666") { std::filesystem::permissions(file, std::filesystem::perms(0666)); }
  SUBCASE("a link") {
    std::filesystem::rename(file, one.path / "elsewhere");
    std::filesystem::create_symlink(one.path / "elsewhere", file);
  }
  CHECK(read_totals(one.directory).empty());
  CHECK(one.add({{"hits", 5}}));
  CHECK(read_totals(one.directory) == Totals{{"hits", 5}});
}

TEST_CASE("nothing is added while others add, or where nothing can be locked") {
  OneDirectory one;
  {
    EntryLock lock(one.files, one.directory, EntryLock::kTotalsByte);
    REQUIRE(lock.try_lock() == EntryLock::State::held);
    CHECK_FALSE(one.add({{"hits", 1}}));
  }
  CHECK(one.add({{"hits", 1}}));
  one.files.fail_each(FailingFileSystem::Call::lock, ENOLCK);
  CHECK_FALSE(one.add({{"hits", 1}}));
  CHECK(read_totals(one.directory) == Totals{{"hits", 1}});
}

TEST_CASE("nothing is added to a directory that is not there") {
  const TemporaryDirectory directory;
  const Directory missing = Directory::open(system_calls(), directory / "missing", Directory::Trust::own);
  CHECK_FALSE(add_to_totals(system_calls(), missing, {{"hits", 1}}));
  CHECK(read_totals(missing).empty());
}

TEST_CASE("a name that is no text is not added") {
  OneDirectory one;
  CHECK_FALSE(one.add({{"\xff", 1}}));
  CHECK(count_files(one.path.path(), "totals.json") == 0);
}

TEST_CASE("of totals that threads add at once none is lost that was said to be added") {
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
  CHECK(added > 0);
  CHECK(read_totals(one.directory) == Totals{{"hits", added}});
}
