// SPDX-License-Identifier: Apache-2.0
// Words and numbers as users type them.
#include <doctest/doctest.h>
#include <flashjit/error.h>

#include <string>
#include <vector>

#include "cli/io/words.h"

namespace {

using namespace flashjit;
using namespace flashjit::cli;

template <typename Function>
std::string refusal(Function function) {
  try {
    function();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid_argument);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("the word that was meant is the one that takes the fewest slips") {
  const std::vector<std::string> words = {"compile", "completion", "cache", "verify", "variants", "--head-dim"};
  CHECK(did_you_mean("complie", words) == "; did you mean 'compile'?");
  CHECK(did_you_mean("compl", words) == "; did you mean 'completion'?");
  CHECK(did_you_mean("vrify", words) == "; did you mean 'verify'?");
  CHECK(did_you_mean("var", words) == "; did you mean 'variants'?");
  CHECK(did_you_mean("riant", words) == "; did you mean 'variants'?");
  CHECK(did_you_mean("--hed-dim", words) == "; did you mean '--head-dim'?");
  CHECK(did_you_mean("--headdim", words) == "; did you mean '--head-dim'?");
  for (const char* unlike : {"", "x", "dance", "bench", "---", "compilecompile", "cache"})
    CHECK(did_you_mean(unlike, words) == "");
  CHECK(did_you_mean("f", {"a", "b"}) == "");
  CHECK(did_you_mean("f", {}) == "");
}

TEST_CASE("a word must be one of the list, which the error has") {
  const std::vector<std::string> words = {"forward", "tuned", "jit"};
  CHECK(refusal([&] { require_word("--grid", "tuned", words); }) == "");
  CHECK(refusal([&] { require_word("--grid", "froward", words); }) ==
        "--grid: must be forward, tuned or jit, was 'froward'; did you mean 'forward'?");
  CHECK(refusal([&] { require_word("--grid", "all", {"forward"}); }) == "--grid: must be forward, was 'all'");
}

TEST_CASE("a number is the whole text, and in its range") {
  CHECK(parse_integer("--jobs", "1024", 1, 1024) == 1024);
  CHECK(parse_integer("--jobs", "008", 1, 1024) == 8);
  for (const char* text :
       {"", " 1", "1 ", "64abc", "1e3", "1.5", "0x10", "-1", "+1", "0", "1025", "99999999999999999999"}) {
    CAPTURE(std::string(text));
    CHECK(refusal([&] { parse_integer("--jobs", text, 1, 1024); }) ==
          "--jobs: must be a whole number from 1 to 1024, was '" + std::string(text) + "'");
  }
  CHECK(parse_seed("--seed", "18446744073709551615") == 18446744073709551615u);
  for (const char* text : {"", "-1", "1x", "18446744073709551616"})
    CHECK(refusal([&] { parse_seed("--seed", text); }).starts_with("--seed: must be a whole number from 0 to 1844"));
  CHECK(parse_finite("--scale", "-1.25e-1") == -0.125f);
  for (const char* text : {"", "wide", "1,5", "0.5x", "nan", "inf", "-inf", "1e99"})
    CHECK(refusal([&] { parse_finite("--scale", text); }).starts_with("--scale: must be a finite number"));
}

TEST_CASE("a list has no empty item") {
  CHECK(split_list("--arch", "a,b") == std::vector<std::string>{"a", "b"});
  for (const char* text : {"", ",", "a,", ",a", "a,,b"})
    CHECK(refusal([&] { split_list("--arch", text); }) ==
          "--arch: must be a list separated by commas, was '" + std::string(text) + "'");
}
