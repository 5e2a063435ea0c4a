// SPDX-License-Identifier: Apache-2.0
// The random combinations of verify: that they reach every feature and what goes with it, and follow from their seed.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "cli/io/problem_options.h"
#include "cli/verify/random_case.h"
#include "generator/features.h"
#include "tests/support/same_bytes.h"

namespace {

using namespace flashjit;
using cli::RandomCase;

constexpr std::uint64_t kSeeds = 400;

const std::vector<RandomCase>& cases() {
  static const std::vector<RandomCase> drawn = [] {
    std::vector<RandomCase> list;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) list.push_back(cli::random_case(seed));
    return list;
  }();
  return drawn;
}

bool any(const std::function<bool(const RandomCase&)>& is_so) {
  return std::any_of(cases().begin(), cases().end(), is_so);
}

// As its calls have them in host memory.
AttentionOptions options_of(const RandomCase& random) {
  return random.texts.on_host(cli::with_tensors(random.inputs.options, random.inputs.tensors));
}

// A place with its captures, of the score and of the mask.
std::vector<Tensor> captured_tensors(const RandomCase& random) {
  const AttentionOptions options = options_of(random);
  std::vector<Tensor> tensors;
  const auto add = [&](const Function& function) {
    for (const Capture& capture : function.captures())
      if (const Tensor* const tensor = std::get_if<Tensor>(&capture.value)) tensors.push_back(*tensor);
  };
  if (options.score) add(*options.score);
  if (options.mask) add(*options.mask);
  return tensors;
}

}  // namespace

TEST_CASE("every feature of the table is drawn, alone with each other one, and left out") {
  const std::size_t rows = generator::features().size();
  const auto is_of_large_heads = [](const auto& row) { return row.word == "k_rotary" || row.word == "latent"; };
  for (std::size_t i = 0; i < rows; ++i) {
    const auto& row = generator::features()[i];
    if (is_of_large_heads(row)) continue;
    CAPTURE(std::string(row.word));
    CHECK(any([&](const RandomCase& random) { return !row.is_in(random.problem); }));
    for (std::size_t j = 0; j <= i; ++j) {
      const auto& other = generator::features()[j];
      if (is_of_large_heads(other)) continue;
      const auto are = [&](const char* one, const char* two) { return row.word == one && other.word == two; };
      // A prefix stands in place of a causal mask.
      const bool excludes_by_products = [&] {
        const std::set<std::string_view> of_16_bits{"token_scales", "dropout", "dropout_mask"};
        const bool is_of_products = row.slot == generator::Slot::products || row.slot == generator::Slot::written ||
                                    row.word == "values_transposed";
        return is_of_products && of_16_bits.count(other.word) != 0;
      }();
      // Whose order is the order of the table.
      const bool excludes_scales_of_blocks =
          are("block_scales", "ragged") || are("block_scales", "paged") || are("block_scales", "fast_sums");
      const bool excludes_sequences = are("values_transposed", "ragged") || are("values_transposed", "paged");
      const bool exclude = are("prefix", "causal") || are("ragged", "blocks") || are("paged", "blocks") ||
                           excludes_by_products || excludes_scales_of_blocks || excludes_sequences;
      CAPTURE(std::string(other.word));
      CHECK(exclude !=
            any([&](const RandomCase& random) { return row.is_in(random.problem) && other.is_in(random.problem); }));
    }
  }
}

TEST_CASE("keys in two tensors are drawn among large heads alone, of e4m3 with each kind of scales, and in pages") {
  cli::RandomScope scope;
  scope.large_heads = true, scope.e4m3_keys = scope.e4m3_products = false;
  int apart = 0, of_tokens = 0, of_heads = 0, of_16_bits = 0, paged = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const RandomCase random = cli::random_case(seed, scope);
    const Problem& problem = random.problem;
    CHECK((problem.k_rotary || !problem.e4m3));
    if (!problem.k_rotary) continue;
    CHECK_NOTHROW(validate(problem));
    ++apart, of_tokens += problem.token_scales, of_heads += problem.e4m3 && !problem.token_scales;
    of_16_bits += !problem.e4m3, paged += problem.paged;
  }
  for (const int count : {of_tokens, of_heads, of_16_bits, paged}) CHECK(count > 0);
  CHECK(apart < static_cast<int>(kSeeds) / 2);
  CHECK_FALSE(any([](const RandomCase& random) { return random.problem.k_rotary; }));
}

TEST_CASE("values in the memory of keys are drawn among large heads alone, where keys are values") {
  cli::RandomScope scope;
  scope.large_heads = true, scope.e4m3_keys = scope.e4m3_products = false;
  int latent = 0, paged = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const RandomCase random = cli::random_case(seed, scope);
    if (!random.problem.latent) continue;
    CHECK_NOTHROW(validate(random.problem));
    CHECK_FALSE(cli::has_far_keys(random.shape.scores));
    ++latent, paged += random.problem.paged;
  }
  CHECK(paged > 0);
  CHECK(latent < static_cast<int>(kSeeds) / 2);
  CHECK_FALSE(any([](const RandomCase& random) { return random.problem.latent; }));
}

TEST_CASE("calls ask for the problem, but for the block mask, and a block mask has predicates to be made of") {
  for (const RandomCase& random : cases()) {
    const std::string name = to_string(random.problem);
    CAPTURE(name);
    Problem asked = problem_of(q_dtype(random.problem), random.problem.head_dim, random.problem.head_dim_v,
                               options_of(random), kv_dtype(random.problem));
    asked.block_mask = random.block_mask.has_value();
    asked.values_transposed = random.inputs.values_transposed;  // which strides say
    CHECK(to_string(asked) == name);
    CHECK((!random.block_mask || cli::has_predicate(random.problem)));
    CHECK((!random.problem.tree || random.shape.seqlen_q <= random.shape.seqlen_kv));
    CHECK((!random.problem.e4m3 || random.shape.seqlen_kv > 0));
    CHECK(random.inputs.q.dtype() == q_dtype(random.problem));
    CHECK(random.inputs.k.dtype() == kv_dtype(random.problem));
  }
}

TEST_CASE("shapes are small, and of every kind") {
  for (const RandomCase& random : cases()) {
    const cli::CaseShape& shape = random.shape;
    CHECK(shape.batch * shape.heads_q * shape.seqlen_q * shape.seqlen_kv <= 1 << 18);
    CHECK(shape.heads_q % shape.heads_kv == 0);
  }
  const auto any_shape = [](const std::function<bool(const cli::CaseShape&)>& is_so) {
    return any([&](const RandomCase& random) { return is_so(random.shape); });
  };
  CHECK(any_shape([](const auto& shape) { return shape.seqlen_kv == 0; }));
  CHECK(any_shape([](const auto& shape) { return shape.seqlen_q == 1; }));
  CHECK(any_shape([](const auto& shape) { return shape.seqlen_q > 256 && shape.seqlen_kv > 256; }));
  CHECK(any_shape([](const auto& shape) { return shape.seqlen_q > shape.seqlen_kv; }));
  CHECK(any_shape([](const auto& shape) { return shape.heads_q == 8 * shape.heads_kv; }));
  CHECK(any_shape([](const auto& shape) { return shape.heads_first; }));
  for (const cli::Scores scores : cli::kHardScores)
    CHECK(any_shape([&](const auto& shape) { return shape.scores == scores; }));
  CHECK(any([](const RandomCase& random) { return random.problem.head_dim % 16 == 8; }));
  CHECK(any([](const RandomCase& random) { return random.problem.head_dim != random.problem.head_dim_v; }));
  CHECK(any([](const RandomCase& random) {
    const std::vector<double> q = random.inputs.q.to_doubles();
    return std::any_of(q.begin(), q.end(), [](double value) { return std::isnan(value); });
  }));
}

TEST_CASE("captures are of every dtype and rank, packed, apart, repeated and out of order") {
  std::set<DType> dtypes;
  std::set<int> ranks;
  bool packed = false, apart = false, repeated = false, out_of_order = false;
  for (const RandomCase& random : cases())
    for (const Tensor& tensor : captured_tensors(random)) {
      dtypes.insert(tensor.dtype);
      const int rank = tensor.shape.size();
      ranks.insert(rank);
      if (rank < 2) continue;
      packed |= tensor.strides == packed_strides(tensor.shape);
      apart |= tensor.strides[rank - 1] > 1;
      repeated |= *std::min_element(tensor.strides.begin(), tensor.strides.end()) == 0;
      out_of_order |= tensor.strides[0] < tensor.strides[rank - 1];
    }
  CHECK(dtypes.size() == 6);
  CHECK(ranks == std::set<int>{0, 1, 2, 3, 4});
  CHECK(packed);
  CHECK(apart);
  CHECK(repeated);
  CHECK(out_of_order);
}

TEST_CASE("block masks are for each batch entry and head, and for all") {
  const auto any_mask = [](bool all_entries, bool all_heads) {
    return any([&](const RandomCase& random) {
      return random.block_mask && random.shape.batch > 1 && random.shape.heads_q > 1 &&
             (random.block_mask->batch == 1) == all_entries && (random.block_mask->num_heads_q == 1) == all_heads;
    });
  };
  for (const bool all_entries : {false, true})
    for (const bool all_heads : {false, true}) CHECK(any_mask(all_entries, all_heads));
}

TEST_CASE("a case follows from its seed alone, and another seed gives another one") {
  for (const std::uint64_t seed : {0, 7, 123}) {
    const RandomCase first = cli::random_case(seed), again = cli::random_case(seed);
    CHECK(cli::describe(first) == cli::describe(again));
    CHECK(first.problem == again.problem);
    CHECK(tests::same_bytes(first.inputs.q, again.inputs.q));
    CHECK(tests::same_bytes(first.inputs.v, again.inputs.v));
  }
  std::set<std::string> all;
  for (const RandomCase& random : cases()) all.insert(to_string(random.problem) + cli::describe(random));
  CHECK(all.size() == kSeeds);
}

TEST_CASE("large heads are above 256 all of them, equal or not, by variants of both families, with wide groups too") {
  EngineOptions options;
  options.policy = Policy::off;
  options.emulate = "sm_90a";
  const Engine engine(options);
  cli::RandomScope scope;
  scope.large_heads = true, scope.e4m3_keys = scope.e4m3_products = false;
  bool equal = false, other = false, wide = false;
  std::set<std::string> words;
  for (std::uint64_t seed = 0; seed < 2 * kSeeds; ++seed) {
    const RandomCase random = cli::random_case(seed, scope);
    const auto [head_dim, head_dim_v] = std::pair{random.problem.head_dim, random.problem.head_dim_v};
    CHECK(std::max(head_dim, head_dim_v) > 256);
    validate(random.problem);
    (head_dim == head_dim_v ? equal : other) = true;
    wide = wide || random.shape.heads_q / random.shape.heads_kv == 128;
    const auto variant = cli::random_variant(engine, random, "sm_90a", seed);
    const std::string spelling = variant ? to_string(*variant) : "default";
    for (const char* word : {"default", "mma-", "hopper-", "cl2", "splitkv"})
      if (spelling.find(word) != std::string::npos) words.insert(word);
  }
  CHECK(equal);
  CHECK(other);
  CHECK(wide);
  CHECK(words.size() == 5);
}

TEST_CASE("calls for gradients of large heads have what each family has there, and leave no feature of it out") {
  EngineOptions options;
  options.policy = Policy::off;
  options.emulate = "sm_90a";
  const Engine engine(options);
  for (const bool of_hopper : {false, true}) {
    std::set<std::string> kinds;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      const RandomCase random =
          cli::random_case(seed, of_hopper ? cli::kHopperLargeBackwardScope : cli::kLargeBackwardScope);
      const Problem& problem = random.problem;
      CHECK(std::max(problem.head_dim, problem.head_dim_v) > 256);
      CHECK_NOTHROW(validate(BackwardProblem{problem}));
      CHECK_NOTHROW(cli::random_backward_variant(engine, random, "sm_90a", seed));
      const bool is_unequal = problem.head_dim != problem.head_dim_v;
      for (const auto& [kind, is_so] : {std::pair{"causal", problem.causal},
                                        {"window", problem.window},
                                        {"chunk", problem.chunk},
                                        {"prefix", problem.prefix},
                                        {"sinks", problem.sinks},
                                        {"ragged", problem.ragged},
                                        {"grouped", random.shape.heads_q > random.shape.heads_kv}})
        if (is_so) kinds.insert(kind);
      for (const auto& [kind, is_so] : {std::pair{"unequal", is_unequal},
                                        {"softcap", problem.softcap},
                                        {"alibi", problem.alibi},
                                        {"bias", problem.bias != nullptr},
                                        {"dropout", problem.dropout},
                                        {"documents", problem.documents != nullptr},
                                        {"score", problem.score != nullptr},
                                        {"mask", problem.mask != nullptr}})
        if (is_so) kinds.insert(kind);
    }
    CHECK(kinds.size() == (of_hopper ? 7 : 15));
  }
}

TEST_CASE("calls for gradients have what has them, by the same features otherwise, and ask for any of them") {
  std::set<std::string> choices;
  std::set<std::string> words;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const RandomCase random = cli::random_case(seed, cli::kBackwardScope);
    const Problem& problem = random.problem;
    CHECK_FALSE((problem.paged || problem.e4m3 || problem.block_mask));
    CHECK_FALSE(cli::is_far(random.shape.scores));
    const std::vector<double> q = random.inputs.q.to_doubles();
    // Rows that a sequence does not use are NaN.
    CHECK((problem.ragged || std::all_of(q.begin(), q.end(), [](double value) { return std::isfinite(value); })));
    for (const auto& row : generator::features())
      if (row.is_in(problem)) words.insert(std::string(row.word));
  }
  constexpr std::uint64_t kManySeeds = 2000;  // so that each choice comes
  for (std::uint64_t seed = 0; seed < kManySeeds; ++seed) choices.insert(cli::to_string(cli::random_gradients(seed)));
  for (const auto& row : generator::features()) {
    CAPTURE(std::string(row.word));
    const bool has_none =
        std::set<std::string>{"paged",    "e4m3",   "token_scales",      "e4m3_queries", "fast_sums", "block_scales",
                              "k_rotary", "latent", "values_transposed", "out_e4m3",     "e5m2",      "blocks"}
            .count(std::string(row.word)) != 0;
    CHECK((words.count(std::string(row.word)) == 0) == has_none);
  }
  CHECK(choices.size() == 7 * 2 * 2 * 2 * 2);
}

TEST_CASE("gradients are by what the library chooses, and by variants of both families, of Hopper's each") {
  EngineOptions options;
  options.policy = Policy::off;
  options.emulate = "sm_90a";
  const Engine engine(options);
  std::set<std::string> variants;
  for (std::uint64_t seed = 0; seed < 2 * kSeeds; ++seed) {
    const RandomCase random = cli::random_case(seed, cli::kBackwardScope);
    const auto variant = cli::random_backward_variant(engine, random, "sm_90a", seed);
    CHECK(variant == cli::random_backward_variant(engine, random, "sm_90a", seed));
    variants.insert(variant ? to_string(*variant) : "");
  }
  for (const char* each : {"", "hopper-q128-kv128", "hopper-q64-kv128", "hopper-q80-kv128", "hopper-q64-kv64"}) {
    CAPTURE(std::string(each));
    CHECK(variants.count(each) == 1);
  }
  CHECK(variants.size() > 20);
}
