// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "cache/directory_layer.h"
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

void check_miss(const Lookup& lookup, bool rejected) {
  CHECK_FALSE(lookup.entry);
  CHECK(lookup.location.empty());
  CHECK(lookup.rejected == rejected);
}

// A layer with one entry, and the file it is in.
struct OneEntry {
  TemporaryDirectory directory;
  DirectoryLayer layer{directory / "cache"};
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
  CHECK_FALSE(lookup.rejected);
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
  check_miss(DirectoryLayer(directory.path()).find(make_key("a")), false);
  check_miss(DirectoryLayer(directory / "missing").find(make_key("a")), false);
  check_miss(DirectoryLayer(directory / "missing").find(make_key("a", "")), false);
  CHECK_FALSE(fs::exists(directory / "missing"));
  write_bytes(directory / "file", "x");
  check_miss(DirectoryLayer(directory / "file/below").find(make_key("a")), false);
}

TEST_CASE("storing makes private directories and files, and leaves those that exist as they are") {
  const TemporaryDirectory directory;
  fs::create_directory(directory / "given");
  set_mode(directory / "given", 0755);
  DirectoryLayer layer(directory / "given/made/cache");
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
  DirectoryLayer layer(directory / "file/below");
  CHECK_FALSE(layer.store(make_key("a"), make_entry("x")));
  CHECK_FALSE(DirectoryLayer(directory / "file").store(make_key("a"), make_entry("x")));
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

TEST_CASE("a directory that others may write to is not written, and one that anybody may write to is not read") {
  OneEntry one;
  for (const int mode : {0777, 01777, 0770, 0720, 0702}) {
    INFO("mode ", mode);
    set_mode(one.directory / "cache", mode);
    CHECK_FALSE(one.layer.store(make_key("b"), make_entry("x")));
    CHECK(bool(one.layer.find(one.key).entry) == ((mode & 2) == 0));
    check_miss(one.layer.find(make_key("b")), false);
  }
  set_mode(one.directory / "cache", 0755);
  CHECK(one.layer.store(make_key("b"), make_entry("x")));
}

TEST_CASE("a symbolic link to the user's own directory will do, one to another's will not") {
  OneEntry one;
  fs::create_directory_symlink(one.directory / "cache", one.directory / "link");
  DirectoryLayer link(one.directory / "link");
  CHECK(payload_of(link.find(one.key)) == "payload");
  CHECK(link.store(make_key("b"), make_entry("x")));
  set_mode(one.directory / "cache", 0777);
  CHECK_FALSE(link.store(make_key("c"), make_entry("x")));
}

TEST_CASE("a directory of another user is not written") {
  if (::geteuid() != 0) {
    // The root directory is another user's, and no mode bits keep us from asking.
    CHECK_FALSE(DirectoryLayer("/").store(make_key("a"), make_entry("x")));
    return;
  }
  OneEntry one;
  const uid_t nobody = 65534;
  REQUIRE(::chown((one.directory / "cache").c_str(), nobody, static_cast<gid_t>(-1)) == 0);
  CHECK_FALSE(one.layer.store(make_key("b"), make_entry("x")));
}

TEST_CASE("a key whose parts are no file names finds and stores nothing") {
  const TemporaryDirectory directory;
  DirectoryLayer layer(directory / "cache");
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
  for (const char* compiler : {"nvrtc-13.0.1", "nvrtc-12.9", "nvrtc-13.1"}) {
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
  CHECK(lookup.rejected);
  CHECK_FALSE(one.layer.find(make_key("a", "")).rejected);  // it was set aside
}
