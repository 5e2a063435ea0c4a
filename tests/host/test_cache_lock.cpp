// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>

#include "cache/directory_layer.h"
#include "tests/support/cache_entries.h"
#include "tests/support/child_process.h"
#include "tests/support/failing_file_system.h"
#include "tests/support/temporary_directory.h"

using namespace flashjit::cache;
using namespace flashjit::tests;
namespace fs = std::filesystem;

namespace {

using State = EntryLock::State;

State try_lock(const fs::path& cache, const std::string& inputs) {
  return UserDirectoryLayer(cache).lock(make_key(inputs)).try_lock();
}

}  // namespace

TEST_CASE("a lock excludes others until it ends, in one process too") {
  const TemporaryDirectory directory;
  UserDirectoryLayer layer(directory / "cache");
  {
    EntryLock lock = layer.lock(make_key("a"));
    CHECK(lock.try_lock() == State::held);
    CHECK(lock.try_lock() == State::held);
    CHECK(layer.lock(make_key("a")).try_lock() == State::busy);
    CHECK(try_lock(directory / "cache", "a") == State::busy);
  }
  CHECK(try_lock(directory / "cache", "a") == State::held);
}

TEST_CASE("a lock that waits gets its turn when the other ends, however many others were closed meanwhile") {
  const TemporaryDirectory directory;
  UserDirectoryLayer layer(directory / "cache");
  EntryLock waiting = layer.lock(make_key("a"));
  {
    EntryLock lock = layer.lock(make_key("a"));
    CHECK(lock.try_lock() == State::held);
    CHECK(layer.lock(make_key("b")).try_lock() == State::held);  // closing this file must not give up the other lock
    CHECK(waiting.try_lock() == State::busy);
  }
  CHECK(waiting.try_lock() == State::held);
}

TEST_CASE("different keys do not wait for each other, different compilers of one key do") {
  const TemporaryDirectory directory;
  UserDirectoryLayer layer(directory / "cache");
  EntryLock lock = layer.lock(make_key("a"));
  REQUIRE(lock.try_lock() == State::held);
  for (int i = 0; i < 100; ++i) CHECK(layer.lock(make_key(std::to_string(i))).try_lock() == State::held);
  CHECK(layer.lock(make_key("a", "nvrtc-12.9")).try_lock() == State::busy);
}

TEST_CASE("every entry has a byte that a file can have, and none that of the totals") {
  CHECK(EntryLock::byte_of({0, 0}) != EntryLock::kTotalsByte);
  CHECK(EntryLock::byte_of({1, std::uint64_t{1} << 62}) != EntryLock::kTotalsByte);
  CHECK(EntryLock::byte_of({0, ~std::uint64_t{0}}) == (std::uint64_t{1} << 62) - 1);
  CHECK(EntryLock::byte_of({0, 17}) == 17);
  const TemporaryDirectory directory;
  const Directory opened = Directory::open(system_calls(), directory.path(), Directory::Trust::own);
  CHECK(EntryLock(system_calls(), opened, EntryLock::byte_of({0, ~std::uint64_t{0}})).try_lock() == State::held);
}

TEST_CASE("the lock file is private, is made with the directory, and stays") {
  const TemporaryDirectory directory;
  UserDirectoryLayer layer(directory / "made/cache");
  const fs::path file = directory / "made/cache/lock";
  CHECK(layer.lock(make_key("a")).try_lock() == State::held);
  struct stat before {
  }, after{};
  REQUIRE(::stat(file.c_str(), &before) == 0);
  CHECK((before.st_mode & 07777) == 0600);
  CHECK(before.st_size == 0);
  layer.clear(false);
  CHECK(layer.lock(make_key("a")).try_lock() == State::held);
  REQUIRE(::stat(file.c_str(), &after) == 0);
  CHECK(before.st_ino == after.st_ino);
}

TEST_CASE("where nothing can be locked the lock is unavailable") {
  const TemporaryDirectory directory;
  for (const int error : {ENOLCK, EOPNOTSUPP, EINVAL, EACCES, EIO}) {
    FailingFileSystem files;
    files.fail_each(FailingFileSystem::Call::lock, error);
    UserDirectoryLayer layer(directory / "cache", {}, files);
    CHECK(layer.lock(make_key("a")).try_lock() == State::unavailable);
  }
  fs::create_directory(directory / "occupied");
  fs::create_directory(directory / "occupied/lock");
  CHECK(try_lock(directory / "occupied", "a") == State::unavailable);
  fs::create_directory(directory / "linked");
  write_bytes(directory / "precious", "data");
  fs::create_symlink(directory / "precious", directory / "linked/lock");
  CHECK(try_lock(directory / "linked", "a") == State::unavailable);
  CHECK(try_lock(directory / "precious", "a") == State::unavailable);
}

TEST_CASE("a process that is killed gives its lock up, one that is stopped does not") {
  const TemporaryDirectory directory;
  Pipe locked;
  Child holder([&] {
    EntryLock lock = UserDirectoryLayer(directory / "cache").lock(make_key("a"));
    if (lock.try_lock() != State::held || !locked.signal()) return false;
    for (;;) ::pause();
  });
  locked.close_writer();
  REQUIRE(locked.wait());
  CHECK(try_lock(directory / "cache", "a") == State::busy);
  CHECK(holder.stop());
  CHECK(try_lock(directory / "cache", "a") == State::busy);
  CHECK(try_lock(directory / "cache", "b") == State::held);
  holder.kill();
  CHECK(try_lock(directory / "cache", "a") == State::held);
}
