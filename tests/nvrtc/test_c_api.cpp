// SPDX-License-Identifier: Apache-2.0
// Attention through the C interface, in the emulator.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "flashjit.h"
#include "flashjit/engine.h"
#include "tests/support/dlpack_view.h"
#include "tests/support/same_bytes.h"

namespace {

using namespace flashjit;
using tests::DlpackView;
using tests::same_bytes;

EngineOptions emulating() {
  EngineOptions options = EngineOptions::from_environment();
  options.policy = Policy::off;
  options.emulate = "sm_90a";
  return options;
}

flashjit_engine* make_engine() {
  flashjit_engine_options options = FLASHJIT_ENGINE_OPTIONS_INIT;
  options.policy = "off";
  options.emulate = "sm_90a";
  flashjit_engine* engine = nullptr;
  REQUIRE(flashjit_engine_create(&options, &engine) == FLASHJIT_OK);
  return engine;
}

}  // namespace

TEST_CASE("a call through C computes what a call in C++ does, with its options") {
  const HostTensor q = HostTensor::random_normal(DType::f16, {1, 17, 2, 64}, 1),
                   k = HostTensor::random_normal(DType::f16, {1, 33, 1, 64}, 2),
                   v = HostTensor::random_normal(DType::f16, {1, 33, 1, 64}, 3),
                   slopes = HostTensor::random_normal(DType::f32, {1, 2}, 4),
                   sinks = HostTensor::random_normal(DType::f32, {2}, 5);
  const Dims out_shape{1, 17, 2, 64}, lse_shape{1, 2, 17};
  HostTensor expected(DType::f16, out_shape), out(DType::f16, out_shape), expected_lse(DType::f32, lse_shape),
      lse(DType::f32, lse_shape);
  AttentionOptions opts;
  opts.causal = true;
  opts.window = {6, -1};
  opts.chunk = 12;
  opts.softcap = 2;
  opts.alibi_slopes = slopes.view();
  opts.sinks = sinks.view();
  opts.softmax_scale = 0.25f;
  opts.lse = expected_lse.view();
  opts.variant = parse_variant("v3");
  Engine(emulating()).attention(q.view(), k.view(), v.view(), expected.view(), opts);

  DlpackView c_q(q.view(), kDLCPU), c_k(k.view(), kDLCPU), c_v(v.view(), kDLCPU), c_out(out.view(), kDLCPU),
      c_lse(lse.view(), kDLCPU), c_slopes(slopes.view(), kDLCPU), c_sinks(sinks.view(), kDLCPU);
  constexpr std::size_t kOffset = 4096;
  c_q.data = static_cast<char*>(c_q.data) - kOffset;
  c_q.byte_offset = kOffset;
  c_v.strides = c_lse.strides = nullptr;
  flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
  options.causal = 1;
  const flashjit_window window = {6, -1};
  options.window = &window;
  options.chunk = 12;
  options.softcap = 2;
  options.alibi_slopes = &c_slopes;
  options.sinks = &c_sinks;
  options.has_softmax_scale = 1;
  options.softmax_scale = 0.25f;
  options.lse = &c_lse;
  options.variant = "v3";
  flashjit_engine* const engine = make_engine();
  CHECK(flashjit_attention(engine, &c_q, &c_k, &c_v, &c_out, &options) == FLASHJIT_OK);
  CHECK(std::string(flashjit_last_error()).empty());
  CHECK(same_bytes(out, expected));
  CHECK(same_bytes(lse, expected_lse));

  flashjit_counters counters = FLASHJIT_COUNTERS_INIT;
  CHECK(flashjit_get_counters(engine, &counters) == FLASHJIT_OK);
  CHECK(counters.compiles == 1);
  flashjit_engine_destroy(engine);
}

TEST_CASE("a call of a prepared problem compiles nothing") {
  flashjit_engine* const engine = make_engine();
  flashjit_problem problem = FLASHJIT_PROBLEM_INIT;
  problem.head_dim = 64;
  problem.head_dim_v = 32;
  CHECK(flashjit_prepare(engine, &problem, -1) == FLASHJIT_OK);
  flashjit_counters prepared = FLASHJIT_COUNTERS_INIT, called = FLASHJIT_COUNTERS_INIT;
  CHECK(flashjit_get_counters(engine, &prepared) == FLASHJIT_OK);
  CHECK(prepared.compiles > 0);

  const HostTensor q = HostTensor::random_normal(DType::bf16, {1, 4, 1, 64}, 1),
                   v = HostTensor::random_normal(DType::bf16, {1, 4, 1, 32}, 3);
  HostTensor out(DType::bf16, {1, 4, 1, 32});
  store_element(out.data(), DType::bf16, 0, std::numeric_limits<double>::quiet_NaN());
  const DlpackView c_q(q.view(), kDLCPU), c_v(v.view(), kDLCPU), c_out(out.view(), kDLCPU);
  CHECK(flashjit_attention(engine, &c_q, &c_q, &c_v, &c_out, nullptr) == FLASHJIT_OK);
  CHECK_FALSE(std::isnan(load_element(out.data(), DType::bf16, 0)));
  CHECK(flashjit_get_counters(engine, &called) == FLASHJIT_OK);
  CHECK(called.compiles == prepared.compiles);
  flashjit_engine_destroy(engine);
}

TEST_CASE("what is prepared for caps and slopes serves those of every value") {
  flashjit_engine* const engine = make_engine();
  flashjit_problem problem = FLASHJIT_PROBLEM_INIT;
  problem.head_dim = 64;
  problem.softcap = problem.alibi = 1;
  CHECK(flashjit_prepare(engine, &problem, -1) == FLASHJIT_OK);
  flashjit_counters prepared = FLASHJIT_COUNTERS_INIT, called = FLASHJIT_COUNTERS_INIT;
  CHECK(flashjit_get_counters(engine, &prepared) == FLASHJIT_OK);

  constexpr float kGentle = 0.1f, kSteep = 1e4f;
  const HostTensor q = HostTensor::random_normal(DType::bf16, {1, 4, 1, 64}, 1);
  const HostTensor out(DType::bf16, {1, 4, 1, 64});
  HostTensor slopes(DType::f32, {1});
  const DlpackView c_q(q.view(), kDLCPU), c_out(out.view(), kDLCPU), c_slopes(slopes.view(), kDLCPU);
  for (const float slope : {kGentle, kSteep}) {
    store_element(slopes.data(), DType::f32, 0, slope);
    flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
    options.softcap = 30 * slope;
    options.alibi_slopes = &c_slopes;
    CHECK(flashjit_attention(engine, &c_q, &c_q, &c_q, &c_out, &options) == FLASHJIT_OK);
    CHECK(same_bytes(out, q) == (slope == kSteep));  // each query sees its own key alone
  }
  CHECK(flashjit_get_counters(engine, &called) == FLASHJIT_OK);
  CHECK(called.compiles == prepared.compiles);
  flashjit_engine_destroy(engine);
}

TEST_CASE("what is prepared for chunks and sinks serves those of every size and value") {
  flashjit_engine* const engine = make_engine();
  flashjit_problem problem = FLASHJIT_PROBLEM_INIT;
  problem.head_dim = 64;
  problem.chunk = problem.sinks = 1;
  CHECK(flashjit_prepare(engine, &problem, -1) == FLASHJIT_OK);
  flashjit_counters prepared = FLASHJIT_COUNTERS_INIT, called = FLASHJIT_COUNTERS_INIT;
  CHECK(flashjit_get_counters(engine, &prepared) == FLASHJIT_OK);

  constexpr std::int64_t kOwnKey = 1, kPairs = 2;
  constexpr float kNone = -std::numeric_limits<float>::infinity(), kEverything = 1e4f;
  const HostTensor q = HostTensor::random_normal(DType::bf16, {1, 4, 1, 64}, 1);
  const HostTensor out(DType::bf16, {1, 4, 1, 64});
  HostTensor sinks(DType::f32, {1});
  const DlpackView c_q(q.view(), kDLCPU), c_out(out.view(), kDLCPU), c_sinks(sinks.view(), kDLCPU);
  const auto attend = [&](std::int64_t chunk, float sink) {
    store_element(sinks.data(), DType::f32, 0, sink);
    flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
    options.chunk = chunk;
    options.sinks = &c_sinks;
    CHECK(flashjit_attention(engine, &c_q, &c_q, &c_q, &c_out, &options) == FLASHJIT_OK);
  };
  attend(kOwnKey, kNone);
  CHECK(same_bytes(out, q));
  attend(kPairs, kNone);
  CHECK_FALSE(same_bytes(out, q));
  attend(kPairs, kEverything);
  CHECK(load_element(q.data(), DType::bf16, 0) != 0);
  CHECK(load_element(out.data(), DType::bf16, 0) == 0);
  CHECK(flashjit_get_counters(engine, &called) == FLASHJIT_OK);
  CHECK(called.compiles == prepared.compiles);
  flashjit_engine_destroy(engine);
}

TEST_CASE("what is prepared for windows serves those of every size") {
  flashjit_engine* const engine = make_engine();
  flashjit_problem problem = FLASHJIT_PROBLEM_INIT;
  problem.head_dim = 64;
  problem.causal = problem.window = 1;
  CHECK(flashjit_prepare(engine, &problem, -1) == FLASHJIT_OK);
  flashjit_counters prepared = FLASHJIT_COUNTERS_INIT, called = FLASHJIT_COUNTERS_INIT;
  CHECK(flashjit_get_counters(engine, &prepared) == FLASHJIT_OK);

  const HostTensor q = HostTensor::random_normal(DType::bf16, {1, 4, 1, 64}, 1);
  const HostTensor out(DType::bf16, {1, 4, 1, 64});
  const DlpackView c_q(q.view(), kDLCPU), c_out(out.view(), kDLCPU);
  for (const flashjit_window& window : {flashjit_window{2, 0}, flashjit_window{0, 0}, flashjit_window{5000, 0}}) {
    flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
    options.window = &window;
    CHECK(flashjit_attention(engine, &c_q, &c_q, &c_q, &c_out, &options) == FLASHJIT_OK);
    if (window.left == 0) CHECK(same_bytes(out, q));  // each query sees its own key alone
  }
  CHECK(flashjit_get_counters(engine, &called) == FLASHJIT_OK);
  CHECK(called.compiles == prepared.compiles);
  flashjit_engine_destroy(engine);
}
