// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>

#include "flashjit.h"
#include "tests/gpu/attention_case.h"
#include "tests/support/dlpack_view.h"

namespace {

using namespace flashjit;
using tests::AttentionCase;
using tests::DlpackView;

constexpr flashjit_engine* kDefaultEngine = nullptr;

}  // namespace

TEST_CASE("a call through C computes with its options") {
  const AttentionCase c;
  const DeviceTensor out = c.poisoned_out(), lse = c.poisoned_lse();
  const DlpackView q(c.q, kDLCUDA), k(c.k, kDLCUDA), v(c.v, kDLCUDA), o(out, kDLCUDA), l(lse, kDLCUDA);
  CHECK(flashjit_attention(kDefaultEngine, &q, &k, &v, &o, nullptr) == FLASHJIT_OK);
  CHECK(std::string(flashjit_last_error()).empty());
  c.check_out(out);

  flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
  options.causal = 1;
  options.has_softmax_scale = 1;
  options.softmax_scale = 0.25f;
  options.lse = &l;
  options.variant = "v3";
  CHECK(flashjit_attention(kDefaultEngine, &q, &k, &v, &o, &options) == FLASHJIT_OK);
  AttentionOptions opts;
  opts.causal = true;
  opts.softmax_scale = 0.25f;
  c.check_out_and_lse(out, lse, opts);
}

TEST_CASE("a prepared problem compiles nothing more through C") {
  flashjit_engine_options engine_options = FLASHJIT_ENGINE_OPTIONS_INIT;
  engine_options.policy = "off";
  flashjit_engine* engine = nullptr;
  REQUIRE(flashjit_engine_create(&engine_options, &engine) == FLASHJIT_OK);
  flashjit_problem problem = FLASHJIT_PROBLEM_INIT;
  problem.head_dim = 64;
  CHECK(flashjit_prepare(engine, &problem, -1) == FLASHJIT_OK);
  flashjit_counters prepared = FLASHJIT_COUNTERS_INIT, called = FLASHJIT_COUNTERS_INIT;
  CHECK(flashjit_get_counters(engine, &prepared) == FLASHJIT_OK);
  CHECK(prepared.compiles > 0);

  const AttentionCase c;
  const DeviceTensor out = c.poisoned_out();
  const DlpackView q(c.q, kDLCUDA), k(c.k, kDLCUDA), v(c.v, kDLCUDA), o(out, kDLCUDA);
  CHECK(flashjit_attention(engine, &q, &k, &v, &o, nullptr) == FLASHJIT_OK);
  c.check_out(out);
  CHECK(flashjit_get_counters(engine, &called) == FLASHJIT_OK);
  CHECK(called.compiles == prepared.compiles);
  flashjit_engine_destroy(engine);
}

TEST_CASE("memory that is not on the GPU is refused through C, whatever its tensor says") {
  const AttentionCase c;
  const DeviceTensor out = c.poisoned_out();
  const DlpackView q(c.q, kDLCUDA), k(c.k, kDLCUDA), v(c.v, kDLCUDA), o(out, kDLCUDA);
  const DlpackView on_host(c.k_host.view(), kDLCPU), said_to_be_on_gpu(c.k_host.view(), kDLCUDA);
  CHECK(flashjit_attention(kDefaultEngine, &q, &on_host, &v, &o, nullptr) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(std::string(flashjit_last_error()).find("k: must be in the memory of a GPU (kDLCUDA)") == 0);
  CHECK(flashjit_attention(kDefaultEngine, &q, &said_to_be_on_gpu, &v, &o, nullptr) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(std::string(flashjit_last_error()).find("k: must be device memory") == 0);
  CHECK(flashjit_attention(kDefaultEngine, &q, &k, &v, &o, nullptr) == FLASHJIT_OK);
  CHECK(std::string(flashjit_last_error()).empty());
  c.check_out(out);
}
