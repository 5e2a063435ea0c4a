// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cache/directory_layer.h"
#include "cache/entry_name.h"
#include "tests/support/cache_entries.h"
#include "tests/support/temporary_directory.h"

using namespace flashjit::cache;
using namespace flashjit::tests;
namespace fs = std::filesystem;

namespace {

int mode_of(const fs::path& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return static_cast<int>(status.st_mode & 07777);
}

void set_mode(const fs::path& path, int mode) { REQUIRE(::chmod(path.c_str(), static_cast<mode_t>(mode)) == 0); }

constexpr uid_t kNobody = 65534;

void give_away(const fs::path& path) { REQUIRE(::chown(path.c_str(), kNobody, static_cast<gid_t>(-1)) == 0); }

void check_miss(const Lookup& lookup, bool damaged) {
  CHECK_FALSE(lookup.entry);
  CHECK(lookup.location.empty());
  CHECK(lookup.damaged == damaged);
}

// A layer with one entry, and the file it is in.
struct OneEntry {
  TemporaryDirectory directory;
  UserDirectoryLayer layer{directory / "cache"};
  Key key = make_key("a");
  fs::path file = layer.store(key, make_entry("payload")).value_or("");
};

}  // namespace

TEST_CASE("a stored entry is found, with the facts that the cache adds") {
  OneEntry one;
  const Lookup lookup = one.layer.find(one.key);
  REQUIRE(lookup.entry);
  CHECK(lookup.entry->payload == "payload");
  CHECK(lookup.entry->facts.at("name") == "fwd");
  CHECK(lookup.entry->facts.at("inputs") == one.key.inputs.hex());
  CHECK(lookup.entry->facts.at("compiler") == "nvrtc-13.0");
  CHECK(lookup.location == one.file);
  CHECK_FALSE(lookup.damaged);
}

TEST_CASE("an entry's file is named after its key") {
  OneEntry one;
  const std::string hex = one.key.inputs.hex();
  CHECK(one.file == one.directory / "cache" / hex.substr(0, 2) / ("fwd-bf16-d128." + hex + ".nvrtc-13.0.fjc"));
}

TEST_CASE("other inputs, names and compilers are other entries") {
  OneEntry one;
  check_miss(one.layer.find(make_key("b")), false);
  check_miss(one.layer.find(make_key("a", "nvrtc-12.9")), false);
  Key renamed = one.key;
  renamed.name = "fwd-f16";
  check_miss(one.layer.find(renamed), false);
}

TEST_CASE("a second store replaces the first") {
  OneEntry one;
  CHECK(one.layer.store(one.key, make_entry("newer")) == one.file.string());
  CHECK(payload_of(one.layer.find(one.key)) == "newer");
}

TEST_CASE("an empty directory, a missing one and a path below a file are misses") {
  const TemporaryDirectory directory;
  check_miss(UserDirectoryLayer(directory.path()).find(make_key("a")), false);
  check_miss(UserDirectoryLayer(directory / "missing").find(make_key("a")), false);
  check_miss(UserDirectoryLayer(directory / "missing").find(make_key("a", "")), false);
  CHECK_FALSE(fs::exists(directory / "missing"));
  write_bytes(directory / "file", "x");
  check_miss(UserDirectoryLayer(directory / "file/below").find(make_key("a")), false);
}

TEST_CASE("storing makes private directories and files, and leaves those that exist as they are") {
  const TemporaryDirectory directory;
  fs::create_directory(directory / "given");
  set_mode(directory / "given", 0755);
  UserDirectoryLayer layer(directory / "given/made/cache");
  const auto file = layer.store(make_key("a"), make_entry("x"));
  REQUIRE(file);
  CHECK(mode_of(directory / "given") == 0755);
  CHECK(mode_of(directory / "given/made") == 0700);
  CHECK(mode_of(directory / "given/made/cache") == 0700);
  CHECK(mode_of(fs::path(*file).parent_path()) == 0700);
  CHECK(mode_of(*file) == 0600);
}

TEST_CASE("storing leaves nothing beside the entry") {
  OneEntry one;
  CHECK(count_files(one.directory.path(), "") == 1);
  CHECK(count_files(one.directory.path(), ".fjc") == 1);
}

TEST_CASE("a place that cannot be written to stores nothing and says so") {
  const TemporaryDirectory directory;
  write_bytes(directory / "file", "x");
  UserDirectoryLayer layer(directory / "file/below");
  CHECK_FALSE(layer.store(make_key("a"), make_entry("x")));
  CHECK_FALSE(UserDirectoryLayer(directory / "file").store(make_key("a"), make_entry("x")));
  CHECK(read_bytes(directory / "file") == "x");
}

TEST_CASE("a read-only directory is read and not written") {
  if (::geteuid() == 0) {
    MESSAGE("skipped: root may write to read-only directories");
    return;
  }
  OneEntry one;
  write_bytes(one.file, "damaged");
  const fs::path shard = one.file.parent_path();
  set_mode(shard, 0500);
  check_miss(one.layer.find(one.key), true);
  CHECK_FALSE(one.layer.store(one.key, make_entry("x")));
  CHECK(read_bytes(one.file) == "damaged");
  set_mode(shard, 0700);
}

TEST_CASE("an entry that cannot be published leaves no temporary file") {
  OneEntry one;
  const Key other = make_key("b");
  const fs::path file = one.layer.store(other, make_entry("x")).value_or("");
  fs::remove(file);
  fs::create_directories(file / "in the way");
  CHECK_FALSE(one.layer.store(other, make_entry("x")));
  CHECK(count_files(one.directory.path(), "") == 1);
  CHECK(payload_of(one.layer.find(one.key)) == "payload");
}

TEST_CASE("a directory that others may write to is neither written nor read, and says so") {
  OneEntry one;
  DirectoryLayer system(one.directory / "cache");
  for (const int mode : {0777, 01777, 0770, 0720, 0702}) {
    INFO("mode ", mode);
    set_mode(one.directory / "cache", mode);
    CHECK_FALSE(one.layer.store(make_key("b"), make_entry("x")));
    check_miss(one.layer.find(one.key), false);
    check_miss(system.find(one.key), false);
    CHECK(one.layer.list().empty());
    CHECK(one.layer.lock(one.key).try_lock() == EntryLock::State::unavailable);
    CHECK(one.layer.clear(false).removed.empty());
    CHECK(one.layer.problem() == system.problem());
    CHECK(one.layer.problem() ==
          fmt::format("{}: must not be writable by others, has mode {:04o}", one.layer.location(), mode));
  }
  set_mode(one.directory / "cache", 0755);
  CHECK(one.layer.problem().empty());
  CHECK(payload_of(one.layer.find(one.key)) == "payload");
  CHECK(one.layer.store(make_key("b"), make_entry("x")));
}

TEST_CASE("a shard that others may write to, or that is a symbolic link, is as if it were not there") {
  OneEntry one;
  const fs::path shard = one.file.parent_path();
  SUBCASE("mode 0777") { set_mode(shard, 0777); }
  SUBCASE("a link") {
    fs::rename(shard, one.directory / "elsewhere");
    fs::create_directory_symlink(one.directory / "elsewhere", shard);
  }
  check_miss(one.layer.find(one.key), false);
  check_miss(one.layer.find(make_key("a", "")), false);
  CHECK_FALSE(one.layer.store(one.key, make_entry("x")));
  CHECK(one.layer.list().empty());
  CHECK(one.layer.clear(false).removed.empty());
  CHECK(read_bytes(one.file).find("payload") != std::string::npos);
}

TEST_CASE("an entry that others may write to is damage") {
  OneEntry one;
  for (const int mode : {0666, 0620, 0602}) {
    REQUIRE(one.layer.store(one.key, make_entry("payload")));
    set_mode(one.file, mode);
    check_miss(DirectoryLayer(one.directory / "cache").find(one.key), true);
    check_miss(one.layer.find(one.key), true);
    check_miss(one.layer.find(one.key), false);
  }
}

TEST_CASE("a symbolic link to the user's own directory will do, one to another's will not") {
  OneEntry one;
  fs::create_directory_symlink(one.directory / "cache", one.directory / "link");
  UserDirectoryLayer link(one.directory / "link");
  CHECK(payload_of(link.find(one.key)) == "payload");
  CHECK(link.store(make_key("b"), make_entry("x")));
  set_mode(one.directory / "cache", 0777);
  CHECK_FALSE(link.store(make_key("c"), make_entry("x")));
}

TEST_CASE("a directory of another user is refused as the user's own") {
  if (::geteuid() != 0) {
    // The root directory is another user's, and no mode bits keep us from asking.
    UserDirectoryLayer root("/");
    CHECK_FALSE(root.store(make_key("a"), make_entry("x")));
    CHECK(root.problem() == fmt::format("/: must belong to this user (uid {}), belongs to uid 0", ::geteuid()));
    return;
  }
  OneEntry one;
  give_away(one.directory / "cache");
  CHECK_FALSE(one.layer.store(make_key("b"), make_entry("x")));
  check_miss(one.layer.find(one.key), false);
  CHECK(one.layer.problem() ==
        fmt::format("{}: must belong to this user (uid 0), belongs to uid {}", one.layer.location(), kNobody));
}

TEST_CASE("an entry of another user is damage in the user's own directory and in one that is given") {
  if (::geteuid() != 0) {
    MESSAGE("skipped: only root may give files away");
    return;
  }
  OneEntry one;
  DirectoryLayer system(one.directory / "cache");
  give_away(one.file);
  check_miss(system.find(one.key), true);
  check_miss(one.layer.find(one.key), true);
}

TEST_CASE("a system directory of another user is read, with the files that are that user's or root's") {
  if (::geteuid() != 0) {
    MESSAGE("skipped: only root may give files away");
    return;
  }
  OneEntry one;
  DirectoryLayer system(one.directory / "cache");
  give_away(one.directory / "cache");
  give_away(one.file.parent_path());
  CHECK(system.problem().empty());
  CHECK(payload_of(system.find(one.key)) == "payload");
  give_away(one.file);
  CHECK(payload_of(system.find(one.key)) == "payload");
}

TEST_CASE("a system directory is never written to") {
  OneEntry one;
  write_bytes(one.file, "damaged");
  DirectoryLayer system(one.directory / "cache");
  check_miss(system.find(one.key), true);
  check_miss(system.find(make_key("a", "")), true);
  CHECK(read_bytes(one.file) == "damaged");
  CHECK(count_files(one.directory.path(), "") == 1);
}

TEST_CASE("a directory that cannot be opened says why, one that is missing is no problem") {
  const TemporaryDirectory directory;
  write_bytes(directory / "file", "x");
  CHECK(UserDirectoryLayer(directory / "missing/deep").problem().empty());
  CHECK(DirectoryLayer(directory / "missing").problem().empty());
  CHECK(UserDirectoryLayer(directory / "file").problem() ==
        (directory / "file").string() + ": cannot be opened: Not a directory");
  CHECK(Directory::make(system_calls(), directory / "file/below").problem() ==
        (directory / "file/below").string() + ": cannot be opened: Not a directory");
  fs::create_symlink(directory / "nowhere", directory / "dangling");
  CHECK(Directory::make(system_calls(), directory / "dangling").problem() ==
        (directory / "dangling").string() + ": cannot be made: No such file or directory");
}

TEST_CASE("nothing is made in a working directory that was deleted") {
  const fs::path before = fs::current_path();
  {
    const TemporaryDirectory directory;
    fs::create_directory(directory / "gone");
    fs::current_path(directory / "gone");
    fs::remove(directory / "gone");
    CHECK(Directory::make(system_calls(), "a/cache").problem() == "a/cache: cannot be made: No such file or directory");
    CHECK_FALSE(UserDirectoryLayer("a/cache").store(make_key("a"), make_entry("x")));
    fs::current_path(before);
  }
  CHECK_FALSE(Directory::make(system_calls(), "").is_open());
}

TEST_CASE("a cache works wherever it is moved to") {
  OneEntry one;
  fs::rename(one.directory / "cache", one.directory / "moved");
  CHECK(payload_of(UserDirectoryLayer(one.directory / "moved").find(one.key)) == "payload");
  CHECK(payload_of(DirectoryLayer(one.directory / "moved").find(one.key)) == "payload");
}

TEST_CASE("a directory that is removed while it is in use is made anew") {
  OneEntry one;
  fs::remove_all(one.directory / "cache");
  check_miss(one.layer.find(one.key), false);
  CHECK(one.layer.store(one.key, make_entry("again")));
  CHECK(payload_of(one.layer.find(one.key)) == "again");
}

TEST_CASE("a name that is too long for a file is not stored") {
  OneEntry one;
  Key key = one.key;
  key.name.assign(220, 'n');  // the entry's name would do, its temporary file's would not
  CHECK_FALSE(one.layer.store(key, make_entry("x")));
  key.name.assign(300, 'n');
  CHECK_FALSE(one.layer.store(key, make_entry("x")));
  check_miss(one.layer.find(key), false);
  CHECK(count_files(one.directory.path(), "") == 1);
}

TEST_CASE("an entry that is larger than the whole cache may be is not stored") {
  const TemporaryDirectory directory;
  UserDirectoryLayer layer(directory / "cache", {.max_bytes = 1000});
  CHECK_FALSE(layer.store(make_key("a"), make_entry(std::string(1000, 'x'))));
  CHECK(layer.store(make_key("a"), make_entry(std::string(500, 'x'))));
}

TEST_CASE("a key whose parts are no file names finds and stores nothing") {
  const TemporaryDirectory directory;
  UserDirectoryLayer layer(directory / "cache");
  for (const char* bad : {"", "../up", "a/b", "UPPER", "a b"}) {
    Key key = make_key("a");
    key.name = bad;
    CHECK_FALSE(layer.store(key, make_entry("x")));
    check_miss(layer.find(key), false);
    key = make_key("a", bad);
    CHECK_FALSE(layer.store(key, make_entry("x")));
    check_miss(layer.find(key), false);
  }
  CHECK_FALSE(fs::exists(directory / "cache"));
}

TEST_CASE("facts that are not UTF-8 are not stored") {
  OneEntry one;
  Entry entry = make_entry("x");
  entry.facts["name"] = "\xff";
  CHECK_FALSE(one.layer.store(one.key, entry));
  CHECK(payload_of(one.layer.find(one.key)) == "payload");
}

TEST_CASE("without a compiler any compiler's entry is found, the last one first") {
  OneEntry one;
  const Key any = make_key("a", "");
  CHECK(payload_of(one.layer.find(any)) == "payload");
  REQUIRE(one.layer.store(make_key("a", "nvrtc-13.0.1"), make_entry("nvrtc-13.0.1")));
  CHECK(payload_of(one.layer.find(any)) == "nvrtc-13.0.1");
  for (const char* compiler : {"nvrtc-12.9", "nvrtc-13.1"}) {
    REQUIRE(one.layer.store(make_key("a", compiler), make_entry(compiler)));
  }
  REQUIRE(one.layer.store(make_key("b", "nvrtc-99"), make_entry("other inputs")));
  const Lookup lookup = one.layer.find(any);
  CHECK(payload_of(lookup) == "nvrtc-13.1");
  CHECK(fs::path(lookup.location).filename() == "fwd-bf16-d128." + any.inputs.hex() + ".nvrtc-13.1.fjc");
  check_miss(one.layer.find(make_key("c", "")), false);
}

TEST_CASE("without a compiler a damaged entry is passed over") {
  OneEntry one;
  const fs::path last = one.layer.store(make_key("a", "nvrtc-14.0"), make_entry("last")).value_or("");
  write_bytes(last, "damaged");
  const Lookup lookup = one.layer.find(make_key("a", ""));
  CHECK(payload_of(lookup) == "payload");
  CHECK(lookup.damaged);
  CHECK_FALSE(one.layer.find(make_key("a", "")).damaged);  // it was set aside
}

TEST_CASE("the list has what stands where an entry would, by name, and nothing else") {
  OneEntry one;
  const fs::path cache = one.directory / "cache", shard = one.file.parent_path();
  const Key last = {"zzz", digest_of("z"), "nvrtc-13.0"};
  REQUIRE(one.layer.store(last, make_entry("last")));
  const fs::path damaged = one.layer.store({"aaa", digest_of("z"), "nvrtc-13.0"}, make_entry("x")).value_or("");
  write_bytes(damaged, "damaged");
  for (const char* other : {"x.fjc", "x.txt", "lock"}) write_bytes(shard / other, "x");
  write_bytes(one.file.string() + ".bad", "x");
  write_bytes(cache / one.file.filename(), "not in a shard");
  fs::create_directory(cache / "zz");
  fs::copy(one.file, cache / "zz");
  fs::create_directory(cache / (shard.filename() == "00" ? "01" : "00"));
  fs::copy(one.file, cache / (shard.filename() == "00" ? "01" : "00"));  // never looked for there

  const std::vector<StoredEntry> entries = one.layer.list();
  REQUIRE(entries.size() == 3);
  CHECK(entries[0].name == "aaa." + last.inputs.hex() + ".nvrtc-13.0");
  CHECK(entries[0].facts().empty());
  CHECK(entries[0].read() == "damaged");
  CHECK(entries[1].name == one.file.stem());
  CHECK(entries[1].location == one.file.string());
  CHECK(entries[1].bytes == fs::file_size(one.file));
  CHECK(entries[1].last_used > 0);
  CHECK(entries[1].facts().at("inputs") == one.key.inputs.hex());
  CHECK(entries[1].read() == read_bytes(one.file));
  CHECK(entries[2].name == "zzz." + last.inputs.hex() + ".nvrtc-13.0");
}

TEST_CASE("what a list gives can be read when the layer is gone, and is nothing when the file is gone") {
  OneEntry one;
  const std::vector<StoredEntry> entries = DirectoryLayer(one.directory / "cache").list();
  REQUIRE(entries.size() == 1);
  CHECK(entries[0].last_used == 0);  // nobody keeps track of a system directory
  CHECK(decode(entries[0].read().value_or("")).has_value());
  fs::remove(one.file);
  CHECK_FALSE(entries[0].read());
  CHECK(entries[0].facts().empty());
}

TEST_CASE("file names and keys stand for each other") {
  for (const char* name : {"fwd", "a.b", "a-b_c.d128"}) {
    for (const char* compiler : {"nvrtc-13.0", "x", "nvrtc-13.0.88-0123456789abcdef0123456789abcdef"}) {
      const Key key = {name, digest_of(name), compiler};
      const auto parsed = parse_file_name(file_of(key));
      REQUIRE(parsed);
      CHECK(parsed->name == key.name);
      CHECK(parsed->inputs == key.inputs);
      CHECK(parsed->compiler == key.compiler);
      CHECK(path_of(key) == shard_of(key) + '/' + stem_of(key) + compiler + ".fjc");
    }
  }
  const std::string hex = digest_of("a").hex();
  for (const std::string& bad : {std::string(), std::string(".fjc"), "fwd." + hex + ".fjc", "." + hex + ".x.fjc",
                                 "fwd." + hex + "..fjd", "fwd." + hex.substr(1) + ".x.fjc", "fwd.0" + hex + ".x.fjc",
                                 "fwd." + hex + ".X.fjc", "fwd." + hex + ".x.fjc.bad", hex + ".x.fjc"}) {
    INFO("file ", bad);
    CHECK_FALSE(parse_file_name(bad));
  }
}
