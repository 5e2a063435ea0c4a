// SPDX-License-Identifier: Apache-2.0
// The files of tests/golden, one of each format version that was ever released: today's code reads them, or misses them
// cleanly, and of the current version writes the very same bytes. They were written once by encode() and
// encode_bundle() of the release that brought the version, with the contents below, and are never written again.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "cache/bundle_layer.h"
#include "cache/directory_layer.h"
#include "cache/entry_name.h"
#include "tests/support/bundles.h"
#include "tests/support/cache_entries.h"
#include "tests/support/temporary_directory.h"

using namespace flashjit::cache;
using namespace flashjit::tests;
namespace fs = std::filesystem;

namespace {

fs::path golden(const std::string& name) { return fs::path(FLASHJIT_SOURCE_DIR) / "tests/golden" / name; }

const Key kKey = {"fwd-bf16-d128", {0x0123456789abcdef, 0xfedcba9876543210}, "nvrtc-13.0.88-0a1b2c3d"};
const Key kOtherKey = {"fwd-fp16-d64", {0xaa00000000000000, 1}, "nvrtc-13.0.88-0a1b2c3d"};

Entry golden_entry() {
  Entry entry{{{"architecture", "sm_90a"}, {"name", "fwd-bf16-d128"}, {"registers", "168"}}, {}};
  for (int byte = 0; byte < 256; ++byte) entry.payload.push_back(static_cast<char>(byte));
  return with_key(entry, kKey);
}

Entry other_entry() { return with_key({{{"quote", "\"\\\n\x01 \xc3\xa9"}}, ""}, kOtherKey); }

// Version 1 with the version's field and the checksum of another one.
std::string entry_of_version(std::uint32_t version) {
  const std::string bytes = encode(golden_entry());
  std::string other = bytes.substr(0, 8);
  append(other, version);
  other += bytes.substr(12, bytes.size() - 12 - kChecksumBytes);
  return other + checksum_of(other);
}

}  // namespace

TEST_CASE("an entry of version 1 is read, and written with the same bytes") {
  const std::string bytes = read_bytes(golden("entry-v1.fjc"));
  REQUIRE(bytes.size() == 442);
  CHECK(decode(bytes) == golden_entry());
  CHECK(decode_for(kKey, bytes) == golden_entry());
  CHECK(decode_facts(bytes) == golden_entry().facts);
  CHECK(encode(golden_entry()) == bytes);
}

TEST_CASE("a bundle of version 1 is read, and written with the same bytes") {
  const std::string bytes = read_bytes(golden("bundle-v1.fjb"));
  REQUIRE(bytes.size() == 929);
  BundleLayer layer(golden("bundle-v1.fjb"));
  CHECK(layer.problem().empty());
  CHECK(layer.list().size() == 2);
  CHECK(layer.find(kKey).entry == golden_entry());
  CHECK(layer.find(kOtherKey).entry == other_entry());
  CHECK(encode_bundle({make_member(kOtherKey, other_entry()), make_member(kKey, golden_entry())}) == bytes);
}

TEST_CASE("a directory finds an entry of version 1 by its name") {
  TemporaryDirectory directory;
  fs::create_directories(directory / shard_of(kKey));
  write_bytes(directory / path_of(kKey), read_bytes(golden("entry-v1.fjc")));
  UserDirectoryLayer layer(directory.path());
  CHECK(layer.find(kKey).entry == golden_entry());
}

TEST_CASE("an entry of an unknown version under the suffix of version 1 is damage") {
  CHECK(entry_of_version(1) == encode(golden_entry()));
  TemporaryDirectory directory;
  fs::create_directories(directory / shard_of(kKey));
  write_bytes(directory / path_of(kKey), entry_of_version(2));
  UserDirectoryLayer layer(directory.path());
  const Lookup lookup = layer.find(kKey);
  CHECK_FALSE(lookup.entry);
  CHECK(lookup.damaged);
  CHECK(count_files(directory.path(), ".fjc.bad") == 1);
  CHECK_FALSE(layer.find(kKey).damaged);
}

TEST_CASE("files of a later release lie beside today's and are left alone") {
  TemporaryDirectory directory;
  UserDirectoryLayer layer(directory.path());
  const auto stored = layer.store(kKey, golden_entry());
  REQUIRE(stored);
  const std::string later = *stored + "2";  // .fjc2
  write_bytes(later, entry_of_version(2));
  CHECK(layer.find(kKey).entry == golden_entry());
  Key any_compiler = kKey;
  any_compiler.compiler.clear();
  CHECK(layer.find(any_compiler).entry == golden_entry());
  CHECK(layer.list().size() == 1);
  layer.collect(1, false);
  CHECK_FALSE(fs::exists(*stored));
  CHECK(read_bytes(later) == entry_of_version(2));
}
