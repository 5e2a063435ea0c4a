// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other of variants, in the emulator, which has no records. That GPUs take those of the first rank
// is in test_over_nccl.cpp, and what use_records does in tests/host.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "flashjit/version.h"
#include "tests/distributed/attention_case.h"
#include "tests/support/emulating_engine.h"
#include "tests/support/error_code.h"

namespace {

using namespace flashjit;
using namespace flashjit::distributed;

constexpr std::chrono::seconds kTimeout{60};

std::vector<std::exception_ptr> agree_on(tests::World& world) {
  return tests::on_ranks(world, [](Group& group) { agree(tests::engine_for("sm_80"), group); });
}

std::string message_of(const std::exception_ptr& error, ErrorCode code) {
  REQUIRE(error);
  std::string message;
  CHECK(tests::code_of([&] { std::rethrow_exception(error); }, &message) == code);
  return message;
}

}  // namespace

TEST_CASE("any number of ranks agrees, and computes as before") {
  for (const int ranks : {1, 2, 5}) {
    tests::World world(ranks, kTimeout);
    tests::rethrow_first(agree_on(world));
    CHECK(world.is_empty());
    tests::AttentionCase of;
    of.ranks = ranks;
    CHECK(tests::is_right(tests::attention_over_shards(tests::engine_for("sm_80"), world, of), of,
                          tests::engine_for("sm_80")));
  }
}

TEST_CASE("a rank whose library is of another version does not agree") {
  tests::World world(3, kTimeout);
  world.change_messages([](int, int to, tests::World::Bytes& bytes) {
    const std::string own = version();
    const auto found = std::search(bytes.begin(), bytes.end(), own.begin(), own.end());
    if (to == 2 && found != bytes.end()) *found = '9';
  });
  const auto thrown = agree_on(world);
  CHECK_FALSE(thrown[0]);  // it has told its choices, and learns of it with its next call
  const std::string other = "9" + std::string(version()).substr(1);
  CHECK(message_of(thrown[2], ErrorCode::unsupported) ==
        "version: must be " + other + " as on the first rank, was " + version());
}

TEST_CASE("what is cut off on its way is an Error") {
  tests::World world(2, kTimeout);
  world.change_messages([](int, int, tests::World::Bytes& bytes) {
    if (bytes.size() > sizeof(std::uint64_t)) std::memset(bytes.data(), 0x7f, sizeof(std::uint64_t));
  });
  const auto thrown = agree_on(world);
  CHECK(message_of(thrown[1], ErrorCode::communication) == "group: what the first rank chose was cut off");
}
