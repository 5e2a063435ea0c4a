// SPDX-License-Identifier: Apache-2.0
// Which variants are legal, which are tried, and which is the default.
#include <doctest/doctest.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "flashjit/error.h"
#include "generator/family.h"
#include "generator/features.h"
#include "generator/plan.h"
#include "generator/variant_space.h"
#include "tests/support/feature.h"

namespace {

using namespace flashjit;
using namespace flashjit::generator;

Problem problem_of(int head_dim, int head_dim_v, bool causal = false) {
  Problem problem;
  problem.head_dim = head_dim, problem.head_dim_v = head_dim_v, problem.causal = causal;
  return problem;
}

const Architecture& sm_90a() { return find_architecture("sm_90a"); }

std::string why(const char* variant, int head_dim, int head_dim_v, const char* architecture = "sm_90a") {
  return why_illegal(problem_of(head_dim, head_dim_v), parse_variant(variant), find_architecture(architecture));
}
std::string why(const char* variant, int head_dim = 64) { return why(variant, head_dim, head_dim); }

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// Ten pairs of head dims that use panels of all widths, different ones for q and v, and parts of panels.
const std::vector<Problem>& various_problems() {
  static const std::vector<Problem> problems = {
      problem_of(8, 8),   problem_of(64, 64),  problem_of(128, 128, true), problem_of(256, 256), problem_of(192, 128),
      problem_of(80, 80), problem_of(16, 256), problem_of(256, 16, true),  problem_of(96, 40),   problem_of(40, 96)};
  return problems;
}

std::set<std::string> parts_of(const std::vector<Variant>& variants, const char* of_family) {
  std::set<std::string> parts;
  for (const Variant& variant : variants) {
    if (family(variant) != std::string(of_family)) continue;
    std::string text = to_string(variant);
    for (std::size_t dash; (dash = text.find('-')) != std::string::npos; text.erase(0, dash + 1))
      parts.insert(text.substr(0, dash));
    parts.insert(text);
  }
  return parts;
}

}  // namespace

TEST_SUITE_BEGIN("variant space");

// --- Rules -----------------------------------------------------------------------------------------------------------

TEST_CASE("an illegal mma variant is refused with what it must be") {
  CHECK(contains(why("w5"), "warps must be 4 or 8, was 5"));
  CHECK(contains(why("q96"), "block_q must be"));
  CHECK(contains(why("kv24"), "block_kv must be a multiple of 16"));
  CHECK(contains(why("k4"), "k_stages must be 1 to 3, was 4"));
  CHECK(contains(why("x3"), "ldmatrix must be 2 or 4, was 3"));
  CHECK(contains(why("serial-k2"), "serial"));
  CHECK(contains(why("rotate-k1-v1"), "rotate"));
  CHECK(contains(why("lazy"), "rescale must be always or rare in the mma family, was lazy"));
  CHECK(contains(why("q128-w8-kv128", 256, 256, "sm_86"), "bytes of shared memory"));
  CHECK(contains(why("q128-w4-kv128", 128), "registers"));
  CHECK(contains(why("c4", 128), "ctas_per_sm"));
}

TEST_CASE("the hopper family is legal on sm_90a only") {
  for (const Architecture& architecture : architectures()) {
    const std::string reason = why("hopper", 64, 64, architecture.name);
    if (architecture.name == std::string("sm_90a"))
      CHECK(reason == "");
    else
      CHECK(contains(reason, "must be sm_90a, was sm_"));
  }
}

TEST_CASE("a hopper field out of its range is refused with what it must be") {
  for (const int block_q : {0, 1, 2, 7, 12, 32, 96, 320})
    CHECK(
        contains(why(("hopper-q" + std::to_string(block_q)).c_str()), "block_q must be 4, 8, 16 or a multiple of 64"));
  for (const int block_kv : {0, 8, 24, 272})
    CHECK(contains(why(("hopper-kv" + std::to_string(block_kv)).c_str()), "block_kv must be a multiple of 16"));
  CHECK(contains(why("hopper-s0"), "stages must be 1 to 4, was 0"));
  CHECK(contains(why("hopper-s5"), "stages must be 1 to 4, was 5"));
  CHECK(contains(why("hopper-qs0"), "q_stages must be 1 or 2, was 0"));
  CHECK(contains(why("hopper-qs3"), "q_stages must be 1 or 2, was 3"));
  CHECK(contains(why("hopper-cl0"), "cluster must be 1 or 2, was 0"));
  CHECK(contains(why("hopper-cl4"), "cluster must be 1 or 2, was 4"));
}

TEST_CASE("where warps share rows most choices are made") {
  const std::string rest = "-kv64-s2-qs1-whole-serial-ppoff-rare-fixed-split-splitkv", shared = "hopper-q16" + rest;
  for (const char* rows : {"q4", "q8", "q16"})
    for (int head_dim = 8; head_dim <= 256; head_dim += 8)
      CHECK(why(("hopper-" + (rows + rest)).c_str(), head_dim, head_dim) == "");
  CHECK(contains(why("hopper-q4-kv96"), "block_kv must be 64, 128, 192 or 256 with q4, was 96"));
  for (const auto& [part, message] : {std::pair{"kv96", "block_kv must be 64, 128, 192 or 256 with q16, was 96"},
                                      {"qs2", "q_stages must be 1 with q16, was 2"},
                                      {"half", "output must be whole with q16, was half"},
                                      {"2stage", "overlap must be serial with q16, was 2stage"},
                                      {"ppgemm", "ping_pong must be ppoff with q16, was ppgemm"},
                                      {"nows", "warp_specialized must be ws with q16, was nows"},
                                      {"psmem", "probabilities must be pregs with q16, was psmem"},
                                      {"cl2", "cluster must be 1 with q16, was 2"},
                                      {"lazy", "rescale must be always or rare with q16, was lazy"},
                                      {"single", "scheduler must be fixed with q16, was single"},
                                      {"fused", "boundary must be split with q16, was fused"},
                                      {"wholekv", "split_kv must be splitkv with q16, was wholekv"}}) {
    CAPTURE(part);
    CHECK(contains(why(to_string(parse_variant(part, parse_variant(shared))).c_str()), message));
  }
  Problem dropping = problem_of(128, 128, false);
  dropping.dropout = true;
  CHECK(contains(why_illegal(dropping, parse_variant(shared), sm_90a()),
                 "block_kv must be 128 or 256 for dropout with q16"));
}

TEST_CASE("keys of 8 bits are for tiles that mma.sync multiplies") {
  Problem stored = problem_of(128, 128, false);
  stored.e4m3 = true;
  const std::string rest = "-kv64-s2-qs1-whole-serial-ppoff-rare-fixed-split-splitkv";
  CHECK(why_illegal(stored, parse_variant("hopper-q16" + rest), sm_90a()) == "");
  for (const char* rows : {"4", "8", "64"})
    CHECK(contains(why_illegal(stored, parse_variant("hopper-q" + (rows + rest)), sm_90a()), "block_q must be 16 for"));
}

TEST_CASE("no list names tiles that are multiplied without tensor cores") {
  for (const Variant& variant : legal_variants(problem_of(128, 128, false), sm_90a())) CHECK(block_q(variant) >= 16);
}

TEST_CASE("ping-pong needs two warpgroups, and softmax order the serial overlap") {
  CHECK(contains(why("hopper-q64-ppgemm"), "block_q must be 128 or more with ppgemm, was 64"));
  CHECK(contains(why("hopper-q64-ppsoftmax-serial"), "block_q must be 128 or more with ppsoftmax, was 64"));
  CHECK(why("hopper-q64-ppoff") == "");
  CHECK(contains(why("hopper-ppsoftmax-2stage"), "overlap must be serial with ppsoftmax, was 2stage"));
  CHECK(contains(why("hopper-kv64-ppsoftmax-3stage"), "overlap must be serial with ppsoftmax, was 3stage"));
  CHECK(why("hopper-ppsoftmax-serial") == "");
}

TEST_CASE("a fused boundary needs what it overlaps with") {
  CHECK(why("hopper-whole-fused") == "");
  CHECK(contains(why("hopper-whole-fused-serial"), "overlap must be 2stage with fused, was serial"));
  CHECK(contains(why("hopper-whole-fused-3stage"), "overlap must be 2stage with fused, was 3stage"));
  CHECK(contains(why("hopper-whole-fused-nows-fixed"), "warp_specialized must be ws with fused, was nows"));
  CHECK(contains(why("hopper-oquery-fused"), "output must be half or whole with fused, was oquery"));
  CHECK(contains(why("hopper-whole-fused-single"), "scheduler must be fixed or dynamic with fused, was single"));
  CHECK(contains(why("hopper-whole-fused-s1"), "stages must be 2 to 4 with fused, was 1"));
}

TEST_CASE("without warp specialisation nothing runs ahead of the tile") {
  CHECK(why("hopper-nows-fixed") == "");
  CHECK(why("hopper-nows-single") == "");
  CHECK(contains(why("hopper-nows-dynamic"), "scheduler must be single or fixed with nows, was dynamic"));
  CHECK(contains(why("hopper-nows-fixed-cl2"), "cluster must be 1 with nows, was 2"));
  CHECK(contains(why("hopper-nows-fixed-qs2"), "q_stages must be 1 with nows, was 2"));
  CHECK(contains(why("hopper-nows-fixed-s1"), "stages must be 2 to 4 with nows, was 1"));
  CHECK(contains(why("hopper-nows-fixed-whole-fused"), "ws with fused"));
}

TEST_CASE("variants of the ablation serve no feature but the causal mask") {
  for (const char* variant : {"hopper-kv64-psmem", "hopper-kv64-nows-ppoff-fixed", "hopper-kv64-oquery"}) {
    CAPTURE(std::string(variant));
    for (const FeatureRow& row : features()) {
      CAPTURE(std::string(row.word));
      Problem problem{DType::bf16, 64, 64};
      flashjit::tests::ask(problem, row);
      CHECK(why_illegal(problem, parse_variant(variant), sm_90a()).empty() == (row.word == "causal"));
    }
  }
}

TEST_CASE("clusters take tiles in a fixed order, and single tiles have no next query") {
  CHECK(why("hopper-cl2-fixed") == "");
  CHECK(why("hopper-cl2-single") == "");
  CHECK(contains(why("hopper-cl2-dynamic"), "scheduler must be single or fixed with cl2, was dynamic"));
  CHECK(why("hopper-single-qs1") == "");
  CHECK(contains(why("hopper-single-qs2"), "q_stages must be 1 with single, was 2"));
}

TEST_CASE("the output slot suits the panels of the output") {
  CHECK(why("hopper-half", 64, 72) == "");
  CHECK(contains(why("hopper-half", 64, 64),
                 "output must be oquery or whole for fwd-bf16-d64, whose output is one panel"));
  CHECK(why("hopper-oquery", 192, 128) == "");
  CHECK(why("hopper-oquery", 72, 128) == "");  // both two panels
  CHECK(contains(why("hopper-oquery", 64, 72), "output must be half or whole for fwd-bf16-d64-v72"));
  CHECK(contains(why("hopper-oquery", 64, 32), "output must be half or whole"));  // panels of 64 and 32 columns
  CHECK(contains(why("hopper-oquery", 16, 24), "output must be half or whole"));
}

TEST_CASE("shared memory is bounded by that of a block") {
  // 128 * 128 * 2 bytes a tile: Q, two of K and two of V, and a slot for the output are 224 KiB and the barriers.
  CHECK(why("hopper-s2-qs1-whole", 128) == "");
  CHECK(why("hopper-s2-qs2-whole", 128) == "");
  CHECK(contains(why("hopper-s3-qs1-whole", 128), "needs 262400 bytes of shared memory"));
  CHECK(contains(why("hopper-s3-qs1-whole", 128), "must be at most 232448 on sm_90a"));
  CHECK(contains(why("hopper-s2-qs2-whole-psmem", 128), "bytes of shared memory"));
}

TEST_CASE("registers are bounded by what a consumer has") {
  // Two warpgroups have 232, of which the model keeps 36; S, P and O of kv176 and head dim 128 are 88 + 44 + 64.
  CHECK(why("hopper-q128-kv176-qs1-half", 128) == "");
  CHECK(contains(why("hopper-q128-kv192-s1-half", 128), "needs about 252 registers a thread"));
  CHECK(contains(why("hopper-q128-kv192-s1-half", 128), "must be at most 232"));
  CHECK(contains(why("hopper-q128-kv128-3stage", 128), "must be at most 232"));
  CHECK(why("hopper-q128-kv96-3stage", 128) == "");
  // Three have 160 and four 112; the model keeps 32.
  CHECK(contains(why("hopper-q192-kv128", 128), "must be at most 160"));
  CHECK(contains(why("hopper-q192-kv128-serial-s1", 128), "must be at most 160"));
  CHECK(why("hopper-q192-kv80", 128) == "");
  CHECK(why("hopper-q192-kv96-serial", 64) == "");
  CHECK(why("hopper-q256-kv64", 64) == "");
  CHECK(contains(why("hopper-q256-kv80", 64), "must be at most 112"));
  CHECK(why("hopper-q256-kv48-nows-fixed", 64) == "");
}

TEST_CASE("an accumulator fits the registers of the launch") {
  CHECK(why("hopper-q192-kv16-s1-oquery", 192) == "");
  CHECK(contains(why("hopper-q192-kv16-s1-oquery", 200), "must be at most 192 with 192 rows, was 200"));
  CHECK(why("hopper-q256-kv16-s1-oquery", 128) == "");
  CHECK(contains(why("hopper-q256-kv16-s1-oquery", 136), "must be at most 128 with 256 rows, was 136"));
}

// --- Defaults --------------------------------------------------------------------------------------------------------

TEST_CASE("every head dim has a legal default on every architecture, within its shared memory") {
  for (const Architecture& architecture : architectures())
    for (int head_dim = 8; head_dim <= 256; head_dim += 8)
      for (const int head_dim_v : {head_dim, 8, 128, 256})
        for (const bool causal : {false, true})
          for (const ShapeBucket& bucket : shape_buckets()) {
            const Problem problem = problem_of(head_dim, head_dim_v, causal);
            const Variant variant = default_variant(problem, architecture, bucket);
            CHECK(why_illegal(problem, variant, architecture) == "");
            CHECK(make_plan(problem, variant).smem_bytes <= architecture.smem_per_block);
          }
}

TEST_CASE(
    "on sm_90a every pair of head dims has a hopper default, and one of the mma family for what TMA cannot read") {
  int others = 0;
  for (int head_dim = 8; head_dim <= 256; head_dim += 8)
    for (int head_dim_v = 8; head_dim_v <= 256; head_dim_v += 8)
      for (const bool causal : {false, true}) {
        const Problem problem = problem_of(head_dim, head_dim_v, causal);
        std::vector<Variant> variants = default_variants(problem, sm_90a());
        for (const Variant& variant : variants) others += !why_illegal(problem, variant, sm_90a()).empty();
        others += variants.back() != default_without_tma(problem, sm_90a());
        others += !std::holds_alternative<MmaVariant>(variants.back());
        variants.pop_back();
        for (const Variant& variant : variants) others += !std::holds_alternative<HopperVariant>(variant);
      }
  CHECK(others == 0);
}

TEST_CASE("other architectures have mma defaults") {
  for (const Architecture& architecture : architectures()) {
    if (architecture.name == std::string("sm_90a")) continue;
    for (const Variant& variant : default_variants(problem_of(128, 128), architecture))
      CHECK(std::holds_alternative<MmaVariant>(variant));
    for (const ShapeBucket& bucket : shape_buckets()) {
      if (bucket.queries > QueryRange::up_to_64) continue;
      const Variant variant = default_variant(problem_of(128, 128), architecture, bucket);
      CHECK(generator::splits_kv(variant));
      const bool is_first = variant == default_without_tma(problem_of(128, 128), architecture);
      CHECK(is_first == (bucket.work == WorkRange::up_to_half));
    }
  }
}

TEST_CASE(
    "for few queries the tiles on sm_90a have the rows of one warpgroup or fewer, but for much work at head dim 96") {
  for (const Problem& problem : various_problems())
    for (const ShapeBucket& bucket : shape_buckets()) {
      const int head_dim = std::max(problem.head_dim, problem.head_dim_v);
      const bool may_have_two = 64 < head_dim && head_dim <= 96 && bucket.work > WorkRange::up_to_1;
      const int rows = block_q(default_variant(problem, sm_90a(), bucket));
      const bool may_be_shared = bucket.queries == QueryRange::up_to_16 && rows == 16;
      if (bucket.queries <= QueryRange::up_to_64 && !may_have_two) CHECK((rows == 64 || may_be_shared));
    }
}

TEST_CASE("tiles of a causal default are taken longest first") {
  for (const Problem& problem : various_problems())
    for (const Variant& variant : default_variants(problem, sm_90a())) {
      const TileOrder order = std::visit([](const auto& of_family) { return of_family.order; }, variant);
      CHECK(order == (problem.causal ? TileOrder::longest_first : TileOrder::natural));
    }
}

TEST_CASE("default variants depend on the number of keys") {
  const auto of = [](const char* architecture, KeyRange keys) {
    return default_variant(problem_of(64, 64), find_architecture(architecture),
                           {QueryRange::more, keys, WorkRange::more});
  };
  CHECK(of("sm_80", KeyRange::below_1k) == of("sm_80", KeyRange::below_2k));
  CHECK(of("sm_80", KeyRange::below_2k) != of("sm_80", KeyRange::below_8k));
  CHECK(of("sm_80", KeyRange::below_8k) == of("sm_80", KeyRange::more));
  CHECK(of("sm_90a", KeyRange::below_1k) != of("sm_90a", KeyRange::more));
}

// --- What is tried ---------------------------------------------------------------------------------------------------

TEST_CASE("the defaults come first among the legal variants, all are legal and nothing is listed twice") {
  for (const Problem& problem : various_problems()) {
    const std::vector<Variant> variants = legal_variants(problem, sm_90a());
    const std::vector<Variant> defaults = default_variants(problem, sm_90a());
    CHECK(defaults.front() == default_variant(problem, sm_90a(), {}));
    REQUIRE(variants.size() > defaults.size());
    CHECK(std::equal(defaults.begin(), defaults.end(), variants.begin()));
    for (const Variant& variant : variants) CHECK(why_illegal(problem, variant, sm_90a()) == "");
    CHECK(std::set<Variant>(variants.begin(), variants.end()).size() == variants.size());
  }
}

TEST_CASE("dozens of hopper variants are tried, but not many more, and every choice is among them") {
  for (const int head_dim : {64, 128, 256})
    for (const bool causal : {false, true}) {
      CAPTURE(head_dim);
      const std::vector<Variant> variants = legal_variants(problem_of(head_dim, head_dim, causal), sm_90a());
      const auto is_hopper = [](const Variant& v) { return std::holds_alternative<HopperVariant>(v); };
      const auto count = std::count_if(variants.begin(), variants.end(), is_hopper);
      CHECK(count >= 25);
      CHECK(variants.size() <= 135);
      const std::set<std::string> parts = parts_of(variants, "hopper");
      for (const char* choice :
           {"q64",    "q128",   "kv32",    "kv64",    "s1",      "s2",     "s3",     "s4",     "qs1",
            "qs2",    "oquery", "whole",   "serial",  "2stage",  "3stage", "ppoff",  "ppgemm", "ppsoftmax",
            "ws",     "nows",   "pregs",   "psmem",   "cl1",     "cl2",    "always", "rare",   "lazy",
            "single", "fixed",  "dynamic", "natural", "longest", "split",  "fused"}) {
        const bool tried = parts.count(choice) == 1;
        CHECK_MESSAGE(tried, std::string(choice));
      }
      CHECK(parts.count("half") == (head_dim > 64 ? 1 : 0));
      CHECK(parts.count("q192") + parts.count("q256") >= (head_dim == 256 ? 0u : 1u));
    }
}

TEST_CASE("the mma family stays among what is tried") {
  const std::set<std::string> parts = parts_of(legal_variants(problem_of(64, 64), sm_90a()), "mma");
  for (const char* choice : {"serial", "overlap", "rotate", "linear", "x2", "qsmem", "qregs", "always", "rare"}) {
    const bool tried = parts.count(choice) == 1;
    CHECK_MESSAGE(tried, std::string(choice));
  }
  CHECK(parts_of(legal_variants(problem_of(64, 64), find_architecture("sm_80")), "hopper").empty());
}

TEST_SUITE_END();
