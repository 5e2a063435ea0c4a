// SPDX-License-Identifier: Apache-2.0
// cache/FORMAT.md, "Bundles".
#include "cache/bundle.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "cache/bundle_layer.h"
#include "flashjit/error.h"
#include "tests/support/bundles.h"
#include "tests/support/cache_entries.h"
#include "tests/support/temporary_directory.h"

using namespace flashjit::cache;
using namespace flashjit::tests;
namespace fs = std::filesystem;

namespace {

const std::vector<NewMember>& three_members() {
  static const std::vector<NewMember> members = {{"ab/a.fjc", "first"}, {"ab/b.fjc", "second one"}, {"cd/a.fjc", ""}};
  return members;
}

std::string problem_of(std::string_view bytes) {
  std::string problem;
  const bool opened = Bundle::open(bytes, "embedded", problem) != nullptr;
  CHECK(opened == problem.empty());
  return problem;
}

std::string problem_of_file(const fs::path& file) {
  std::string problem;
  const bool opened = Bundle::open(file, problem) != nullptr;
  CHECK(opened == problem.empty());
  return problem;
}

std::unique_ptr<Bundle> open(const std::string& bytes) {
  std::string problem;
  auto bundle = Bundle::open(bytes, "embedded", problem);
  REQUIRE_MESSAGE(bundle, problem);
  return bundle;
}

std::vector<NewMember> contents(const Bundle& bundle) {
  std::vector<NewMember> members;
  for (const auto& member : bundle.members()) members.push_back({member.name, bundle.read(member).value_or("damaged")});
  return members;
}

std::string flipped(std::string bytes, std::size_t byte, int bit) {
  bytes[byte] = static_cast<char>(bytes[byte] ^ (1 << bit));
  return bytes;
}

// The bundle of two small entries, "a" and "b".
std::string two_entries() {
  return encode_bundle(
      {make_member(make_key("a"), make_entry("of a")), make_member(make_key("b"), make_entry("of b"))});
}

}  // namespace

TEST_CASE("a bundle has the bytes that the format says") {
  const std::string manifest = R"({"members":[{"bytes":5,"digest":")" + digest_of("first").hex() +
                               R"(","name":"ab/a.fjc"},{"bytes":10,"digest":")" + digest_of("second one").hex() +
                               R"(","name":"ab/b.fjc"},{"bytes":0,"digest":"99aa06d3014798d86001c324468d497f",)" +
                               R"("name":"cd/a.fjc"}]})";
  CHECK(encode_bundle(three_members()) == BundleParts{manifest, "firstsecond one"}.bytes());
  CHECK(encode_bundle({}) == BundleParts{R"({"members":[]})", ""}.bytes());
}

TEST_CASE("what is bundled comes back") {
  const std::string bytes = encode_bundle(three_members());
  const auto bundle = open(bytes);
  CHECK(contents(*bundle) == three_members());
  REQUIRE(bundle->find("ab/b.fjc"));
  CHECK(bundle->read_start(*bundle->find("ab/b.fjc"), 6) == "second");
  CHECK(bundle->read_start(*bundle->find("ab/b.fjc"), 60) == "second one");
  for (const char* name : {"", "ab", "ab/a.fj", "ab/a.fjcc", "zz"}) CHECK_FALSE(bundle->find(name));
  CHECK(open(encode_bundle({}))->members().empty());
}

TEST_CASE("the order of the members does not matter") {
  const std::string bytes = encode_bundle(three_members());
  std::vector<std::size_t> order = {0, 1, 2};
  do {
    std::vector<NewMember> members;
    for (const std::size_t i : order) members.push_back(three_members()[i]);
    CHECK(encode_bundle(members) == bytes);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("members that a bundle cannot have are refused with their name") {
  using flashjit::Error;
  const auto message_of = [](std::vector<NewMember> members) -> std::string {
    try {
      return encode_bundle(std::move(members)), "none";
    } catch (const Error& error) {
      return error.what();
    }
  };
  CHECK(message_of({{"a", "1"}, {"b", ""}, {"a", "2"}}).find("\"a\" must be there once") != std::string::npos);
  CHECK(message_of({{"../a", ""}}).find("\"../a\" must be a relative path") != std::string::npos);
  CHECK(message_of({{"a", std::string(kMaxEntryBytes + 1, '\0')}}).find("256 MiB") != std::string::npos);
}

TEST_CASE("a file and bytes in memory are the same bundle") {
  TemporaryDirectory directory;
  const fs::path file = directory / "kernels.fjb";
  const std::string bytes = encode_bundle(three_members());
  write_bytes(file, bytes);
  std::string problem;
  const auto bundle = Bundle::open(file, problem);
  REQUIRE_MESSAGE(bundle, problem);
  CHECK(bundle->name() == file.string());
  CHECK(contents(*bundle) == three_members());
  const Bundle::Member& member = *bundle->find("ab/b.fjc");
  CHECK(bundle->read_start(member, 6) == "second");
  fs::resize_file(file, member.offset + 5);
  CHECK_FALSE(bundle->read_start(member, 6));
  CHECK_FALSE(bundle->read(member));
}

TEST_CASE("a bundle cut anywhere is refused, and so is one with bytes after its end") {
  TemporaryDirectory directory;
  const fs::path file = directory / "kernels.fjb";
  const std::string bytes = encode_bundle(three_members());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    INFO("length ", length);
    CHECK(problem_of(bytes.substr(0, length)).starts_with("embedded: "));
    write_bytes(file, bytes.substr(0, length));
    CHECK(problem_of_file(file).starts_with(file.string() + ": "));
  }
  CHECK_FALSE(problem_of(bytes + '\0').empty());
  CHECK_FALSE(problem_of(bytes + bytes).empty());
}

TEST_CASE("any flipped bit is found: in the manifest it costs the bundle, in a member that member alone") {
  const std::string bytes = encode_bundle(three_members());
  const std::size_t first = open(bytes)->members()[0].offset, second = open(bytes)->members()[1].offset;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      INFO("byte ", i, " bit ", bit);
      const std::string damaged = flipped(bytes, i, bit);
      if (i < first) {
        CHECK(problem_of(damaged).starts_with("embedded: "));
        continue;
      }
      std::vector<NewMember> expected = three_members();
      expected[i < second ? 0 : 1].bytes = "damaged";
      CHECK(contents(*open(damaged)) == expected);
    }
  }
}

TEST_CASE("members that were swapped are damaged") {
  const std::string bytes = encode_bundle({{"a", "1234"}, {"b", "5678"}});
  const std::string swapped = bytes.substr(0, bytes.size() - 8) + "56781234";
  CHECK(contents(*open(swapped)) == std::vector<NewMember>{{"a", "damaged"}, {"b", "damaged"}});
}

TEST_CASE("what is no bundle of a known version is refused with the reason") {
  const std::string manifest = R"({"members":[]})";
  CHECK(problem_of(BundleParts{manifest, ""}.bytes()).empty());
  for (const std::uint32_t version : {0u, 2u, 256u, 0x01000000u}) {
    const std::string problem = problem_of(BundleParts{manifest, "", version}.bytes());
    CHECK(problem == "embedded: must be of version 1, is of " + std::to_string(version));
  }
  CHECK(problem_of(std::string(100, 'x')) == "embedded: must be a flashjit bundle, is none");
  CHECK(problem_of(encode(make_entry("an entry, no bundle"))) == "embedded: must be a flashjit bundle, is none");
}

TEST_CASE("lengths that do not add up are refused, also where their sum overflows") {
  const std::string one = manifest_of_one("a", "4");
  CHECK(problem_of(BundleParts{one, "data"}.bytes()).empty());
  CHECK_FALSE(problem_of(BundleParts{one, "dat"}.bytes()).empty());
  CHECK_FALSE(problem_of(BundleParts{one, "data!"}.bytes()).empty());
  for (const std::uint32_t manifest_bytes : {0u, 1u, 0xfffffff0u, 0xffffffd8u, 0xffffffffu}) {
    CHECK_FALSE(problem_of(BundleParts{one, "data", 1, manifest_bytes}.bytes()).empty());
  }
  for (const std::uint64_t bundle_bytes : {std::uint64_t{0}, std::uint64_t{1} << 32, ~std::uint64_t{0}}) {
    CHECK_FALSE(problem_of(BundleParts{one, "data", 1, {}, bundle_bytes}.bytes()).empty());
  }
  // Two members whose lengths are 4 modulo 2^64.
  const std::string digest = digest_of("").hex();
  const std::string two = R"({"members":[{"bytes":18446744073709551615,"digest":")" + digest +
                          R"(","name":"a"},{"bytes":5,"digest":")" + digest + R"(","name":"b"}]})";
  CHECK_FALSE(problem_of(BundleParts{two, "data"}.bytes()).empty());
}

TEST_CASE("the manifest is one JSON object in one spelling") {
  const std::string digest = digest_of("").hex();
  const auto member = [&](const std::string& name) {
    return R"({"bytes":0,"digest":")" + digest + R"(","name":)" + name + "}";
  };
  const auto with = [](const std::string& members) { return R"({"members":[)" + members + "]}"; };
  CHECK(problem_of(BundleParts{with(member("\"b\"")), ""}.bytes()).empty());
  const std::string refused[] = {
      "",
      "null",
      "[]",
      "{}",
      R"({"members":{}})",
      with("0"),
      with("{}"),
      R"({"members":[],"more":0})",
      R"({"members": []})",
      R"({"members":[]}x)",
      R"({"members":[],"members":[]})",
      with(R"({"bytes":0,"digest":")" + digest + "\"}"),
      with(R"({"bytes":0,"digest":")" + digest + R"(","name":"b","offset":0})"),
      with(R"({"bytes":0,"name":"b","digest":")" + digest + "\"}"),
      with(R"({"bytes":0,"digest":1,"name":"b"})"),
      with(R"({"bytes":0,"digest":"","name":"b"})"),
      with(R"({"bytes":0,"digest":")" + digest.substr(1) + R"(g","name":"b"})"),
      with(member("1")),
      with(member("\"\\u0062\"")),
      with(member("\"b\"") + "," + member("\"b\"")),
      with(member("\"b\"") + "," + member("\"a\"")),
      std::string(100000, '['),
      with(std::string(100000, '[') + std::string(100000, ']')),
  };
  for (const std::string& manifest : refused) {
    INFO("manifest ", manifest.substr(0, 100));
    CHECK_FALSE(problem_of(BundleParts{manifest, ""}.bytes()).empty());
  }
  for (const char* length : {"-1", "0.0", "1e3", "1e400", "true", "\"0\"", "268435457", "18446744073709551616"}) {
    INFO("length ", length);
    CHECK_FALSE(problem_of(BundleParts{manifest_of_one("a", length), ""}.bytes()).empty());
  }
}

TEST_CASE("names of members cannot lead out of a directory") {
  for (const std::string& name : {std::string("a"), std::string("ab/a.b_c-1..fjc"), std::string(255, 'a')}) {
    CHECK(problem_of(BundleParts{manifest_of_one(name), ""}.bytes()).empty());
  }
  const std::string refused[] = {"",       "/",    "/a",        "a/",  "a//b",  ".",        "..",
                                 "../a",   "a/..", "a/../b",    "./a", "a/./b", "A",        "a b",
                                 "a\\\\b", "~a",   "a\xc3\xa9", "a:b", "*",     "a\\u0000", std::string(256, 'a')};
  for (const std::string& name : refused) {
    INFO("name ", name);
    CHECK_FALSE(problem_of(BundleParts{manifest_of_one(name), ""}.bytes()).empty());
  }
}

TEST_CASE("a bundle has a thousand members as well as one, for many threads at once") {
  std::vector<NewMember> members;
  for (int i = 0; i < 1000; ++i) {
    const std::string text = std::to_string(i);
    members.push_back(make_member(make_key(text), make_entry("payload " + text)));
  }
  TemporaryDirectory directory;
  write_bytes(directory / "kernels.fjb", encode_bundle(members));
  BundleLayer layer(directory / "kernels.fjb");
  REQUIRE(layer.problem().empty());
  CHECK(layer.list().size() == 1000);
  std::vector<int> found(4);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < found.size(); ++t) {
    threads.emplace_back([&layer, &count = found[t]] {
      for (int i = 0; i < 1000; ++i) {
        const std::string text = std::to_string(i);
        count += payload_of(layer.find(make_key(text))) == "payload " + text;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(found == std::vector<int>(4, 1000));
}

TEST_CASE("what stands in the place of a bundle's file is refused with the reason") {
  TemporaryDirectory directory;
  const fs::path file = directory / "kernels.fjb";
  const std::string name = file.string();
  SUBCASE("nothing") { CHECK(problem_of_file(file) == name + ": cannot be opened: No such file or directory"); }
  SUBCASE("a directory") {
    fs::create_directory(file);
    CHECK(problem_of_file(file) == name + ": must be a regular file");
  }
  SUBCASE("a pipe, which would block who opens it") {
    REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
    CHECK(problem_of_file(file) == name + ": must be a regular file");
  }
  SUBCASE("a file that others may write to") {
    write_bytes(file, two_entries());
    REQUIRE(::chmod(file.c_str(), 0646) == 0);
    CHECK(problem_of_file(file) == name + ": must not be writable by others, has mode 0646");
  }
  SUBCASE("a hole of any size") {
    write_bytes(file, "");
    fs::resize_file(file, std::uintmax_t{1} << 40);
    CHECK(problem_of_file(file) == name + ": must be a flashjit bundle, is none");
  }
}

TEST_CASE("a bundle that is replaced by rename stays the one that was opened") {
  TemporaryDirectory directory;
  const fs::path file = directory / "kernels.fjb";
  write_bytes(file, two_entries());
  BundleLayer layer(file);
  write_bytes(directory / "new", encode_bundle({}));
  fs::rename(directory / "new", file);
  CHECK(payload_of(layer.find(make_key("a"))) == "of a");
  CHECK(BundleLayer(file).list().empty());
}

TEST_CASE("a bundle that shrinks or changes while it is open has misses") {
  TemporaryDirectory directory;
  const fs::path file = directory / "kernels.fjb";
  write_bytes(file, two_entries());
  BundleLayer layer(file);
  SUBCASE("shrinks") { fs::resize_file(file, 10); }
  SUBCASE("is zeroed") { write_bytes(file, std::string(two_entries().size(), '\0')); }
  for (const char* inputs : {"a", "b"}) {
    const Lookup lookup = layer.find(make_key(inputs));
    CHECK_FALSE(lookup.entry);
    CHECK(lookup.damaged);
  }
  for (const StoredEntry& entry : layer.list()) {
    CHECK_FALSE(entry.read());
    CHECK(entry.facts().empty());
  }
}

namespace {

// Reads one byte at a time, and is interrupted before each.
class SlowFiles : public FileSystem {
 public:
  ssize_t read_at(int descriptor, void* buffer, std::size_t bytes, std::uint64_t offset) override {
    interrupted_ = !interrupted_;
    if (interrupted_) return errno = EINTR, -1;
    return FileSystem::read_at(descriptor, buffer, std::min<std::size_t>(bytes, 1), offset);
  }

 private:
  bool interrupted_ = false;
};

class FailingFiles : public FileSystem {
 public:
  int good_reads = 0;
  ssize_t read_at(int descriptor, void* buffer, std::size_t bytes, std::uint64_t offset) override {
    if (good_reads-- <= 0) return errno = EIO, -1;
    return FileSystem::read_at(descriptor, buffer, bytes, offset);
  }
};

}  // namespace

TEST_CASE("short and interrupted reads are gone on with, and reads that fail are misses") {
  TemporaryDirectory directory;
  const fs::path file = directory / "kernels.fjb";
  write_bytes(file, two_entries());
  SlowFiles slow;
  CHECK(payload_of(BundleLayer(file, slow).find(make_key("b"))) == "of b");
  FailingFiles failing;
  for (const int good_reads : {0, 1}) {
    failing.good_reads = good_reads;
    CHECK(BundleLayer(file, failing).problem() == file.string() + ": cannot be read");
  }
  failing.good_reads = 2;
  BundleLayer layer(file, failing);
  CHECK(layer.problem().empty());
  CHECK_FALSE(layer.find(make_key("b")).entry);
  failing.good_reads = 1;
  CHECK(payload_of(layer.find(make_key("b"))) == "of b");
}

TEST_CASE("the layer of a bundle finds what the key asks for") {
  const std::string bytes = two_entries();
  BundleLayer layer(bytes, "embedded");
  const Key key = make_key("a");
  const Lookup lookup = layer.find(key);
  CHECK(payload_of(lookup) == "of a");
  CHECK(lookup.location == "embedded:" + path_of(key));
  CHECK(lookup.bytes == encode(with_key(make_entry("of a"), key)).size());
  CHECK_FALSE(lookup.damaged);
  for (const Key& other : {make_key("c"), make_key("a", "nvrtc-12.9"), Key{"fwd", key.inputs, key.compiler},
                           Key{"", key.inputs, key.compiler}, Key{"../" + key.name, key.inputs, ""}}) {
    const Lookup miss = layer.find(other);
    CHECK_FALSE(miss.entry);
    CHECK_FALSE(miss.damaged);
    CHECK(miss.location.empty());
  }
}

TEST_CASE("without a compiler the layer of a bundle gives the intact entry of the last one") {
  const auto member = [](const std::string& compiler) {
    return make_member(make_key("a", compiler), make_entry("of " + compiler));
  };
  const auto find = [](const std::string& bytes) { return BundleLayer(bytes, "embedded").find(make_key("a", "")); };
  const NewMember foreign = {"notes/read.me", "of no entry"};
  const std::string bytes =
      encode_bundle({member("nvrtc-13.0"), member("nvrtc-12.9"), member("nvrtc-13.0.1"), foreign});
  CHECK(payload_of(find(bytes)) == "of nvrtc-13.0.1");
  const Bundle::Member last = *open(bytes)->find(path_of(make_key("a", "nvrtc-13.0.1")));
  const Lookup second = find(flipped(bytes, last.offset + last.bytes / 2, 0));
  CHECK(payload_of(second) == "of nvrtc-13.0");
  CHECK(second.damaged);
  CHECK_FALSE(BundleLayer(bytes, "embedded").find(make_key("b", "")).damaged);
}

TEST_CASE("a member that is no entry of its name is damage, however intact") {
  const Key a = make_key("a"), b = make_key("b");
  const std::string of_b = encode(with_key(make_entry("of b"), b));
  for (const std::string& content : {of_b, std::string(), std::string("text"), encode(make_entry("of a"))}) {
    const std::string bytes = encode_bundle({{path_of(a), content}, {path_of(b), of_b}});
    BundleLayer layer(bytes, "embedded");
    const Lookup lookup = layer.find(a);
    CHECK_FALSE(lookup.entry);
    CHECK(lookup.damaged);
    CHECK(payload_of(layer.find(b)) == "of b");
  }
}

TEST_CASE("the layer of a bundle lists entries, and no other members") {
  const Key key = make_key("a");
  const std::string file = file_of(key);
  const std::string bytes = encode_bundle({make_member(key, make_entry("of a")),
                                           {"zz/" + file, "in another's shard"},
                                           {file, "in none"},
                                           {shard_of(key) + "/" + file + "2", "of a later version"},
                                           {"notes/read.me", "of no entry"}});
  BundleLayer layer(bytes, "embedded");
  const std::vector<StoredEntry> entries = layer.list();
  REQUIRE(entries.size() == 1);
  const StoredEntry& entry = entries.front();
  CHECK(entry.name + ".fjc" == file);
  CHECK(entry.location == "embedded:" + path_of(key));
  CHECK(entry.last_used == 0);
  REQUIRE(entry.read());
  CHECK(entry.bytes == entry.read()->size());
  CHECK(entry.facts() == with_key(make_entry("of a"), key).facts);
}

TEST_CASE("a layer of a bundle that is refused is empty and says why") {
  BundleLayer missing(fs::path("/nonexistent/kernels.fjb"));
  CHECK(missing.problem().starts_with("/nonexistent/kernels.fjb: cannot be opened"));
  BundleLayer damaged("no bundle", "embedded");
  CHECK(damaged.problem().starts_with("embedded: "));
  for (BundleLayer* layer : {&missing, &damaged}) {
    CHECK_FALSE(layer->find(make_key("a")).entry);
    CHECK_FALSE(layer->find(make_key("a", "")).damaged);
    CHECK(layer->list().empty());
  }
}
