// SPDX-License-Identifier: Apache-2.0
// How the user's directory is kept below its size, swept and cleared.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <filesystem>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "cache/directory_layer.h"
#include "cache/entry_name.h"
#include "cache/totals.h"
#include "tests/support/cache_entries.h"
#include "tests/support/failing_file_system.h"
#include "tests/support/temporary_directory.h"

using namespace flashjit::cache;
using namespace flashjit::tests;
namespace fs = std::filesystem;

namespace {

using Why = Collected::Removed::Why;

constexpr std::int64_t kMinute = 60, kHour = 60 * kMinute, kDay = 24 * kHour;

// What follows the name of a file whose writer was killed.
constexpr const char* kLeft = ".1.0123456789abcdef.tmp";
constexpr const char* kSource = "// kernel\n// Rendered by libflashjit. One self-contained file\n";

std::int64_t now() { return std::time(nullptr); }

void set_time(const fs::path& file, std::int64_t seconds) {
  const timespec times[] = {{seconds, 0}, {seconds, 0}};
  REQUIRE(::utimensat(AT_FDCWD, file.c_str(), times, AT_SYMLINK_NOFOLLOW) == 0);
}

std::int64_t time_of(const fs::path& file) {
  struct stat status {};
  REQUIRE(::stat(file.c_str(), &status) == 0);
  return status.st_mtime;
}

// The files of the entries "0", "1", ...; all of one size.
struct Entries {
  TemporaryDirectory directory;
  fs::path cache = directory / "cache";
  FailingFileSystem files;  // that does not fail, and does not wait for the disk
  UserDirectoryLayer layer{cache, {}, files};
  std::vector<fs::path> stored;
  std::uint64_t bytes = 0;  // of each

  explicit Entries(int count) {
    for (int i = 0; i < count; ++i) {
      stored.push_back(layer.store(make_key(std::to_string(i)), make_entry("payload")).value_or(""));
    }
    bytes = fs::file_size(stored.at(0));
  }
  void set_times(const std::vector<std::int64_t>& times) {
    for (std::size_t i = 0; i < times.size(); ++i) set_time(stored.at(i), times[i]);
  }
  // The numbers of the entries that go, in that order, when only so many stay.
  std::vector<int> evict(std::uint64_t count, bool dry_run = false) {
    std::vector<int> evicted;
    for (const Collected::Removed& removed : layer.collect(count * bytes, dry_run).removed) {
      CHECK(removed.why == Why::evicted);
      CHECK(removed.bytes == bytes);
      evicted.push_back(static_cast<int>(std::find(stored.begin(), stored.end(), removed.path) - stored.begin()));
    }
    return evicted;
  }
};

std::vector<std::string> paths_of(const Collected& collected) {
  std::vector<std::string> paths;
  for (const Collected::Removed& removed : collected.removed) paths.push_back(removed.path);
  return paths;
}

// Knows at each moment how many bytes of entries there are.
class Accountant : public FailingFileSystem {
 public:
  int rename_at(int directory, const char* from, const char* to) override {
    const std::lock_guard lock(mutex_);
    struct stat status {};
    FileSystem::status_at(directory, from, status);
    const int result = FailingFileSystem::rename_at(directory, from, to);
    if (result == 0) bytes_[to] = static_cast<std::uint64_t>(status.st_size);
    if (result == 0) most_ = std::max(most_, sum());
    return result;
  }
  int unlink_at(int directory, const char* name) override {
    const std::lock_guard lock(mutex_);
    const int result = FailingFileSystem::unlink_at(directory, name);
    if (result == 0) bytes_.erase(name);
    return result;
  }
  std::uint64_t most() const { return most_; }

 private:
  std::uint64_t sum() const {
    return std::accumulate(bytes_.begin(), bytes_.end(), std::uint64_t{0},
                           [](std::uint64_t sum, const auto& file) { return sum + file.second; });
  }

  std::mutex mutex_;
  std::map<std::string, std::uint64_t> bytes_;
  std::uint64_t most_ = 0;
};

}  // namespace

TEST_CASE("what was not used for longest goes first, and only as much as must") {
  Entries entries(5);
  entries.set_times({now() - 3 * kDay, now() - kDay, now() - 5 * kDay, now() - 2 * kDay, now() - 4 * kDay});
  CHECK(entries.evict(5).empty());
  CHECK(entries.evict(2) == std::vector<int>{2, 4, 0});
  CHECK(entries.layer.evicted() == 3);
  const Collected rest = entries.layer.collect(entries.bytes * 2 - 1, false);
  CHECK(paths_of(rest) == std::vector<std::string>{entries.stored[3].string()});
  CHECK(rest.kept_entries == 1);
  CHECK(rest.kept_bytes == entries.bytes);
  CHECK(entries.evict(0) == std::vector<int>{1});
  CHECK(entries.layer.list().empty());
}

TEST_CASE("of entries used at the same time the first by name goes first") {
  Entries entries(8);
  entries.set_times(std::vector<std::int64_t>(8, now() - kDay));
  std::vector<std::string> names;
  for (const Collected::Removed& removed : entries.layer.collect(0, false).removed) {
    names.push_back(fs::path(removed.path).filename());
  }
  CHECK(names.size() == 8);
  CHECK(std::is_sorted(names.begin(), names.end()));
}

TEST_CASE("a time in the future counts as now") {
  Entries entries(4);
  std::sort(entries.stored.begin(), entries.stored.end());  // all names are equal up to the digest
  entries.set_times({now() + 300 * kDay, now() - kMinute, now() + kDay, now() - kHour});
  CHECK(entries.evict(0) == std::vector<int>{3, 1, 0, 2});
}

TEST_CASE("an entry that is found was used, and stays") {
  Entries entries(3);
  entries.set_times({now() - 3 * kDay, now() - 2 * kDay, now() - kDay});
  CHECK(entries.layer.find(make_key("0")).entry);
  CHECK(entries.layer.find(make_key("1", "")).entry);
  CHECK(entries.evict(2) == std::vector<int>{2});
}

TEST_CASE("use is noted once an hour, and where the clock was set back") {
  Entries entries(1);
  const fs::path& file = entries.stored[0];
  const auto time_after_use = [&](std::int64_t before) {
    set_time(file, before);
    CHECK(entries.layer.find(make_key("0")).entry);
    return time_of(file);
  };
  const std::int64_t start = now();
  for (const std::int64_t noted : {-30 * kMinute, std::int64_t{0}, 30 * kMinute}) {
    CHECK(time_after_use(start + noted) == start + noted);
  }
  for (const std::int64_t old : {-2 * kHour, 2 * kHour, -20'000 * kDay, 20'000 * kDay}) {
    const std::int64_t after = time_after_use(start + old);
    CHECK(after >= start);
    CHECK(after <= now());
  }
  set_time(file, start - kDay);
  entries.files.set_clock_ahead(-kDay - 5 * kMinute);
  CHECK(entries.layer.find(make_key("0")).entry);
  CHECK(time_of(file) == start - kDay);
}

TEST_CASE("what is not found by its user is not marked as used") {
  Entries entries(1);
  set_time(entries.stored[0], now() - kDay);
  const std::int64_t before = time_of(entries.stored[0]);
  CHECK(DirectoryLayer(entries.cache).find(make_key("0")).entry);
  for (const StoredEntry& entry : entries.layer.list()) CHECK(entry.read());
  CHECK_FALSE(entries.layer.find(make_key("0", "nvrtc-12.9")).entry);
  CHECK(time_of(entries.stored[0]) == before);
  CHECK(entries.layer.list().at(0).last_used == before);
}

TEST_CASE("temporary files of another hour are swept, those of this hour are somebody's") {
  Entries entries(1);
  fs::create_directory(entries.cache / "failed");
  std::vector<std::string> swept;
  for (const fs::path& file : {entries.cache / "totals.json", entries.cache / "failed/a.cu", entries.stored[0]}) {
    for (const auto& [name, age] : std::map<std::string, std::int64_t>{{".1.0123456789abcdef.tmp", 2 * kHour},
                                                                       {".2.0123456789abcdef.tmp", 30 * kMinute},
                                                                       {".3.0123456789abcdef.tmp", -30 * kMinute},
                                                                       {".4.0123456789abcdef.tmp", -2 * kHour}}) {
      const fs::path left = file.string() + name;
      write_bytes(left, "half");
      set_time(left, now() - age);
      if (std::abs(age) > kHour) swept.push_back(left);
    }
  }
  const Collected collected = entries.layer.collect(entries.bytes, false);
  std::vector<std::string> removed = paths_of(collected);
  std::sort(swept.begin(), swept.end());
  std::sort(removed.begin(), removed.end());
  CHECK(removed == swept);
  CHECK(count_files(entries.cache, ".tmp") == 6);
  for (const Collected::Removed& file : collected.removed) CHECK(file.why == Why::temporary);
  CHECK(collected.kept_entries == 1);
  entries.files.set_clock_ahead(2 * kHour);
  entries.layer.collect(entries.bytes, false);
  CHECK(count_files(entries.cache, ".tmp") == 0);
}

TEST_CASE("a layer's first store sweeps what killed writers left") {
  Entries entries(1);
  const fs::path left = entries.stored[0].string() + kLeft;
  write_bytes(left, "half");
  set_time(left, now() - kDay);
  CHECK(UserDirectoryLayer(entries.cache).store(make_key("0"), make_entry("x")));
  CHECK_FALSE(fs::exists(left));
}

TEST_CASE("entries that were set aside go when asked, and by themselves only when there is too much") {
  Entries entries(4);
  const fs::path bad = entries.stored[0].string() + ".bad";
  fs::rename(entries.stored[0], bad);
  CHECK(UserDirectoryLayer(entries.cache, {}, entries.files).store(make_key("1"), make_entry("payload")));
  CHECK(fs::exists(bad));
  SUBCASE("asked") {
    const Collected collected = entries.layer.collect(100 * entries.bytes, false);
    CHECK(paths_of(collected) == std::vector<std::string>{bad.string()});
    CHECK(collected.removed[0].why == Why::damaged);
    CHECK(collected.kept_entries == 3);
  }
  SUBCASE("too much") {
    UserDirectoryLayer small(entries.cache, {6 * entries.bytes}, entries.files);
    CHECK(small.store(make_key("4"), make_entry("payload")));
    CHECK(count_files(entries.cache, ".fjc") == 4);
    CHECK(small.evicted() == 0);
  }
  CHECK_FALSE(fs::exists(bad));
}

TEST_CASE("a dry run tells what a run does, and does nothing") {
  Entries entries(6);
  entries.set_times({now() - 3 * kDay, now() - kDay, now() - 5 * kDay, now() - kDay, now() + kDay, now()});
  fs::rename(entries.stored[3], entries.stored[3].string() + ".bad");
  write_bytes(entries.cache / std::string("totals.json").append(kLeft), "half");
  set_time(entries.cache / std::string("totals.json").append(kLeft), now() - kDay);
  const int before = count_files(entries.cache, "");
  const auto check_equal = [&](const Collected& planned, const Collected& done) {
    REQUIRE(paths_of(planned) == paths_of(done));
    CHECK(planned.kept_entries == done.kept_entries);
    CHECK(planned.kept_bytes == done.kept_bytes);
    for (std::size_t i = 0; i < done.removed.size(); ++i) CHECK(planned.removed[i].why == done.removed[i].why);
  };
  const Collected planned = entries.layer.collect(3 * entries.bytes, true);
  const Collected planned_clear = entries.layer.clear(true);
  CHECK(count_files(entries.cache, "") == before);
  CHECK(entries.layer.evicted() == 0);
  CHECK(planned.removed.size() == 4);
  CHECK(planned_clear.removed.size() == 7);
  check_equal(planned, entries.layer.collect(3 * entries.bytes, false));
  const Collected planned_rest = entries.layer.clear(true);
  check_equal(planned_rest, entries.layer.clear(false));
}

TEST_CASE("clearing removes all that the cache has put there, and nothing of others") {
  Entries entries(3);
  CHECK(entries.layer.lock(make_key("0")).try_lock() == EntryLock::State::held);
  const Directory directory = Directory::open(entries.files, entries.cache, Directory::Trust::own);
  CHECK(add_to_totals(entries.files, directory, {{"hits", 1}}, std::chrono::seconds(60)));
  fs::create_directory(entries.cache / "failed");
  write_bytes(entries.cache / "failed/kernel.cu", kSource);
  fs::rename(entries.stored[0], entries.stored[0].string() + ".bad");
  write_bytes(entries.stored[1].string() + kLeft, "half");
  write_bytes(entries.cache / "precious", "x");
  write_bytes(entries.stored[2].parent_path() / "notes.txt", "x");
  fs::create_directories(entries.cache / "deep/er");
  write_bytes(entries.cache / "deep/er/x.fjc", "x");

  CHECK(entries.layer.collect(0, false).removed.size() == 3);  // two entries, and the one that was set aside
  CHECK(fs::exists(entries.cache / "failed/kernel.cu"));
  const Collected cleared = entries.layer.clear(false);
  CHECK(cleared.removed.size() == 3);  // a source, the totals, a file that was being written
  CHECK(cleared.kept_entries == 0);
  for (const Collected::Removed& removed : cleared.removed) CHECK(removed.why == Why::cleared);
  std::vector<std::string> left;
  for (const auto& entry : fs::recursive_directory_iterator(entries.cache)) {
    if (!entry.is_directory()) left.push_back(entry.path().filename());
  }
  std::sort(left.begin(), left.end());
  CHECK(left == std::vector<std::string>{"CACHEDIR.TAG", "lock", "notes.txt", "precious", "x.fjc"});
  CHECK_FALSE(fs::exists(entries.cache / "failed"));
  CHECK_FALSE(fs::exists(entries.stored[0].parent_path()));
  CHECK(entries.layer.store(make_key("0"), make_entry("again")));
}

TEST_CASE("what cannot be removed is not said to be removed") {
  Entries entries(2);
  entries.files.fail_each(FailingFileSystem::Call::unlink, EACCES);
  const Collected collected = entries.layer.collect(0, false);
  CHECK(collected.removed.empty());
  CHECK(collected.kept_entries == 2);
  CHECK(collected.kept_bytes == 2 * entries.bytes);
  CHECK(entries.layer.clear(false).removed.empty());
  CHECK(entries.layer.evicted() == 0);
}

TEST_CASE("what others remove meanwhile is neither removed nor left") {
  Entries entries(2);
  entries.files.fail_each(FailingFileSystem::Call::unlink, ENOENT);
  const Collected collected = entries.layer.collect(0, false);
  CHECK(collected.removed.empty());
  CHECK(collected.kept_entries == 0);
}

TEST_CASE("reasons have the names that the command prints") {
  CHECK(std::string(to_string(Why::evicted)) == "evicted");
  CHECK(std::string(to_string(Why::temporary)) == "temporary");
  CHECK(std::string(to_string(Why::damaged)) == "damaged");
  CHECK(std::string(to_string(Why::cleared)) == "cleared");
}

TEST_CASE("a full directory makes room for what is new, down to three quarters") {
  const TemporaryDirectory directory;
  FailingFileSystem files;
  constexpr std::uint64_t kMaxBytes = 64 * 1024;
  UserDirectoryLayer layer(directory / "cache", {kMaxBytes}, files);
  std::uint64_t stored = 0;
  for (int i = 0; i < 200; ++i) {
    const auto file = layer.store(make_key(std::to_string(i)), make_entry(std::string(700, 'x')));
    REQUIRE(file);
    set_time(*file, now() - 1000 + i);
    ++stored;
    CHECK(layer.find(make_key(std::to_string(i))).entry);
  }
  const Collected left = layer.collect(kMaxBytes, false);
  CHECK(left.removed.empty());
  CHECK(left.kept_bytes <= kMaxBytes / 4 * 3 + kMaxBytes / 64);
  CHECK(left.kept_bytes > kMaxBytes / 2);
  CHECK(layer.evicted() == stored - left.kept_entries);
  CHECK_FALSE(layer.find(make_key("0")).entry);
}

TEST_CASE("an entry of any size up to the whole is stored, and then the rest makes way") {
  const TemporaryDirectory directory;
  FailingFileSystem files;
  Accountant accountant;
  constexpr std::uint64_t kMaxBytes = 100'000;
  UserDirectoryLayer layer(directory / "cache", {kMaxBytes}, accountant);
  for (int i = 0; i < 20; ++i) {
    const std::string inputs = std::to_string(i);
    CHECK(layer.store(make_key(inputs), make_entry(std::string(static_cast<std::size_t>(i) * 4900, 'x'))));
    CHECK(layer.find(make_key(inputs)).entry);
  }
  CHECK(accountant.most() <= kMaxBytes);
}

TEST_CASE("threads of several layers that write at once stay below the size together") {
  const TemporaryDirectory directory;
  Accountant accountant;
  constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 20;
  constexpr int kLayers = 4, kThreadsOfLayer = 2, kStores = 40;
  std::atomic<int> stored{0};
  std::vector<std::unique_ptr<UserDirectoryLayer>> layers;
  std::vector<std::thread> threads;
  for (int i = 0; i < kLayers; ++i) {
    layers.push_back(
        std::make_unique<UserDirectoryLayer>(directory / "cache", UserDirectoryOptions{kMaxBytes}, accountant));
    for (int j = 0; j < kThreadsOfLayer; ++j) {
      threads.emplace_back([&stored, &layer = *layers.back(), thread = std::to_string(i) + '.' + std::to_string(j)] {
        for (int k = 0; k < kStores; ++k) {
          const Key key = make_key(thread + '.' + std::to_string(k));
          stored +=
              layer.store(key, make_entry(std::string(9000 + 100 * static_cast<std::size_t>(k), 'x'))).has_value();
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(stored == kLayers * kThreadsOfLayer * kStores);
  CHECK(accountant.most() <= kMaxBytes);
  CHECK(accountant.most() > kMaxBytes / 2);
  std::uint64_t evicted = 0;
  for (const auto& layer : layers) evicted += layer->evicted();
  CHECK(evicted + static_cast<std::uint64_t>(count_files(directory.path(), ".fjc")) ==
        static_cast<std::uint64_t>(stored));
  CHECK(count_files(directory.path(), ".tmp") == 0);
}
