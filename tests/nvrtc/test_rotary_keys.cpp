// SPDX-License-Identifier: Apache-2.0
// Keys in two tensors, as caches of MLA are, in the emulator against the reference: the first of e4m3 with scales, or
// of 16 bits.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cli/verify/cases.h"
#include "cli/verify/schedules.h"
#include "flashjit/flashjit.h"
#include "generator/features.h"
#include "runtime/support/parallel.h"
#include "tests/support/emulating_engine.h"
#include "tests/support/feature.h"
#include "tests/support/sample.h"

using namespace flashjit;
using tests::engine_for;

namespace {

constexpr const char* kTwoGroups = "mma-q32-kv64-w8-k3-v3-splitkv";
constexpr const char* kFewSlots = "mma-q16-kv64-w4-k2-v1-always-splitkv";
constexpr const char* kManyKeys = "mma-q16-kv128-w4-k2-v1-splitkv";
constexpr const char* kWhole = "mma-q32-kv128-w8-k1-v1";
constexpr const char* kVariants[] = {kTwoGroups, kFewSlots, kManyKeys, kWhole};

struct Call {
  Problem problem;
  cli::CaseShape shape;
  const char* variant;
};

// How what is not rotary is stored.
enum class Stored { in_16_bits, in_e4m3, with_token_scales };
constexpr Stored kStored[] = {Stored::in_16_bits, Stored::in_e4m3, Stored::with_token_scales};

Problem problem_of(Stored stored, int head_dim = 576, int head_dim_v = 512, DType dtype = DType::bf16) {
  return {.dtype = dtype,
          .head_dim = head_dim,
          .head_dim_v = head_dim_v,
          .e4m3 = stored != Stored::in_16_bits,
          .token_scales = stored == Stored::with_token_scales,
          .k_rotary = true};
}

std::string problem_with(const Call& call) {
  Engine& engine = engine_for("sm_90a");
  cli::VerifyCase c(call.problem, call.shape, kHostMemory, tests::options_for(call.problem),
                    cli::references_by(engine));
  if (call.problem.block_mask) c.make_block_mask(engine);
  return c.problem_with(engine, parse_variant(call.variant));
}

void check(const std::vector<Call>& all) {
  const std::vector<Call> calls = tests::sample(all);
  std::vector<std::string> problems(calls.size());
  runtime::parallel_for(calls.size(), [&](std::size_t i) { problems[i] = problem_with(calls[i]); });
  for (std::size_t i = 0; i < calls.size(); ++i)
    CHECK_MESSAGE(problems[i] == "", to_string(calls[i].problem), ", ", to_string(calls[i].shape), ", ",
                  std::string(calls[i].variant));
}

// A cache as vLLM and SGLang have it: values are the keys' first columns.
struct LatentCache {
  static constexpr std::int64_t kLatent = 512, kRotary = 64, kKeys = 300, kHeads = 16;

  HostTensor q = HostTensor::random_normal(DType::bf16, {1, 2, kHeads, kLatent + kRotary}, 1),
             latent = HostTensor::random_normal(DType::e4m3, {1, kKeys, 1, kLatent}, 2),
             rotary = HostTensor::random_normal(DType::bf16, {1, kKeys, 1, kRotary}, 3),
             scale{DType::f32, {1, kKeys, 1}};
  AttentionOptions options;

  explicit LatentCache(int (*exponent)(std::int64_t key)) {
    for (std::int64_t key = 0; key < kKeys; ++key)
      store_element(scale.data(), DType::f32, key, std::ldexp(1.25, exponent(key)));
    options.k_rotary = rotary.view(), options.k_scale = options.v_scale = scale.view();
    options.softmax_scale = 1 / std::sqrt(192.0f);
  }
  std::string problem(const AttentionOptions& opts, const char* architecture = "sm_90a") const {
    const Tensor l = latent.view();
    const reference::Result exact = reference::attention(q.view(), l, l, opts),
                            low = reference::attention_in_low_precision(q.view(), l, l, opts);
    const HostTensor out = HostTensor::from_device(engine_for(architecture).attention(q.view(), l, l, opts));
    const reference::Comparison compared = reference::compare(out, exact, low);
    return compared.passed ? ""
                           : std::to_string(compared.max_error) + " must be at most " + std::to_string(compared.bound);
  }
};

int near_one(std::int64_t key) { return static_cast<int>(key * 3 % 5) - 2; }

}  // namespace

TEST_SUITE_BEGIN("keys in two tensors");

TEST_CASE("MLA's head dims, stored in each way, of few keys and many, by each kind of variant") {
  std::vector<Call> calls;
  for (const Stored stored : kStored)
    for (const char* variant : kVariants)
      for (const std::int64_t keys : {1, 63, 64, 65, 130, 300})
        for (const std::int64_t heads : {16, 128, 7})
          calls.push_back({problem_of(stored, 576, 512, keys % 2 == 1 ? DType::bf16 : DType::f16),
                           {1, 1, keys, heads, 1},
                           variant});
  check(calls);
}

TEST_CASE("many keys of few queries, which are split, and causal ones") {
  std::vector<Call> calls;
  for (const Stored stored : kStored)
    for (const char* variant : {kTwoGroups, kFewSlots, kManyKeys})
      for (const std::int64_t queries : {1, 2, 40}) {
        Problem problem = problem_of(stored);
        problem.causal = queries > 1;
        calls.push_back({problem, {2, queries, 900, 8, 1}, variant});
      }
  check(calls);
}

TEST_CASE("head dims of every kind") {
  std::vector<Call> calls;
  for (const auto& [head_dim, head_dim_v] :
       {std::pair{272, 256}, {264, 16}, {320, 80}, {288, 272}, {520, 512}, {576, 16}, {576, 336}, {304, 48}})
    for (const Stored stored : kStored)
      for (const char* variant : {kTwoGroups, kManyKeys, kWhole})
        calls.push_back({problem_of(stored, head_dim, head_dim_v, head_dim % 5 == 0 ? DType::f16 : DType::bf16),
                         {1, 40, 210, 4, 2},
                         variant});
  check(calls);
}

TEST_CASE("sequences of any length, with NaN behind them, and keys in pages of any size") {
  std::vector<Call> calls;
  for (const Stored stored : kStored)
    for (const bool paged : {false, true})
      for (const auto& [heads, queries] : {std::pair{1, 70}, {8, 3}, {128, 1}, {128, 2}})
        for (const std::int64_t keys : {40, 300, 900})
          for (const char* variant : {kTwoGroups, kFewSlots, kWhole}) {
            Problem problem = problem_of(stored, keys == 300 ? 576 : 272, keys == 300 ? 512 : 256);
            problem.causal = queries > 1, problem.ragged = true, problem.paged = paged;
            calls.push_back({problem, {3, queries, keys, heads, 1}, variant});
          }
  check(calls);
}

TEST_CASE("each feature beside keys in two tensors") {
  std::vector<Call> calls;
  for (const generator::FeatureRow& row : generator::features())
    for (const Stored stored : {Stored::in_e4m3, Stored::with_token_scales})
      for (const char* variant : kVariants) {
        Problem problem = problem_of(stored, 272, 256);
        tests::ask(problem, row);
        if (problem.block_mask) problem.documents = &tests::any_function(generator::FunctionKind::documents);
        const bool drops = row.slot == generator::Slot::probability;
        if (problem.e4m3_queries || problem.latent ||
            (drops && parse_variant("kv128", parse_variant(variant)) != parse_variant(variant)))
          continue;  // refused
        calls.push_back({problem, {2, 50, 230, 4, 2}, variant});
        problem.causal = !problem.prefix, problem.window = true;
        calls.push_back({problem, {1, 50, 230, 4, 2}, variant});
      }
  check(calls);
}

TEST_CASE("under many schedules") {
  std::vector<Problem> problems;
  for (const Stored stored : kStored)
    for (const bool paged : {false, true}) {
      problems.push_back(problem_of(stored, 272, 256));
      problems.back().ragged = problems.back().paged = paged;
    }
  Engine& engine = engine_for("sm_90a");
  for (const Problem& problem : tests::sample(problems))
    for (const char* variant : {kTwoGroups, kManyKeys}) {
      CAPTURE(to_string(problem));
      cli::VerifyCase c(problem, {1, 9, 330, 4, 1}, kHostMemory, {}, cli::references_by(engine));
      const cli::ScheduleOutcome outcome = run_schedules(engine, c, parse_variant(variant), {.count = 20});
      CHECK_MESSAGE(outcome.problems.empty(), (outcome.problems.empty() ? "" : outcome.problems.front()));
    }
}

TEST_CASE("values are the first columns of keys, in the same memory and with the same scales, on each target") {
  const LatentCache cache(near_one);
  for (const char* architecture : {"sm_89", "sm_90a", "sm_120a"})
    CHECK(cache.problem(cache.options, architecture) == "");
  AttentionOptions one = cache.options;
  one.k_scale = one.v_scale = Tensor(const_cast<void*>(cache.scale.data()), DType::f32, {1});
  CHECK(cache.problem(one) == "");
}

TEST_CASE("scales of values may be anything that f32 holds, and rise and fall from token to token") {
  for (const auto exponent :
       {+[](std::int64_t key) { return static_cast<int>(key % 130) - 80; },     // rising with the key
        +[](std::int64_t key) { return 40 - static_cast<int>(key % 130); },     // falling
        +[](std::int64_t key) { return static_cast<int>(key * 7 % 23) - 40; },  // far below what f16 holds
        +[](std::int64_t key) { return static_cast<int>(key * 5 % 17) + 20; }}) {
    LatentCache cache(exponent);
    const LatentCache near(near_one);
    cache.options.k_scale = near.scale.view();
    for (const char* variant : {kTwoGroups, kManyKeys}) {
      AttentionOptions options = cache.options;
      options.variant = parse_variant(variant);
      CHECK(cache.problem(options) == "");
    }
  }
}

TEST_CASE("all numbers of e4m3 come out as they are, NaN among them") {
  constexpr std::int64_t kColumns = 256;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    HostTensor latent(DType::e4m3, {256, 1, 1, kColumns});
    for (std::int64_t i = 0; i < 256 * kColumns; ++i)
      static_cast<std::uint8_t*>(latent.data())[i] = static_cast<std::uint8_t>(i / kColumns + i);
    const HostTensor k = HostTensor::random_normal(DType::e4m3, {256, 1, 1, kColumns}, 2),
                     q = HostTensor::random_normal(dtype, {256, 1, 1, kColumns + 16}, 1),
                     rotary = HostTensor::random_normal(dtype, {256, 1, 1, 16}, 3);
    AttentionOptions options;
    options.k_rotary = rotary.view();
    const HostTensor out =
        HostTensor::from_device(engine_for("sm_89").attention(q.view(), k.view(), latent.view(), options));
    const std::vector<double> is = out.to_doubles(), should = latent.to_doubles();
    for (std::size_t i = 0; i < is.size(); ++i)
      CHECK((is[i] == should[i] || (std::isnan(is[i]) && std::isnan(should[i]))));
  }
}

TEST_CASE("packed sequences need no dimension of batches") {
  const LatentCache cache(near_one);
  const double ends[] = {0, 120, 300}, ends_q[] = {0, 1, 2};
  const HostTensor cu_kv = HostTensor::from_doubles(DType::i32, {3}, ends, 3),
                   cu_q = HostTensor::from_doubles(DType::i32, {3}, ends_q, 3);
  AttentionOptions options = cache.options;
  options.cu_seqlens_q = cu_q.view(), options.cu_seqlens_kv = cu_kv.view();
  CHECK(cache.problem(options) == "");
  const auto without_batch = [](const Tensor& tensor) {
    Dims shape(tensor.shape.begin() + 1, static_cast<std::size_t>(tensor.shape.size()) - 1);
    return Tensor(tensor.data, tensor.dtype, shape);
  };
  const HostTensor with = HostTensor::from_device(
      engine_for("sm_89").attention(cache.q.view(), cache.latent.view(), cache.latent.view(), options));
  for (auto* option : {&options.k_rotary, &options.k_scale, &options.v_scale}) *option = without_batch(**option);
  const Tensor latent = without_batch(cache.latent.view());
  const HostTensor without =
      HostTensor::from_device(engine_for("sm_89").attention(without_batch(cache.q.view()), latent, latent, options));
  CHECK(std::memcmp(with.data(), without.data(), with.element_count() * 2) == 0);
}

TEST_CASE("where e4m3 is no instruction's, caches of it are refused, and those of 16 bits are not") {
  const LatentCache cache(near_one);
  CHECK_THROWS_WITH_AS(cache.problem(cache.options, "sm_80"),
                       doctest::Contains("keys and values of e4m3 beside k_rotary need sm_89 or a later architecture"),
                       Error);
  const HostTensor latent = cache.latent.converted_to(DType::bf16);
  AttentionOptions options;
  options.k_rotary = cache.rotary.view();
  const HostTensor out =
      HostTensor::from_device(engine_for("sm_80").attention(cache.q.view(), latent.view(), latent.view(), options));
  CHECK(reference::compare(out, reference::attention(cache.q.view(), latent.view(), latent.view(), options),
                           reference::attention_in_low_precision(cache.q.view(), latent.view(), latent.view(), options))
            .passed);
}

TEST_SUITE_END();
