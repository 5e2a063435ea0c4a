// SPDX-License-Identifier: Apache-2.0
// The kernels of head dims above 256 in the emulator, against the reference.
#include <doctest/doctest.h>

#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/verify/cases.h"
#include "flashjit/flashjit.h"
#include "generator/features.h"
#include "runtime/support/parallel.h"
#include "tests/support/emulating_engine.h"
#include "tests/support/feature.h"
#include "tests/support/large_scores.h"
#include "tests/support/sample.h"

using namespace flashjit;
using tests::engine_for;

namespace {

// Of Hopper, and of the mma.sync family: the first of these has 64 keys a block, which dropout does without.
constexpr const char* kAlone = "hopper-q64-kv64-s1-ppoff-rare-single";
constexpr const char* kPersistent = "hopper-q64-kv64-s1-ppoff-always-dynamic";
constexpr const char* kPair = "hopper-q64-kv64-s1-ppoff-cl2-rare-fixed";
constexpr const char* kSplit = "hopper-q64-kv64-s1-ppoff-rare-single-splitkv";
constexpr const char* kSplitPair = "hopper-q64-kv64-s1-ppoff-cl2-rare-single-splitkv";
constexpr const char* kFewKeys = "mma-q32-kv64-w4-k2-v1-rare";
constexpr const char* kTwoGroups = "mma-q64-kv128-w8-k2-v1-always";
constexpr const char* kMmaSplit = "mma-q16-kv128-w4-k2-v1-splitkv";
constexpr const char* kOfMma[] = {kFewKeys, kTwoGroups, kMmaSplit};

struct Call {
  Problem problem;
  cli::CaseShape shape;
  const char* variant;
};

Problem problem_of(int head_dim, int head_dim_v, bool causal = false, DType dtype = DType::bf16) {
  return {.dtype = dtype, .head_dim = head_dim, .head_dim_v = head_dim_v, .causal = causal};
}

std::string problem_with(const Call& call) {
  Engine& engine = engine_for(std::string_view(call.variant).starts_with("mma") ? "sm_80" : "sm_90a");
  cli::VerifyCase c(call.problem, call.shape, kHostMemory, tests::options_for(call.problem),
                    cli::references_by(engine));
  if (call.problem.block_mask) c.make_block_mask(engine);
  return c.problem_with(engine, parse_variant(call.variant));
}

// With columns of zeros behind its own.
HostTensor widened(const HostTensor& tensor, std::int64_t head_dim) {
  Dims shape = tensor.shape();
  const std::int64_t columns = shape[3];
  shape[3] = head_dim;
  HostTensor wide(tensor.dtype(), shape);
  for (std::int64_t row = 0; row < shape[0] * shape[1] * shape[2]; ++row)
    for (std::int64_t column = 0; column < columns; ++column)
      store_element(wide.data(), tensor.dtype(), row * head_dim + column,
                    load_element(tensor.data(), tensor.dtype(), row * columns + column));
  return wide;
}

void check(const std::vector<Call>& all) {
  const std::vector<Call> calls = tests::sample(all);
  std::vector<std::string> problems(calls.size());
  runtime::parallel_for(calls.size(), [&](std::size_t i) { problems[i] = problem_with(calls[i]); });
  for (std::size_t i = 0; i < calls.size(); ++i)
    CHECK_MESSAGE(problems[i] == "", to_string(calls[i].problem), ", ", to_string(calls[i].shape), ", ",
                  std::string(calls[i].variant));
}

}  // namespace

TEST_SUITE_BEGIN("large heads");

TEST_CASE("head dims, equal and not") {
  std::vector<Call> calls;
  for (const auto& [head_dim, head_dim_v] : {std::pair{264, 264},
                                             {320, 320},
                                             {384, 384},
                                             {448, 448},
                                             {512, 512},
                                             {576, 512},
                                             {512, 256},
                                             {264, 8},
                                             {8, 264},
                                             {24, 512},
                                             {128, 320},
                                             {272, 136},
                                             {520, 24}})
    for (const char* variant : {kAlone, kPair, kFewKeys, kTwoGroups, kMmaSplit})
      calls.push_back(
          {problem_of(head_dim, head_dim_v, head_dim % 16 == 0, head_dim % 5 == 0 ? DType::f16 : DType::bf16),
           {1, 90, 210, 4, 2},
           variant});
  check(calls);
}

TEST_CASE("lengths of one block, of two, and between, for each stream alone and both") {
  std::vector<Call> calls;
  for (const std::int64_t keys : {1, 63, 64, 65, 127, 128, 129, 192, 193, 300})
    for (const std::int64_t queries : {1, 64, 65, 129, 300})
      for (const char* variant : {kAlone, kPersistent, kPair, kFewKeys, kTwoGroups, kMmaSplit})
        calls.push_back({problem_of(264, 264, queries % 2 == 1), {1, queries, keys, 2, 1}, variant});
  check(calls);
}

TEST_CASE("more tiles than blocks that run at once, of heads that share tiles too") {
  std::vector<Call> calls;
  for (const bool causal : {false, true})
    for (const char* variant : {kPersistent, kPair}) {
      calls.push_back({problem_of(512, 512, causal), {2, 200, 200, 6, 3}, variant});
      calls.push_back({problem_of(320, 264, causal), {3, 7, 140, 16, 2}, variant});
    }
  check(calls);
}

TEST_CASE("many keys of few queries, which are split, of heads that share tiles") {
  std::vector<Call> calls;
  for (const bool causal : {false, true})
    for (const std::int64_t queries : {1, 3, 40}) {
      calls.push_back({problem_of(576, 512, causal), {1, queries, 900, 8, 1}, kMmaSplit});
      calls.push_back({problem_of(264, 328, causal), {2, queries, 900, 8, 2}, "mma-q32-kv64-w8-k2-v2-splitkv"});
    }
  check(calls);
}

TEST_CASE("each feature in the mma.sync family") {
  std::vector<Call> calls;
  for (const generator::FeatureRow& row : generator::features())
    for (const char* variant : kOfMma) {
      Problem problem = problem_of(264, 320);
      tests::ask(problem, row);
      if (problem.block_mask) problem.documents = &tests::any_function(generator::FunctionKind::documents);
      if (problem.k_rotary) continue;  // test_rotary_keys.cpp
      if (problem.latent) continue;    // below, with head dims that have it
      if (problem.e4m3 || (variant == kFewKeys && row.slot == generator::Slot::probability)) continue;  // refused
      calls.push_back({problem, {2, 150, 230, 4, 2}, variant});
      problem.causal = !problem.prefix, problem.window = true;
      calls.push_back({problem, {1, 150, 230, 4, 2}, variant});
    }
  check(calls);
}

TEST_CASE("what the copy engine of Hopper cannot be told of is the mma.sync family's") {
  Engine& engine = engine_for("sm_90a");
  const Problem problem = problem_of(264, 264);
  const cli::CaseShape no_keys{1, 70, 0, 2, 1};
  const cli::VerifyCase c(problem, no_keys, kHostMemory, {}, cli::references_by(engine));
  CHECK(c.problem_with(engine, std::nullopt) == "");
}

TEST_CASE("scores as large as f32 holds, in both ways of rescaling, in the mma.sync family") {
  tests::Sampler sampler;
  for (const char* variant : {kFewKeys, kTwoGroups})
    for (const tests::LargeScores& problem : tests::problems_with_large_scores(DType::bf16)) {
      if (!sampler.takes_next()) continue;
      CAPTURE(std::string(variant));
      CAPTURE(problem.name);
      const HostTensor q = widened(problem.q, 264), k = widened(problem.k, 264);
      AttentionOptions options = problem.options;
      const auto exact = reference::attention(q.view(), k.view(), problem.v.view(), options);
      const auto low = reference::attention_in_low_precision(q.view(), k.view(), problem.v.view(), options);
      options.variant = parse_variant(variant);
      const DeviceTensor out = engine_for("sm_80").attention(q.view(), k.view(), problem.v.view(), options);
      CHECK(reference::compare(HostTensor::from_device(out), exact, low).passed);
    }
}

TEST_CASE("with splits of a fixed size a row of large heads is the same bit by bit alone and in a prompt") {
  const HostTensor q = HostTensor::random_normal(DType::bf16, {1, 90, 4, 264}, 1);
  const HostTensor k = HostTensor::random_normal(DType::bf16, {1, 333, 2, 264}, 2), v = k;
  AttentionOptions options;
  options.causal = true, options.fixed_split_size = 100;
  Engine& engine = engine_for("sm_80");
  const HostTensor prompt = HostTensor::from_device(engine.attention(q.view(), k.view(), v.view(), options));
  constexpr std::int64_t kRow = 4 * 264;
  Tensor last = q.view();
  last.data = static_cast<char*>(last.data) + 89 * kRow * 2, last.shape[1] = 1;
  const HostTensor alone = HostTensor::from_device(engine.attention(last, k.view(), v.view(), options));
  CHECK(std::memcmp(alone.data(), static_cast<const char*>(prompt.data()) + 89 * kRow * 2, kRow * 2) == 0);
}

TEST_CASE("each feature on Hopper") {
  std::vector<Call> calls;
  for (const generator::FeatureRow& row : generator::features())
    for (const char* variant : {kPersistent, kPair}) {
      Problem problem = problem_of(264, 320);
      tests::ask(problem, row);
      if (problem.block_mask) problem.documents = &tests::any_function(generator::FunctionKind::documents);
      if (problem.e4m3 || problem.k_rotary || problem.latent || (variant == kPair && problem.block_mask))
        continue;  // refused
      calls.push_back({problem, {2, 150, 230, 4, 2}, variant});
      problem.causal = !problem.prefix, problem.window = true;
      calls.push_back({problem, {1, 150, 230, 4, 2}, variant});
    }
  check(calls);
}

TEST_CASE("keys are split for few queries, whose heads share tiles up to those of a pair of blocks") {
  std::vector<Call> calls;
  for (const auto& [heads, queries] :
       {std::pair{1, 1}, {1, 7}, {8, 1}, {16, 3}, {12, 5}, {32, 2}, {64, 1}, {128, 1}, {128, 2}, {96, 1}})
    for (const std::int64_t keys : {64, 300, 640})
      for (const char* variant : {kSplit, kSplitPair})
        calls.push_back({problem_of(576, 512, queries > 2), {1, queries, keys, heads, 1}, variant});
  for (const char* variant : {kSplit, kSplitPair}) {
    calls.push_back({problem_of(264, 264, true), {2, 100, 500, 4, 2}, variant});
    calls.push_back({problem_of(512, 8), {2, 1, 500, 4, 2}, variant});
    calls.push_back({problem_of(8, 264), {2, 3, 500, 128, 2}, variant});
  }
  check(calls);
}

TEST_CASE("sequences of any length, and keys in pages of any size") {
  std::vector<Call> calls;
  for (const bool paged : {false, true})
    for (const auto& [heads, queries] : {std::pair{1, 100}, {8, 3}, {128, 1}, {128, 2}})
      for (const std::int64_t keys : {40, 300, 900})
        for (const char* variant : {kAlone, kPair, kSplit, kSplitPair}) {
          Problem problem = problem_of(576, 512, queries > 1);
          problem.ragged = true, problem.paged = paged;
          calls.push_back({problem, {3, queries, keys, heads, 1}, variant});
        }
  // Few columns, of which a piece has all keys of a block, while a block of a pair has boxes of half of them.
  for (const int head_dim_v : {8, 64, 128, 136})
    for (const char* variant : {kPair, kSplit, kSplitPair}) {
      Problem problem = problem_of(264, head_dim_v, true);
      problem.ragged = problem.paged = true;
      calls.push_back({problem, {2, 3, 300, 64, 1}, variant});
    }
  check(calls);
}

TEST_CASE("values that are columns of their keys, which stay where they were loaded") {
  std::vector<Call> calls;
  const auto add = [&](Problem problem, const cli::CaseShape& shape, const char* variant) {
    problem.latent = true;
    calls.push_back({problem, shape, variant});
    problem.ragged = true;
    calls.push_back({problem, shape, variant});
    problem.paged = true;
    calls.push_back({problem, shape, variant});
  };
  for (const auto& [head_dim, head_dim_v] : {std::pair{576, 512}, {512, 512}, {264, 256}, {264, 128}, {448, 384}})
    for (const char* variant : {kAlone, kPersistent, kPair, kSplit, kSplitPair, kMmaSplit}) {
      const bool causal = head_dim_v % 256 == 0;
      if (variant != kPair && variant != kSplitPair)
        add(problem_of(head_dim, head_dim_v, causal), {2, 90, 333, 4, 2}, variant);
      for (const std::int64_t keys : {64, 300, 640})
        add(problem_of(head_dim, head_dim_v, causal), {1, 2, keys, head_dim == 576 ? 128 : 16, 1}, variant);
    }
  check(calls);
}

TEST_CASE("each feature beside split keys") {
  std::vector<Call> calls;
  for (const generator::FeatureRow& row : generator::features())
    for (const char* variant : {kSplit, kSplitPair}) {
      Problem problem = problem_of(320, 264);
      tests::ask(problem, row);
      if (problem.block_mask) problem.documents = &tests::any_function(generator::FunctionKind::documents);
      if (problem.e4m3 || problem.k_rotary || problem.latent || (variant == kSplitPair && problem.block_mask))
        continue;  // refused
      calls.push_back({problem, {1, 5, 700, 32, 1}, variant});
      problem.causal = !problem.prefix, problem.window = true;
      calls.push_back({problem, {2, 5, 700, 4, 2}, variant});
    }
  check(calls);
}

TEST_SUITE_END();
