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
#include "tests/support/e4m3_call.h"
#include "tests/support/kept_kernels.h"
#include "tests/support/plant.h"
#include "tests/support/sample.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;
using tests::E4m3Call, tests::problem_of_e4m3;

EngineOptions of_hopper() {
  EngineOptions options = tests::options_with_kept_kernels();
  options.emulate = "sm_90a";
  return options;
}
Engine& engine() {
  static Engine engine(of_hopper());
  return engine;
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
        if (!sampler.takes_next()) continue;
        Problem problem = problem_of_e4m3(head_dim, head_dim_v, is_fast, causal ? DType::f16 : DType::bf16);
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
      const Problem problem = problem_of_e4m3(64, 48, is_fast);
      for (const cli::CaseShape& shape : cli::shapes_for(problem, cli::emulated_shapes()))
        CHECK(cli::VerifyCase(problem, shape, kHostMemory).problem_with(engine(), parse_variant(variant)) == "");
    }
}

TEST_CASE("products of e4m3 under many schedules") {
  const Problem problem = problem_of_e4m3(48, 80, false);
  for (const char* variant : {"hopper-q128-kv32-s1-qs1-whole-2stage-ppoff-lazy-dynamic-split",
                              "hopper-q128-kv64-s2-qs2-whole-2stage-ppgemm-rare-dynamic-fused"}) {
    const cli::VerifyCase c(problem, {1, 200, 230, 2, 1}, kHostMemory);
    const cli::ScheduleOutcome outcome = run_schedules(engine(), c, parse_variant(variant), {.count = 20});
    CHECK(outcome.runs == 20);
    CHECK(outcome.problems == std::vector<std::string>{});
  }
}

TEST_CASE("scales of all, of heads and of heads of batch entries, each by itself") {
  E4m3Call call({2, 70, 6, 64}, {2, 130, 3, 64});
  CHECK(call.problem(engine()) == "");
  constexpr std::int64_t kBatch = 2, kHeads = 6, kKvHeads = 3;
  for (const auto& [of_q, of_k, of_v] : {std::array<Dims, 3>{Dims{1}, Dims{1}, Dims{1}},
                                         {Dims{kHeads}, Dims{kKvHeads}, Dims{kKvHeads}},
                                         {Dims{kBatch, kHeads}, Dims{kBatch, kKvHeads}, Dims{kBatch, kKvHeads}},
                                         {Dims{kBatch, kHeads}, Dims{1}, Dims{kKvHeads}}}) {
    call.set_scales(of_q, of_k, of_v);
    CHECK(call.problem(engine()) == "");
  }
  // With any strides.
  call.set_scales({kHeads, 2 * kBatch}, {kBatch, kKvHeads}, {1});
  call.options.q_scale = Tensor(call.q_scale.data(), DType::f32, {kBatch, kHeads}, {2, 2 * kBatch});
  CHECK(call.problem(engine()) == "");
  // Where they are in the exponent, in what parts make of scores, and where the scale is negative.
  call.options.softcap = 2;
  CHECK(call.problem(engine()) == "");
  call.options.softmax_scale = -0.2f;
  CHECK(call.problem(engine()) == "");
  call.options.softcap = 0, call.options.causal = true;
  CHECK(call.problem(engine()) == "");
}

TEST_CASE("scales of blocks of rows, of all three or of one of them, and beside parts that change scores") {
  E4m3Call call({2, 300, 6, 64}, {2, 410, 3, 64});
  for (const auto& [of_q, of_k, of_v] : {std::array<Dims, 3>{Dims{2, 6, 3}, Dims{2, 3, 4}, Dims{2, 3, 4}},
                                         {Dims{2, 6, 3}, Dims{1}, Dims{3}},
                                         {Dims{2, 6}, Dims{2, 3, 4}, Dims{2, 3}},
                                         {Dims{6}, Dims{2, 3}, Dims{2, 3, 4}}}) {
    call.set_scales(of_q, of_k, of_v);
    CHECK(call.problem(engine()) == "");
  }
  call.set_scales({2, 6, 3}, {2, 3, 4}, {2, 3, 4});
  call.options.softcap = 2, call.options.causal = true, call.options.softmax_scale = -0.2f;
  CHECK(call.problem(engine()) == "");
  // Sums are exact then, whatever is asked for.
  call.options.accumulate = Accumulate::fast;
  CHECK(call.problem(engine()) == "");
  const Problem problem = problem_of(DType::e4m3, 64, 64, call.options);
  CHECK(problem.block_scales);
  CHECK_FALSE(problem.fast_sums);
  // With any strides.
  HostTensor transposed(DType::f32, {3, 4, 2});
  for (std::int64_t i = 0; i < 24; ++i) store_element(transposed.data(), DType::f32, i, 0.5 + 0.25 * (i % 5));
  call.options.k_scale = Tensor(transposed.data(), DType::f32, {2, 3, 4}, {1, 8, 2});
  CHECK(call.problem(engine()) == "");
  const double starts[] = {0, 150, 300};
  const HostTensor of_sequences = HostTensor::from_doubles(DType::i32, {3}, starts, 3);
  E4m3Call packed({1, 300, 6, 64}, {1, 300, 3, 64});
  packed.options.cu_seqlens_q = packed.options.cu_seqlens_kv = of_sequences.view();
  packed.set_scales({1}, {2, 3, 3}, {1});
  CHECK(packed.error(engine()) ==
        "k_scale: must not be of blocks of rows where sequences have different lengths, had shape [2, 3, 3]");
}

TEST_CASE("scales of blocks beside a softmax scale that they bring back to usual scores") {
  E4m3Call call({1, 200, 1, 64}, {1, 128, 1, 64});
  const double of_q[] = {1e11, 1e11}, of_k[] = {1e11};
  call.q_scale = HostTensor::from_doubles(DType::f32, {1, 1, 2}, of_q, 2);
  call.k_scale = HostTensor::from_doubles(DType::f32, {1, 1, 1}, of_k, 1);
  call.options.q_scale = call.q_scale.view(), call.options.k_scale = call.k_scale.view();
  call.options.softmax_scale = 1e-23f;
  CHECK(call.problem(engine()) == "");
  call.options.softmax_scale = 0;
  CHECK(call.problem(engine()) == "");
}

TEST_CASE("a scale of 0 of a block leaves what others add") {
  E4m3Call call({1, 40, 2, 32}, {1, 300, 2, 32});
  call.set_scales({1}, {1, 2, 3}, {1, 2, 3});
  for (const HostTensor* scales : {&call.k_scale, &call.v_scale})
    store_element(const_cast<void*>(scales->data()), DType::f32, 1, 0);
  CHECK(call.problem(engine()) == "");
}

TEST_CASE("scales whose product is far from 1, and a scale of 0, leave scores finite") {
  const auto with = [](double of_q, double of_k, float softmax_scale, bool has_slopes) {
    E4m3Call call({1, 20, 2, 32}, {1, 90, 2, 32});
    const HostTensor q_scale = HostTensor::from_doubles(DType::f32, {1}, &of_q, 1),
                     k_scale = HostTensor::from_doubles(DType::f32, {1}, &of_k, 1);
    const double slopes[] = {0.5, 2};
    const HostTensor of_heads = HostTensor::from_doubles(DType::f32, {2}, slopes, 2);
    call.options.q_scale = q_scale.view(), call.options.k_scale = k_scale.view();
    call.options.softmax_scale = softmax_scale;
    if (has_slopes) call.options.alibi_slopes = of_heads.view();
    return call.problem(engine());
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

TEST_CASE("usual scores never outgrow a lazy maximum so far that they have to be made again") {
  E4m3Call call({1, 500, 2, 64}, {1, 500, 1, 64});
  HostTensor out(DType::bf16, {1, 500, 2, 64});
  for (const bool causal : {false, true}) {
    call.options.causal = causal;
    call.options.variant = parse_variant("hopper-q128-kv64-s2-qs2-whole-2stage-ppoff-lazy-dynamic-fused");
    const emulator::Report report =
        engine().emulate(call.q.view(), call.k.view(), call.v.view(), out.view(), call.options);
    CHECK(report.clean());
    CHECK(report.counters.by_class.count("wgmma") == 1);
    CHECK(report.counters.by_class.count("mma") == 0);
  }
}

TEST_CASE("a maximum that is outgrown rises by the block's own probabilities, and a fault in that is found") {
  constexpr const char* kFile = "hopper/deferred_softmax.cuh";
  constexpr tests::PlantedFault kFaults[] = {
      {kFile, "    Scores::multiply(factor);\n", ""},
      {kFile, "(sum[0][h] + outgrown[h]) * factor[h]", "sum[0][h] * factor[h] + outgrown[h]"},
      {kFile, "if (ptx::vote_any(!(outgrown[0] < infinity() && outgrown[1] < infinity()))) return false;", ""},
  };
  const Problem problem = problem_of_e4m3(64, 64, false, DType::f16);
  for (const char* variant : {"hopper-q128-kv32-s2-qs2-whole-2stage-ppoff-lazy-dynamic-fused",
                              "hopper-q128-kv32-s2-qs1-whole-serial-ppoff-lazy-fixed-split"}) {
    CAPTURE(std::string(variant));
    const auto problems = [&](Engine& engine) {
      std::string all;
      for (const cli::Scores scores : {cli::Scores::ramp, cli::Scores::jumps, cli::Scores::spike_first})
        all += cli::VerifyCase(problem, {1, 130, 420, 2, 1, scores}, kHostMemory)
                   .problem_with(engine, parse_variant(variant));
      return all;
    };
    CHECK(problems(engine()) == "");
    for (const tests::PlantedFault& fault : kFaults) {
      CAPTURE(std::string(fault.original));
      const tests::TemporaryDirectory directory;
      Engine faulty(tests::with_fault(of_hopper(), fault, directory.path()));
      CHECK(problems(faulty) != "");
    }
  }
}

TEST_CASE("sequences that are packed have the scales of their number") {
  E4m3Call call({1, 150, 4, 32}, {1, 260, 2, 32});
  const double starts[] = {0, 20, 20, 150}, key_starts[] = {0, 100, 130, 260};
  const HostTensor of_queries = HostTensor::from_doubles(DType::i32, {4}, starts, 4),
                   of_keys = HostTensor::from_doubles(DType::i32, {4}, key_starts, 4);
  call.options.cu_seqlens_q = of_queries.view(), call.options.cu_seqlens_kv = of_keys.view();
  call.set_scales({3, 4}, {3, 2}, {3, 2});
  CHECK(call.problem(engine()) == "");
}

TEST_CASE("one key comes out as it is, whatever the row's maximum and its scale are") {
  for (const bool is_fast : {false, true})
    for (const double scale : {1e-6, 1.0, 300.0, 1e5})
      CHECK(tests::one_key_comes_out_as_it_is(engine(), is_fast, scale));
}

// The tensor core's own sums lose what is added to a large one: of values with a mean, more with each key.
TEST_CASE("values with a mean keep it over 16384 keys, unless sums are fast") {
  const tests::MeanOfManyKeys mean;
  for (const char* variant : {"hopper-q64-kv64-s2-qs1-whole-2stage-ppoff-lazy-dynamic-split",
                              "hopper-q64-kv96-s2-qs1-whole-2stage-ppoff-rare-dynamic-split",
                              "hopper-q64-kv192-s2-qs1-whole-2stage-ppoff-lazy-dynamic-split"}) {
    CAPTURE(std::string(variant));
    const double of_exact = mean.is_off_by(engine(), Accumulate::exact, variant),
                 of_fast = mean.is_off_by(engine(), Accumulate::fast, variant);
    MESSAGE(std::string(variant), ": ", of_exact, " and ", of_fast);
    CHECK(of_exact <= 1e-3);
    CHECK(of_fast > 1e-2);
  }
}

TEST_CASE("what does not go with products of e4m3 is refused by name") {
  E4m3Call call({1, 70, 4, 64}, {1, 130, 2, 64});
  const HostTensor k = HostTensor::random_normal(DType::bf16, {1, 130, 2, 64}, 2);
  CHECK_THROWS_WITH_AS(engine().attention(call.q.view(), k.view(), k.view()),
                       "k: dtype must be e4m3 like that of q, was bf16", Error);
  const HostTensor q = HostTensor::random_normal(DType::bf16, {1, 70, 4, 64}, 2);
  const auto with_16_bits = [&](const AttentionOptions& options) {
    CHECK_THROWS_WITH_AS(engine().attention(q.view(), k.view(), k.view(), options),
                         doctest::Contains("must not be given unless q is of e4m3 or e5m2, which was of bf16"), Error);
  };
  AttentionOptions fast, of_f16;
  fast.accumulate = Accumulate::fast, of_f16.out_dtype = DType::f16;
  with_16_bits(fast), with_16_bits(of_f16);
  call.options.out_dtype = DType::f32;
  CHECK(call.error(engine()) == "out_dtype: must be f16, bf16 or e4m3, was f32");
  call.options = {};
  call.options.dropout.probability = 0.5f;
  CHECK(call.error(engine()) == "dropout: must not be given beside q of e4m3");
  call.options = {};
  call.options.accumulate = static_cast<Accumulate>(7);
  CHECK(call.error(engine()) == "accumulate: must be exact or fast, was 7");
  call.options = {};
  call.set_scales({5}, {1}, {1});
  CHECK(call.error(engine()) ==
        "q_scale: must be [1], [4] or [1, 4], the heads of q and the batch, or [1, 4, 1], of blocks of 128 rows, had "
        "shape [5]");
  call.set_scales({1}, {1, 130, 2}, {1});
  CHECK(call.error(engine()) ==
        "k_scale: must be [1], [2] or [1, 2], the heads of k and the batch, or [1, 2, 2], of blocks of 128 rows, had "
        "shape [1, 130, 2]");
  call.options = {};
  HostTensor out(DType::f16, {1, 70, 4, 64});
  CHECK_THROWS_WITH_AS(engine().attention(call.q.view(), call.k.view(), call.v.view(), out.view()),
                       "out: dtype must be bf16, which is out_dtype, was f16", Error);
  const E4m3Call narrow({1, 5, 1, 24}, {1, 5, 1, 24});
  CHECK(narrow.error(engine()) == "q: head_dim must be a multiple of 16 from 16 to 256 beside q of e4m3, was 24");
}

TEST_CASE("planted faults of products of e4m3, and of the fences around transposed values, are found") {
  const std::vector<tests::PlantedFault> faults = {
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
      {"parts/products/e4m3.cuh", "kv_head = tile.head / args.core.sizes.heads_per_group", "kv_head = 0 * tile.head"},
      {"parts/products/e4m3.cuh", "batch * scales.strides.batch + head * scales.strides.head);",
       "head * scales.strides.head);"},
      {"hopper/store.cuh", "factors[0] *= of_values, factors[1] *= of_values;", "factors[0] *= of_values;"},
      {"kernels/hopper_forward.cuh", "    if constexpr (kSumsApart) add_piece<Output::kPieces - 1>();\n", ""},
      {"kernels/hopper_forward.cuh", "    add_piece<kPiece - 1>();\n", ""},
      {"hopper/warpgroup_attention.cuh", "b[step] += ValueTile::rows(kPiece * Output::kColumnsOfPiece);",
       "b[step] += 0;"},
      {"kernels/hopper_forward.cuh", "    self.begun = 0;\n    if constexpr (kSumsApart) Output::clear();\n",
       "    self.begun = 0;\n"},
  };
  constexpr const char* kVariant = "hopper-q128-kv64-s2-qs2-whole-2stage-ppoff-lazy-dynamic-fused";
  const Problem problem = problem_of_e4m3(64, 64, false);
  // Whose scales differ from head to head of both batch entries.
  const cli::VerifyCase c({2, 200, 330, 4, 2}, cli::case_inputs(problem, {2, 200, 330, 4, 2}, {}, 4 * 16 * 5), {},
                          kHostMemory, {});
  const auto finds = [&](const EngineOptions& options) {
    Engine engine(options);
    const cli::ScheduleOutcome outcome = run_schedules(engine, c, parse_variant(kVariant), {.count = 4});
    return !outcome.problems.empty();
  };
  CHECK_FALSE(finds(of_hopper()));
  for (const tests::PlantedFault& fault : tests::sample(faults)) {
    CAPTURE(std::string(fault.original));
    const tests::TemporaryDirectory directory;
    CHECK(finds(tests::with_fault(of_hopper(), fault, directory.path())));
  }
}
