// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "cache/directory_layer.h"
#include "tests/support/cache_entries.h"
#include "tests/support/temporary_directory.h"

using namespace flashjit::cache;
using namespace flashjit::tests;
namespace fs = std::filesystem;

namespace {

struct OneEntry {
  TemporaryDirectory directory;
  UserDirectoryLayer layer{directory / "cache"};
  Key key = make_key("a");
  fs::path file = layer.store(key, make_entry("payload")).value_or("");
  fs::path bad = file.string() + ".bad";
  std::string bytes = read_bytes(file);

  // What stands in the entry's place is a miss, set aside, and replaced by the next store.
  void check_set_aside_and_replaced() {
    const Lookup damaged = layer.find(key);
    CHECK_FALSE(damaged.entry);
    CHECK(damaged.damaged);
    CHECK(fs::symlink_status(bad).type() != fs::file_type::not_found);
    const Lookup after = layer.find(key);
    CHECK_FALSE(after.entry);
    CHECK_FALSE(after.damaged);
    CHECK(layer.store(key, make_entry("again")) == file.string());
    CHECK(payload_of(layer.find(key)) == "again");
  }
};

}  // namespace

TEST_CASE("a file cut at any length is a miss") {
  OneEntry stored;
  for (std::size_t length = 0; length < stored.bytes.size(); ++length) {
    write_bytes(stored.file, stored.bytes.substr(0, length));
    const Lookup lookup = stored.layer.find(stored.key);
    INFO("length ", length);
    CHECK_FALSE(lookup.entry);
    CHECK(lookup.damaged);
  }
  write_bytes(stored.file, stored.bytes);
  CHECK(payload_of(stored.layer.find(stored.key)) == "payload");
}

TEST_CASE("a file with a flipped bit in any byte is a miss") {
  OneEntry stored;
  for (std::size_t i = 0; i < stored.bytes.size(); ++i) {
    std::string damaged = stored.bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    write_bytes(stored.file, damaged);
    INFO("byte ", i);
    CHECK_FALSE(stored.layer.find(stored.key).entry);
  }
}

TEST_CASE("a damaged entry is set aside and replaced by the next store") {
  OneEntry stored;
  write_bytes(stored.file, stored.bytes + "x");
  stored.check_set_aside_and_replaced();
}

TEST_CASE("an intact entry of other inputs is damage, and neither is given for the other") {
  OneEntry stored;
  const Key other = make_key("b");
  const fs::path other_file = stored.layer.store(other, make_entry("other")).value_or("");
  fs::rename(stored.file, stored.directory / "kept");
  fs::rename(other_file, stored.file);
  fs::rename(stored.directory / "kept", other_file);
  const Lookup swapped = stored.layer.find(other);
  CHECK_FALSE(swapped.entry);
  CHECK(swapped.damaged);
  stored.check_set_aside_and_replaced();
}

TEST_CASE("an intact entry of another compiler is damage") {
  OneEntry stored;
  const fs::path other = stored.layer.store(make_key("a", "nvrtc-12.9"), make_entry("other")).value_or("");
  fs::rename(other, stored.file);
  stored.check_set_aside_and_replaced();
}

TEST_CASE("an entry without the cache's own facts is damage") {
  OneEntry stored;
  write_bytes(stored.file, encode(make_entry("payload")));
  stored.check_set_aside_and_replaced();
}

TEST_CASE("a symbolic link is not followed, not even to an intact entry") {
  OneEntry stored;
  fs::rename(stored.file, stored.directory / "elsewhere");
  fs::create_symlink(stored.directory / "elsewhere", stored.file);
  stored.check_set_aside_and_replaced();
  CHECK(read_bytes(stored.directory / "elsewhere") == stored.bytes);
}

TEST_CASE("a store replaces a symbolic link and does not write through it") {
  OneEntry stored;
  write_bytes(stored.directory / "precious", "data");
  fs::remove(stored.file);
  fs::create_symlink(stored.directory / "precious", stored.file);
  CHECK(stored.layer.store(stored.key, make_entry("again")));
  CHECK(read_bytes(stored.directory / "precious") == "data");
  CHECK(payload_of(stored.layer.find(stored.key)) == "again");
}

TEST_CASE("a directory or a pipe in the place of an entry is damage") {
  OneEntry stored;
  fs::remove(stored.file);
  SUBCASE("a directory") { fs::create_directory(stored.file); }
  SUBCASE("a pipe, which would block who opens it") { REQUIRE(::mkfifo(stored.file.c_str(), 0600) == 0); }
  stored.check_set_aside_and_replaced();
}

TEST_CASE("a file beyond every sane size is damage and is not read") {
  OneEntry stored;
  fs::resize_file(stored.file, (std::uintmax_t{256} << 20) + 1);  // sparse
  stored.check_set_aside_and_replaced();
}

TEST_CASE("what was set aside before gives way, whatever it is") {
  OneEntry stored;
  const auto put_directory = [&] {
    fs::remove(stored.file);
    fs::create_directory(stored.file);
  };
  put_directory();
  stored.check_set_aside_and_replaced();
  write_bytes(stored.file, "damaged");
  stored.check_set_aside_and_replaced();
  CHECK(fs::is_regular_file(stored.bad));
  put_directory();
  stored.check_set_aside_and_replaced();
  CHECK(fs::is_directory(stored.bad));
  put_directory();
  stored.check_set_aside_and_replaced();
}
