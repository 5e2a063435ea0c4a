// SPDX-License-Identifier: Apache-2.0
// Every system call that the cache makes fails once, and then for good, with every error that can be expected of it.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cache/directory_layer.h"
#include "cache/totals.h"
#include "tests/support/cache_entries.h"
#include "tests/support/failing_file_system.h"
#include "tests/support/temporary_directory.h"

using namespace flashjit::cache;
using namespace flashjit::tests;
namespace fs = std::filesystem;

namespace {

using Call = FailingFileSystem::Call;

const std::vector<int> kErrorsOfWriting = {ENOSPC, EROFS, EACCES, EMFILE, EIO, EDQUOT, ENOENT};
const std::vector<int> kErrors = {EACCES, EIO, ENOENT};  // the cache tells these from each other, and from the rest
constexpr std::int64_t kTwoHours = 7200;
constexpr std::chrono::seconds kPatience{60};

// Runs a case for each call, each error, and both ways of failing, until a case makes fewer calls than that.
void sweep(const std::function<void(FailingFileSystem&)>& run, const std::vector<int>& errors = kErrors) {
  for (const int error : errors) {
    for (const bool for_good : {false, true}) {
      for (int number = 0;; ++number) {
        INFO("call ", number, " fails with ", std::string(std::strerror(error)),
             for_good ? std::string(" and so do all that follow") : std::string());
        FailingFileSystem files;
        for_good ? files.fail_from(number, error) : files.fail_at(number, error);
        run(files);
        if (files.calls() <= number) break;
      }
    }
  }
}

// For what a test prepares: does not wait for the disk.
FileSystem& sound_files() {
  static FailingFileSystem files;
  return files;
}

// A cache with an entry "old" under key(), last used two hours ago.
struct OldEntry {
  TemporaryDirectory directory;
  fs::path cache = directory / "cache";
  fs::path file = UserDirectoryLayer(cache, {}, sound_files()).store(key(), make_entry("old")).value_or("");

  OldEntry() { fs::last_write_time(file, fs::last_write_time(file) - std::chrono::seconds(kTwoHours)); }
  static Key key() { return make_key("a"); }
  std::string payload(const Key& wanted = key()) const { return payload_of(DirectoryLayer(cache).find(wanted)); }
  int count(const std::string& ending) const { return fs::exists(cache) ? count_files(cache, ending) : 0; }
};

// A temporary file stays only when removing it failed too.
bool may_leave_temporary(const FailingFileSystem& files) { return files.failed(Call::unlink); }

}  // namespace

TEST_CASE("a store in which a call fails replaces the entry or leaves it") {
  sweep(
      [](FailingFileSystem& files) {
        const OldEntry old;
        const auto stored = UserDirectoryLayer(old.cache, {}, files).store(old.key(), make_entry("new"));
        CHECK(old.payload() == (stored ? "new" : "old"));
        CHECK(old.count(".fjc") == 1);
        CHECK(old.count(".bad") == 0);
        if (!may_leave_temporary(files)) CHECK(old.count(".tmp") == 0);
      },
      kErrorsOfWriting);
}

TEST_CASE("a first store in which a call fails makes a whole entry or none") {
  sweep(
      [](FailingFileSystem& files) {
        const TemporaryDirectory directory;
        const auto stored =
            UserDirectoryLayer(directory / "made/cache", {}, files).store(make_key("a"), make_entry("new"));
        CHECK(payload_of(DirectoryLayer(directory / "made/cache").find(make_key("a"))) == (stored ? "new" : "none"));
        if (!may_leave_temporary(files)) CHECK(count_files(directory.path(), "") == (stored ? 1 : 0));
      },
      kErrorsOfWriting);
}

TEST_CASE("a store that makes room, and in which a call fails, loses nothing that there is room for") {
  sweep([](FailingFileSystem& files) {
    const OldEntry old;
    const auto bytes = static_cast<std::int64_t>(fs::file_size(old.file));
    REQUIRE(UserDirectoryLayer(old.cache, {}, sound_files()).store(make_key("b"), make_entry("old")));
    UserDirectoryLayer layer(old.cache, {static_cast<std::uint64_t>(4 * bytes)}, files);
    const auto stored = layer.store(make_key("c"), make_entry("new"));
    CHECK(old.payload(make_key("b")) == "old");
    CHECK(old.payload(make_key("c")) == (stored ? "new" : "none"));
    CHECK(layer.evicted() == (old.payload() == "none" ? 1 : 0));
  });
}

TEST_CASE("a look-up in which a call fails is a hit or a miss, and damages nothing") {
  for (const Key& key : {make_key("a"), make_key("a", "")}) {
    sweep([&key](FailingFileSystem& files) {
      const OldEntry old;
      const Lookup lookup = UserDirectoryLayer(old.cache, {}, files).find(key);
      CHECK((payload_of(lookup) == "old" || payload_of(lookup) == "none"));
      CHECK_FALSE(lookup.damaged);
      CHECK(old.payload() == "old");
    });
  }
}

TEST_CASE("a look-up of a damaged entry in which a call fails is a miss") {
  sweep([](FailingFileSystem& files) {
    const OldEntry old;
    write_bytes(old.file, "damaged");
    CHECK_FALSE(UserDirectoryLayer(old.cache, {}, files).find(old.key()).entry);
    CHECK_FALSE(UserDirectoryLayer(old.cache, {}, sound_files()).find(old.key()).entry);
    CHECK(old.count("") == 1);
  });
}

TEST_CASE("a list in which a call fails is shorter at most") {
  sweep([](FailingFileSystem& files) {
    const OldEntry old;
    UserDirectoryLayer layer(old.cache, {}, files);
    for (const StoredEntry& entry : layer.list()) {
      CHECK(entry.location == old.file.string());
      CHECK(decode(entry.read().value_or(read_bytes(old.file))));
      const Facts facts = entry.facts();
      CHECK((facts.empty() || facts.at("name") == "fwd"));
    }
    CHECK(old.payload() == "old");
  });
}

TEST_CASE("a collection in which a call fails tells what went and what is left of what it saw") {
  sweep([](FailingFileSystem& files) {
    const OldEntry old;
    REQUIRE(UserDirectoryLayer(old.cache, {}, sound_files()).store(make_key("b"), make_entry("new")));
    write_bytes(old.file.string() + ".bad", "damaged");
    files.set_clock_ahead(kTwoHours);  // temporary files are old
    write_bytes(old.cache / "totals.json.1.0123456789abcdef.tmp", "{}");
    const int before = old.count("");
    const Collected collected = UserDirectoryLayer(old.cache, {}, files).collect(fs::file_size(old.file), false);
    for (const Collected::Removed& removed : collected.removed) CHECK_FALSE(fs::exists(removed.path));
    CHECK(old.count("") == before - static_cast<int>(collected.removed.size()));
    CHECK(collected.kept_entries <= 2);
    CHECK(collected.kept_entries <= static_cast<std::uint64_t>(old.count(".fjc")));
  });
}

TEST_CASE("a clearing in which a call fails removes nothing of others") {
  sweep([](FailingFileSystem& files) {
    const OldEntry old;
    write_bytes(old.cache / "mine.txt", "x");
    const Collected collected = UserDirectoryLayer(old.cache, {}, files).clear(false);
    CHECK(fs::exists(old.cache / "mine.txt"));
    CHECK(fs::exists(old.file) == collected.removed.empty());
  });
}

TEST_CASE("totals to which nothing can be added stay what they were") {
  sweep([](FailingFileSystem& files) {
    const OldEntry old;
    const auto clean = [&] { return Directory::open(sound_files(), old.cache, Directory::Trust::own); };
    REQUIRE(add_to_totals(sound_files(), clean(), {{"hits", 1}}, kPatience));
    const bool added =
        add_to_totals(files, Directory::open(files, old.cache, Directory::Trust::own), {{"hits", 2}}, kPatience);
    const Totals totals = read_totals(clean());
    // That the old ones cannot be read is no reason to refuse: they are approximate, and adding must end at some time.
    CHECK(
        (totals == Totals{{"hits", 1}} || (added && (totals == Totals{{"hits", 3}} || totals == Totals{{"hits", 2}}))));
  });
}

TEST_CASE("a lock that cannot be had is unavailable, and the entry is stored without it") {
  sweep([](FailingFileSystem& files) {
    const OldEntry old;
    EntryLock lock = UserDirectoryLayer(old.cache, {}, files).lock(old.key());
    const EntryLock::State state = lock.try_lock();
    CHECK(state != EntryLock::State::busy);
    CHECK(UserDirectoryLayer(old.cache, {}, sound_files()).store(old.key(), make_entry("new")));
  });
}

TEST_CASE("errors that say nothing about the bytes never set an entry aside") {
  for (const Call kind : {Call::open, Call::read, Call::status, Call::close}) {
    for (const int error : kErrorsOfWriting) {
      const OldEntry old;
      FailingFileSystem files;
      files.fail_each(kind, error);
      UserDirectoryLayer layer(old.cache, {}, files);
      CHECK_FALSE(layer.find(old.key()).damaged);
      CHECK_FALSE(layer.find(make_key("a", "")).damaged);
      CHECK(old.payload() == "old");
    }
  }
}

TEST_CASE("a damaged entry that another process has just set aside stays there") {
  const OldEntry old;
  write_bytes(old.file, "damaged");
  write_bytes(old.file.string() + ".bad", "damaged before");
  FailingFileSystem files;
  files.fail_each(Call::rename, ENOENT);
  CHECK(UserDirectoryLayer(old.cache, {}, files).find(old.key()).damaged);
  CHECK(read_bytes(old.file.string() + ".bad") == "damaged before");
}

TEST_CASE("what a file system loses only when the file is closed is not published") {
  const OldEntry old;
  FailingFileSystem files;
  files.fail_each(Call::close, EDQUOT);
  CHECK_FALSE(UserDirectoryLayer(old.cache, {}, files).store(old.key(), make_entry("new")));
  CHECK(old.payload() == "old");
  CHECK(old.count("") == 1);
}

TEST_CASE("a shard that is cleared away while an entry is written to it is made anew") {
  const OldEntry old;
  class ClearingFileSystem : public FailingFileSystem {
   public:
    explicit ClearingFileSystem(fs::path cache) : cache_(std::move(cache)) {}
    int open_at(int directory, const char* path, int flags, mode_t mode) override {
      if ((flags & O_EXCL) != 0 && !std::exchange(cleared_, true)) UserDirectoryLayer(cache_).clear(false);
      return FailingFileSystem::open_at(directory, path, flags, mode);
    }

   private:
    const fs::path cache_;
    bool cleared_ = false;
  };
  ClearingFileSystem files(old.cache);
  CHECK(UserDirectoryLayer(old.cache, {}, files).store(old.key(), make_entry("new")));
  CHECK(old.payload() == "new");
}

TEST_CASE("reads and writes of a few bytes at a time are put together") {
  for (std::size_t bytes = 1; bytes <= 7; ++bytes) {
    const TemporaryDirectory directory;
    FailingFileSystem files;
    files.limit_bytes(bytes);
    UserDirectoryLayer layer(directory / "cache", {}, files);
    CHECK(layer.store(make_key("a"), make_entry("payload")));
    CHECK(payload_of(layer.find(make_key("a"))) == "payload");
    CHECK(payload_of(DirectoryLayer(directory / "cache").find(make_key("a"))) == "payload");
    CHECK(layer.list().at(0).facts().at("name") == "fwd");
  }
}

TEST_CASE("a write of no bytes and no error ends") {
  const OldEntry old;
  FailingFileSystem files;
  files.limit_bytes(0);
  CHECK_FALSE(UserDirectoryLayer(old.cache, {}, files).store(old.key(), make_entry("new")));
  CHECK(old.payload() == "old");
  CHECK(old.count("") == 1);
}

TEST_CASE("a signal during any call changes nothing") {
  int calls = 1;
  for (int number = 0; number < calls; ++number) {
    INFO("call ", number);
    const TemporaryDirectory directory;
    FailingFileSystem files;
    files.fail_at(number, EINTR);
    UserDirectoryLayer layer(directory / "made/cache", {}, files);
    EntryLock lock = layer.lock(make_key("a"));
    CHECK(lock.try_lock() == EntryLock::State::held);
    CHECK(layer.store(make_key("a"), make_entry("payload")));
    CHECK(payload_of(layer.find(make_key("a"))) == "payload");
    const Directory opened = Directory::open(files, directory / "made/cache", Directory::Trust::own);
    CHECK(add_to_totals(files, opened, {{"hits", 1}}, kPatience));
    CHECK(count_files(directory.path(), "") == 3);  // lock, totals.json and the entry
    calls = files.calls();
  }
  CHECK(calls > 40);
}
