// SPDX-License-Identifier: Apache-2.0
// kill -9 at every step of everything that changes the user's directory, and at a thousand moments under load.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cache/directory_layer.h"
#include "cache/entry.h"
#include "cache/totals.h"
#include "tests/support/cache_entries.h"
#include "tests/support/child_process.h"
#include "tests/support/failing_file_system.h"
#include "tests/support/temporary_directory.h"

using namespace flashjit::cache;
using namespace flashjit::tests;

namespace {

namespace fs = std::filesystem;

// Kills this process before a system call of the given number, counted from 1. A write counts twice: the second time
// half of it is done.
class KillingFileSystem : public FailingFileSystem {
 public:
  explicit KillingFileSystem(int fatal_step) : left_(fatal_step) {}

  ssize_t write(int descriptor, const void* buffer, std::size_t bytes) override {
    step();
    if (left_ == 1) FileSystem::write(descriptor, buffer, bytes / 2);
    return FailingFileSystem::write(descriptor, buffer, bytes);
  }

 private:
  bool fails(Call) override {
    step();
    return false;
  }
  void step() {
    if (--left_ == 0) ::raise(SIGKILL);
  }
  int left_;
};

FailingFileSystem unsynced;  // fails nowhere, and does not wait for the disk

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kKills = 200;  // a fork takes some ten times as long
#else
constexpr int kKills = 1000;
#endif
constexpr std::size_t kPayloadBytes = 40000;  // several pages, so that a torn write would show
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 40;

// All letters the same: a mix of two writers' bytes is seen at once.
std::string payload(char letter) { return std::string(kPayloadBytes, letter); }

bool is_whole(const Lookup& lookup) {
  return !lookup.damaged && (!lookup.entry || lookup.entry->payload == payload(lookup.entry->payload.at(0)));
}

// As if the writers had been killed two hours ago.
void age_files(const fs::path& directory) {
  const timespec long_ago = {::time(nullptr) - 7200, 0};
  const timespec times[2] = {long_ago, long_ago};
  for (const auto& file : fs::recursive_directory_iterator(directory)) {
    if (!file.is_directory()) REQUIRE(::utimensat(AT_FDCWD, file.path().c_str(), times, AT_SYMLINK_NOFOLLOW) == 0);
  }
}

const std::set<std::string> kOfTheWhole = {"lock", "totals.json", "CACHEDIR.TAG"};

// Files that are neither entries nor belong to the directory as a whole.
int count_strays(const fs::path& directory) {
  int strays = 0;
  for (const auto& file : fs::recursive_directory_iterator(directory)) {
    const std::string name = file.path().filename().string();
    strays += !file.is_directory() && !name.ends_with(".fjc") && kOfTheWhole.count(name) == 0;
  }
  return strays;
}

// A directory as the next process finds it.
void check_is_sound(const fs::path& cache) {
  UserDirectoryLayer layer(cache, {}, unsynced);
  CHECK(layer.store(make_key("a"), make_entry("after")));
  CHECK(payload_of(layer.find(make_key("a"))) == "after");
  age_files(cache);
  const Collected collected = layer.collect(kNoLimit, false);
  CHECK(collected.kept_entries == static_cast<std::uint64_t>(count_files(cache, ".fjc")));
  CHECK(count_strays(cache) == 0);
  for (const StoredEntry& stored : layer.list()) {
    const auto bytes = stored.read();
    REQUIRE(bytes);
    CHECK(decode(*bytes));
  }
}

// Does work in a child that is killed before each of its system calls in turn, each time on a directory made by
// prepare, and checks what is left. Returns the number of kills.
template <typename Prepare, typename Work, typename Check>
int kill_at_every_step(Prepare prepare, Work work, Check check) {
  for (int step = 1;; ++step) {
    CAPTURE(step);
    const TemporaryDirectory directory;
    const fs::path cache = directory / "cache";
    prepare(cache);
    Child child([&] {
      KillingFileSystem files(step);
      return work(cache, files);
    });
    if (!child.was_killed()) {
      CHECK(child.succeeded());
      return step - 1;
    }
    check(cache);
    check_is_sound(cache);
  }
}

void store_old(const fs::path& cache) {
  REQUIRE(UserDirectoryLayer(cache, {}, unsynced).store(make_key("a"), make_entry(payload('o'))));
}

bool store_new(const fs::path& cache, FileSystem& files) {
  return UserDirectoryLayer(cache, {}, files).store(make_key("a"), make_entry(payload('n'))).has_value();
}

// find() gives one of these payloads, and no damage.
void check_finds(const fs::path& cache, const std::set<std::string>& payloads) {
  const Lookup lookup = UserDirectoryLayer(cache).find(make_key("a"));
  CHECK_FALSE(lookup.damaged);
  CHECK(payloads.count(payload_of(lookup)) == 1);
}

}  // namespace

TEST_CASE("a writer that is killed at any step leaves its entry or none") {
  const int kills = kill_at_every_step([](const fs::path&) {}, store_new,
                                       [](const fs::path& cache) {
                                         check_finds(cache, {"none", payload('n')});
                                       });
  CHECK(kills > 10);
  MESSAGE(kills, " steps");
}

TEST_CASE("a writer that is killed at any step leaves the old entry or its own") {
  const int kills = kill_at_every_step(store_old, store_new, [](const fs::path& cache) {
    check_finds(cache, {payload('o'), payload('n')});
  });
  CHECK(kills > 10);
  MESSAGE(kills, " steps");
}

TEST_CASE("a reader that is killed at any step of setting a damaged entry aside leaves it or nothing") {
  const auto damage = [](const fs::path& cache) {
    store_old(cache);
    write_bytes(*UserDirectoryLayer(cache, {}, unsynced).store(make_key("a"), make_entry("x")), "no entry");
  };
  const auto find = [](const fs::path& cache, FileSystem& files) {
    return UserDirectoryLayer(cache, {}, files).find(make_key("a")).damaged;
  };
  const int kills = kill_at_every_step(damage, find, [](const fs::path& cache) {
    CHECK_FALSE(UserDirectoryLayer(cache).find(make_key("a")).entry);
    CHECK_FALSE(UserDirectoryLayer(cache).find(make_key("a")).damaged);
  });
  CHECK(kills > 5);
}

TEST_CASE("a process that is killed at any step of evicting, collecting or clearing leaves whole entries") {
  constexpr int kEntries = 3;
  const auto fill = [](const fs::path& cache) {
    UserDirectoryLayer layer(cache, {}, unsynced);
    for (int i = 0; i < kEntries; ++i) REQUIRE(layer.store(make_key(std::to_string(i)), make_entry(payload('e'))));
    write_bytes(cache / "totals.json.1.0123456789abcdef.tmp", "half");
    age_files(cache);
  };
  const auto check = [](const fs::path& cache) {
    UserDirectoryLayer layer(cache);
    for (int i = 0; i < kEntries; ++i) CHECK(is_whole(layer.find(make_key(std::to_string(i)))));
  };
  const auto evict = [](const fs::path& cache, FileSystem& files) {
    UserDirectoryLayer layer(cache, {2 * kPayloadBytes}, files);
    return layer.store(make_key("a"), make_entry(payload('n'))) && layer.evicted() > 0;
  };
  const auto collect = [](const fs::path& cache, FileSystem& files) {
    return UserDirectoryLayer(cache, {}, files).collect(2 * kPayloadBytes, false).kept_entries == 1;
  };
  const auto clear = [](const fs::path& cache, FileSystem& files) {
    return UserDirectoryLayer(cache, {}, files).clear(false).kept_entries == 0;
  };
  CHECK(kill_at_every_step(fill, evict, check) > kEntries);
  CHECK(kill_at_every_step(fill, collect, check) > kEntries);
  CHECK(kill_at_every_step(fill, clear, check) > kEntries);
}

TEST_CASE("a process that is killed at any step of adding to the totals leaves the old ones or the new") {
  const auto add = [](const fs::path& cache, FileSystem& files) {
    return add_to_totals(files, Directory::make(files, cache), {{"misses", 2}}, std::chrono::seconds(60));
  };
  const auto prepare = [&](const fs::path& cache) { REQUIRE(add(cache, unsynced)); };
  const int kills = kill_at_every_step(prepare, add, [&](const fs::path& cache) {
    const Totals totals = read_totals(Directory::make(system_calls(), cache));
    REQUIRE(totals.count("misses") == 1);
    CHECK((totals.at("misses") == 2 || totals.at("misses") == 4));
    CHECK(add(cache, unsynced));
  });
  CHECK(kills > 10);
}

TEST_CASE("writers that are killed under load, a thousand of them, harm nobody") {
  constexpr int kAtOnce = 4, kKeys = 5;
  const TemporaryDirectory directory;
  const fs::path cache = directory / "cache";
  const auto key = [](unsigned number) { return make_key(std::to_string(number % kKeys)); };
  const auto store_forever = [&](char letter, FileSystem& files) {
    UserDirectoryLayer layer(cache, {}, files);
    for (unsigned i = 0;; ++i) {
      if (!layer.store(key(i), make_entry(payload(letter)))) return false;
    }
  };
  const auto read_forever = [&] {
    UserDirectoryLayer layer(cache);
    for (unsigned i = 0;; ++i) {
      if (!is_whole(layer.find(key(i)))) return false;
    }
  };
  Child writer([&] { return store_forever('w', unsynced); });
  Child reader(read_forever);
  std::mt19937 random(5);
  int killed = 0, torn = 0, failed = 0;
  UserDirectoryLayer layer(cache, {}, unsynced);
  while (killed < kKills) {
    std::vector<std::unique_ptr<Child>> victims;
    for (int i = 0; i < kAtOnce; ++i) {
      // Half of them die at a step of their own, the others at whatever they are doing when the signal comes.
      const int fatal_step = static_cast<int>(random() % 40) + 1;
      victims.push_back(std::make_unique<Child>([&] {
        if (i == 0) return store_forever('v', system_calls());
        if (i == 1) return store_forever('v', unsynced);
        KillingFileSystem files(fatal_step);
        return store_forever('v', files);
      }));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    for (const auto& victim : victims) {
      victim->kill();
      killed += victim->was_killed();
    }
    for (unsigned i = 0; i < kKeys; ++i) torn += !is_whole(layer.find(key(i)));
    failed += !layer.store(make_key("mine"), make_entry(payload('m')));
    failed += payload_of(layer.find(make_key("mine"))) != payload('m');
  }
  CHECK(torn == 0);
  CHECK(failed == 0);
  CHECK(writer.running());  // neither met a failure or damage
  CHECK(reader.running());
  writer.kill();
  reader.kill();
  const int left_behind = count_files(cache, ".tmp");
  CHECK(left_behind > 0);
  MESSAGE(killed, " killed, ", left_behind, " of them while they wrote");
  check_is_sound(cache);
  CHECK(count_files(cache, ".fjc") == kKeys + 2);
}
