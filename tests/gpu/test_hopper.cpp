// SPDX-License-Identifier: Apache-2.0
// The kernels of the hopper family, in what only they have: TMA, packed heads, clusters and tiles that are drawn.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cli/verify/cases.h"
#include "tests/gpu/attention_case.h"
#include "tests/gpu/driver_calls.h"
#include "tests/support/same_bytes.h"

using namespace flashjit;
using tests::AttentionCase;
using tests::same_bytes;
using tests::ScopedContext;
using tests::ScopedStream;
using tests::shared_engine;
using tests::Sizes;

namespace {

constexpr const char* kArchitecture = "sm_90a";
constexpr const char* kDynamic = "hopper-q128-kv64-s2-qs2-whole-2stage-ppgemm-lazy-dynamic-longest-fused";

// False, and said so, where this file has nothing to run on.
bool has_hopper() {
  const std::vector<DeviceInfo> devices = shared_engine().system().devices;
  if (devices.at(0).architecture == kArchitecture) return true;
  MESSAGE("device 0 is not of sm_90a: nothing to test");
  return false;
}

AttentionOptions options_of(const std::string& variant, bool causal = false) {
  AttentionOptions opts;
  opts.causal = causal;
  opts.variant = parse_variant(variant);
  return opts;
}

void check(const AttentionCase& c, const AttentionOptions& given, const AttentionCase::Expected& expected) {
  const DeviceTensor out = c.poisoned_out(), lse = c.poisoned_lse();
  AttentionOptions opts = given;
  opts.lse = lse.view();
  shared_engine().attention(c.q, c.k, c.v, out, opts);
  expected.check_out(out);
  expected.check_lse(lse);
}
void check(const AttentionCase& c, const AttentionOptions& opts) { check(c, opts, c.expected(opts)); }

std::vector<Variant> hopper_variants(const Problem& problem) {
  std::vector<Variant> variants = shared_engine().variants(problem, kArchitecture);
  std::erase_if(variants, [](const Variant& variant) { return !std::holds_alternative<HopperVariant>(variant); });
  return variants;
}

// All cases of verify that have keys.
void verify(const Problem& problem, const std::vector<Variant>& variants) {
  REQUIRE_FALSE(variants.empty());
  tests::compile_all(problem, variants, kArchitecture);
  for (const cli::CaseShape& shape : cli::verify_shapes()) {
    if (shape.seqlen_kv == 0) continue;
    const cli::VerifyCase c(problem, shape, 0);
    for (const Variant& variant : variants) {
      CAPTURE(to_string(problem));
      CAPTURE(to_string(shape));
      CAPTURE(to_string(variant));
      CHECK(c.problem_with(shared_engine(), variant) == "");
    }
  }
}

}  // namespace

TEST_SUITE_BEGIN("sanitizer");

TEST_CASE("each scheme of the hopper family, on lengths that end within a block") {
  if (!has_hopper()) return;
  for (const std::string variant :
       {"hopper-q64-kv64-serial-ppoff-single", "hopper-q128-kv64-2stage-ppgemm-always-fixed", kDynamic,
        "hopper-q192-kv48-3stage-ppoff-rare-dynamic", "hopper-q128-kv64-serial-ppsoftmax-dynamic",
        "hopper-q128-kv64-ppoff-nows-fixed", "hopper-q128-kv64-psmem", "hopper-q128-kv64-cl2-fixed",
        "hopper-q256-kv32-s2-qs2-whole-lazy-dynamic-fused"})
    for (const bool causal : {false, true}) {
      CAPTURE(std::string(variant));
      CAPTURE(causal);
      check(AttentionCase(Sizes{1, 70, 200, 2, 1, 72, 40}), options_of(variant, causal));
    }
}

TEST_CASE("rows that warps share, alone, in a cluster, and where the grid splits their keys") {
  if (!has_hopper()) return;
  for (const char* rows : {"q4", "q8", "q16"})
    for (const std::int64_t seqlen_kv : {200, 2100, 8300}) {
      CAPTURE(std::string(rows));
      CAPTURE(seqlen_kv);
      check(AttentionCase(Sizes{1, 3, seqlen_kv, 2, 1, 16, 72}),
            options_of(fmt::format("hopper-{}-kv64-s2-qs1-whole-serial-ppoff-fixed-split-splitkv", rows), true));
    }
}

TEST_SUITE_END();
TEST_SUITE_BEGIN("hopper");

TEST_CASE("every tunable variant is right in every case of verify: lengths, groups, layouts and hard scores") {
  if (!has_hopper()) return;
  for (const auto& [head_dim, head_dim_v] : {std::pair{64, 64}, {128, 128}, {256, 256}, {192, 128}})
    for (const bool causal : {false, true}) {
      const Problem problem{DType::bf16, head_dim, head_dim_v, causal};
      verify(problem, hopper_variants(problem));
    }
}

TEST_CASE("the defaults are right in every case of verify, for head dims of every panel width, in f16") {
  if (!has_hopper()) return;
  for (const auto& [head_dim, head_dim_v] : {std::pair{8, 8},
                                             {24, 24},
                                             {40, 72},
                                             {80, 80},
                                             {96, 16},
                                             {112, 112},
                                             {128, 128},
                                             {160, 160},
                                             {224, 32},
                                             {64, 256},
                                             {256, 256}})
    for (const bool causal : {false, true}) {
      const Problem problem{DType::f16, head_dim, head_dim_v, causal};
      std::vector<Variant> variants = shared_engine().default_variants(problem, kArchitecture);
      std::erase_if(variants, [](const Variant& variant) { return !std::holds_alternative<HopperVariant>(variant); });
      verify(problem, variants);
    }
}

TEST_CASE("few queries of any group share tiles") {
  if (!has_hopper()) return;
  for (const std::int64_t group : {1, 2, 3, 4, 8, 16})
    for (const std::int64_t seqlen_q : {1, 2, 3, 4, 5, 63, 130})
      for (const char* variant :
           {"hopper-q64-kv64-ppoff", "hopper-q128-kv64-s2-qs2-whole-lazy-fused-longest",
            "hopper-q128-kv64-ppoff-cl2-single", "hopper-q16-kv64-qs1-whole-serial-ppoff-fixed-split-splitkv",
            "hopper-q8-kv64-qs1-whole-serial-ppoff-fixed-split-splitkv",
            "hopper-q4-kv64-qs1-whole-serial-ppoff-fixed-split-splitkv"}) {
        CAPTURE(group);
        CAPTURE(seqlen_q);
        CAPTURE(std::string(variant));
        check(AttentionCase(Sizes{2, seqlen_q, 150, 2 * group, 2, 64, 64}), options_of(variant, seqlen_q % 2 == 1));
      }
}

TEST_CASE("rows that warps share, whose keys warps, clusters and the grid split") {
  if (!has_hopper()) return;
  constexpr std::int64_t kMostKeys = 90'000;  // of a batch: where nothing is split more of them add nothing
  for (const auto& [head_dim, head_dim_v] : {std::pair<std::int64_t, std::int64_t>{8, 88}, {16, 128}, {128, 128}})
    for (const std::int64_t seqlen_kv : {1, 150, 1100, 2100, 5000, 20'000})
      for (const std::int64_t batch : {1, 3, 40}) {
        if (batch * seqlen_kv > kMostKeys) continue;
        CAPTURE(head_dim);
        CAPTURE(seqlen_kv);
        CAPTURE(batch);
        const AttentionCase c(Sizes{batch, 3, seqlen_kv, 4, 2, head_dim, head_dim_v});
        AttentionOptions causal;
        causal.causal = true;
        const AttentionCase::Expected expected = c.expected(causal);
        for (const char* tile :
             {"q16-kv64-s3", "q16-kv64-s1", "q16-kv128-s2", "q8-kv64-s3", "q8-kv128-s2", "q4-kv64-s3", "q4-kv128-s2"}) {
          CAPTURE(std::string(tile));
          const std::string variant = fmt::format("hopper-{}-qs1-whole-serial-ppoff-fixed-split-splitkv", tile);
          check(c, options_of(variant, true), expected);
        }
      }
}

TEST_CASE("clusters pad the tiles of a head") {
  if (!has_hopper()) return;
  for (const char* variant : {"hopper-q128-kv64-cl2-fixed", "hopper-q64-kv96-ppoff-cl2-single",
                              "hopper-q128-kv64-s2-qs2-whole-lazy-fixed-fused-longest-cl2"})
    for (const std::int64_t seqlen_q : {1, 64, 100, 129, 257, 600})
      for (const bool causal : {false, true}) {
        CAPTURE(std::string(variant));
        CAPTURE(seqlen_q);
        check(AttentionCase(Sizes{2, seqlen_q, 300, 3, 3, 128, 128}), options_of(variant, causal));
      }
}

TEST_CASE("blocks go from tile to tile when there are more than run at once") {
  if (!has_hopper()) return;
  const AttentionCase c(Sizes{2, 1500, 200, 16, 16, 64, 64});
  for (const std::string scheduler : {"fixed", "dynamic"})
    for (const char* rest : {"-s2-qs2-whole-fused", "-s1-qs1-oquery", "-s3-qs1-whole", "-s2-qs2-oquery-longest"})
      for (const bool causal : {false, true}) {
        CAPTURE(scheduler);
        CAPTURE(rest);
        check(c, options_of("hopper-q128-kv64-" + scheduler + rest, causal));
      }
}

TEST_CASE("the scale may be given, large, zero or negative, and the LSE left out") {
  if (!has_hopper()) return;
  const AttentionCase c;
  for (const char* variant : {kDynamic, "hopper-q128-kv64-ppoff-nows-fixed", "hopper-q64-kv64-serial-ppoff-single",
                              "hopper-q128-kv64-cl2-lazy-fixed", "hopper-q128-kv64-psmem-cl2-fixed"})
    for (const float scale : {0.3f, 30.0f, 0.0f, -0.2f, -30.0f}) {
      CAPTURE(std::string(variant));
      CAPTURE(scale);
      AttentionOptions opts = options_of(variant, true);
      opts.softmax_scale = scale;
      check(c, opts);
      c.check_out(shared_engine().attention(c.q, c.k, c.v, opts), opts);
    }
}

// --- Calls that no tensor map describes ------------------------------------------------------------------------------

TEST_CASE(
    "without a tensor map the default is another kernel, which prepare has made, and a hopper variant is refused") {
  if (!has_hopper()) return;
  EngineOptions options = EngineOptions::from_environment();
  options.policy = Policy::off;
  Engine engine(options);
  engine.prepare({DType::bf16, 64, 64, false}, 0);
  const std::uint64_t compiles = engine.counters().compiles;

  AttentionCase c(Sizes{2, 100, 120, 2, 2, 64, 64});
  const std::int64_t batch = 120 * 2 * 64;
  for (std::int64_t i = 0; i < batch; ++i)  // both batch entries have the keys of the first one
    store_element(c.k_host.data(), DType::bf16, batch + i, load_element(c.k_host.data(), DType::bf16, i));
  c.k = c.k_host.to_device();
  Tensor repeated = c.k.view();
  repeated.strides[0] = 0;
  const DeviceTensor out = c.poisoned_out();
  engine.attention(c.q, repeated, c.v, out);
  c.check_out(out);

  const AttentionCase keyless(Sizes{2, 100, 0, 2, 2, 64, 64});
  keyless.check_out(engine.attention(keyless.q, keyless.k, keyless.v));
  CHECK(engine.counters().compiles == compiles);

  const auto refusal = [&](const Tensor& q, const Tensor& k, const Tensor& v) -> std::string {
    try {
      engine.attention(q, k, v, options_of(kDynamic));
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::invalid_argument);
      return error.what();
    }
    return "";
  };
  CHECK(refusal(c.q, repeated, c.v).starts_with("k: the stride of batch must be from 1 to"));
  CHECK(refusal(keyless.q, keyless.k, keyless.v).starts_with("k: seqlen must be at least 1, was 0"));
}

// --- Tiles that are drawn: launches must not share a counter ---------------------------------------------------------

TEST_CASE("results are bitwise equal from run to run, also when blocks draw their tiles") {
  if (!has_hopper()) return;
  const AttentionCase c(Sizes{2, 900, 700, 8, 2, 128, 128});
  for (const char* variant :
       {kDynamic, "hopper-q192-kv80-s2-qs2-whole-rare-dynamic-split", "hopper-q128-kv64-cl2-fixed"})
    for (const bool causal : {false, true}) {
      CAPTURE(std::string(variant));
      AttentionOptions opts = options_of(variant, causal);
      const DeviceTensor lse = c.poisoned_lse();
      opts.lse = lse.view();
      const HostTensor first = HostTensor::from_device(shared_engine().attention(c.q, c.k, c.v, opts));
      const HostTensor first_lse = HostTensor::from_device(lse);
      for (int run = 0; run < 20; ++run) {
        CHECK(same_bytes(HostTensor::from_device(shared_engine().attention(c.q, c.k, c.v, opts)), first));
        CHECK(same_bytes(HostTensor::from_device(lse), first_lse));
      }
    }
}

namespace {

// Calls that leave room on the GPU for others at the same time, and what each must give.
struct Competitor {
  explicit Competitor(std::uint64_t seed) : c(Sizes{1, 512, 2048, 8, 2, 128, 128}, DType::bf16, seed) {
    shared_engine().attention(c.q, c.k, c.v, out, options_of(kDynamic));
    expected = HostTensor::from_device(out);
    c.check_out(expected);
  }
  void launch(const DeviceTensor& into, CUstream on) const {
    AttentionOptions opts = options_of(kDynamic);
    opts.stream = on;
    shared_engine().attention(c.q, c.k, c.v, into, opts);
  }
  void check(const DeviceTensor& result) const { CHECK(same_bytes(HostTensor::from_device(result), expected)); }

  AttentionCase c;
  DeviceTensor out = c.poisoned_out();
  HostTensor expected;
  ScopedStream stream;
};

std::vector<DeviceTensor> poisoned_outs(const Competitor& competitor, int count) {
  std::vector<DeviceTensor> outs;
  for (int i = 0; i < count; ++i) outs.push_back(competitor.c.poisoned_out());
  return outs;
}

}  // namespace

TEST_CASE("two streams compute at the same time, each launch with tiles of its own") {
  if (!has_hopper()) return;
  const ScopedContext context(0);
  const Competitor a(1), b(2);
  constexpr int kLaunches = 32;
  const std::vector<DeviceTensor> outs_a = poisoned_outs(a, kLaunches), outs_b = poisoned_outs(b, kLaunches);
  DRIVER_CALL(cuCtxSynchronize);
  for (int i = 0; i < kLaunches; ++i) {
    a.launch(outs_a[static_cast<std::size_t>(i)], a.stream.get());
    b.launch(outs_b[static_cast<std::size_t>(i)], b.stream.get());
  }
  a.stream.synchronize();
  b.stream.synchronize();
  for (const DeviceTensor& out : outs_a) a.check(out);
  for (const DeviceTensor& out : outs_b) b.check(out);
}

TEST_CASE("graphs run again and again beside other launches and each other") {
  if (!has_hopper()) return;
  const ScopedContext context(0);
  const Competitor a(1), b(2), eager(3);
  const ScopedStream stream;
  DRIVER_CALL(cuCtxSynchronize);
  const auto capture = [](const Competitor& competitor) {
    DRIVER_CALL(cuStreamBeginCapture, competitor.stream.get(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    competitor.launch(competitor.out, competitor.stream.get());
    CUgraph graph = nullptr;
    DRIVER_CALL(cuStreamEndCapture, competitor.stream.get(), &graph);
    CUgraphExec executable = nullptr;
    DRIVER_CALL(cuGraphInstantiateWithFlags, &executable, graph, 0);
    DRIVER_CALL(cuGraphDestroy, graph);
    return executable;
  };
  const auto replay = [](const Competitor& competitor, CUgraphExec executable) {
    constexpr unsigned char kNanByte = 0xff;
    DRIVER_CALL(cuMemsetD8Async, reinterpret_cast<CUdeviceptr>(competitor.out.data()), kNanByte,
                competitor.out.size_bytes(), competitor.stream.get());
    DRIVER_CALL(cuGraphLaunch, executable, competitor.stream.get());
  };
  const CUgraphExec graph_a = capture(a), graph_b = capture(b);
  for (int round = 0; round < 8; ++round) {
    const std::vector<DeviceTensor> outs = poisoned_outs(eager, 4);
    DRIVER_CALL(cuCtxSynchronize);
    replay(a, graph_a);
    replay(b, graph_b);
    for (const DeviceTensor& out : outs) eager.launch(out, stream.get());
    for (const CUstream used : {a.stream.get(), b.stream.get(), stream.get()}) DRIVER_CALL(cuStreamSynchronize, used);
    a.check(a.out);
    b.check(b.out);
    for (const DeviceTensor& out : outs) eager.check(out);
  }
  for (const CUgraphExec executable : {graph_a, graph_b}) DRIVER_CALL(cuGraphExecDestroy, executable);
}

TEST_CASE("a measured launch that draws its tiles computes every time") {
  if (!has_hopper()) return;
  const AttentionCase c(Sizes{1, 600, 700, 4, 4, 128, 128});
  const DeviceTensor out = c.poisoned_out();
  MeasureOptions options;
  options.repeats = 5;
  CHECK(shared_engine().measure(c.q, c.k, c.v, out, options_of(kDynamic), options).min_us > 0);
  c.check_out(out);
  const HostCost cost = shared_engine().measure_host_cost(c.q, c.k, c.v, out, options_of(kDynamic));
  CHECK(cost.bare_launch_us > 0);
  c.check_out(out);
}

TEST_CASE("memory of counters is reached from a context of the caller's own") {
  if (!has_hopper()) return;
  const tests::ScopedContext primary(0);
  const Competitor c(4);
  const DeviceTensor out = c.c.poisoned_out();
  const tests::OwnContext context(0);
  const ScopedStream stream;
  for (int i = 0; i < 2; ++i) c.launch(out, stream.get());
  stream.synchronize();
  c.check(out);
}

TEST_SUITE_END();
