// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "cache/directory_layer.h"
#include "tests/support/cache_entries.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

using namespace flashjit::cache;
using namespace flashjit::tests;

namespace {

constexpr std::size_t kPayloadBytes = 300000;  // many pages, so that a torn write would show
constexpr int kStores = 40;

// All letters the same: a mix of two writers' bytes is seen at once.
std::string payload(char letter) { return std::string(kPayloadBytes, letter); }

bool is_whole(const Lookup& lookup) {
  return !lookup.damaged && (!lookup.entry || lookup.entry->payload == payload(lookup.entry->payload.at(0)));
}

bool store_many(const std::filesystem::path& directory, char letter) {
  UserDirectoryLayer layer(directory);
  for (int i = 0; i < kStores; ++i) {
    if (!layer.store(make_key("a"), make_entry(payload(letter)))) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("two processes that store the same key never show a torn entry to a reader") {
  const TemporaryDirectory directory;
  const auto cache = directory / "cache";
  Child first([&] { return store_many(cache, 'a'); });
  Child second([&] { return store_many(cache, 'b'); });
  UserDirectoryLayer layer(cache);
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
  UserDirectoryLayer layer(cache);
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
