// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "cache/directory_layer.h"
#include "tests/support/cache_entries.h"
#include "tests/support/temporary_directory.h"

using namespace flashjit::cache;
using namespace flashjit::tests;

namespace {

constexpr std::size_t kPayloadBytes = 300000;  // many pages, so that a torn write would show
constexpr int kStores = 40;

// All letters the same: a mix of two writers' bytes is seen at once.
std::string payload(char letter) { return std::string(kPayloadBytes, letter); }

bool is_whole(const Lookup& lookup) {
  return !lookup.rejected && (!lookup.entry || lookup.entry->payload == payload(lookup.entry->payload.at(0)));
}

bool store_many(const std::filesystem::path& directory, char letter) {
  DirectoryLayer layer(directory);
  for (int i = 0; i < kStores; ++i) {
    if (!layer.store(make_key("a"), make_entry(payload(letter)))) return false;
  }
  return true;
}

// A child process that runs work and exits with 0 when it returned true.
class Child {
 public:
  explicit Child(const std::function<bool()>& work) : pid_(::fork()) {
    if (pid_ == 0) ::_exit(work() ? 0 : 1);
  }
  ~Child() {
    if (!reaped_) kill();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  bool running() {
    if (!reaped_ && ::waitpid(pid_, &status_, WNOHANG) == pid_) reaped_ = true;
    return !reaped_;
  }
  bool succeeded() {
    if (!reaped_) ::waitpid(pid_, &status_, 0);
    reaped_ = true;
    return WIFEXITED(status_) && WEXITSTATUS(status_) == 0;
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    succeeded();
  }

 private:
  pid_t pid_;
  int status_ = 0;
  bool reaped_ = false;
};

}  // namespace

TEST_CASE("two processes that store the same key never show a torn entry to a reader") {
  const TemporaryDirectory directory;
  const auto cache = directory / "cache";
  Child first([&] { return store_many(cache, 'a'); });
  Child second([&] { return store_many(cache, 'b'); });
  DirectoryLayer layer(cache);
  int reads = 0, torn = 0;
  while (first.running() || second.running()) {
    torn += !is_whole(layer.find(make_key("a")));
    ++reads;
  }
  CHECK(first.succeeded());
  CHECK(second.succeeded());
  CHECK(reads > 0);
  CHECK(torn == 0);
  CHECK(layer.find(make_key("a")).entry);
  CHECK(count_files(directory.path(), "") == 1);
}

TEST_CASE("threads that store and find the same key on one layer agree") {
  const TemporaryDirectory directory;
  const auto cache = directory / "cache";
  DirectoryLayer layer(cache);
  std::atomic<int> failures{0}, torn{0}, writing{2};
  const auto write = [&](char letter) {
    for (int i = 0; i < kStores; ++i) failures += !layer.store(make_key("a"), make_entry(payload(letter)));
    --writing;
  };
  const auto read = [&](const std::string& compiler) {
    do {
      torn += !is_whole(layer.find(make_key("a", compiler)));
    } while (writing > 0);
  };
  std::vector<std::thread> threads;
  threads.emplace_back(write, 'a');
  threads.emplace_back(write, 'b');
  threads.emplace_back(read, "nvrtc-13.0");
  threads.emplace_back(read, "");
  for (std::thread& thread : threads) thread.join();
  CHECK(failures == 0);
  CHECK(torn == 0);
  CHECK(count_files(directory.path(), "") == 1);
}

TEST_CASE("a writer that is killed at any moment leaves no half entry") {
  const TemporaryDirectory directory;
  DirectoryLayer layer(directory / "cache");
  constexpr int kRounds = 40;
  int torn = 0, found = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::filesystem::remove_all(directory / "cache");
    int started[2];
    REQUIRE(::pipe(started) == 0);
    Child writer([&] {
      const char byte = 1;
      return ::write(started[1], &byte, 1) == 1 && store_many(directory / "cache", 'a');
    });
    char byte = 0;
    CHECK(::read(started[0], &byte, 1) == 1);
    std::this_thread::sleep_for(std::chrono::microseconds(500 * round));
    writer.kill();
    ::close(started[0]);
    ::close(started[1]);
    const Lookup lookup = layer.find(make_key("a"));
    torn += !is_whole(lookup);
    found += lookup.entry.has_value();
    CHECK(layer.store(make_key("a"), make_entry("after")));
    CHECK(payload_of(layer.find(make_key("a"))) == "after");
  }
  CHECK(torn == 0);
  MESSAGE("killed before the first entry was published in ", kRounds - found, " of ", kRounds, " rounds");
}
