// SPDX-License-Identifier: Apache-2.0
// Gradients of sinks, slopes and biases by kernels in the emulator, against the reference.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "flashjit/flashjit.h"
#include "tests/support/backward_case.h"
#include "tests/support/emulating_engine.h"
#include "tests/support/error_code.h"

namespace {

using namespace flashjit;
using tests::code_of;
using tests::engine_for;

using Case = tests::BackwardCase;
using Sizes = tests::BackwardSizes;
using O = AttentionOptions;

Case case_of_options(const Sizes& sizes = {}) {
  Case c(sizes);
  c.of_options = true;
  c.dlse = HostTensor::random_normal(DType::f32, c.lse_shape(), 5);
  return c;
}

}  // namespace

TEST_CASE("gradients of sinks, by both families, for all batch entries and for each, in rows that see nothing too") {
  struct Way {
    const char *architecture, *variant;
    int head_dim;
  };
  for (const auto& [architecture, variant, head_dim] : {Way{"sm_80", "mma-q64-kv128-w8-r1-s1", 32},
                                                        {"sm_90a", "hopper-q128-kv128", 64},
                                                        {"sm_90a", "hopper-q64-kv128", 128},
                                                        {"sm_90a", "hopper-q80-kv128", 128},
                                                        {"sm_90a", "hopper-q64-kv64", 256}})
    for (const Dims& shape : {Dims{4}, Dims{2, 4}})
      for (const bool sees_little : {false, true}) {
        CAPTURE(std::string(variant));
        CAPTURE(shape.size());
        CAPTURE(sees_little);
        Case c = case_of_options({.seqlen_q = 150, .seqlen_kv = 100, .head_dim = head_dim, .head_dim_v = head_dim});
        c.variant = parse_backward_variant(variant);
        if (sees_little) c.options.causal = true, c.options.window.left = 20;
        c.values(&O::sinks, DType::f32, shape, [](std::int64_t i) { return 2. - i; });
        c.check(engine_for(architecture));
      }
}

TEST_CASE("gradients of slopes and of a bias, behind a cap, of every shape that these may have") {
  const std::vector<std::function<void(Case&)>> options{
      [](Case& c) { c.values(&O::alibi_slopes, DType::f32, {4}, [](std::int64_t i) { return 0.05 * (i - 1); }); },
      [](Case& c) {
        c.values(&O::alibi_slopes, DType::f32, {2, 4}, [](std::int64_t i) { return 0.02 * i; });
      },
      [](Case& c) {
        c.values(&O::bias, DType::f32, {2, 4, 70, 100}, [](std::int64_t i) { return i * 7 % 13 * .2; });
      },
      [](Case& c) {
        c.values(&O::bias, DType::bf16, {1, 4, 70, 100}, [](std::int64_t i) { return i * 7 % 13 * .2; });
      },
      [](Case& c) {
        c.values(&O::bias, DType::f16, {2, 1, 70, 100}, [](std::int64_t i) { return i * 7 % 13 * .2; });
      },
      [](Case& c) {
        c.values(&O::bias, DType::f32, {2, 4, 1, 100}, [](std::int64_t i) { return i * 7 % 13 * .2; });
      },
      [](Case& c) {
        c.values(&O::bias, DType::bf16, {1, 1, 1, 100}, [](std::int64_t i) { return i * 7 % 13 * .2; });
      },
      [](Case& c) {
        c.values(&O::bias, DType::bf16, {1, 4, 70, 100}, [](std::int64_t i) { return i * 5 % 11 * .1; });
        c.values(&O::alibi_slopes, DType::f32, {4}, [](std::int64_t i) { return 0.03 * i; });
        c.values(&O::sinks, DType::f32, {4}, [](std::int64_t i) { return 1. - i; });
      }};
  for (std::size_t i = 0; i < options.size(); ++i)
    for (const bool is_capped : {false, true}) {
      CAPTURE(i);
      CAPTURE(is_capped);
      Case c = case_of_options({.head_dim = 32, .head_dim_v = 32});
      options[i](c);
      if (is_capped) c.options.softcap = 2, c.options.causal = true;
      c.check(engine_for(i % 2 == 0 ? "sm_80" : "sm_90a"), i % 3 == 0);
    }
}

TEST_CASE("gradients of slopes and of a bias by masks, dropout, scales and variants") {
  struct Way {
    const char* variant;
    std::function<void(Case&)> changed;
  };
  const std::vector<Way> ways{
      {"q64-kv128-w8-r1-s1",
       [](Case& c) {
         c.options.window = {30, 9};
       }},
      {"q32-kv32-w4-r1-s2", [](Case& c) { c.options.chunk = 24, c.options.causal = true; }},
      {"q128-kv128-w8-r2-s1",
       [](Case& c) {
         c.options.dropout = {0.4, 1, 2};
       }},
      {"q16-kv64-w4-r1-s1", [](Case& c) { c.options.softmax_scale = -0.3f; }},
      {"q64-kv64-w4-r1-s2",
       [](Case& c) {
         c.values(&O::documents, DType::i32, {1, c.sizes.seqlen_kv}, [](std::int64_t i) { return i / 30 % 2; });
       }},
      {"q64-kv128-w8-r2-s1",
       [](Case& c) {
         c.values(&O::boolean_mask, DType::boolean, {1, 1, c.sizes.seqlen_q, c.sizes.seqlen_kv},
                  [](std::int64_t i) { return i % 5 != 2 && i % 300 > 7; });
       }},
      {"q64-kv16-w4-r1-s1", [](Case& c) {  // of 32 keys that are drawn at once a block has half
         c.options.dropout = {0.3, 3, 4};
       }}};
  for (const auto& [queries, keys] : {std::pair{70, 150}, {130, 40}, {1, 129}, {3, 5}})
    for (std::size_t i = 0; i < ways.size(); ++i) {
      CAPTURE(queries);
      CAPTURE(i);
      Case c = case_of_options({.seqlen_q = queries, .seqlen_kv = keys, .head_dim = 32, .head_dim_v = 40});
      c.variant = parse_backward_variant(ways[i].variant);
      c.options.softcap = i % 2 == 0 ? 3 : 0;
      ways[i].changed(c);
      c.values(&O::bias, DType::bf16, {i % 2 == 0 ? 2 : 1, 4, i < 3 ? queries : 1, keys},
               [](std::int64_t at) { return at * 5 % 11 * .1; });
      c.values(&O::alibi_slopes, DType::f32, {4}, [](std::int64_t head) { return 0.03 * head; });
      c.check(engine_for("sm_80"), i % 3 == 1);
    }
}

TEST_CASE("gradients of options alone, of those of empty calls, and into strided memory") {
  Engine& engine = engine_for("sm_90a");
  const auto filled = [](DType dtype, const Dims& shape, double value) {
    HostTensor tensor(dtype, shape);
    for (std::size_t i = 0; i < tensor.element_count(); ++i)
      store_element(tensor.data(), dtype, static_cast<std::int64_t>(i), value);
    return tensor;
  };
  const auto sum = [](const HostTensor& tensor) {
    double all = 0;
    for (const double value : tensor.to_doubles()) all += std::abs(value);
    return all;
  };
  const HostTensor sinks = filled(DType::f32, {4}, 0.5), slopes = filled(DType::f32, {4}, 0.1),
                   bias = filled(DType::f16, {1, 1, 1, 100}, 0.25);
  const auto gradients = [&](const Case& c, const GradientTensors& into) {
    HostTensor out(DType::bf16, c.dout.shape()), lse(DType::f32, c.lse_shape());
    AttentionOptions options;
    options.sinks = sinks.view();
    if (into.dslopes) options.alibi_slopes = slopes.view();
    if (into.dbias) options.bias = bias.view();
    AttentionOptions forward = options;
    forward.lse = lse.view();
    engine.attention(c.q.view(), c.k.view(), c.v.view(), out.view(), forward);
    engine.attention_backward(c.dout.view(), c.q.view(), c.k.view(), c.v.view(), out.view(), lse.view(), into, options);
  };
  const Case usual, no_queries({.seqlen_q = 0}), no_batch({.batch = 0});
  for (const Case* c : {&usual, &no_queries, &no_batch}) {
    HostTensor dsinks = filled(DType::f32, {4}, 7), dslopes = dsinks, dbias = filled(DType::f16, {1, 1, 1, 100}, 7);
    GradientTensors into;
    into.dsinks = dsinks.view();
    gradients(*c, into);
    const double of_sinks = sum(dsinks);
    into.dslopes = dslopes.view(), into.dbias = dbias.view();
    gradients(*c, into);
    CHECK((of_sinks > 0) == (c == &usual));
    CHECK((sum(dsinks) > 0) == (c == &usual));
    CHECK((sum(dslopes) > 0) == (c == &usual));
    CHECK((sum(dbias) > 0) == (c == &usual));
  }
  HostTensor packed(DType::f32, {1, 1, 1, 100}), among_others = filled(DType::f32, {1, 1, 3, 100}, 7);
  Tensor middle = among_others.view();
  middle.shape[2] = 1, middle.data = static_cast<float*>(middle.data) + 100;
  GradientTensors into;
  into.dbias = packed.view();
  gradients(usual, into);
  into.dbias = middle;
  gradients(usual, into);
  const std::vector<double> all = among_others.to_doubles(), wanted = packed.to_doubles();
  for (std::size_t i = 0; i < all.size(); ++i)
    CHECK(all[i] == doctest::Approx(i / 100 == 1 ? wanted[i % 100] : 7).epsilon(1e-3));
}

TEST_CASE("gradients of options are refused by the name of what is wrong") {
  Engine& engine = engine_for("sm_80");
  const Case c;
  HostTensor out(DType::bf16, c.dout.shape()), lse(DType::f32, c.lse_shape()), of_heads(DType::f32, {4}),
      more_heads(DType::f32, {2, 4}), in_f16(DType::f16, {4}), bias(DType::bf16, {1, 1, 70, 100}),
      dbias(DType::f16, {1, 1, 70, 100});
  std::string message;
  const auto refusal = [&](const GradientTensors& into, const AttentionOptions& options = {}) {
    CHECK(code_of(
              [&] {
                engine.attention_backward(c.dout.view(), c.q.view(), c.k.view(), c.v.view(), out.view(), lse.view(),
                                          into, options);
              },
              &message) == ErrorCode::invalid_argument);
    return message;
  };
  GradientTensors into;
  into.dslopes = of_heads.view();
  CHECK(refusal(into) == "dslopes: must not be given without alibi_slopes, of which it is the gradient");
  AttentionOptions options;
  options.sinks = options.alibi_slopes = more_heads.view();
  options.bias = bias.view();
  CHECK(refusal(into, options) == "dslopes: shape must be [2, 4] like that of alibi_slopes, was [4]");
  into = {};
  into.dsinks = in_f16.view();
  CHECK(refusal(into, options) == "dsinks: dtype must be f32, was f16");
  into.dsinks = more_heads.view();
  CHECK(refusal(into, options).find("dsinks: must not overlap alibi_slopes, shared memory at") == 0);
  into = {};
  into.dbias = dbias.view();
  CHECK(refusal(into, options) == "dbias: dtype must be bf16 or f32, was f16");
  into.dbias = bias.view(), options.bias = HostTensor(DType::bf16, {1, 1, 70, 100}).view();
  BackwardOptions deterministic;
  deterministic.deterministic = true;
  CHECK(code_of(
            [&] {
              engine.attention_backward(c.dout.view(), c.q.view(), c.k.view(), c.v.view(), out.view(), lse.view(), into,
                                        options, deterministic);
            },
            &message) == ErrorCode::unsupported);
  CHECK(message.find("deterministic: must be false for the gradient of a bias of shape [1, 1, 70, 100], ") == 0);
}
