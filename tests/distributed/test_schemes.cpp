// SPDX-License-Identifier: Apache-2.0
// Every scheme under every mask over shards of every layout, in the emulator with ranks as threads.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/distributed/attention_case.h"
#include "tests/support/emulating_engine.h"
#include "tests/support/sample.h"

namespace {

using namespace flashjit;
using namespace flashjit::distributed;
using tests::AttentionCase;

constexpr std::chrono::seconds kTimeout{60};
constexpr Layout kLayouts[] = {Layout::contiguous, Layout::zigzag, Layout::striped};

struct NamedMask {
  bool causal;
  Window window;
};
constexpr NamedMask kMasks[] = {{false, {}}, {true, {}}, {false, {7, 0}}, {false, {5, 3}}, {true, {40, -1}}};

void expect_right(const AttentionCase& of, const std::string& architecture = "sm_80") {
  CAPTURE(of.text());
  Engine& engine = tests::engine_for(architecture);
  tests::World world(of.ranks, kTimeout);
  const tests::WholeResult found = tests::attention_over_shards(engine, world, of);
  CHECK(tests::is_right(found, of, engine));
  CHECK(world.is_empty());
}

std::vector<AttentionCase> cases_of(Scheme scheme, int ranks) {
  std::vector<AttentionCase> cases;
  for (const Layout layout : kLayouts)
    for (const NamedMask& mask : kMasks)
      for (const std::int64_t seqlen : {std::int64_t{37}, std::int64_t{5}}) {  // of 5 some of 8 ranks have none
        AttentionCase of;
        of.layout = layout;
        of.scheme = scheme;
        of.ranks = ranks;
        of.seqlen_q = of.seqlen_kv = seqlen;
        of.options.causal = mask.causal;
        of.options.window = mask.window;
        if (scheme == Scheme::all_to_all) of.num_heads_q = 2 * ranks, of.num_heads_kv = ranks;
        cases.push_back(of);
      }
  return cases;
}

void expect_scheme(Scheme scheme) {
  for (const int ranks : {1, 2, 3, 4, 8})
    for (const AttentionCase& of : tests::sample(cases_of(scheme, ranks))) expect_right(of);
}

}  // namespace

TEST_CASE("all-gather of keys and values") { expect_scheme(Scheme::all_gather); }
TEST_CASE("ring") { expect_scheme(Scheme::ring); }
TEST_CASE("all-to-all over heads") { expect_scheme(Scheme::all_to_all); }

TEST_CASE("heads within hosts, a ring across them") {
  for (const auto& [ranks, ranks_of_host] : {std::pair{4, 2}, {8, 2}, {8, 4}, {6, 3}, {2, 2}, {3, 1}})
    for (AttentionCase of : tests::sample(cases_of(Scheme::two_level, ranks))) {
      of.ranks_of_host = ranks_of_host;
      of.num_heads_q = 2 * ranks_of_host;
      of.num_heads_kv = ranks_of_host;
      expect_right(of);
    }
}
