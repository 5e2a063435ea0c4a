// SPDX-License-Identifier: Apache-2.0
// Faults of real file systems: full, read-only, gone, other people's. Whatever the directory is like, kernels are
// right.
#include <doctest/doctest.h>
#include <grp.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>

#include "cache/directory_layer.h"
#include "tests/support/cache_entries.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_store.h"

using namespace flashjit;
using namespace flashjit::tests;
using cache::DirectoryLayer;
using cache::UserDirectoryLayer;

namespace {

namespace fs = std::filesystem;

constexpr uid_t kNobody = 65534;

// --- Children: what cannot be undone in this process, such as giving up rights
// ----------------------------------------

// For children, which cannot CHECK: ends them badly, and says why.
void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error("expected " + what);
}

bool in_child(const std::function<void()>& work) {
  Child child([&] {
    work();
    return true;
  });
  return child.succeeded();
}

// From here on the system's permissions hold for this process.
void give_up_root() {
  if (::geteuid() != 0) return;
  expect(::setgroups(0, nullptr) == 0 && ::setresgid(kNobody, kNobody, kNobody) == 0 &&
             ::setresuid(kNobody, kNobody, kNobody) == 0,
         "to become another user");
}

// Makes everything there belong to the user that this process is after give_up_root().
void hand_over(const fs::path& directory) {
  if (::geteuid() != 0) return;
  REQUIRE(::chown(directory.c_str(), kNobody, kNobody) == 0);
  for (const auto& file : fs::recursive_directory_iterator(directory))
    REQUIRE(::lchown(file.path().c_str(), kNobody, kNobody) == 0);
}

bool write_text(const char* file, const std::string& text) {
  std::FILE* stream = std::fopen(file, "w");
  if (!stream) return false;
  const bool written = std::fputs(text.c_str(), stream) >= 0;
  return std::fclose(stream) == 0 && written;
}

// In a name space of users of its own, in which a process may mount, this one stays the user that it is.
bool enter_own_users() {
  const std::string user = std::to_string(::geteuid()), group = std::to_string(::getegid());
  return ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 && write_text("/proc/self/uid_map", user + " " + user + " 1") &&
         write_text("/proc/self/setgroups", "deny") && write_text("/proc/self/gid_map", group + " " + group + " 1");
}

// Gives this process mounts of its own, which are gone when it ends.
void enter_own_mounts() {
  expect(::unshare(CLONE_NEWNS) == 0 || enter_own_users(), "a name space");
  expect(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, "private mounts");
}

void mount_small(const fs::path& directory) {
  enter_own_mounts();
  expect(::mount("none", directory.c_str(), "tmpfs", 0, "size=64k,mode=0700") == 0, "a small file system");
}

void mount_read_only(const fs::path& directory) {
  enter_own_mounts();
  const char* path = directory.c_str();
  expect(::mount(path, path, nullptr, MS_BIND, nullptr) == 0 &&
             ::mount(nullptr, path, nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) == 0,
         "a read-only file system");
}

bool may_mount() {
  const TemporaryDirectory directory;
  return in_child([&] { mount_read_only(directory.path()); }) && in_child([&] { mount_small(directory.path()); });
}

#define SKIP_UNLESS(condition, reason) \
  if (!(condition)) {                  \
    MESSAGE("skipped: ", reason);      \
    return;                            \
  }

// --- What is expected
// -------------------------------------------------------------------------------------------------

// A store that cannot write there gives right kernels from memory, counts the failures and says so once.
void expect_served_from_memory(const fs::path& directory) {
  FakeCompiler compiler;
  TestStore store(directory, compiler);
  for (const int kernel : {1, 2, 1}) expect(store.gets(kernel), "a right kernel");
  expect(compiler.compiles == 2, "two compiles");
  expect(store.counters().memory_hits == 1, "the third kernel from memory");
  expect(store.counters().write_failures == 2, "two write failures");
  expect(store.warnings() == 1, "one warning");
}

// A store that can write there finds what another one stored.
void expect_served_from_disk(const fs::path& directory) {
  FakeCompiler compiler;
  TestStore first(directory, compiler), second(directory, compiler);
  expect(first.gets(1) && second.gets(1), "right kernels");
  expect(second.counters().user_hits == 1, "a hit on disk");
  expect(first.warnings() + second.warnings() == 0, "no warning");
}

void check_is_refused(const fs::path& directory, const std::string& reason) {
  UserDirectoryLayer layer(directory);
  CHECK(layer.problem().find(directory.string()) == 0);
  CHECK(layer.problem().find(reason) != std::string::npos);
  CHECK(layer.problem().find('\n') == std::string::npos);
  CHECK_FALSE(layer.find(make_key("a")).entry);
  CHECK_FALSE(layer.find(make_key("a")).damaged);
  CHECK_FALSE(layer.store(make_key("b"), make_entry("b")));
  CHECK(layer.list().empty());
  CHECK(layer.collect(0, false).removed.empty());
  CHECK(layer.clear(false).removed.empty());
  expect_served_from_memory(directory);
}

fs::path store_entry(const fs::path& directory, const std::string& inputs, const std::string& payload) {
  const auto file = UserDirectoryLayer(directory).store(make_key(inputs), make_entry(payload));
  REQUIRE(file);
  return *file;
}

std::string find_in(const fs::path& directory, const std::string& inputs) {
  return payload_of(UserDirectoryLayer(directory).find(make_key(inputs)));
}

// Sets a limit of this process until the end of the scope.
class Limit {
 public:
  Limit(decltype(RLIMIT_NOFILE) resource, rlim_t value) : resource_(resource) {
    ::getrlimit(resource_, &before_);
    const rlimit limit{value, before_.rlim_max};
    ::setrlimit(resource_, &limit);
  }
  ~Limit() { ::setrlimit(resource_, &before_); }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

 private:
  decltype(RLIMIT_NOFILE) resource_;
  rlimit before_{};
};

// The user directory of the environment, in this process.
runtime::CacheLayers layers_of_environment() { return runtime::make_cache_layers(EngineOptions::from_environment()); }

void clear_environment() {
  for (const char* name : {"FLASHJIT_CACHE_DIR", "XDG_CACHE_HOME", "HOME", "FLASHJIT_SYSTEM_CACHE", "FLASHJIT_BUNDLES"})
    ::unsetenv(name);
}

}  // namespace

TEST_CASE("a file system that fills up in the middle of an entry keeps the old ones and nothing of the new one") {
  SKIP_UNLESS(may_mount(), "no mounts here");
  const TemporaryDirectory directory;
  CHECK(in_child([&] {
    mount_small(directory.path());
    const fs::path cache = directory / "cache";
    UserDirectoryLayer layer(cache);
    expect(layer.store(make_key("old"), make_entry("old")).has_value(), "room for the first");
    expect(!layer.store(make_key("large"), make_entry(std::string(100'000, 'x'))), "no room for a large one");
    expect(count_files(cache, ".tmp") == 0, "no half entry");
    int stored = 0;
    while (layer.store(make_key(std::to_string(stored)), make_entry(std::string(6000, 'x')))) ++stored;
    expect(stored >= 5 && stored <= 10, "an end after some entries");
    for (int i = 0; i < stored; ++i)
      expect(find_in(cache, std::to_string(i)) == std::string(6000, 'x'), "what was stored");
    expect(find_in(cache, "old") == "old", "the old entry");
    expect(!layer.store(make_key("old"), make_entry(std::string(50'000, 'x'))), "no room to replace it");
    expect(find_in(cache, "old") == "old", "the old entry after all");
    write_bytes(directory / "filler", std::string(64 << 10, 'x'));
    expect_served_from_memory(cache);
    fs::remove(directory / "filler");
    layer.clear(false);
    expect_served_from_disk(cache);
  }));
}

TEST_CASE("a read-only file system serves what is there, and the rest comes from memory") {
  SKIP_UNLESS(may_mount(), "no mounts here");
  const TemporaryDirectory directory;
  const fs::path cache = directory / "cache";
  store_entry(cache, "a", "a");
  write_bytes(store_entry(cache, "damaged", "x"), "no entry");
  CHECK(in_child([&] {
    mount_read_only(cache);
    UserDirectoryLayer layer(cache);
    expect(payload_of(layer.find(make_key("a"))) == "a", "the entry");
    expect(!layer.find(make_key("damaged")).entry, "a miss");
    expect(!layer.store(make_key("b"), make_entry("b")), "no store");
    for (const cache::Collected& left : {layer.collect(0, false), layer.clear(false)}) {
      expect(left.removed.empty(), "nothing removed");
      expect(left.problem.find(cache.string()) == 0, "the place of the first file");
      expect(left.problem.find(": cannot be removed: Read-only file system") != std::string::npos, "the reason");
    }
    expect(payload_of(layer.find(make_key("a"))) == "a", "the entry, not to be removed");
    expect_served_from_memory(cache);
  }));
  CHECK(find_in(cache, "a") == "a");
}

TEST_CASE("a directory that its user may not write serves what is there, and the rest comes from memory") {
  const TemporaryDirectory directory;
  const fs::path cache = directory / "cache";
  const fs::path file = store_entry(cache, "a", "a"), shard = file.parent_path();
  hand_over(directory.path());
  CHECK(in_child([&] {
    give_up_root();
    for (const fs::path& each : {shard, cache}) ::chmod(each.c_str(), 0500);
    expect(find_in(cache, "a") == "a", "the entry");
    expect_served_from_memory(cache);
    ::chmod(shard.c_str(), 0700);
    ::chmod(file.c_str(), 0);
    const cache::Lookup unreadable = UserDirectoryLayer(cache).find(make_key("a"));
    expect(!unreadable.entry && !unreadable.damaged, "a miss without damage");
    for (const fs::path& each : {shard, cache}) ::chmod(each.c_str(), 0);
    expect_served_from_memory(cache);
    for (const fs::path& each : {cache, shard}) ::chmod(each.c_str(), 0700);
    expect_served_from_disk(cache);
  }));
}

TEST_CASE("a directory of another user is refused") {
  SKIP_UNLESS(::geteuid() == 0, "only root can give a directory away");
  const TemporaryDirectory directory;
  const fs::path cache = directory / "cache";
  store_entry(cache, "a", "a");
  SUBCASE("to root too") {
    hand_over(cache);
    check_is_refused(cache, "uid 65534");
    CHECK(count_files(cache, "") == 1);
  }
  SUBCASE("to others, who may read it as a system cache") {
    fs::permissions(directory.path(), fs::perms(0755));
    for (const auto& file : fs::recursive_directory_iterator(directory.path()))
      fs::permissions(file.path(), file.is_directory() ? fs::perms(0755) : fs::perms(0644));
    CHECK(in_child([&] {
      give_up_root();
      expect(find_in(cache, "a") == "none", "no entry from root's directory");
      expect(UserDirectoryLayer(cache).problem().find("uid 0") != std::string::npos, "the owner to be named");
      expect_served_from_memory(cache);
      expect(payload_of(DirectoryLayer(cache).find(make_key("a"))) == "a", "the entry of a system cache");
    }));
  }
}

TEST_CASE("files and shards of another user in an own directory are not trusted") {
  SKIP_UNLESS(::geteuid() == 0, "only root can give files away");
  const TemporaryDirectory directory;
  const fs::path cache = directory / "cache", file = store_entry(cache, "a", "a");
  SUBCASE("a file is set aside") {
    REQUIRE(::chown(file.c_str(), kNobody, kNobody) == 0);
    const cache::Lookup lookup = UserDirectoryLayer(cache).find(make_key("a"));
    CHECK(lookup.damaged);
    CHECK_FALSE(lookup.entry);
    store_entry(cache, "a", "again");
    CHECK(find_in(cache, "a") == "again");
  }
  SUBCASE("a shard is neither read nor written") {
    hand_over(file.parent_path());
    CHECK(find_in(cache, "a") == "none");
    CHECK_FALSE(UserDirectoryLayer(cache).store(make_key("a"), make_entry("again")));
    CHECK(count_files(cache, "") == 1);
  }
}

TEST_CASE("directories that others may write to are refused, whatever else their mode says") {
  const TemporaryDirectory directory;
  const fs::path cache = directory / "cache";
  store_entry(cache, "a", "a");
  for (const int mode : {0777, 01777, 0770, 0722, 02775}) {
    CAPTURE(mode);
    REQUIRE(::chmod(cache.c_str(), static_cast<mode_t>(mode)) == 0);
    check_is_refused(cache, "writable");
    CHECK_FALSE(DirectoryLayer(cache).find(make_key("a")).entry);
    CHECK_FALSE(DirectoryLayer(cache).problem().empty());
  }
  CHECK(count_files(cache, "") == 1);
  for (const int mode : {0755, 0700, 0711}) {
    REQUIRE(::chmod(cache.c_str(), static_cast<mode_t>(mode)) == 0);
    CHECK(UserDirectoryLayer(cache).problem().empty());
    CHECK(find_in(cache, "a") == "a");
  }
}

TEST_CASE("the bare directory for temporary files is refused") {
  struct stat status {};
  SKIP_UNLESS(::stat("/tmp", &status) == 0 && (status.st_mode & S_IWOTH), "/tmp is not everybody's");
  CHECK_FALSE(UserDirectoryLayer("/tmp").problem().empty());
  CHECK_FALSE(DirectoryLayer("/tmp").problem().empty());
}

TEST_CASE("a file or a shard that others may write to is not trusted") {
  const TemporaryDirectory directory;
  const fs::path cache = directory / "cache", file = store_entry(cache, "a", "a");
  REQUIRE(::chmod(file.parent_path().c_str(), 0777) == 0);
  CHECK(find_in(cache, "a") == "none");
  CHECK_FALSE(UserDirectoryLayer(cache).store(make_key("a"), make_entry("again")));
  REQUIRE(::chmod(file.parent_path().c_str(), 0700) == 0);
  CHECK(find_in(cache, "a") == "a");
  REQUIRE(::chmod(file.c_str(), 0666) == 0);
  CHECK(UserDirectoryLayer(cache).find(make_key("a")).damaged);
  CHECK(find_in(cache, "a") == "none");
}

TEST_CASE("without file descriptors to spare kernels come from memory, and nothing is set aside") {
  const TemporaryDirectory directory;
  const fs::path cache = directory / "cache";
  store_entry(cache, "a", "a");
  int spare = 0;
  for (bool enough = false; !enough; ++spare) {
    CAPTURE(spare);
    CHECK(in_child([&] {
      const int lowest = ::dup(0);
      ::close(lowest);
      const Limit limit(RLIMIT_NOFILE, static_cast<rlim_t>(lowest + spare));
      UserDirectoryLayer layer(cache);
      const cache::Lookup lookup = layer.find(make_key("a"));
      const bool stored = layer.store(make_key("a"), make_entry("a")).has_value();
      FakeCompiler compiler;
      TestStore store(cache, compiler);
      expect(!lookup.damaged, "no damage");
      expect(stored <= lookup.entry.has_value(), "reading to need less");
      expect(store.gets(spare), "a right kernel");
      expect(store.warnings() <= 1, "at most one warning");
      if (spare == 0) expect_served_from_memory(cache);
    }));
    CHECK(find_in(cache, "a") == "a");
    CHECK(count_files(cache, ".tmp") + count_files(cache, ".bad") == 0);
    FakeCompiler compiler;
    TestStore store(cache, compiler);
    CHECK(store.gets(spare));
    enough = store.counters().user_hits == 1;
    REQUIRE(spare < 20);
  }
  CHECK(spare > 2);
  MESSAGE("an entry is stored with ", spare - 1, " descriptors");
}

TEST_CASE("a limit on the size of files, met in the middle of an entry, leaves nothing of it") {
  const TemporaryDirectory directory;
  const fs::path cache = directory / "cache";
  store_entry(cache, "a", "a");
  CHECK(in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const Limit limit(RLIMIT_FSIZE, 1000);
    UserDirectoryLayer layer(cache);
    expect(!layer.store(make_key("large"), make_entry(std::string(5000, 'x'))), "no room for a large one");
    expect(!layer.store(make_key("a"), make_entry(std::string(5000, 'x'))), "no room to replace the old one");
    expect(layer.store(make_key("small"), make_entry("x")).has_value(), "room for a small one");
    expect(find_in(cache, "a") == "a", "the old entry");
  }));
  CHECK(count_files(cache, ".tmp") == 0);
  CHECK(count_files(cache, ".fjc") == 2);
}

TEST_CASE("in a working directory that was deleted a relative cache directory is none") {
  const TemporaryDirectory directory;
  const fs::path gone = directory / "gone";
  fs::create_directory(gone);
  CHECK(in_child([&] {
    clear_environment();
    ::setenv("FLASHJIT_CACHE_DIR", "cache", 1);
    expect(::chdir(gone.c_str()) == 0 && ::rmdir(gone.c_str()) == 0, "a deleted working directory");
    FakeCompiler compiler;
    TestStore store(layers_of_environment(), compiler);
    expect(store.gets(1), "a right kernel");
    expect(store.counters().write_failures == 1, "a write failure");
    expect_served_from_memory("cache");
  }));
  CHECK(fs::is_empty(directory.path()));
}

TEST_CASE("a relative cache directory stays where it was when the working directory changes") {
  const TemporaryDirectory directory;
  CHECK(in_child([&] {
    clear_environment();
    ::setenv("FLASHJIT_CACHE_DIR", "cache", 1);
    expect(::chdir(directory.path().c_str()) == 0, "a working directory");
    FakeCompiler compiler;
    TestStore store(layers_of_environment(), compiler);
    expect(::chdir("/") == 0, "another working directory");
    expect(store.gets(1), "a right kernel");
  }));
  CHECK(count_files(directory / "cache", ".fjc") == 1);
}

TEST_CASE("without a home there is no directory, and no complaint") {
  CHECK(in_child([] {
    clear_environment();
    FakeCompiler compiler;
    TestStore store(layers_of_environment(), compiler);
    expect(layers_of_environment().all.empty(), "no layer");
    expect(store.gets(1), "a right kernel");
    expect(store.counters().write_failures == 0, "no write failure");
    expect(store.warnings() == 0, "no warning");
  }));
}

TEST_CASE("a home that is not there is not made, not even by root, and kernels stay in memory") {
  const TemporaryDirectory directory;
  const fs::path home = directory / "home";
  CHECK(in_child([&] {
    clear_environment();
    ::setenv("HOME", home.c_str(), 1);
    FakeCompiler compiler;
    TestStore store(layers_of_environment(), compiler);
    expect(layers_of_environment().all.empty(), "no layer");
    expect(store.gets(1), "a right kernel");
  }));
  CHECK_FALSE(fs::exists(home));
}

TEST_CASE("a cache directory may be a symbolic link, if it leads to an own directory") {
  const TemporaryDirectory directory;
  const fs::path link = directory / "link", target = directory / "target";
  fs::create_directory_symlink(target, link);
  expect_served_from_memory(link);  // it leads nowhere
  CHECK_FALSE(fs::exists(target));
  fs::create_directory(target, directory.path());
  expect_served_from_disk(link);
  CHECK(count_files(target, ".fjc") == 1);
  REQUIRE(::chmod(target.c_str(), 0777) == 0);
  check_is_refused(link, "writable");
}

TEST_CASE("a shard or an entry may not be a symbolic link") {
  const TemporaryDirectory directory;
  const fs::path cache = directory / "cache", elsewhere = directory / "elsewhere";
  const fs::path file = store_entry(cache, "a", "a"), shard = file.parent_path();
  SUBCASE("a shard is neither read nor written") {
    fs::rename(shard, elsewhere);
    fs::create_directory_symlink(elsewhere, shard);
    CHECK(find_in(cache, "a") == "none");
    CHECK_FALSE(UserDirectoryLayer(cache).store(make_key("a"), make_entry("again")));
    UserDirectoryLayer(cache).clear(false);
    CHECK(count_files(elsewhere, "") == 1);
  }
  SUBCASE("an entry is set aside and replaced, and what it led to stays") {
    fs::rename(file, elsewhere);
    fs::create_symlink(elsewhere, file);
    CHECK(UserDirectoryLayer(cache).find(make_key("a")).damaged);
    store_entry(cache, "a", "again");
    CHECK(find_in(cache, "a") == "again");
    CHECK_FALSE(fs::is_symlink(file));
    CHECK(read_bytes(elsewhere).find("FLASHJIT") == 0);
  }
  SUBCASE("a pipe in an entry's place is set aside too, and nobody waits for its writer") {
    fs::remove(file);
    REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
    CHECK(UserDirectoryLayer(cache).find(make_key("a")).damaged);
    store_entry(cache, "a", "again");
    CHECK(find_in(cache, "a") == "again");
  }
}

TEST_CASE("a directory that is removed while a store lives is made anew") {
  const TemporaryDirectory directory;
  const fs::path cache = directory / "cache";
  FakeCompiler compiler;
  TestStore store(cache, compiler);
  CHECK(store.gets(1));
  fs::remove_all(cache);
  CHECK(store.gets(1));
  CHECK(store.gets(2));
  CHECK(store.counters().write_failures == 0);
  CHECK(count_files(cache, ".fjc") == 1);
  fs::remove_all(cache);
  write_bytes(cache, "a file in the way");
  CHECK(store.gets(3));
  CHECK(store.counters().write_failures == 1);
  CHECK(store.warnings() == 1);
  fs::remove(cache);
  CHECK(store.gets(4));
  CHECK(count_files(cache, ".fjc") == 1);
}
