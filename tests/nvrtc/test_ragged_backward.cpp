// SPDX-License-Identifier: Apache-2.0
// Gradients of ragged batches by kernels in the emulator, against the reference. The forward leaves what belongs to no
// sequence poisoned.
#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "flashjit/flashjit.h"
#include "tests/support/backward_case.h"
#include "tests/support/emulating_engine.h"
#include "tests/support/error_code.h"
#include "tests/support/ragged_backward_case.h"
#include "tests/support/sample.h"

namespace {

using namespace flashjit;
using tests::engine_for;

using Case = tests::BackwardCase;
using tests::ints;
using tests::packed_case;
using O = AttentionOptions;

}  // namespace

TEST_CASE("gradients of packed sequences, of every kind of head dim") {
  tests::Sampler sampler;
  for (const char* architecture : {"sm_80", "sm_86", "sm_90a"})
    for (const auto& [head_dim, head_dim_v] : {std::pair{64, 64}, {128, 128}, {256, 256}, {40, 72}})
      for (const bool causal : {false, true}) {
        CAPTURE(architecture);
        CAPTURE(head_dim);
        CAPTURE(causal);
        if (causal == (head_dim > 128) || !sampler.takes_next()) continue;
        Case c = packed_case(head_dim, head_dim_v, causal ? DType::f16 : DType::bf16);
        c.options.causal = causal;
        c.check(engine_for(architecture), causal);
      }
}

TEST_CASE("gradients of packed sequences by Hopper's kernels, under many schedules") {
  tests::Sampler sampler;
  struct Way {
    const char* variant;
    int head_dim, head_dim_v;
  };
  for (const auto& [variant, head_dim, head_dim_v] : {Way{"hopper-q128-kv128", 64, 64},
                                                      {"hopper-q128-kv128", 48, 16},
                                                      {"hopper-q64-kv128", 128, 128},
                                                      {"hopper-q64-kv128", 72, 104},
                                                      {"hopper-q80-kv128", 128, 128},
                                                      {"hopper-q80-kv128", 72, 104},
                                                      {"hopper-q64-kv64", 256, 256}})
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      if (!sampler.takes_next()) continue;
      CAPTURE(std::string(variant));
      CAPTURE(head_dim);
      CAPTURE(seed);
      EngineOptions options = tests::emulating("sm_90a");
      options.emulation.seed = seed, options.emulation.resident_blocks = seed % 3 == 0 ? 2 : 24;
      options.emulation.most_instructions = 100'000'000;  // where blocks would wait for each other for ever
      Engine engine(options);
      Case c = packed_case(head_dim, head_dim_v, seed % 2 == 0 ? DType::bf16 : DType::f16);
      c.variant = parse_backward_variant(variant);
      c.options.causal = seed % 2 == 1;
      if (seed % 4 == 3) c.options.window = {100, 10};
      c.deterministic = seed % 5 == 4;
      c.of_options = true;
      c.values(&O::sinks, DType::f32, seed % 2 == 0 ? Dims{4} : Dims{5, 4}, [](std::int64_t i) { return 1. - i % 4; });
      if (seed % 3 == 1) c.dlse = HostTensor::random_normal(DType::f32, c.lse_shape(), 8);
      c.check(engine, seed % 3 == 0);
    }
}

TEST_CASE("gradients of packed queries beside keys of their own entries, and the other way round") {
  Case queries({.batch = 3, .seqlen_q = 50, .seqlen_kv = 140});
  queries.pack_queries();
  ints(queries, &O::cu_seqlens_q, {0, 33, 100, 150});
  ints(queries, &O::seqused_kv, {140, 0, 77});
  queries.options.window = {60, 20};
  queries.check(engine_for("sm_80"));
  Case keys({.batch = 3, .seqlen_q = 50, .seqlen_kv = 140});
  keys.pack_keys();
  ints(keys, &O::cu_seqlens_kv, {0, 130, 131, 420});
  ints(keys, &O::seqused_q, {50, 20, 49});
  keys.options.causal = true;
  keys.check(engine_for("sm_90a"));
  Case used({.batch = 3, .seqlen_q = 90, .seqlen_kv = 140, .num_heads_q = 3, .num_heads_kv = 3});
  ints(used, &O::seqused_q, {90, 1, 0});
  ints(used, &O::seqused_kv, {130, 140, 5});
  used.deterministic = true;
  used.check(engine_for("sm_90a"));
}

TEST_CASE("gradients of options of packed sequences, and under all that changes scores") {
  for (const bool of_each : {false, true})
    for (const char* architecture : {"sm_80", "sm_90a"}) {
      CAPTURE(of_each);
      CAPTURE(architecture);
      Case c = packed_case(64, 40);
      c.of_options = true;
      c.options.causal = true, c.options.softcap = 5, c.options.dropout = {0.3, 99, 7};
      const auto small = [](std::int64_t i) { return 0.01 * (i % 7 + 1); };
      const Dims heads = of_each ? Dims{5, 4} : Dims{4};
      c.values(&O::alibi_slopes, DType::f32, heads, small);
      c.values(&O::sinks, DType::f32, heads, small);
      c.options.max_seqlen_q = 190, c.options.max_seqlen_kv = 210;
      c.values(&O::bias, DType::bf16, of_each ? Dims{5, 4, 190, 210} : Dims{1, 1, 1, 210}, small);
      c.values(&O::documents, DType::i32, {5, 210}, [](std::int64_t i) { return i % 210 / 60; });
      c.deterministic = of_each;
      c.check(engine_for(architecture), true);
    }
}

TEST_CASE("what scores have of rows behind a sequence's last query reaches nothing") {
  const auto poisoned_bias = [](Case& c) {
    c.values(&O::bias, DType::bf16, {2, 1, 60, 70}, [](std::int64_t i) {
      return i / 70 % 60 < (i < 60 * 70 ? 25 : 60) ? 0.1 : std::numeric_limits<double>::quiet_NaN();
    });
  };
  const std::vector<std::function<void(Case&)>> changes{
      poisoned_bias, [&](Case& c) { poisoned_bias(c), c.options.softcap = 3, c.of_options = true; },
      [](Case& c) { c.options.score = Score("score + 1.0f / (seqlen_q - query)"); },
      [](Case& c) { c.options.score = Score("score * score + 1.0f / (seqlen_q - query)"); }};
  for (const char* architecture : {"sm_80", "sm_90a"})
    for (const auto& change : changes) {
      Case c({.seqlen_q = 60, .seqlen_kv = 70, .num_heads_q = 2, .num_heads_kv = 1, .head_dim = 32, .head_dim_v = 32});
      ints(c, &O::seqused_q, {25, 60});
      change(c);
      c.check(engine_for(architecture), true);
    }
}

TEST_CASE("ragged batches whose lengths are wrong are refused where an engine looks") {
  EngineOptions options = tests::emulating("sm_80");
  options.check_pages = true;
  Engine engine(options);
  Case c({.batch = 1, .seqlen_q = 30, .seqlen_kv = 40});
  c.pack_queries(), c.pack_keys();
  ints(c, &O::cu_seqlens_q, {0, 20, 30});
  ints(c, &O::cu_seqlens_kv, {0, 25, 40});
  c.check(engine);
  HostTensor decreasing(DType::i32, {3});
  store_element(decreasing.data(), DType::i32, 1, 20), store_element(decreasing.data(), DType::i32, 2, 10);
  AttentionOptions wrong = c.options;
  wrong.cu_seqlens_kv = decreasing.view();
  const HostTensor lse(DType::f32, c.lse_shape()), out(DType::bf16, c.dout.shape());
  HostTensor dq(DType::bf16, c.q.shape());
  std::string message;
  CHECK(tests::code_of(
            [&] {
              engine.attention_backward(c.dout.view(), c.q.view(), c.k.view(), c.v.view(), out.view(), lse.view(),
                                        {dq.view(), {}, {}}, wrong);
            },
            &message) == ErrorCode::invalid_argument);
  CHECK(message.substr(0, 14) == "cu_seqlens_kv:");
}

TEST_CASE("deterministic gradients of packed sequences have the same bits under every schedule") {
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    CAPTURE(architecture);
    Case c = packed_case(64, 64);
    c.variant = parse_backward_variant("mma-q64-kv32-w4-r1-s2");
    c.deterministic = true;
    std::vector<double> first;
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      EngineOptions options = tests::emulating(architecture);
      options.emulation.seed = seed, options.emulation.resident_blocks = seed % 3 == 0 ? 2 : 24;
      options.emulation.most_instructions = 100'000'000;  // where blocks would wait for each other for ever
      Engine engine(options);
      const std::vector<double> dq = c.make(engine).dq.to_doubles();
      if (first.empty()) first = dq;
      CHECK(dq == first);
    }
    c.check(engine_for(architecture));
  }
}

TEST_CASE("a ragged batch whose sequences are all empty, and one with heads of keys alone, has gradients of 0") {
  Case empty({.batch = 1, .seqlen_q = 5, .seqlen_kv = 6});
  empty.pack_queries(), empty.pack_keys();
  ints(empty, &O::cu_seqlens_q, {0, 0, 0});
  ints(empty, &O::cu_seqlens_kv, {0, 0, 0});
  empty.check(engine_for("sm_80"));
  Case no_batch({.batch = 1, .seqlen_q = 5, .seqlen_kv = 6});
  no_batch.pack_queries(), no_batch.pack_keys();
  ints(no_batch, &O::cu_seqlens_q, {0});
  ints(no_batch, &O::cu_seqlens_kv, {0});
  no_batch.check(engine_for("sm_80"));
  Case keys_alone({.batch = 1, .seqlen_q = 5, .seqlen_kv = 6, .num_heads_q = 0});
  ints(keys_alone, &O::seqused_kv, {4});
  keys_alone.check(engine_for("sm_80"));
}
