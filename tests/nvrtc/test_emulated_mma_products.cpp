// SPDX-License-Identifier: Apache-2.0
// Products of e4m3 by mma.sync, which no GPU here runs: kernels of later and earlier chips in the emulator, against the
// reference.
#include <doctest/doctest.h>

#include <array>
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

using namespace flashjit;
using tests::E4m3Call, tests::emulating, tests::engine_for, tests::problem_of_e4m3;

TEST_CASE("mma.sync multiplies e4m3 at head dims of every kind") {
  struct Dims2 {
    int head_dim, head_dim_v;
  };
  constexpr Dims2 kAll[] = {{16, 16},  {32, 48},   {48, 32},   {64, 64},   {80, 112}, {96, 96},
                            {128, 64}, {128, 128}, {192, 128}, {160, 160}, {256, 256}};
  tests::Sampler sampler;
  for (const char* architecture : {"sm_89", "sm_120a"})
    for (const auto& [head_dim, head_dim_v] : kAll)
      for (const bool is_fast : {false, true})
        for (const bool causal : {false, true}) {
          if (!sampler.takes_next()) continue;
          Problem problem = problem_of_e4m3(head_dim, head_dim_v, is_fast, causal ? DType::f16 : DType::bf16);
          problem.causal = causal;
          CAPTURE(std::string(architecture));
          CAPTURE(to_string(problem));
          for (const cli::CaseShape& shape : cli::shapes_for(problem, cli::emulated_shapes()))
            CHECK(cli::VerifyCase(problem, shape, kHostMemory).problem_with(engine_for(architecture), {}) == "");
        }
}

TEST_CASE("mma.sync multiplies e4m3 in every way in which blocks are visited") {
  constexpr const char* kVariants[] = {"mma-q64-kv32-w4-k1-v1-c1-serial-linear-qsmem-always",
                                       "mma-q128-kv96-w4-k1-v1-c1-overlap-qregs",
                                       "mma-q64-kv128-w4-k3-v3-c1-overlap-qsmem",
                                       "mma-q128-kv64-w8-k2-v1-c1-overlap-linear-qregs",
                                       "mma-q256-kv32-w8-k2-v3-c1-rotate-qsmem",
                                       "mma-q64-kv64-w4-k2-v2-c1-overlap-qregs-splitkv"};
  tests::Sampler sampler;
  for (const char* variant : kVariants)
    for (const bool is_fast : {false, true}) {
      if (!sampler.takes_next()) continue;
      CAPTURE(std::string(variant));
      const Problem problem = problem_of_e4m3(64, 48, is_fast);
      for (const cli::CaseShape& shape : cli::shapes_for(problem, cli::emulated_shapes()))
        CHECK(cli::VerifyCase(problem, shape, kHostMemory).problem_with(engine_for("sm_89"), parse_variant(variant)) ==
              "");
    }
}

TEST_CASE("mma.sync of e4m3 under many schedules") {
  for (const char* variant :
       {"mma-q64-kv32-w4-k2-v2-c1-overlap-qsmem", "mma-q128-kv64-w8-k2-v3-c1-rotate-qsmem-splitkv"}) {
    const cli::VerifyCase c(problem_of_e4m3(48, 80, false), {1, 200, 230, 2, 1}, kHostMemory);
    const cli::ScheduleOutcome outcome = run_schedules(engine_for("sm_89"), c, parse_variant(variant), {.count = 20});
    CHECK(outcome.runs == 20);
    CHECK(outcome.problems == std::vector<std::string>{});
  }
}

TEST_CASE("mma.sync of e4m3 with scales of all, of heads and of heads of batch entries, and packed sequences") {
  E4m3Call call({2, 70, 6, 64}, {2, 130, 3, 64});
  CHECK(call.problem(engine_for("sm_89")) == "");
  for (const auto& [of_q, of_k, of_v] : {std::array<Dims, 3>{Dims{1}, Dims{1}, Dims{1}},
                                         {Dims{2, 6}, Dims{2, 3}, Dims{2, 3}},
                                         {Dims{2, 6}, Dims{1}, Dims{3}}}) {
    call.set_scales(of_q, of_k, of_v);
    CHECK(call.problem(engine_for("sm_89")) == "");
  }
  call.options.softcap = 2, call.options.softmax_scale = -0.2f, call.options.causal = true;
  CHECK(call.problem(engine_for("sm_89")) == "");
  // Few queries, whose heads share tiles where one scale is for all of them.
  E4m3Call few({2, 3, 8, 64}, {2, 500, 2, 64});
  CHECK(few.problem(engine_for("sm_89")) == "");
  few.set_scales({2, 8}, {2, 2}, {2, 2});
  CHECK(few.problem(engine_for("sm_89")) == "");
  E4m3Call packed({1, 150, 4, 32}, {1, 260, 2, 32});
  const double starts[] = {0, 20, 20, 150}, key_starts[] = {0, 100, 130, 260};
  const HostTensor of_queries = HostTensor::from_doubles(DType::i32, {4}, starts, 4),
                   of_keys = HostTensor::from_doubles(DType::i32, {4}, key_starts, 4);
  packed.options.cu_seqlens_q = of_queries.view(), packed.options.cu_seqlens_kv = of_keys.view();
  packed.set_scales({3, 4}, {3, 2}, {3, 2});
  CHECK(packed.problem(engine_for("sm_89")) == "");
}

TEST_CASE("mma.sync of e4m3 with scales of blocks of rows") {
  E4m3Call call({2, 300, 6, 64}, {2, 410, 3, 64});
  for (const auto& [of_q, of_k, of_v] :
       {std::array<Dims, 3>{Dims{2, 6, 3}, Dims{2, 3, 4}, Dims{2, 3, 4}}, {Dims{2, 6}, Dims{1}, Dims{2, 3, 4}}}) {
    call.set_scales(of_q, of_k, of_v);
    CHECK(call.problem(engine_for("sm_89")) == "");
  }
  // Heads of which all have one scale share tiles.
  E4m3Call few({2, 5, 8, 64}, {2, 500, 2, 64});
  few.set_scales({1}, {2, 2, 4}, {2, 2, 4});
  CHECK(few.problem(engine_for("sm_89")) == "");
  call.options.variant = parse_variant("mma-q64-kv96-w4-k1-v1-c1");
  CHECK(call.error(engine_for("sm_89")) == "variant: block_kv must divide 128 where these rows have a scale, was 96");
}

// What the copy engine cannot be told of is read all the same.
TEST_CASE("mma.sync of e4m3 takes keys and values that all heads have in common") {
  E4m3Call call({1, 40, 4, 32}, {1, 90, 1, 32});
  const auto repeated = [](const HostTensor& rows) {
    return Tensor(const_cast<void*>(rows.data()), rows.dtype(), {1, 90, 4, 32}, {90 * 32, 32, 0, 1});
  };
  const DeviceTensor once = engine_for("sm_89").attention(call.q.view(), call.k.view(), call.v.view()),
                     of_each = engine_for("sm_89").attention(call.q.view(), repeated(call.k), repeated(call.v));
  CHECK(HostTensor::from_device(once).to_doubles() == HostTensor::from_device(of_each).to_doubles());
}

TEST_CASE("by mma.sync, too, one key comes out as it is") {
  for (const bool is_fast : {false, true})
    for (const double scale : {1e-6, 1.0, 300.0, 1e5})
      CHECK(tests::one_key_comes_out_as_it_is(engine_for("sm_89"), is_fast, scale));
}

// With the bits that sm_89 keeps of sums.
TEST_CASE("by mma.sync, too, values with a mean keep it over 16384 keys, unless sums are fast") {
  const tests::MeanOfManyKeys mean;
  constexpr const char* kVariant = "mma-q64-kv64-w4-k2-v2-c2-overlap-qregs";
  const double of_exact = mean.is_off_by(engine_for("sm_89"), Accumulate::exact, kVariant),
               of_fast = mean.is_off_by(engine_for("sm_89"), Accumulate::fast, kVariant);
  MESSAGE(of_exact, " and ", of_fast);
  CHECK(of_exact <= 1e-3);
  CHECK(of_fast > 1e-2);
}

TEST_CASE("what mma.sync does not multiply is refused by name") {
  E4m3Call call({1, 70, 4, 64}, {1, 130, 2, 64});
  CHECK(call.error(engine_for("sm_86")).find("products of e4m3 need sm_89 or a later architecture") !=
        std::string::npos);
  call.options.variant = parse_variant("mma-q64-kv48-w4-k1-v1-c1");
  CHECK(call.error(engine_for("sm_89")) == "variant: block_kv must be a multiple of 32 for queries of e4m3, was 48");
  call.options.variant = parse_variant("mma-q64-kv64-w4-k1-v1-c1-x2");
  CHECK(call.error(engine_for("sm_89")) == "variant: ldmatrix must be x4 for queries of e4m3, was 2");
  call.options.variant = parse_variant("mma-q64-kv64-w4-k1-v1-c1");
  CHECK(call.error(engine_for("sm_90a")).find("variant: family must be hopper for") == 0);
  call.options.variant.reset();
  CHECK(call.problem(engine_for("sm_89")) == "");
}

TEST_CASE("planted faults of scales of blocks are found in both families") {
  struct Fault {
    const char* architecture;
    tests::PlantedFault planted;
  };
  const std::vector<Fault> faults = {
      {"sm_89", {"parts/products/e4m3.cuh", "row / kRowsOfScale * scales.strides.row", "0 * row"}},
      {"sm_89", {"mma/forward_tile.cuh", "s.multiply(scale_of_products(first_of_scores))", "s.multiply(1.0f)"}},
      {"sm_89",
       {"kernels/mma_forward.cuh", "Scales::of_value(launch, find_tile(), first_key(i))",
        "Scales::of_value(launch, find_tile(), 0)"}},
      {"sm_90a", {"kernels/hopper_forward.cuh", "factors.of_sums = factors.of_values", "factors.of_sums = 1.0f"}},
      {"sm_90a",
       {"kernels/hopper_forward.cuh",
        "    wait_for_keys(at);\n    find_factor_of_sums();\n    find_factors(visit, at);\n",
        "    wait_for_keys(at);\n    find_factors(visit, at);\n    find_factor_of_sums();\n"}},
      {"sm_90a", {"kernels/hopper_forward.cuh", "min(warp_row(tile), last_row)", "0"}},
  };
  E4m3Call call({1, 300, 2, 32}, {1, 410, 1, 32});
  call.set_scales({1, 2, 3}, {1, 1, 4}, {1, 1, 4});
  for (const Fault& fault : tests::sample(faults)) {
    CAPTURE(std::string(fault.planted.original));
    CHECK(call.problem(engine_for(fault.architecture)) == "");
    const tests::TemporaryDirectory directory;
    Engine faulty(tests::with_fault(emulating(fault.architecture), fault.planted, directory.path()));
    CHECK(call.problem(faulty) != "");
  }
}

TEST_CASE("planted faults of mma.sync's products of e4m3 are found") {
  const std::vector<tests::PlantedFault> faults = {
      // The order of keys, of dims, of probabilities and of the output's columns.
      {"parts/products/e4m3.cuh", "kEven = 0x6420", "kEven = 0x6240"},
      {"parts/products/e4m3.cuh", "b[1] = ptx::prmt(pairs[2], pairs[3], kEven)",
       "b[1] = ptx::prmt(pairs[1], pairs[3], kEven)"},
      {"parts/products/e4m3.cuh", "using Columns = ColumnsByParity", "using Columns = ColumnsInOrder"},
      {"mma/warp_attention.cuh", "(2 * j + r / 2) * kElementsOfWord", "2 * j * kElementsOfWord + r / 2"},
      {"attention/softmax.cuh", "exponentials(next, shift, m, h, p[2], p[3])",
       "exponentials(s, shift, m, h, p[2], p[3])"},
      // Scales, sums and room.
      {"mma/store.cuh", "    if constexpr (Scales::kAny) inverse *= scales.of_values;\n", ""},
      {"mma/forward_tile.cuh", "ScaledScore<Config>(arguments, Scales(arguments, heads(), find_tile()).of_products)",
       "Score<Config>(arguments)"},
      {"mma/warp_attention.cuh", "o[e] += Config::Products::kScalesBlocks", "o[e] = Config::Products::kScalesBlocks"},
      {"mma/online_softmax.cuh", "kLag = Probabilities::kMostLog2 - Probabilities::kPeakLog2",
       "kLag = Probabilities::kMostLog2 + Probabilities::kPeakLog2"},
      // Copies.
      {"kernels/mma_forward.cuh", "    ptx::cp_async_wait_group<kPending>();\n    ptx::bar_sync();",
       "    ptx::cp_async_wait_group<kPending>();"},
      {"kernels/mma_forward.cuh",
       "KTile::template clear_padding<Shape::kColumns, Shape::kThreads>(k_slot(stage), thread);", ""},
  };
  const Problem problem = problem_of_e4m3(48, 48, false);
  const auto finds = [&](const EngineOptions& options) {
    Engine engine(options);
    for (const cli::Scores scores : {cli::Scores::random, cli::Scores::ramp}) {
      // Whose scales differ from head to head of both batch entries.
      const cli::CaseShape shape{2, 100, 330, 4, 2, scores};
      const cli::VerifyCase c(shape, cli::case_inputs(problem, shape, {}, 4 * 16 * 5), {}, kHostMemory, {});
      const Variant variant = parse_variant("mma-q64-kv64-w4-k2-v2-c1-overlap-qsmem");
      if (!run_schedules(engine, c, variant, {.count = 3}).problems.empty()) return true;
    }
    return false;
  };
  CHECK_FALSE(finds(emulating("sm_89")));
  for (const tests::PlantedFault& fault : tests::sample(faults)) {
    CAPTURE(std::string(fault.original));
    const tests::TemporaryDirectory directory;
    CHECK(finds(tests::with_fault(emulating("sm_89"), fault, directory.path())));
  }
}
