// SPDX-License-Identifier: Apache-2.0
// Files that the build has deflated.
#include <doctest/doctest.h>

#include <array>

#include "flashjit/error.h"
#include "generator/inflate.h"

using namespace flashjit;
using generator::DeflatedFile;

namespace {

// A stream of one block that is stored: 5 bytes, their number and its complement before them; then what is none of it.
constexpr std::array<unsigned char, 12> kStored = {0x01, 0x05, 0x00, 0xfa, 0xff, 'a', 'b', '\n', 'c', '\n', 0x12, 0x34};

std::string error_of(std::span<const DeflatedFile> files, std::span<const unsigned char> deflated) {
  try {
    generator::inflate(files, deflated);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::io);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("files stand in a deflated stream one after the other") {
  const DeflatedFile files[] = {{"z.cuh", 3}, {"empty.cuh", 0}, {"a/b.cuh", 2}};
  const auto texts = generator::inflate(files, kStored);
  REQUIRE(texts.size() == 3);
  CHECK(texts.at("z.cuh") == "ab\n");
  CHECK(texts.at("empty.cuh").empty());
  CHECK(texts.at("a/b.cuh") == "c\n");
}

TEST_CASE("a deflated stream that is damaged or too short is an error that names the file") {
  const DeflatedFile files[] = {{"z.cuh", 3}, {"a/b.cuh", 2}}, more[] = {{"z.cuh", 3}, {"a/b.cuh", 4}};
  CHECK(error_of(files, kStored).empty());
  CHECK(error_of(more, kStored) == "a/b.cuh: must have 4 bytes in the library, 2 are missing");
  CHECK(error_of(files, std::span(kStored).first(9)) == "a/b.cuh: must have 2 bytes in the library, 1 are missing");
  auto damaged = kStored;
  damaged[3] = 0;
  CHECK(error_of(files, damaged) == "z.cuh: must have 3 bytes in the library, 3 are missing");
}
