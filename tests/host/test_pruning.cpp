// SPDX-License-Identifier: Apache-2.0
// What is not worth trying, and the words for it.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "flashjit/error.h"
#include "generator/pruning.h"
#include "generator/spec.h"
#include "generator/variant_space.h"

namespace {

using namespace flashjit;
using namespace flashjit::generator;
using Verdict = VariantExplanation::Verdict;

Problem problem_of(int head_dim, int head_dim_v, bool causal = false) {
  Problem problem;
  problem.head_dim = head_dim, problem.head_dim_v = head_dim_v, problem.causal = causal;
  return problem;
}

const std::vector<Problem>& various_problems() {
  static const std::vector<Problem> problems = {
      problem_of(8, 8),           problem_of(64, 64),   problem_of(64, 64, true),
      problem_of(128, 128),       problem_of(192, 128), problem_of(80, 80),
      problem_of(256, 256, true), problem_of(16, 256),  problem_of(256, 16, true)};
  return problems;
}

const Architecture& sm_90a() { return find_architecture("sm_90a"); }

const VariantExplanation* find(const std::vector<VariantExplanation>& list, const Variant& variant) {
  const auto at = std::find_if(list.begin(), list.end(), [&](const auto& each) { return each.variant == variant; });
  return at == list.end() ? nullptr : &*at;
}

bool is_kept(const std::vector<VariantExplanation>& list, const Variant& variant) {
  const VariantExplanation* found = find(list, variant);
  return found != nullptr && found->verdict == Verdict::kept;
}

double bytes(const char* variant, int head_dim) {
  return smem_bytes_per_kflop(problem_of(head_dim, head_dim), parse_variant(variant));
}
double rate(const char* variant, int head_dim) {
  return attainable_rate(problem_of(head_dim, head_dim), parse_variant(variant), sm_90a());
}

bool far_below(double rate, double best) { return rate * 1.6 < best; }

}  // namespace

TEST_SUITE_BEGIN("pruning");

// --- What explain says -----------------------------------------------------------------------------------------------

TEST_CASE("what the explanation keeps is what is listed, first and in the same order") {
  for (const Architecture& architecture : architectures())
    for (const Problem& problem : various_problems()) {
      const std::vector<VariantExplanation> all = explain_variants(problem, architecture);
      std::vector<Variant> kept;
      for (const VariantExplanation& each : all)
        if (each.verdict == Verdict::kept) kept.push_back(each.variant);
      CHECK(kept == legal_variants(problem, architecture));
      CHECK(all[kept.size() - 1].verdict == Verdict::kept);
      std::set<Variant> distinct;
      for (const VariantExplanation& each : all) distinct.insert(each.variant);
      CHECK(distinct.size() == all.size());
    }
}

TEST_CASE("each verdict is true, and each but kept has a reason") {
  for (const Architecture& architecture : architectures())
    for (const Problem& problem : various_problems())
      for (const VariantExplanation& each : explain_variants(problem, architecture)) {
        CHECK(each.reason.empty() == (each.verdict == Verdict::kept));
        CHECK(each.registers > 0);
        if (each.verdict == Verdict::illegal) {
          CHECK_THROWS_AS(KernelSpec(problem, each.variant, architecture), Error);
        } else {
          CHECK_NOTHROW(KernelSpec(problem, each.variant, architecture));
          CHECK(each.smem_bytes <= architecture.smem_per_block);
        }
      }
}

TEST_CASE("what does not fit says how much it needs") {
  const std::vector<VariantExplanation> all = explain_variants(problem_of(128, 128), sm_90a());
  const auto* large = find(all, parse_variant("hopper-q192-kv128-s2-qs2-whole"));
  REQUIRE(large != nullptr);
  CHECK(large->verdict == Verdict::illegal);
  // Two tiles of 192 queries, two of 128 keys and of 128 values, the output, and the barriers.
  constexpr int kBytes = (2 * 192 + 4 * 128 + 192) * 128 * 2 + 256;
  CHECK(large->reason.find("needs " + std::to_string(kBytes) + " bytes of shared memory") != std::string::npos);
}

TEST_CASE("what is replaced names one that is listed or was pruned") {
  for (const Problem& problem : various_problems()) {
    const std::vector<VariantExplanation> all = explain_variants(problem, sm_90a());
    for (const VariantExplanation& each : all) {
      if (each.verdict != Verdict::replaced) continue;
      const VariantExplanation* other = find(all, parse_variant(each.reason.substr(0, each.reason.find(' '))));
      REQUIRE(other != nullptr);
      CHECK((other->verdict == Verdict::kept || other->verdict == Verdict::pruned));
    }
  }
}

TEST_CASE("the first storage that fits is tried in place of the others") {
  const std::vector<VariantExplanation> all = explain_variants(problem_of(128, 128), sm_90a());
  const auto* first = find(all, parse_variant("hopper-q128-kv64-s2-qs2-whole"));
  const auto* second = find(all, parse_variant("hopper-q128-kv64-s2-qs1-half"));
  REQUIRE(first != nullptr);
  REQUIRE(second != nullptr);
  CHECK(first->verdict == Verdict::kept);
  CHECK(second->verdict == Verdict::replaced);
  CHECK(second->reason == to_string(first->variant) + " is tried instead");
}

// --- The model -------------------------------------------------------------------------------------------------------

TEST_CASE("shared memory's traffic is what the products read and the copies write") {
  // Of 64 rows and 64 keys, per 2 * 64 * 64 * 256 operations: Q 16 KiB, K and V 32 KiB and half as much for the copies.
  CHECK(bytes("hopper-q128-kv64", 128) == doctest::Approx(1000.0 * (16 + 32 + 16) / 2048));
  // P is written and read: 8 KiB each.
  CHECK(bytes("hopper-q128-kv64-psmem", 128) == doctest::Approx(1000.0 * (16 + 32 + 16 + 16) / 2048));
  // 32 rows: Q 8 KiB or none, K and V 32 KiB, a quarter as much for the copies; half as many operations.
  CHECK(bytes("mma-q128-kv64-w4-qsmem", 128) == doctest::Approx(1000.0 * (8 + 32 + 8) / 1024));
  CHECK(bytes("mma-q128-kv64-w4-qregs", 128) == doctest::Approx(1000.0 * (32 + 8) / 1024));
  CHECK(bytes("hopper-q128-kv128", 128) < bytes("hopper-q128-kv64", 128));
  CHECK(bytes("hopper-q256-kv64", 64) < bytes("hopper-q128-kv64", 64));
}

TEST_CASE("the rate is bounded by the traffic and by the instruction") {
  CHECK(rate("hopper-q128-kv128", 128) == 1.0);
  CHECK(rate("hopper-q64-kv32", 128) == doctest::Approx(1000.0 / 4096 * 128 / bytes("hopper-q64-kv32", 128)));
  CHECK(rate("mma-q256-kv64-w8-qregs", 64) == 0.6);
  CHECK(rate("hopper-q8-kv64", 128) == 0.0625);
  CHECK(rate("mma-q64-kv64-w4-qsmem", 64) < 0.5);
  CHECK(attainable_rate(problem_of(64, 64), MmaVariant{}, find_architecture("sm_80")) == 0);
}

TEST_CASE("what is pruned is far below the best, and has more rows than a call of few queries") {
  for (const Problem& problem : various_problems()) {
    const std::vector<VariantExplanation> all = explain_variants(problem, sm_90a());
    double best = 0;
    for (const VariantExplanation& each : all)
      if (each.verdict == Verdict::kept) best = std::max(best, each.attainable_rate);
    for (const VariantExplanation& each : all) {
      if (each.verdict == Verdict::pruned) CHECK(far_below(each.attainable_rate, best));
      if (each.verdict == Verdict::pruned) CHECK(block_q(each.variant) > 64);
      const bool hopeless = far_below(each.attainable_rate, best) && block_q(each.variant) > 64;
      if (each.verdict == Verdict::kept) CHECK_FALSE(hopeless);
    }
  }
}

TEST_CASE("the spared are kept whatever the model says, and what is not kept sets no measure") {
  const auto made = [](double rate, Verdict verdict = Verdict::kept) {
    VariantExplanation explanation;
    explanation.variant = parse_variant("q128-w4");
    explanation.attainable_rate = rate, explanation.verdict = verdict;
    return explanation;
  };
  std::vector<VariantExplanation> list = {made(0.1),  made(0.1), made(0.31),
                                          made(0.32), made(0.5), made(1, Verdict::illegal)};
  prune(list, 1);
  CHECK(list[0].verdict == Verdict::kept);
  CHECK(list[1].verdict == Verdict::pruned);
  CHECK(list[2].verdict == Verdict::pruned);
  CHECK(list[3].verdict == Verdict::kept);
  CHECK(list[4].verdict == Verdict::kept);
  CHECK(list[5].verdict == Verdict::illegal);
}

TEST_CASE("beside wgmma the large tiles of mma.sync are pruned, and the reason has both rates") {
  const auto all = explain_variants(problem_of(64, 64), sm_90a());
  const auto* large = find(all, parse_variant("mma-q128-kv64-w4-k1-v1-c2-overlap-qregs"));
  REQUIRE(large != nullptr);
  CHECK(large->verdict == Verdict::pruned);
  CHECK(large->reason == "reaches at most 60 % of the tensor cores' peak, the best 100 %");
}

TEST_CASE("nothing is pruned where there is no model, and no default anywhere") {
  for (const Architecture& architecture : architectures())
    for (const Problem& problem : various_problems()) {
      const std::vector<VariantExplanation> all = explain_variants(problem, architecture);
      for (const VariantExplanation& each : all)
        if (each.verdict == Verdict::pruned) CHECK(has_hopper_kernels(architecture));
      for (const Variant& variant : default_variants(problem, architecture)) CHECK(is_kept(all, variant));
    }
}

TEST_SUITE_END();
