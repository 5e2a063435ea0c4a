// SPDX-License-Identifier: Apache-2.0
// Outputs of e4m3 with a scale: kernels of both families in the emulator, against the reference.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
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
using tests::E4m3Call, tests::emulating, tests::engine_for;

Problem problem_of(int head_dim, int head_dim_v, bool is_fast) {
  Problem problem = tests::problem_of_e4m3(head_dim, head_dim_v, is_fast);
  problem.out_e4m3 = true;
  return problem;
}

HostTensor scale_of(double scale) { return HostTensor::from_doubles(DType::f32, {1}, &scale, 1); }

std::vector<double> attend(Engine& engine, const E4m3Call& call) {
  return HostTensor::from_device(engine.attention(call.q.view(), call.k.view(), call.v.view(), call.options))
      .to_doubles();
}

}  // namespace

TEST_CASE("an output of e4m3, at head dims of every kind") {
  struct Dims2 {
    int head_dim, head_dim_v;
  };
  constexpr Dims2 kAll[] = {{16, 16}, {64, 32}, {32, 48}, {64, 64}, {96, 80}, {128, 128}, {80, 160}, {256, 256}};
  tests::Sampler sampler;
  for (const char* architecture : {"sm_90a", "sm_89", "sm_120a"})
    for (const auto& [head_dim, head_dim_v] : kAll)
      for (const bool causal : {false, true}) {
        if (!sampler.takes_next()) continue;
        Problem problem = problem_of(head_dim, head_dim_v, causal);
        problem.causal = causal;
        CAPTURE(std::string(architecture));
        CAPTURE(to_string(problem));
        for (const cli::CaseShape& shape : cli::shapes_for(problem, cli::emulated_shapes()))
          CHECK(cli::VerifyCase(problem, shape, kHostMemory).problem_with(engine_for(architecture), {}) == "");
      }
}

TEST_CASE("an output of e4m3, by each way in which it leaves") {
  struct Way {
    const char *architecture, *variant;
    bool transposed;
    int head_dim_v = 144;
  };
  constexpr Way kWays[] = {{"sm_90a", "hopper-q128-kv64-s2-qs1-half-2stage-ppoff-rare-dynamic-split", false},
                           {"sm_90a", "hopper-q192-kv64-s2-qs1-whole-2stage-ppoff-lazy-dynamic-fused", false, 80},
                           {"sm_90a", "hopper-q64-kv64-s2-qs2-whole-2stage-ppoff-rare-dynamic-split-splitkv", false},
                           {"sm_90a", "hopper-q64-kv64-s2-qs2-whole-2stage-ppoff-rare-dynamic-split-splitkv", true},
                           {"sm_89", "mma-q128-kv64-w4-k2-v1-c1-overlap-linear-qregs", false, 48},
                           {"sm_89", "mma-q128-kv64-w4-k2-v1-c1-overlap-qsmem", true, 48},
                           {"sm_89", "mma-q64-kv64-w4-k2-v2-c1-overlap-qregs-splitkv", false},
                           {"sm_89", "mma-q64-kv64-w4-k2-v2-c1-overlap-qregs-splitkv", true}};
  tests::Sampler sampler;
  for (const Way& way : kWays) {
    if (!sampler.takes_next()) continue;
    CAPTURE(std::string(way.variant));
    Problem problem = problem_of(64, way.head_dim_v, false);
    problem.values_transposed = way.transposed;
    for (const cli::CaseShape& shape : cli::shapes_for(problem, cli::emulated_shapes()))
      CHECK(cli::VerifyCase(problem, shape, kHostMemory)
                .problem_with(engine_for(way.architecture), parse_variant(way.variant)) == "");
  }
}

TEST_CASE("an output of e4m3 is the result over its scale, rounded, and at most 448") {
  E4m3Call call({2, 70, 4, 64}, {2, 130, 2, 64});
  for (const char* architecture : {"sm_90a", "sm_89"})
    for (const double scale : {1.0, 0.375, 1e-4}) {
      CAPTURE(scale);
      call.options = {};
      const std::vector<double> wide = attend(engine_for(architecture), call);
      const HostTensor of_out = scale_of(scale);
      call.options.out_dtype = DType::e4m3, call.options.out_scale = of_out.view();
      const std::vector<double> narrow = attend(engine_for(architecture), call);
      double most = 0;
      for (std::size_t i = 0; i < wide.size(); ++i) {
        const double wanted = std::clamp(wide[i] / scale, -448.0, 448.0);
        // Half a step of e4m3, and one of bf16.
        CHECK(std::abs(narrow[i] - wanted) <= std::max(std::abs(wanted) * (0x1p-4 + 0x1p-8), 0x1p-10));
        most = std::max(most, std::abs(narrow[i]));
      }
      CHECK((most == 448) == (scale == 1e-4));
    }
}

TEST_CASE("an output of e4m3 without a scale has that of 1, and rows that see no key are 0") {
  E4m3Call call({1, 90, 2, 32}, {1, 40, 2, 32});
  call.options.causal = true, call.options.out_dtype = DType::e4m3;
  for (const char* architecture : {"sm_90a", "sm_89"}) {
    const std::vector<double> without = attend(engine_for(architecture), call);
    const HostTensor one = scale_of(1);
    call.options.out_scale = one.view();
    CHECK(attend(engine_for(architecture), call) == without);
    call.options.out_scale.reset();
    CHECK(std::all_of(without.begin(), without.begin() + 50 * 2 * 32, [](double value) { return value == 0; }));
  }
}

TEST_CASE("NaN stays NaN in an output of e4m3") {
  E4m3Call call({1, 20, 1, 32}, {1, 40, 1, 32});
  store_element(call.q.data(), DType::e4m3, 0, std::numeric_limits<double>::quiet_NaN());
  call.options.out_dtype = DType::e4m3;
  for (const char* architecture : {"sm_90a", "sm_89"}) {
    const std::vector<double> out = attend(engine_for(architecture), call);
    CHECK(std::all_of(out.begin(), out.begin() + 32, [](double value) { return std::isnan(value); }));
    CHECK(std::none_of(out.begin() + 32, out.end(), [](double value) { return std::isnan(value); }));
  }
}

TEST_CASE("an output of e4m3 where it must not be, and a scale of none, are refused by name") {
  E4m3Call call({1, 20, 2, 32}, {1, 40, 2, 32});
  const HostTensor one = scale_of(1), two = HostTensor(DType::f32, {2}), of_16_bits(DType::f16, {1});
  call.options.out_scale = one.view();
  CHECK(call.error(engine_for("sm_90a")) == "out_scale: must not be given unless out_dtype is e4m3, which was bf16");
  call.options.out_dtype = DType::e4m3, call.options.out_scale = two.view();
  CHECK(call.error(engine_for("sm_90a")) == "out_scale: must be [1], had shape [2]");
  call.options.out_scale = of_16_bits.view();
  CHECK(call.error(engine_for("sm_90a")) == "out_scale: dtype must be f32, was f16");
  const HostTensor rows = HostTensor::random_normal(DType::bf16, {1, 20, 2, 32}, 1);
  AttentionOptions options;
  options.out_scale = one.view();
  CHECK_THROWS_WITH_AS(engine_for("sm_90a").attention(rows.view(), rows.view(), rows.view(), options),
                       "out_scale: must not be given unless q is of e4m3 or e5m2, which was of bf16", Error);
  const HostTensor out(DType::e4m3, {1, 20, 2, 32});
  CHECK_THROWS_WITH_AS(engine_for("sm_90a").attention(rows.view(), rows.view(), rows.view(), out.view()),
                       "out: dtype must be bf16 like that of q, was e4m3", Error);
}

TEST_CASE("planted faults of outputs of e4m3 are found") {
  struct Fault {
    const char *architecture, *variant;
    tests::PlantedFault planted;
    bool transposed = false;  // values come so
  };
  constexpr const char *kHopper = "hopper-q128-kv64-s2-qs1-whole-2stage-ppoff-rare-dynamic-split",
                       *kSplit = "hopper-q64-kv64-s2-qs2-whole-2stage-ppoff-rare-dynamic-split-splitkv",
                       *kMma = "mma-q64-kv64-w4-k2-v2-c1-overlap-qsmem";
  const std::vector<Fault> faults = {
      {"sm_90a", kHopper, {"hopper/store.cuh", "    Config::Written::arrange(pairs);\n", ""}},
      {"sm_90a",
       kHopper,
       {"hopper/store.cuh", "OutputTile::kPanelColumns * kElementsOfWord", "OutputTile::kPanelColumns"}},
      {"sm_90a", kHopper, {"parts/products/e4m3.cuh", "of_values *= Config::Written::factor(args);", ";"}},
      {"sm_90a", kSplit, {"kernels/combine.cuh", "args.out + row.out + column, ", "args.out + row.out + column * 2, "}},
      {"sm_89", kMma, {"mma/store.cuh", " + n % 2 * kTileBytes", ""}, true},
      {"sm_89",
       kMma,
       {"mma/columns.cuh", "{}, o[n][2 * h], o[n + 1][2 * h], o[n][2 * h + 1],",
        "{}, o[n][2 * h], o[n][2 * h + 1], o[n + 1][2 * h],"}},
  };
  const auto finds = [&](const EngineOptions& options, const Fault& fault) {
    Problem problem = problem_of(64, 160, false);
    problem.values_transposed = fault.transposed;
    const cli::VerifyCase c(problem, {1, 70, 330, 4, 2}, kHostMemory);
    Engine engine(options);
    return !run_schedules(engine, c, parse_variant(fault.variant), {.count = 2}).problems.empty();
  };
  for (const Fault& fault : tests::sample(faults)) {
    CAPTURE(std::string(fault.planted.original));
    CHECK_FALSE(finds(emulating(fault.architecture), fault));
    const tests::TemporaryDirectory directory;
    CHECK(finds(tests::with_fault(emulating(fault.architecture), fault.planted, directory.path()), fault));
  }
}
