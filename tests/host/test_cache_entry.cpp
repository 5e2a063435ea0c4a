// SPDX-License-Identifier: Apache-2.0
// The bytes of cache/FORMAT.md.
#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>

#include "cache/digest.h"
#include "cache/entry.h"

using namespace flashjit::cache;

namespace {

std::string little_endian(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

std::string with_checksum(const std::string& bytes) {
  const Digest digest = digest_of(bytes);
  return bytes + little_endian(digest.low, 8) + little_endian(digest.high, 8);
}

// An entry written by hand, with lengths that need not be true.
std::string by_hand(std::uint32_t version, std::uint64_t header_bytes, std::uint64_t payload_bytes,
                    const std::string& content) {
  return with_checksum("FLASHJIT" + little_endian(version, 4) + little_endian(header_bytes, 4) +
                       little_endian(payload_bytes, 8) + content);
}

std::string with_header(const std::string& header) { return by_hand(1, header.size(), 0, header); }

const Entry& small_entry() {
  static const Entry entry = {{{"name", "fwd"}, {"compiler", "nvrtc-13.0"}}, std::string("cu\0bin\xff", 7)};
  return entry;
}

}  // namespace

TEST_CASE("a digest is XXH3-128 with the high half first") {
  CHECK(digest_of("").hex() == "99aa06d3014798d86001c324468d497f");
  CHECK(digest_of("a") != digest_of("b"));
}

TEST_CASE("a hasher tells parts, labels and their borders apart") {
  const auto hash = [](std::string_view label, std::string_view bytes) { return Hasher().add(label, bytes).finish(); };
  CHECK(hash("a", "bc") == hash("a", "bc"));
  CHECK(hash("a", "bc") != hash("ab", "c"));
  CHECK(hash("a", "bc") != hash("abc", ""));
  CHECK(hash("a", "b") != hash("b", "a"));
  CHECK(Hasher().add("a", "b").add("c", "d").finish() != Hasher().add("c", "d").add("a", "b").finish());
  CHECK(Hasher().add("a", "b").add("c", "").finish() != hash("a", "b"));
  CHECK(Hasher().finish() != hash("", ""));
}

TEST_CASE("an entry has the bytes that the format says") {
  const std::string header = R"({"compiler":"nvrtc-13.0","name":"fwd"})";
  CHECK(encode(small_entry()) == by_hand(1, header.size(), 7, header + small_entry().payload));
  CHECK(encode({}) == by_hand(1, 2, 0, "{}"));
}

TEST_CASE("what is encoded comes back") {
  Entry entry = small_entry();
  entry.facts["quote"] = "\"\\\n\t\x01 \xc3\xa9";
  entry.facts[""] = "";
  entry.payload.assign(100000, '\0');
  for (std::size_t i = 0; i < entry.payload.size(); ++i) entry.payload[i] = static_cast<char>(i * 31);
  CHECK(decode(encode(entry)) == entry);
  CHECK(decode(encode({})) == Entry{});
}

TEST_CASE("facts that are not UTF-8 cannot be encoded") {
  Entry entry;
  entry.facts["name"] = "\xff";
  CHECK_THROWS(encode(entry));
}

TEST_CASE("an entry cut anywhere is none, and so is one with bytes after its end") {
  const std::string bytes = encode(small_entry());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    INFO("length ", length);
    CHECK_FALSE(decode(bytes.substr(0, length)));
  }
  CHECK_FALSE(decode(bytes + '\0'));
  CHECK_FALSE(decode(bytes + bytes));
  CHECK(decode(bytes));
}

TEST_CASE("the facts are read from the start of an entry alone") {
  const std::string bytes = encode(small_entry());
  const std::size_t end = bytes.find('}') + 1;
  for (std::size_t length = 0; length < end; ++length) {
    INFO("length ", length);
    CHECK_FALSE(decode_facts(bytes.substr(0, length)));
  }
  CHECK(decode_facts(bytes.substr(0, end)) == small_entry().facts);
  CHECK(decode_facts(bytes) == small_entry().facts);
  CHECK_FALSE(decode_facts(by_hand(2, 2, 0, "{}")));
  CHECK_FALSE(decode_facts(by_hand(1, 0xffffffff, 0, "{}")));
  CHECK_FALSE(decode_facts(with_header(R"({"a":1})")));
}

TEST_CASE("the facts end within the first 16 KiB, and an entry has 256 MiB at most") {
  Entry entry = {{{"a", std::string(16384 - 24 - std::string(R"({"a":""})").size(), 'x')}}, "payload"};
  const std::string bytes = encode(entry);
  CHECK(decode(bytes) == entry);
  CHECK(decode_facts(bytes.substr(0, kMaxFactsEnd)) == entry.facts);
  entry.facts["a"] += 'x';
  CHECK_THROWS(encode(entry));
  CHECK_FALSE(decode(with_header(R"({"a":")" + entry.facts["a"] + "\"}")));
  CHECK_THROWS(encode({{}, std::string(kMaxEntryBytes - 41, '\0')}));  // the bytes around the payload are 42
}

TEST_CASE("any flipped bit makes an entry none") {
  const std::string bytes = encode(small_entry());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      INFO("byte ", i, " bit ", bit);
      CHECK_FALSE(decode(damaged));
    }
  }
}

TEST_CASE("another version is refused however intact it is") {
  CHECK(decode(by_hand(1, 2, 1, "{}x")));
  for (const std::uint32_t version : {0u, 2u, 256u, 0x01000000u}) CHECK_FALSE(decode(by_hand(version, 2, 1, "{}x")));
}

TEST_CASE("lengths that do not add up are refused, also where their sum overflows") {
  const auto max = std::numeric_limits<std::uint64_t>::max();
  CHECK(decode(by_hand(1, 2, 4, "{}data")));
  CHECK_FALSE(decode(by_hand(1, 2, 3, "{}data")));
  CHECK_FALSE(decode(by_hand(1, 2, 5, "{}data")));
  CHECK_FALSE(decode(by_hand(1, 0xffffffff, 4, "{}data")));
  CHECK_FALSE(decode(by_hand(1, 2, max, "{}data")));
  CHECK_FALSE(decode(by_hand(1, 8, max - 1, "{}data")));   // 8 + (2^64 - 2) is 6
  CHECK_FALSE(decode(by_hand(1, 2, max - 35, "{}data")));  // with the 40 bytes around them it is 6 too
}

TEST_CASE("the header is one flat JSON object in one spelling") {
  CHECK(decode(with_header(R"({"a":"b","c":"d"})")));
  const char* refused[] = {"",
                           "{",
                           "null",
                           "[]",
                           R"("a")",
                           R"({"a":1})",
                           R"({"a":null})",
                           R"({"a":{"b":"c"}})",
                           R"({"a": "b"})",
                           R"({"a":"b"} )",
                           R"({"c":"d","a":"b"})",
                           R"({"a":"b","a":"b"})",
                           R"({"a":"\u0062"})",
                           R"({"a":"b",})",
                           R"({"a":"b"}{})",
                           "{\"a\":\"\xff\"}"};
  for (const char* header : refused) {
    INFO("header ", header);
    CHECK_FALSE(decode(with_header(header)));
  }
  CHECK_FALSE(decode(with_header(std::string(100000, '['))));
}
