// SPDX-License-Identifier: Apache-2.0
// Classes of users' functions: how they are spelled, which text is of which, and what stands for them.
#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "flashjit/error.h"
#include "generator/arguments.h"
#include "generator/stand_ins.h"
#include "generator/variant_space.h"

using namespace flashjit;
using namespace flashjit::generator;

namespace {

float numbers[64];

Problem with_functions(const FunctionText* score, const FunctionText* mask) {
  Problem problem{DType::bf16, 64, 64};
  problem.score = score;
  problem.mask = mask;
  return problem;
}

const FunctionText* score_of(const std::string& text, const std::vector<Capture>& captures = {}) {
  return Score(text, captures).source();
}
const FunctionText* mask_of(const std::string& text, const std::vector<Capture>& captures = {}) {
  return Mask(text, captures).source();
}

const Tensor kTable(numbers, DType::f16, {8, 8});

std::string class_spelling(const FunctionText* score, const FunctionText* mask) {
  return to_string(tuning_class(with_functions(score, mask)));
}

// Of the granules of a block mask, how many does it show no key of, some, and all?
struct Granules {
  int empty = 0, part = 0, whole = 0;
};
Granules granules_of(const StandIn& mask, std::int64_t seqlen_q, std::int64_t seqlen_kv) {
  Granules found;
  for (std::int64_t q = 0; q < seqlen_q; q += kGranuleQueries)
    for (std::int64_t k = 0; k < seqlen_kv; k += kGranuleKeys) {
      int seen = 0, all = 0;
      for (std::int64_t i = q; i < std::min<std::int64_t>(q + kGranuleQueries, seqlen_q); ++i)
        for (std::int64_t j = k; j < std::min<std::int64_t>(k + kGranuleKeys, seqlen_kv); ++j, ++all)
          seen += mask.mask({0, 0, i, j, seqlen_q, seqlen_kv});
      ++(seen == 0 ? found.empty : seen == all ? found.whole : found.part);
    }
  return found;
}

}  // namespace

TEST_CASE("the class of a problem is spelled by words, and read back") {
  const FunctionText* const arithmetic = score_of("score * 2");
  const FunctionText* const tensors = score_of("score + a(head, key)", {{"a", kTable}});
  const FunctionText* const mask = mask_of("key % 3 == 0");
  const FunctionText* const mask_of_tensors = mask_of("a(head, key) > 0", {{"a", kTable}});
  CHECK(class_spelling(arithmetic, nullptr) == "fwd-bf16-d64-score.arithmetic");
  CHECK(class_spelling(tensors, nullptr) == "fwd-bf16-d64-score.tensors");
  CHECK(class_spelling(nullptr, mask) == "fwd-bf16-d64-mask.arithmetic");
  CHECK(class_spelling(nullptr, mask_of_tensors) == "fwd-bf16-d64-mask.tensors");
  for (const FunctionText* score : {static_cast<const FunctionText*>(nullptr), arithmetic, tensors})
    for (const FunctionText* of_mask : {static_cast<const FunctionText*>(nullptr), mask, mask_of_tensors}) {
      Problem problem = with_functions(score, of_mask);
      problem.causal = problem.dropout = true;
      problem.block_mask = of_mask != nullptr;
      problem.bias = &library_function(FunctionKind::bias, DType::f16);
      const Problem of_class = tuning_class(problem);
      CHECK(parse_problem(to_string(of_class)) == of_class);
      CHECK(tuning_class(of_class) == of_class);
      CHECK((of_class == problem) == (score == nullptr && of_mask == nullptr));
    }
  for (const char* text : {"fwd-bf16-d64-score", "fwd-bf16-d64-score.", "fwd-bf16-d64-score.tensor",
                           "fwd-bf16-d64-mask.tensors-score.tensors", "fwd-bf16-d64-bias.arithmetic"})
    CHECK_THROWS_WITH_AS(parse_problem(text), doctest::Contains("problem: must be like"), Error);
}

TEST_CASE("all texts of a kind are of one class, but for those that capture tensors") {
  const Problem arithmetic = tuning_class(with_functions(score_of("score * 2"), nullptr));
  CHECK(tuning_class(with_functions(score_of("score * score"), nullptr)) == arithmetic);
  CHECK(tuning_class(with_functions(score_of("score * a", {{"a", 1.0}}), nullptr)) == arithmetic);
  const Problem tensors = tuning_class(with_functions(score_of("score + a(0, key)", {{"a", kTable}}), nullptr));
  const Tensor flags(numbers, DType::boolean, {9});
  CHECK(tuning_class(with_functions(score_of("b(key) ? c : score", {{"c", 1}, {"b", flags}}), nullptr)) == tensors);
  CHECK_FALSE(tensors == arithmetic);
  Problem other = with_functions(score_of("score * 3"), nullptr);
  other.causal = true;
  CHECK_FALSE(tuning_class(other) == arithmetic);
}

TEST_CASE("texts that say what an option says are of its class, where the problem does not have it already") {
  const FunctionText* const sloping = score_of("score - a(head, 0) * (query - key)", {{"a", kTable}});
  const FunctionText* const capping = score_of("a * tanh(score / a)", {{"a", 9}});
  CHECK(class_spelling(sloping, nullptr) == "fwd-bf16-d64-alibi");
  CHECK(class_spelling(capping, nullptr) == "fwd-bf16-d64-softcap");
  Problem problem = with_functions(sloping, nullptr);
  problem.alibi = true;
  CHECK(to_string(tuning_class(problem)) == "fwd-bf16-d64-alibi-score.tensors");
  problem = with_functions(capping, mask_of("key % 3 == 0"));
  problem.alibi = problem.causal = true;
  CHECK(to_string(tuning_class(problem)) == "fwd-bf16-d64-causal-softcap-alibi-mask.arithmetic");
}

TEST_CASE("the spelling of a text itself has its digest, and says too little to be read") {
  const Problem problem = with_functions(score_of("score * 5"), nullptr);
  CHECK(to_string(problem) == "fwd-bf16-d64-score." + problem.score->digest);
  CHECK_THROWS_AS(parse_problem(to_string(problem)), Error);
}

TEST_CASE("a variant is legal for a problem where it is for its class") {
  const FunctionText* score = nullptr;
  bool has_alibi = false;
  SUBCASE("any text") { score = score_of("score + a(0, key) + b(key, 0)", {{"a", kTable}, {"b", kTable}}); }
  SUBCASE("slopes") { score = score_of("score + a(0, 0) * key", {{"a", kTable}}); }
  SUBCASE("slopes beside slopes") {
    score = score_of("score + a(0, 0) * key", {{"a", kTable}});
    has_alibi = true;
  }
  SUBCASE("a cap") { score = score_of("9.f * tanh(score)"); }
  Problem problem = with_functions(score, mask_of("key < a", {{"a", 9}}));
  problem.alibi = has_alibi;
  for (const char* name : {"sm_80", "sm_90a"}) {
    const Architecture& architecture = find_architecture(name);
    CHECK(legal_variants(problem, architecture) == legal_variants(tuning_class(problem), architecture));
    for (const ShapeBucket& bucket : shape_buckets())
      CHECK(default_variant(problem, architecture, bucket) ==
            default_variant(tuning_class(problem), architecture, bucket));
  }
}

TEST_CASE("a mask that stands for others has blocks of all kinds, for many queries and for few") {
  int masks = 0;
  for (const StandIn& each : stand_ins()) {
    CHECK((each.mask != nullptr) == (each.kind == FunctionKind::mask));
    CHECK((each.score != nullptr && each.score_in_f32 != nullptr) == (each.kind == FunctionKind::score));
    if (!each.mask) continue;
    ++masks;
    for (const std::int64_t seqlen_q : {3, 300, 2048}) {
      CAPTURE(seqlen_q);
      for (const std::int64_t seqlen_kv : {333, 713, 4096}) {
        CAPTURE(seqlen_kv);
        const Granules found = granules_of(each, seqlen_q, seqlen_kv);
        CHECK(found.empty > 0);
        CHECK(found.part > 0);
        CHECK(found.whole > 0);
      }
    }
  }
  CHECK(masks == 2);
}
