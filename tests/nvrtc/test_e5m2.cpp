// SPDX-License-Identifier: Apache-2.0
// Queries, keys and values of e5m2: kernels of both families in the emulator, against the reference.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/verify/cases.h"
#include "cli/verify/schedules.h"
#include "flashjit/flashjit.h"
#include "tests/support/e4m3_call.h"
#include "tests/support/emulating_engine.h"
#include "tests/support/plant.h"
#include "tests/support/sample.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;
using tests::engine_for;

Problem products_of_e5m2(int head_dim, int head_dim_v, bool is_fast, DType dtype = DType::bf16) {
  Problem problem = tests::problem_of_e4m3(head_dim, head_dim_v, is_fast, dtype);
  problem.e5m2 = true;
  return problem;
}
Problem keys_of_e5m2(int head_dim, int head_dim_v, bool token_scales, DType dtype = DType::bf16) {
  return {.dtype = dtype,
          .head_dim = head_dim,
          .head_dim_v = head_dim_v,
          .e4m3 = true,
          .token_scales = token_scales,
          .e5m2 = true};
}

void check_all_shapes(const Problem& problem, const char* architecture, const std::optional<Variant>& variant = {}) {
  CAPTURE(std::string(architecture));
  CAPTURE(to_string(problem));
  for (const cli::CaseShape& shape : cli::shapes_for(problem, cli::emulated_shapes()))
    CHECK(cli::VerifyCase(problem, shape, kHostMemory).problem_with(engine_for(architecture), variant) == "");
}

struct HeadDims {
  int head_dim, head_dim_v;
};

std::string refusal(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options = {}) {
  try {
    engine_for("sm_90a").attention(q, k, v, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

}  // namespace

TEST_CASE("products of e5m2, in both families, summed in f32 and fast") {
  constexpr HeadDims kAll[] = {{16, 16}, {48, 64}, {64, 64}, {128, 80}, {128, 128}, {256, 256}};
  tests::Sampler sampler;
  for (const char* architecture : {"sm_90a", "sm_89", "sm_120a"})
    for (const auto& [head_dim, head_dim_v] : kAll)
      for (const bool is_fast : {false, true})
        for (const bool causal : {false, true}) {
          if (!sampler.takes_next()) continue;
          Problem problem = products_of_e5m2(head_dim, head_dim_v, is_fast, causal ? DType::f16 : DType::bf16);
          problem.causal = causal;
          check_all_shapes(problem, architecture);
        }
}

TEST_CASE("products of e5m2 with scales of blocks, transposed values, outputs of e4m3, and split keys") {
  for (const char* architecture : {"sm_90a", "sm_89"}) {
    Problem problem = products_of_e5m2(64, 48, false);
    problem.block_scales = problem.values_transposed = true;
    check_all_shapes(problem, architecture);
    problem = products_of_e5m2(64, 48, true);
    problem.out_e4m3 = problem.causal = problem.alibi = true;
    check_all_shapes(problem, architecture);
  }
  check_all_shapes(products_of_e5m2(64, 64, false), "sm_90a",
                   parse_variant("hopper-q64-kv64-s2-qs2-whole-2stage-ppoff-rare-dynamic-split-splitkv"));
}

TEST_CASE("keys and values of e5m2 beside queries of 16 bits, with scales of tokens and without") {
  constexpr HeadDims kAll[] = {{8, 16}, {64, 64}, {128, 72}, {256, 256}};
  for (const auto& [head_dim, head_dim_v] : kAll)
    for (const bool token_scales : {false, true})
      check_all_shapes(keys_of_e5m2(head_dim, head_dim_v, token_scales, token_scales ? DType::f16 : DType::bf16),
                       "sm_90a");
}

// They become f16 by moving bytes, which every target can.
TEST_CASE("latent caches of e5m2 are read on targets without an instruction for 8 bits, too") {
  Problem problem = keys_of_e5m2(288, 256, true);
  problem.k_rotary = true;
  for (const char* architecture : {"sm_80", "sm_120a"}) check_all_shapes(problem, architecture);
  problem.e5m2 = false;
  CHECK_THROWS_WITH_AS(engine_for("sm_80").default_variants(problem, "sm_80"), doctest::Contains("sm_89"), Error);
}

TEST_CASE("products and keys of e5m2 under many schedules") {
  struct Scheduled {
    const char *architecture, *variant;
    Problem problem;
  };
  const Scheduled all[] = {
      {"sm_90a", "hopper-q128-kv96-s2-qs2-whole-2stage-ppgemm-rare-dynamic-fused", products_of_e5m2(48, 80, false)},
      {"sm_89", "mma-q128-kv64-w8-k2-v3-c1-rotate-qsmem", products_of_e5m2(48, 80, false)},
      {"sm_90a", "hopper-q16-kv128-s2-qs1-whole-serial-ppoff-rare-fixed-splitkv", keys_of_e5m2(48, 80, true)}};
  for (const auto& [architecture, variant, problem] : all) {
    const cli::VerifyCase c(problem, {1, 200, 230, 2, 1}, kHostMemory);
    const cli::ScheduleOutcome outcome =
        run_schedules(engine_for(architecture), c, parse_variant(variant), {.count = 20});
    CHECK(outcome.runs == 20);
    CHECK(outcome.problems == std::vector<std::string>{});
  }
}

TEST_CASE("all numbers of e5m2 come out as they are, infinities and NaN among them") {
  // One key for each: its value is all of the output.
  for (const DType dtype : {DType::f16, DType::bf16}) {
    HostTensor v(DType::e5m2, {256, 1, 1, 16});
    for (std::int64_t i = 0; i < 256 * 16; ++i)
      static_cast<std::uint8_t*>(v.data())[i] = static_cast<std::uint8_t>(i / 16);
    const HostTensor q = HostTensor::random_normal(dtype, {256, 1, 1, 16}, 1),
                     k = HostTensor::random_normal(DType::e5m2, {256, 1, 1, 16}, 2);
    const HostTensor out = HostTensor::from_device(engine_for("sm_90a").attention(q.view(), k.view(), v.view()));
    const std::vector<double> is = out.to_doubles(), should = v.to_doubles();
    for (std::size_t i = 0; i < is.size(); ++i)
      CHECK((is[i] == should[i] || (std::isnan(is[i]) && std::isnan(should[i]))));
  }
}

TEST_CASE("what append writes in e5m2, and quantize makes, is what attention reads") {
  Engine& engine = engine_for("sm_90a");
  const HostTensor q = HostTensor::random_normal(DType::bf16, {1, 40, 4, 64}, 1),
                   k = HostTensor::random_normal(DType::bf16, {1, 200, 2, 64}, 2),
                   v = HostTensor::random_normal(DType::bf16, {1, 200, 2, 64}, 3);
  const reference::Result exact = reference::attention(q.view(), k.view(), v.view());
  // A number of e5m2 is off by 1/8 of itself at most, and a mean of many by less.
  constexpr double kMost = 0.06;
  const auto mean_error = [&](const DeviceTensor& made) {
    const std::vector<double> out = HostTensor::from_device(made).to_doubles();
    double error = 0;
    for (std::size_t i = 0; i < out.size(); ++i) error += std::abs(out[i] - exact.out[i]);
    return error / static_cast<double>(out.size());
  };
  HostTensor k_cache(DType::e5m2, {1, 200, 2, 64}), v_cache = k_cache, k_scale(DType::f32, {1, 200, 2}),
                                                    v_scale = k_scale;
  const std::int32_t used = 200;
  AppendOptions into;
  into.seqused_kv = Tensor(const_cast<std::int32_t*>(&used), DType::i32, {1});
  into.k_scale = k_scale.view(), into.v_scale = v_scale.view();
  engine.append(k.view(), v.view(), k_cache.view(), v_cache.view(), into);
  AttentionOptions of_cache;
  of_cache.k_scale = k_scale.view(), of_cache.v_scale = v_scale.view();
  CHECK(mean_error(engine.attention(q.view(), k_cache.view(), v_cache.view(), of_cache)) < kMost);

  const Quantized q8 = engine.quantize(q.view(), {}, DType::e5m2), k8 = engine.quantize(k.view(), {}, DType::e5m2),
                  v8 = engine.quantize(v.view(), {}, DType::e5m2);
  AttentionOptions of_products;
  of_products.q_scale = q8.scale.view(), of_products.k_scale = k8.scale.view(), of_products.v_scale = v8.scale.view();
  CHECK(mean_error(engine.attention(q8.out.view(), k8.out.view(), v8.out.view(), of_products)) < kMost);
}

TEST_CASE("what does not go with e5m2 is refused by name") {
  const HostTensor e5m2(DType::e5m2, {1, 16, 2, 64}), e4m3(DType::e4m3, {1, 16, 2, 64}),
      f16(DType::f16, {1, 16, 2, 64});
  CHECK(refusal(e4m3.view(), e5m2.view(), e5m2.view()) == "k: dtype must be e4m3 like that of q, was e5m2");
  CHECK(refusal(e5m2.view(), f16.view(), f16.view()) == "k: dtype must be e5m2 like that of q, was f16");
  CHECK(refusal(f16.view(), e5m2.view(), e4m3.view()) == "v: dtype must be e5m2 like that of k, was e4m3");
  AttentionOptions options;
  options.out_dtype = DType::e5m2;
  CHECK(refusal(e5m2.view(), e5m2.view(), e5m2.view(), options) == "out_dtype: must be f16, bf16 or e4m3, was e5m2");
  options = {};
  options.dropout.probability = 0.5;
  CHECK(refusal(e5m2.view(), e5m2.view(), e5m2.view(), options) == "dropout: must not be given beside q of e5m2");
  CHECK_THROWS_WITH_AS(engine_for("sm_90a").quantize(f16.view(), {}, DType::bf16),
                       "dtype: must be e4m3 or e5m2, was bf16", Error);
  CHECK_THROWS_WITH_AS(parse_problem("fwd-bf16-d64-e5m2"), "e5m2: must not be true without e4m3, whose place it takes",
                       Error);
  CHECK(tuning_class(parse_problem("fwd-bf16-d64-e4m3-e4m3_queries-e5m2")) ==
        parse_problem("fwd-bf16-d64-e4m3-e4m3_queries"));
}

TEST_CASE("planted faults of e5m2 are found") {
  struct Fault {
    const char *file, *original, *replacement, *architecture;
    Problem problem;
  };
  const Fault faults[] = {
      {"parts/format/e5m2.cuh", "kLow = 0x1404", "kLow = 0x0414", "sm_90a", keys_of_e5m2(64, 64, false)},
      {"parts/format/e5m2.cuh", "kHigh = 0x3424", "kHigh = 0x3420", "sm_90a", keys_of_e5m2(64, 64, false)},
      {"parts/format/e5m2.cuh", "using Key = E5m2Element", "using Key = E5m2BesideE4m3", "sm_89",
       products_of_e5m2(64, 64, false)},
      {"parts/format/e5m2.cuh", "using Value = E5m2BesideE4m3", "using Value = E5m2Element", "sm_89",
       products_of_e5m2(64, 64, false)},
  };
  for (const auto& [file, original, replacement, architecture, problem] : faults) {
    CAPTURE(std::string(replacement));
    const tests::TemporaryDirectory directory;
    tests::plant(file, original, replacement, directory / "templates");
    EngineOptions options = tests::options_with_kept_kernels();
    options.emulate = architecture;
    options.template_directory = (directory / "templates").string();
    Engine engine(options);
    CHECK(cli::VerifyCase(problem, {1, 40, 70, 2, 1}, kHostMemory).problem_with(engine, {}) != "");
  }
}
