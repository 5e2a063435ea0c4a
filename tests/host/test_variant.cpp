// SPDX-License-Identifier: Apache-2.0
// Variants of both families: spelling, reading, order.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "flashjit/error.h"
#include "flashjit/problem.h"
#include "generator/variant_space.h"

namespace {

using namespace flashjit;
using namespace flashjit::generator;

constexpr const char* kMmaSpelling = "mma-q64-kv64-w4-k1-v1-c1-overlap-swizzle-x4-qsmem-rare-natural";
constexpr const char* kHopperSpelling =
    "hopper-q128-kv128-s2-qs1-oquery-2stage-ppgemm-ws-pregs-cl1-rare-dynamic-natural-split";
// Each differs from the plain variant in one field, in the order of the fields.
constexpr const char* kMmaChanges[] = {"q128",   "kv80",   "w8", "k2",    "v3",     "c2",
                                       "serial", "linear", "x2", "qregs", "always", "longest"};
constexpr const char* kHopperChanges[] = {"q192", "kv80",  "s4",  "qs2",  "half",  "serial",  "ppoff",
                                          "nows", "psmem", "cl2", "lazy", "fixed", "longest", "fused"};

std::vector<Variant> every_legal_variant() {
  std::vector<Variant> all;
  for (const int head_dim : {40, 64, 128, 256})
    for (const int head_dim_v : {head_dim, 64})
      for (const bool causal : {false, true}) {
        Problem problem;
        problem.head_dim = head_dim, problem.head_dim_v = head_dim_v, problem.causal = causal;
        const std::vector<Variant> legal = legal_variants(problem, find_architecture("sm_90a"));
        all.insert(all.end(), legal.begin(), legal.end());
      }
  return all;
}

std::string message_of_parse(const std::string& text, const Variant& base = {}) {
  try {
    parse_variant(text, base);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid_argument);
    return error.what();
  }
  FAIL("an Error was expected");
  return {};
}

// Where the texts differ, counted in parts.
std::vector<std::size_t> changed_parts(std::string a, std::string b) {
  std::vector<std::size_t> changed;
  a += '-', b += '-';
  for (std::size_t part = 0; !a.empty() || !b.empty(); ++part) {
    const std::size_t a_end = a.find('-'), b_end = b.find('-');
    if (a.substr(0, a_end) != b.substr(0, b_end)) changed.push_back(part);
    a.erase(0, a_end + 1), b.erase(0, b_end + 1);
  }
  return changed;
}

template <class Changes>
void expect_one_field_each(const Variant& plain, const Changes& changes) {
  constexpr std::size_t kFirstField = 1;  // after the family
  std::size_t field = kFirstField;
  for (const char* change : changes) {
    CAPTURE(std::string(change));
    // with the family's name: "v3" alone is a step of the ladder
    const Variant changed = parse_variant(family(plain) + std::string("-") + change, plain);
    CHECK(changed != plain);
    CHECK((changed < plain) != (plain < changed));
    CHECK(changed_parts(to_string(changed), to_string(plain)) == std::vector<std::size_t>{field++});
    CHECK(parse_variant(to_string(changed)) == changed);
  }
  const std::string spelling = to_string(plain);
  CHECK(field - kFirstField == static_cast<std::size_t>(std::count(spelling.begin(), spelling.end(), '-')));
}

}  // namespace

TEST_SUITE_BEGIN("variant");

TEST_CASE("plain variants have these spellings") {
  CHECK(to_string(MmaVariant{}) == kMmaSpelling);
  CHECK(to_string(HopperVariant{}) == kHopperSpelling);
  CHECK(parse_variant(kMmaSpelling) == Variant(MmaVariant{}));
  CHECK(parse_variant(kHopperSpelling) == Variant(HopperVariant{}));
}

TEST_CASE("every hopper field is read") {
  HopperVariant expected;
  expected.block_q = 256, expected.block_kv = 176, expected.stages = 3, expected.q_stages = 2;
  expected.output = OutputSlot::whole;
  expected.overlap = GemmSoftmax::three_stage;
  expected.ping_pong = PingPong::softmax;
  expected.warp_specialized = false;
  expected.probabilities = ProbabilitySource::shared;
  expected.cluster = 2;
  expected.rescale = Rescale::always;
  expected.scheduler = Scheduler::single;
  expected.order = TileOrder::longest_first;
  expected.boundary = TileBoundary::fused;
  const Variant read =
      parse_variant("hopper-q256-kv176-s3-qs2-whole-3stage-ppsoftmax-nows-psmem-cl2-always-single-longest-fused");
  CHECK(read == Variant(expected));
}

TEST_CASE("a variant is read from its own spelling, for every legal variant") {
  for (const Variant& variant : every_legal_variant()) CHECK(parse_variant(to_string(variant)) == variant);
}

TEST_CASE("each part changes one field, and every field tells variants apart") {
  expect_one_field_each(MmaVariant{}, kMmaChanges);
  expect_one_field_each(HopperVariant{}, kHopperChanges);
}

TEST_CASE("a part of a spelling changes that part of the base only") {
  const Variant base = parse_variant("q128-kv64-w4-k2-v1-c2");
  MmaVariant expected = std::get<MmaVariant>(base);
  expected.block_kv = 32, expected.k_stages = 3;
  CHECK(parse_variant("kv32-k3", base) == Variant(expected));
  const Variant hopper = parse_variant("hopper-q192-kv80");
  HopperVariant changed = std::get<HopperVariant>(hopper);
  changed.stages = 3, changed.rescale = Rescale::lazy;
  CHECK(parse_variant("s3-lazy", hopper) == Variant(changed));
}

TEST_CASE("a family's name keeps a base of the family and replaces another") {
  const Variant mma = parse_variant("mma-q128-w8"), hopper = parse_variant("hopper-q192-kv80");
  CHECK(parse_variant("hopper-kv64", mma) == parse_variant("hopper-kv64", HopperVariant{}));
  CHECK(parse_variant("hopper-kv64", hopper) == parse_variant("hopper-q192-kv64"));
  CHECK(parse_variant("mma-kv32", hopper) == parse_variant("mma-kv32", MmaVariant{}));
  CHECK(parse_variant("mma-kv32", mma) == parse_variant("mma-q128-w8-kv32"));
  CHECK(parse_variant("hopper", mma) == Variant(HopperVariant{}));
  CHECK(parse_variant("hopper", hopper) == hopper);
}

TEST_CASE("what is no part of a variant is named") {
  CHECK(message_of_parse("q128-kw64").find("'kw64'") != std::string::npos);
  CHECK(message_of_parse("").find("''") != std::string::npos);
  CHECK(message_of_parse("q128-").find("''") != std::string::npos);
  CHECK(message_of_parse("hopper-").find("''") != std::string::npos);
  CHECK(message_of_parse("q-1").find("'q'") != std::string::npos);
  CHECK(message_of_parse("q99999999999").find("'q99999999999'") != std::string::npos);
  CHECK(message_of_parse("v6x").find("'v6x'") != std::string::npos);
  CHECK(message_of_parse("hopper-4stage").find("'4stage'") != std::string::npos);
  CHECK(message_of_parse("kv64-hopper").find("'hopper'") != std::string::npos);
  CHECK(message_of_parse("mma-hopper").find("'hopper'") != std::string::npos);
}

TEST_CASE("two parts of one tunable are refused, whatever they say") {
  CHECK(message_of_parse("mma-q64-q128") ==
        "variant: must have one part for each tunable, but has 'q64' and 'q128' in 'mma-q64-q128'");
  CHECK(message_of_parse("q64-kv32-q64").find("'q64' and 'q64'") != std::string::npos);
  CHECK(message_of_parse("hopper-ws-kv64-nows").find("'ws' and 'nows'") != std::string::npos);
  for (const std::string plain : {kMmaSpelling, kHopperSpelling}) {
    const std::string parts = plain.substr(plain.find('-') + 1) + '-';
    for (std::size_t begin = 0, end; (end = parts.find('-', begin)) != std::string::npos; begin = end + 1) {
      const std::string part = parts.substr(begin, end - begin);
      CHECK(message_of_parse(plain + '-' + part).find("'" + part + "' and '" + part + "'") != std::string::npos);
    }
  }
}

TEST_CASE("a part of the other family is named, with that family and the spelling of this one") {
  const std::string of_mma = message_of_parse("q128-2stage");
  CHECK(of_mma.find("'2stage'") != std::string::npos);
  CHECK(of_mma.find(kMmaSpelling) != std::string::npos);
  CHECK(of_mma.find("hopper family") != std::string::npos);
  const std::string of_hopper = message_of_parse("q128-w4", HopperVariant{});
  CHECK(of_hopper.find("'w4'") != std::string::npos);
  CHECK(of_hopper.find(kHopperSpelling) != std::string::npos);
  CHECK(of_hopper.find("mma family") != std::string::npos);
  CHECK(message_of_parse("q128-nonsense").find("family") == std::string::npos);
}

TEST_CASE("the ladder adds one idea a step, and is of the mma family whatever the base") {
  const Variant v1 = parse_variant("v1"), v2 = parse_variant("v2"), v3 = parse_variant("v3"), v4 = parse_variant("v4"),
                v5 = parse_variant("v5");
  CHECK(parse_variant("swizzle", v1) == v2);
  CHECK(parse_variant("overlap-k2-v2", v2) == v3);
  CHECK(parse_variant("x4", v3) == v4);
  CHECK(parse_variant("v1-k2", v4) == v5);
  CHECK(parse_variant("v3", HopperVariant{}) == v3);
}

TEST_CASE("families come in order, then their fields") {
  MmaVariant largest_mma;
  largest_mma.block_q = 1024;
  CHECK(Variant(largest_mma) < Variant(HopperVariant{}));
  CHECK(parse_variant("hopper-q64-kv256") < parse_variant("hopper-q128-kv16"));
  CHECK(parse_variant("hopper-kv64-s4") < parse_variant("hopper-kv80-s1"));
  CHECK(parse_variant("hopper-single-fused") < parse_variant("hopper-fixed-split"));
}

TEST_CASE("unequal variants have unequal spellings") {
  std::vector<Variant> all = every_legal_variant();
  const std::set<Variant> ordered(all.begin(), all.end());
  std::set<std::string> spellings;
  for (const Variant& variant : ordered) spellings.insert(to_string(variant));
  CHECK(spellings.size() == ordered.size());
}

TEST_CASE("what both families have is told without knowing the family") {
  const Variant mma = parse_variant("mma-q128-kv32-w4"), hopper = parse_variant("hopper-q192-kv80");
  CHECK(family(mma) == std::string("mma"));
  CHECK(family(hopper) == std::string("hopper"));
  CHECK(block_q(mma) == 128);
  CHECK(block_q(hopper) == 192);
  CHECK(block_kv(mma) == 32);
  CHECK(block_kv(hopper) == 80);
}

TEST_SUITE_END();
