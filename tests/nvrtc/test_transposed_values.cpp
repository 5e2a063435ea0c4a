// SPDX-License-Identifier: Apache-2.0
// Values of e4m3 that come transposed: kernels of both families in the emulator, against the reference and against
// values that they turn themselves.
#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "cli/io/transposed_values.h"
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

constexpr const char* kHopperVariants[] = {"hopper-q64-kv32-s2-qs1-whole-2stage-ppoff-rare-single-split",
                                           "hopper-q64-kv160-s2-qs2-whole-2stage-ppoff-always-dynamic-split",
                                           "hopper-q128-kv64-s3-qs2-whole-2stage-ppgemm-rare-fixed-fused",
                                           "hopper-q128-kv32-s1-qs1-whole-serial-ppsoftmax-rare-dynamic-split",
                                           "hopper-q192-kv96-s2-qs2-whole-2stage-ppoff-lazy-dynamic-split",
                                           "hopper-q256-kv32-s4-qs2-whole-2stage-ppgemm-lazy-dynamic-fused",
                                           "hopper-q64-kv64-s2-qs2-whole-2stage-ppoff-rare-dynamic-split-splitkv"};
constexpr const char* kMmaVariants[] = {
    "mma-q64-kv32-w4-k1-v1-c1-serial-linear-qsmem-always", "mma-q64-kv96-w4-k1-v1-c1-overlap-qregs",
    "mma-q64-kv128-w4-k3-v3-c1-overlap-qsmem", "mma-q256-kv32-w8-k2-v3-c1-rotate-qsmem",
    "mma-q64-kv64-w4-k2-v2-c1-overlap-qregs-splitkv"};

Problem problem_of(int head_dim, int head_dim_v, bool is_fast) {
  Problem problem = tests::problem_of_e4m3(head_dim, head_dim_v, is_fast);
  problem.values_transposed = true;
  return problem;
}

struct ArchitectureVariant {
  const char *architecture, *variant;
};
std::vector<ArchitectureVariant> all_variants() {
  std::vector<ArchitectureVariant> all;
  for (const char* variant : kHopperVariants) all.push_back({"sm_90a", variant});
  for (const char* variant : kMmaVariants) all.push_back({"sm_89", variant});
  return all;
}

}  // namespace

TEST_CASE("values that come transposed, at head dims of every kind") {
  struct Dims2 {
    int head_dim, head_dim_v;
  };
  constexpr Dims2 kAll[] = {{16, 16}, {32, 48}, {64, 64}, {80, 112}, {128, 64}, {128, 128}, {192, 128}, {256, 256}};
  tests::Sampler sampler;
  for (const char* architecture : {"sm_90a", "sm_89", "sm_120a"})
    for (const auto& [head_dim, head_dim_v] : kAll)
      for (const bool is_fast : {false, true})
        for (const bool causal : {false, true}) {
          if (!sampler.takes_next()) continue;
          Problem problem = problem_of(head_dim, head_dim_v, is_fast);
          problem.causal = causal;
          CAPTURE(std::string(architecture));
          CAPTURE(to_string(problem));
          for (const cli::CaseShape& shape : cli::shapes_for(problem, cli::emulated_shapes()))
            CHECK(cli::VerifyCase(problem, shape, kHostMemory).problem_with(engine_for(architecture), {}) == "");
        }
}

TEST_CASE("values that come transposed, in every way in which blocks are visited") {
  tests::Sampler sampler;
  for (const auto& [architecture, variant] : all_variants())
    for (const bool is_fast : {false, true}) {
      if (!sampler.takes_next()) continue;
      CAPTURE(std::string(variant));
      const Problem problem = problem_of(64, 48, is_fast);
      for (const cli::CaseShape& shape : cli::shapes_for(problem, cli::emulated_shapes()))
        CHECK(cli::VerifyCase(problem, shape, kHostMemory)
                  .problem_with(engine_for(architecture), parse_variant(variant)) == "");
    }
}

TEST_CASE("values that come transposed, under many schedules") {
  for (const auto& [architecture, variant] :
       {ArchitectureVariant{"sm_90a", "hopper-q128-kv32-s1-qs1-whole-2stage-ppoff-lazy-dynamic-split"},
        {"sm_90a", "hopper-q128-kv96-s2-qs2-whole-2stage-ppgemm-rare-dynamic-fused"},
        {"sm_89", "mma-q128-kv64-w8-k2-v3-c1-rotate-qsmem"}}) {
    const cli::VerifyCase c(problem_of(48, 80, false), {1, 200, 230, 2, 1}, kHostMemory);
    const cli::ScheduleOutcome outcome =
        run_schedules(engine_for(architecture), c, parse_variant(variant), {.count = 20});
    CHECK(outcome.runs == 20);
    CHECK(outcome.problems == std::vector<std::string>{});
  }
}

// The same products are summed in the same steps.
TEST_CASE("values that come transposed give the bits of those that kernels turn") {
  E4m3Call call({2, 130, 4, 64}, {2, 203, 2, 64});
  call.set_scales({2, 4}, {2, 2}, {2, 2});
  const HostTensor memory = cli::with_keys_along_rows(call.v);
  const Tensor v = cli::view_with_keys_along_rows(memory.view(), 203);
  tests::Sampler sampler;
  for (const auto& [architecture, variant] : all_variants())
    for (const bool causal : {false, true}) {
      if (!sampler.takes_next()) continue;
      CAPTURE(std::string(variant));
      call.options.causal = causal;
      call.options.variant = parse_variant(variant);
      Engine& engine = engine_for(architecture);
      const HostTensor is = HostTensor::from_device(engine.attention(call.q.view(), call.k.view(), v, call.options)),
                       should = HostTensor::from_device(
                           engine.attention(call.q.view(), call.k.view(), call.v.view(), call.options));
      CHECK(std::memcmp(is.data(), should.data(), is.element_count() * size_of(is.dtype())) == 0);
    }
}

TEST_CASE("values that come transposed, with scales of blocks of rows, and beside parts that change scores") {
  for (const char* architecture : {"sm_90a", "sm_89"}) {
    Problem problem = problem_of(64, 64, false);
    problem.block_scales = true;
    CHECK(cli::VerifyCase(problem, {2, 130, 200, 4, 2}, kHostMemory).problem_with(engine_for(architecture), {}) == "");
    problem = problem_of(64, 64, true);
    problem.softcap = problem.alibi = problem.sinks = problem.causal = true;
    AttentionOptions options;
    options.softcap = 5;
    const cli::VerifyCase c(problem, {2, 150, 300, 4, 2}, kHostMemory, options);
    CHECK(c.problem_with(engine_for(architecture), {}) == "");
  }
}

TEST_CASE("values that come transposed where they must not, or with other strides, are refused by name") {
  E4m3Call call({1, 70, 4, 64}, {1, 130, 2, 64});
  const HostTensor memory = cli::with_keys_along_rows(call.v);
  const Tensor v = cli::view_with_keys_along_rows(memory.view(), 130);
  const auto error = [](const Tensor& q, const Tensor& k, const Tensor& values, const AttentionOptions& options) {
    try {
      engine_for("sm_90a").attention(q, k, values, options);
    } catch (const Error& refused) {
      return std::string(refused.what());
    }
    return std::string();
  };
  Tensor odd = v;
  odd.strides[3] = 136;
  CHECK(error(call.q.view(), call.k.view(), odd, {}) ==
        "v: the stride of head_dim must be a multiple of 16 elements, was 136");
  Tensor of_one = v;
  of_one.strides[3] = 0;
  CHECK(
      error(call.q.view(), call.k.view(), of_one, {}) ==
      "v: the stride of head_dim must be from 1 to 1099511627775 elements, was 0, for a variant of the hopper family");
  Tensor neither = v;
  neither.strides[1] = 2;
  CHECK(error(call.q.view(), call.k.view(), neither, {}) ==
        "v: the last dimension must be contiguous (stride 1), its stride was 144");
  Tensor moved = v;
  moved.data = static_cast<char*>(moved.data) + 8;
  CHECK(error(call.q.view(), call.k.view(), moved, {}).find("v: must be aligned to 16 bytes, was at ") == 0);
  const double ends[] = {0, 70}, key_ends[] = {0, 130};
  const HostTensor of_queries = HostTensor::from_doubles(DType::i32, {2}, ends, 2),
                   of_keys = HostTensor::from_doubles(DType::i32, {2}, key_ends, 2);
  AttentionOptions ragged;
  ragged.cu_seqlens_q = of_queries.view(), ragged.cu_seqlens_kv = of_keys.view();
  CHECK(error(call.q.view(), call.k.view(), v, ragged) ==
        "v: the last dimension must be contiguous (stride 1) for a batch whose sequences are not equally long, its "
        "stride was 144");
  // Of 16 bits wgmma and ldmatrix transpose what comes as it is.
  const HostTensor rows = HostTensor::random_normal(DType::bf16, {1, 130, 2, 64}, 1);
  const HostTensor of_16_bits = cli::with_keys_along_rows(rows);
  CHECK(error(rows.view(), rows.view(), cli::view_with_keys_along_rows(of_16_bits.view(), 130), {}) ==
        "v: the last dimension must be contiguous (stride 1), its stride was 136");
}

TEST_CASE("planted faults of values that come transposed are found in both families") {
  struct Fault {
    ArchitectureVariant of;
    tests::PlantedFault planted;
  };
  constexpr ArchitectureVariant kHopper{"sm_90a", "hopper-q128-kv96-s2-qs2-whole-2stage-ppoff-lazy-dynamic-fused"},
      kMma{"sm_89", "mma-q64-kv64-w4-k2-v2-c1-overlap-qsmem"};
  constexpr const char* kPart = "attention/neighbours.cuh";
  const std::vector<Fault> faults = {
      // The order of probabilities.
      {kHopper, {kPart, "(lane & 1) << 1 | (lane & 2) >> 1", "lane & 3"}},
      {kHopper, {kPart, "? kUpperHalves : kLowerHalves", "? kLowerHalves : kLowerHalves"}},
      {kMma, {kPart, "from ^ 1", "from"}},
      {kMma, {kPart, "? kSecondFirst : kLowerHalves", "? kLowerHalves : kLowerHalves"}},
      // Copies, and who waits for them.
      {kHopper,
       {"hopper/loader.cuh",
        "    values.wait_empty();\n    ptx::mbarrier_arrive_expect_tx(values.full(), VTile::kBytes);\n",
        "    ptx::mbarrier_arrive_expect_tx(values.full(), VTile::kBytes);\n"}},
      {kHopper, {"hopper/loader.cuh", "panel * columns_of_panel<VTile>()),", "0),"}},
      {kHopper,
       {"hopper/tiles.cuh", "return {first_key, tile.kv_head, 0, tile.batch};",
        "return {first_key, 0, 0, tile.batch};"}},
      {kMma, {"tile/shared_tile.cuh", "min(max(valid - chunk * kChunkBytes, 0), kChunkBytes)", "kChunkBytes"}},
      {kMma, {"kernels/mma_forward.cuh", "        next_value -= Config::kBlockKv;\n", ""}},
      {kMma, {"kernels/mma_forward.cuh", "kComeTransposed ? piece / Warp::kKeysOfStep : 0;", "0;"}},
      {kMma, {"parts/products/e4m3.cuh", "VTile::move(at, 16 * n, 2 * j)", "VTile::move(at, 16 * n, j)"}},
  };
  const cli::CaseShape shape{2, 200, 370, 4, 2};  // the last block of 64 keys has more than 32
  const cli::VerifyCase c(problem_of(64, 64, false), shape, kHostMemory);
  const auto finds = [&](const EngineOptions& options, const char* variant) {
    Engine engine(options);
    return !run_schedules(engine, c, parse_variant(variant), {.count = 4}).problems.empty();
  };
  for (const ArchitectureVariant& of : {kHopper, kMma}) CHECK_FALSE(finds(emulating(of.architecture), of.variant));
  for (const Fault& fault : tests::sample(faults)) {
    CAPTURE(std::string(fault.planted.original));
    const tests::TemporaryDirectory directory;
    CHECK(
        finds(tests::with_fault(emulating(fault.of.architecture), fault.planted, directory.path()), fault.of.variant));
  }
}
