// SPDX-License-Identifier: Apache-2.0
// Products of e4m3 without a GPU: real kernels in the emulator, against the reference.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/verify/cases.h"
#include "cli/verify/schedules.h"
#include "flashjit/flashjit.h"
#include "tests/support/feature.h"
#include "tests/support/kept_kernels.h"
#include "tests/support/plant.h"
#include "tests/support/sample.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;

EngineOptions of_hopper() {
  EngineOptions options = tests::options_with_kept_kernels();
  options.emulate = "sm_90a";
  return options;
}
Engine& engine() {
  static Engine engine(of_hopper());
  return engine;
}

Problem problem_of(int head_dim, int head_dim_v, bool is_fast, DType dtype = DType::bf16) {
  return {.dtype = dtype,
          .head_dim = head_dim,
          .head_dim_v = head_dim_v,
          .e4m3 = true,
          .e4m3_queries = true,
          .fast_sums = is_fast};
}

// Queries, keys and values in e4m3, and their scales.
struct Call {
  HostTensor q, k, v, q_scale, k_scale, v_scale;
  AttentionOptions options;

  Call(const Dims& q_shape, const Dims& k_shape)
      : q(HostTensor::random_normal(DType::e4m3, q_shape, 1)),
        k(HostTensor::random_normal(DType::e4m3, k_shape, 2)),
        v(HostTensor::random_normal(DType::e4m3, k_shape, 3)) {}

  // Each of its own, some powers of two apart.
  void set_scales(const Dims& of_q, const Dims& of_k, const Dims& of_v) {
    const auto scales = [](const Dims& shape, int first) {
      HostTensor made(DType::f32, shape);
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(made.element_count()); ++i)
        store_element(made.data(), DType::f32, i, std::ldexp(1.25, static_cast<int>((first + 3 * i) % 5) - 3));
      return made;
    };
    q_scale = scales(of_q, 1), k_scale = scales(of_k, 2), v_scale = scales(of_v, 4);
    options.q_scale = q_scale.view(), options.k_scale = k_scale.view(), options.v_scale = v_scale.view();
  }
  std::string problem() const {
    const reference::Result exact = reference::attention(q.view(), k.view(), v.view(), options),
                            low = reference::attention_in_low_precision(q.view(), k.view(), v.view(), options);
    const HostTensor out = HostTensor::from_device(engine().attention(q.view(), k.view(), v.view(), options));
    const reference::Comparison compared = reference::compare(out, exact, low);
    return compared.passed ? ""
                           : std::to_string(compared.max_error) + " must be at most " + std::to_string(compared.bound);
  }
};

std::string error_of(const Call& call) {
  try {
    engine().attention(call.q.view(), call.k.view(), call.v.view(), call.options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("products of e4m3 at head dims of every kind") {
  struct Dims2 {
    int head_dim, head_dim_v;
  };
  constexpr Dims2 kAll[] = {{16, 16},  {32, 48},   {48, 32},   {64, 64},   {80, 112}, {96, 96},
                            {128, 64}, {128, 128}, {192, 128}, {160, 160}, {256, 256}};
  tests::Sampler sampler;
  for (const auto& [head_dim, head_dim_v] : kAll)
    for (const bool is_fast : {false, true})
      for (const bool causal : {false, true}) {
        if ((!is_fast && head_dim_v > 160) || !sampler.takes_next()) continue;
        Problem problem = problem_of(head_dim, head_dim_v, is_fast, causal ? DType::f16 : DType::bf16);
        problem.causal = causal;
        CAPTURE(to_string(problem));
        for (const cli::CaseShape& shape : cli::shapes_for(problem, cli::emulated_shapes()))
          CHECK(cli::VerifyCase(problem, shape, kHostMemory).problem_with(engine(), {}) == "");
      }
}

TEST_CASE("products of e4m3 in every way in which warpgroups go through blocks") {
  const std::vector<const char*> variants = {
      "hopper-q64-kv32-s2-qs1-whole-2stage-ppoff-rare-single-split",
      "hopper-q64-kv160-s2-qs2-whole-2stage-ppoff-always-dynamic-split",
      "hopper-q128-kv64-s3-qs2-whole-2stage-ppgemm-rare-fixed-fused",
      "hopper-q128-kv96-s2-qs2-whole-2stage-ppoff-lazy-dynamic-fused",
      "hopper-q128-kv32-s1-qs1-whole-serial-ppsoftmax-rare-dynamic-split",
      "hopper-q128-kv64-s2-qs1-whole-serial-ppoff-lazy-fixed-split",
      "hopper-q192-kv96-s2-qs2-whole-2stage-ppoff-lazy-dynamic-fused",
      "hopper-q256-kv32-s4-qs2-whole-2stage-ppgemm-lazy-dynamic-fused",
      "hopper-q64-kv64-s2-qs2-whole-2stage-ppoff-rare-dynamic-split-splitkv",
  };
  tests::Sampler sampler;
  for (const char* variant : variants)
    for (const bool is_fast : {false, true}) {
      if (!sampler.takes_next()) continue;
      CAPTURE(std::string(variant));
      const Problem problem = problem_of(64, 48, is_fast);
      for (const cli::CaseShape& shape : cli::shapes_for(problem, cli::emulated_shapes()))
        CHECK(cli::VerifyCase(problem, shape, kHostMemory).problem_with(engine(), parse_variant(variant)) == "");
    }
}

TEST_CASE("products of e4m3 under many schedules") {
  const Problem problem = problem_of(48, 80, false);
  for (const char* variant : {"hopper-q128-kv32-s1-qs1-whole-2stage-ppoff-lazy-dynamic-split",
                              "hopper-q128-kv64-s2-qs2-whole-2stage-ppgemm-rare-dynamic-fused"}) {
    const cli::VerifyCase c(problem, {1, 200, 230, 2, 1}, kHostMemory);
    const cli::ScheduleOutcome outcome = run_schedules(engine(), c, parse_variant(variant), {.count = 20});
    CHECK(outcome.runs == 20);
    CHECK(outcome.problems == std::vector<std::string>{});
  }
}

TEST_CASE("scales of all, of heads and of heads of batch entries, each by itself") {
  Call call({2, 70, 6, 64}, {2, 130, 3, 64});
  CHECK(call.problem() == "");
  constexpr std::int64_t kBatch = 2, kHeads = 6, kKvHeads = 3;
  for (const auto& [of_q, of_k, of_v] : {std::array<Dims, 3>{Dims{1}, Dims{1}, Dims{1}},
                                         {Dims{kHeads}, Dims{kKvHeads}, Dims{kKvHeads}},
                                         {Dims{kBatch, kHeads}, Dims{kBatch, kKvHeads}, Dims{kBatch, kKvHeads}},
                                         {Dims{kBatch, kHeads}, Dims{1}, Dims{kKvHeads}}}) {
    call.set_scales(of_q, of_k, of_v);
    CHECK(call.problem() == "");
  }
  // With any strides.
  call.set_scales({kHeads, 2 * kBatch}, {kBatch, kKvHeads}, {1});
  call.options.q_scale = Tensor(call.q_scale.data(), DType::f32, {kBatch, kHeads}, {2, 2 * kBatch});
  CHECK(call.problem() == "");
  // Where they are in the exponent, in what parts make of scores, and where the scale is negative.
  call.options.softcap = 2;
  CHECK(call.problem() == "");
  call.options.softmax_scale = -0.2f;
  CHECK(call.problem() == "");
  call.options.softcap = 0, call.options.causal = true;
  CHECK(call.problem() == "");
}

TEST_CASE("scales whose product is far from 1, and a scale of 0, leave scores finite") {
  const auto with = [](double of_q, double of_k, float softmax_scale, bool has_slopes) {
    Call call({1, 20, 2, 32}, {1, 90, 2, 32});
    const HostTensor q_scale = HostTensor::from_doubles(DType::f32, {1}, &of_q, 1),
                     k_scale = HostTensor::from_doubles(DType::f32, {1}, &of_k, 1);
    const double slopes[] = {0.5, 2};
    const HostTensor of_heads = HostTensor::from_doubles(DType::f32, {2}, slopes, 2);
    call.options.q_scale = q_scale.view(), call.options.k_scale = k_scale.view();
    call.options.softmax_scale = softmax_scale;
    if (has_slopes) call.options.alibi_slopes = of_heads.view();
    return call.problem();
  };
  for (const bool has_slopes : {false, true}) {
    CHECK(with(1e-30, 1e-30, 1, has_slopes) == "");
    CHECK(with(1e-17, 1e-22, 0.5f, has_slopes) == "");
    CHECK(with(2e-38, 1, 1, has_slopes) == "");
  }
  CHECK(with(0.1, 0.1, 0, false) == "");
  CHECK(with(0.5, 1, 0, false) == "");
  CHECK(with(1e12, 1e12, 1e-26f, false) == "");
  CHECK(with(1e-25, 1e-25, 1e30f, false) == "");
}

TEST_CASE("sequences that are packed have the scales of their number") {
  Call call({1, 150, 4, 32}, {1, 260, 2, 32});
  const double starts[] = {0, 20, 20, 150}, key_starts[] = {0, 100, 130, 260};
  const HostTensor of_queries = HostTensor::from_doubles(DType::i32, {4}, starts, 4),
                   of_keys = HostTensor::from_doubles(DType::i32, {4}, key_starts, 4);
  call.options.cu_seqlens_q = of_queries.view(), call.options.cu_seqlens_kv = of_keys.view();
  call.set_scales({3, 4}, {3, 2}, {3, 2});
  CHECK(call.problem() == "");
}

TEST_CASE("one key comes out as it is, whatever the row's maximum and its scale are") {
  // Each number of e4m3 but NaN, which is its own.
  HostTensor v(DType::e4m3, {1, 254, 1, 16});
  for (std::int64_t i = 0; i < 254 * 16; ++i)
    static_cast<std::uint8_t*>(v.data())[i] = static_cast<std::uint8_t>(i / 16 + (i / 16 >= 127));
  const HostTensor q = HostTensor::random_normal(DType::e4m3, {1, 254, 1, 16}, 1),
                   k = HostTensor::random_normal(DType::e4m3, {1, 254, 1, 16}, 2);
  for (const bool is_fast : {false, true})
    for (const double scale : {1e-6, 1.0, 300.0, 1e5}) {
      const HostTensor of_q = HostTensor::from_doubles(DType::f32, {1}, &scale, 1);
      AttentionOptions options;
      options.window = {0, 0};
      options.q_scale = of_q.view();
      options.accumulate = is_fast ? Accumulate::fast : Accumulate::exact;
      const HostTensor out = HostTensor::from_device(engine().attention(q.view(), k.view(), v.view(), options));
      CHECK(out.to_doubles() == v.to_doubles());
    }
}

TEST_CASE("what does not go with products of e4m3 is refused by name") {
  Call call({1, 70, 4, 64}, {1, 130, 2, 64});
  const HostTensor k = HostTensor::random_normal(DType::bf16, {1, 130, 2, 64}, 2);
  CHECK_THROWS_WITH_AS(engine().attention(call.q.view(), k.view(), k.view()),
                       "k: dtype must be e4m3 like that of q, was bf16", Error);
  const HostTensor q = HostTensor::random_normal(DType::bf16, {1, 70, 4, 64}, 2);
  const auto with_16_bits = [&](const AttentionOptions& options) {
    CHECK_THROWS_WITH_AS(engine().attention(q.view(), k.view(), k.view(), options),
                         doctest::Contains("must not be given unless q is of e4m3, which was of bf16"), Error);
  };
  AttentionOptions fast, of_f16;
  fast.accumulate = Accumulate::fast, of_f16.out_dtype = DType::f16;
  with_16_bits(fast), with_16_bits(of_f16);
  call.options.out_dtype = DType::f32;
  CHECK(error_of(call) == "out_dtype: must be f16 or bf16, was f32");
  call.options = {};
  call.options.dropout.probability = 0.5f;
  CHECK(error_of(call) == "dropout: must not be given beside q of e4m3");
  call.options = {};
  call.options.accumulate = static_cast<Accumulate>(7);
  CHECK(error_of(call) == "accumulate: must be exact or fast, was 7");
  call.options = {};
  call.set_scales({5}, {1}, {1});
  CHECK(error_of(call) == "q_scale: must be [1], [4] or [1, 4], the heads of q and the batch, had shape [5]");
  call.set_scales({1}, {1, 130, 2}, {1});
  CHECK(error_of(call) == "k_scale: must be [1], [2] or [1, 2], the heads of k and the batch, had shape [1, 130, 2]");
  call.options = {};
  HostTensor out(DType::f16, {1, 70, 4, 64});
  CHECK_THROWS_WITH_AS(engine().attention(call.q.view(), call.k.view(), call.v.view(), out.view()),
                       "out: dtype must be bf16, which is out_dtype, was f16", Error);
  const Call narrow({1, 5, 1, 24}, {1, 5, 1, 24});
  CHECK(error_of(narrow) == "q: head_dim must be a multiple of 16 from 16 to 256 beside q of e4m3, was 24");
  Call wide({1, 5, 1, 192}, {1, 5, 1, 192});
  CHECK(error_of(wide) == "accumulate: must be fast for head_dim above 160 of v, was exact with 192");
  wide.options.accumulate = Accumulate::fast;
  CHECK(error_of(wide) == "");
  EngineOptions of_ampere = tests::options_with_kept_kernels();
  of_ampere.emulate = "sm_89";
  CHECK_THROWS_WITH_AS(Engine(of_ampere).attention(call.q.view(), call.k.view(), call.v.view()),
                       doctest::Contains("keys and values of e4m3 need the hopper family, of sm_90a"), Error);
}

TEST_CASE("planted faults of products of e4m3, and of the fences around transposed values, are found") {
  struct Fault {
    const char *file, *original, *replacement;
  };
  const std::vector<Fault> faults = {
      // The order of keys, of dims, and of probabilities.
      {"hopper/transposer.cuh", "kEven = 0x6420", "kEven = 0x6240"},
      {"hopper/transposer.cuh", "ptx::prmt(of[0], of[1], kOdd), ptx::prmt(of[2], of[3], kEven)",
       "ptx::prmt(of[2], of[3], kEven), ptx::prmt(of[0], of[1], kOdd)"},
      {"hopper/transposer.cuh", "lane() / 8 % 2, lane() / 16)", "lane() / 16, lane() / 8 % 2)"},
      // Barriers and fences.
      {"hopper/transposer.cuh", "    ptx::fence_proxy_async();\n", ""},
      {"hopper/transposer.cuh", "    transposed.wait_empty();\n", ""},
      {"hopper/transposer.cuh", "    loaded.wait_full();\n", ""},
      {"hopper/block.cuh", "Shape::kTransposes ? Shape::kTransposers : 1);", "1);"},
      {"hopper/block.cuh", "shape.loaded_values().init(Shape::kTransposers);", "shape.loaded_values().init(1);"},
      // Scales and sums.
      {"parts/products/e4m3.cuh", "tile.head / args.core.sizes.heads_per_group", "0 * tile.head"},
      {"parts/products/e4m3.cuh", "batch * scales.strides.batch + ", ""},
      {"hopper/store.cuh", "factors[0] *= of_values, factors[1] *= of_values;", "factors[0] *= of_values;"},
      {"kernels/hopper_forward.cuh", "    if constexpr (kSumsApart) Output::add();\n", ""},
      {"kernels/hopper_forward.cuh", "    self.begun = 0;\n    if constexpr (kSumsApart) Output::clear();\n",
       "    self.begun = 0;\n"},
  };
  constexpr const char* kVariant = "hopper-q128-kv64-s2-qs2-whole-2stage-ppoff-lazy-dynamic-fused";
  const Problem problem = problem_of(64, 64, false);
  // Whose scales differ from head to head of both batch entries.
  const cli::VerifyCase c({2, 200, 330, 4, 2}, cli::case_inputs(problem, {2, 200, 330, 4, 2}, {}, 4 * 16 * 5), {},
                          kHostMemory, {});
  const auto finds = [&](const EngineOptions& options) {
    Engine engine(options);
    const cli::ScheduleOutcome outcome = run_schedules(engine, c, parse_variant(kVariant), {.count = 4});
    return !outcome.problems.empty();
  };
  CHECK_FALSE(finds(of_hopper()));
  for (const Fault& fault : tests::sample(faults)) {
    CAPTURE(std::string(fault.original));
    const tests::TemporaryDirectory directory;
    tests::plant(fault.file, fault.original, fault.replacement, directory.path() / "templates");
    EngineOptions options = of_hopper();
    options.template_directory = (directory.path() / "templates").string();
    options.policy = Policy::off;
    CHECK(finds(options));
  }
}
