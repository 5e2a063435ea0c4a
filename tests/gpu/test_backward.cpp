// SPDX-License-Identifier: Apache-2.0
// Gradients on the GPU against the reference.
#include <doctest/doctest.h>

#include <vector>

#include "tests/gpu/attention_case.h"
#include "tests/gpu/driver_calls.h"
#include "tests/support/backward_case.h"
#include "tests/support/ragged_backward_case.h"

namespace {

using namespace flashjit;
using Case = tests::BackwardCase;
using Sizes = tests::BackwardSizes;
using tests::shared_engine;

constexpr const char* kSteps = "hopper-q80-kv128";

// Whether there are kernels of the Hopper family.
bool has_hopper() { return shared_engine().system().devices.at(0).architecture == "sm_90a"; }

}  // namespace

TEST_SUITE("sanitizer") {
  TEST_CASE("gradients of narrow and of wide heads") {
    for (const int head_dim : {64, 72, 160, 256})
      for (const bool is_plain : {true, false}) {  // where there are more families, of another one
        Case c({.head_dim = head_dim, .head_dim_v = head_dim});
        c.options.causal = true;
        if (!is_plain) c.options.softcap = 4, c.options.dropout = {0.2, 5, 6};
        c.deterministic = !is_plain;
        c.check(shared_engine());
        if (!is_plain || head_dim == 160) continue;
        c.deterministic = true;
        c.check(shared_engine());
      }
  }
  TEST_CASE("gradients by steps of 80 queries, of lengths around a step") {
    if (!has_hopper()) {
      MESSAGE("device 0 is not of sm_90a: nothing to test");
      return;
    }
    for (const int head_dim : {72, 128})
      for (const std::int64_t queries : {79, 81, 240, 330}) {
        CAPTURE(head_dim);
        CAPTURE(queries);
        Case c({.seqlen_q = queries, .seqlen_kv = 333, .head_dim = head_dim, .head_dim_v = head_dim});
        c.variant = parse_backward_variant(kSteps);
        c.options.causal = queries > 100;
        c.deterministic = queries == 330;
        c.check(shared_engine(), queries == 81);
      }
  }
  TEST_CASE("gradients of large heads, of lengths that end within a block, by the default and by mma.sync") {
    const BackwardVariant of_mma = parse_backward_variant("mma-q64-kv64-w8-r2-s2");
    for (const int head_dim : {264, 512})
      for (const bool causal : {false, true}) {
        CAPTURE(head_dim);
        CAPTURE(causal);
        Case c({.batch = 1, .seqlen_q = 200, .seqlen_kv = 270, .head_dim = head_dim, .head_dim_v = head_dim});
        c.options.causal = causal;
        c.check(shared_engine(), causal);
        c.variant = of_mma;
        c.check(shared_engine(), causal);
      }
    Case packed = tests::packed_case(320, 320);
    packed.options.causal = true;
    packed.check(shared_engine());
    packed.variant = of_mma;
    packed.check(shared_engine());
  }
  TEST_CASE("gradients of sinks, slopes and biases") {
    for (const int head_dim : {64, 128, 256})
      for (const std::int64_t queries : {1, 300}) {  // of a bias for all of them, and of one for each
        CAPTURE(head_dim);
        CAPTURE(queries);
        Case c({.seqlen_q = 300, .seqlen_kv = 333, .head_dim = head_dim, .head_dim_v = head_dim});
        c.of_options = true;
        c.options.causal = true;
        c.values(&AttentionOptions::sinks, DType::f32, {2, 4}, [](std::int64_t i) { return 2. - i; });
        c.check(shared_engine());
        c.options.softcap = 3;
        c.values(&AttentionOptions::alibi_slopes, DType::f32, {4}, [](std::int64_t i) { return 0.02 * i; });
        c.values(&AttentionOptions::bias, DType::bf16, {1, 4, queries, 333},
                 [](std::int64_t i) { return i * 7 % 13 * .2; });
        c.check(shared_engine(), queries == 1);
      }
  }
}

TEST_CASE("gradients of head dims of every kind") {
  for (const int head_dim : {8, 24, 40, 72, 96, 104, 136, 176, 200, 248}) {
    CAPTURE(head_dim);
    Case c({.batch = 1, .seqlen_q = 200, .seqlen_kv = 333, .head_dim = head_dim, .head_dim_v = 256 - head_dim});
    c.options.causal = head_dim % 16 == 0;
    c.check(shared_engine());
  }
}

TEST_CASE("gradients of everything that changes scores and probabilities") {
  const auto changes = tests::changes_of_scores();
  for (std::size_t i = 0; i < changes.size(); ++i)
    for (const int head_dim : {64, 128, 192, 264, 512}) {
      CAPTURE(i);
      CAPTURE(head_dim);
      Case c({.head_dim = head_dim, .head_dim_v = head_dim}, i % 2 == 0 ? DType::bf16 : DType::f16);
      changes[i](c);
      c.check(shared_engine(), i % 3 == 0);
    }
}

TEST_CASE("gradients of long sequences, with windows and grouped heads") {
  for (const int head_dim : {64, 128, 256}) {
    Case c({.batch = 1,
            .seqlen_q = 1500,
            .seqlen_kv = 2100,
            .num_heads_q = 6,
            .num_heads_kv = 2,
            .head_dim = head_dim,
            .head_dim_v = head_dim});
    c.options.window = {700, 0};
    c.check(shared_engine());
    c.variant = parse_backward_variant(head_dim == 64    ? "mma-q128-kv128-w8-r1-s1"
                                       : head_dim == 128 ? "mma-q64-kv128-w8-r2-s1"
                                                         : "mma-q32-kv32-w4-r1-s1");
    c.check(shared_engine());
    if (head_dim != 128 || !has_hopper()) continue;
    c.variant = parse_backward_variant(kSteps);
    c.check(shared_engine());
  }
}

TEST_CASE("gradients of large heads of every kind, below every mask that is a span") {
  if (!has_hopper()) {
    MESSAGE("device 0 is not of sm_90a: nothing to test");
    return;
  }
  for (int head_dim = 264; head_dim <= kLargestHeadDimV; head_dim += 8)
    for (int mask = 0; mask < 4; ++mask) {
      CAPTURE(head_dim);
      CAPTURE(mask);
      Case c({.batch = 1, .seqlen_q = 333, .seqlen_kv = 450, .head_dim = head_dim, .head_dim_v = head_dim},
             head_dim % 16 == 0 ? DType::bf16 : DType::f16);
      if (mask == 1) c.options.causal = true;
      if (mask == 2) c.options.window = {100, 30};
      if (mask == 3) c.options.chunk = 70, c.options.causal = true;
      if (mask == 2) c.dlse = HostTensor::random_normal(DType::f32, c.lse_shape(), 5);
      c.check(shared_engine(), mask == 3);
    }
  for (const int head_dim : {264, 512})
    for (const bool causal : {false, true}) {
      CAPTURE(head_dim);
      Case packed = tests::packed_case(head_dim, head_dim);
      packed.options.causal = causal;
      packed.check(shared_engine());
      Case lengthy({.batch = 1,
                    .seqlen_q = 1500,
                    .seqlen_kv = 2100,
                    .num_heads_q = 6,
                    .num_heads_kv = 2,
                    .head_dim = head_dim,
                    .head_dim_v = head_dim});
      lengthy.options.causal = causal;
      lengthy.check(shared_engine());
    }
}

TEST_CASE("all gradients of large heads have the same bits in every one of 300 runs") {
  if (!has_hopper()) {
    MESSAGE("device 0 is not of sm_90a: nothing to test");
    return;
  }
  const Case c({.batch = 1, .seqlen_q = 1500, .seqlen_kv = 1500, .head_dim = 512, .head_dim_v = 512});
  const Case::Made first = c.make(shared_engine());
  for (int run = 0; run < 300; ++run) {
    const Case::Made again = c.make(shared_engine());
    CHECK(again.dq.to_doubles() == first.dq.to_doubles());
    CHECK(again.dk.to_doubles() == first.dk.to_doubles());
    CHECK(again.dv.to_doubles() == first.dv.to_doubles());
  }
}

TEST_CASE("dk and dv have the same bits in every run") {
  const Case c({.batch = 2, .seqlen_q = 600, .seqlen_kv = 600});
  const DeviceTensor q = c.q.to_device(), k = c.k.to_device(), v = c.v.to_device(), dout = c.dout.to_device();
  const DeviceTensor lse = DeviceTensor::allocate(DType::f32, c.lse_shape());
  AttentionOptions options;
  options.lse = lse;
  const DeviceTensor out = shared_engine().attention(q, k, v, options);
  const auto gradients = [&] { return shared_engine().attention_backward(dout, q, k, v, out, lse); };
  const Gradients first = gradients();
  const std::vector<double> dk = HostTensor::from_device(first.dk).to_doubles();
  const std::vector<double> dv = HostTensor::from_device(first.dv).to_doubles();
  for (int run = 0; run < 20; ++run) {
    const Gradients again = gradients();
    CHECK(HostTensor::from_device(again.dk).to_doubles() == dk);
    CHECK(HostTensor::from_device(again.dv).to_doubles() == dv);
  }
}

// Beside a stream that keeps half of the SMs busy, so that thread blocks of a launch do not all begin at once.
TEST_CASE("deterministic gradients have the same bits in every one of 1000 runs beside a busy stream") {
  const tests::ScopedContext context(0);
  const tests::ScopedStream busy_stream;
  const HostTensor long_keys = HostTensor::random_normal(DType::bf16, {1, 8192, 1, 128}, 9);
  const DeviceTensor busy_k = long_keys.to_device(), busy_v = long_keys.to_device();
  const DeviceTensor busy_q = HostTensor::random_normal(DType::bf16, {1, 128, 66, 128}, 10).to_device();
  const DeviceTensor busy_out = DeviceTensor::allocate(DType::bf16, busy_q.view().shape);
  AttentionOptions of_busy;
  of_busy.stream = busy_stream.get();
  for (const char* variant : {"", "mma-q64-kv128-w8-r1-s1", kSteps})
    for (const int head_dim : {64, 128, 256}) {
      if (*variant && head_dim != 128) continue;
      if (variant == kSteps && !has_hopper()) continue;
      CAPTURE(head_dim);
      const std::int64_t heads = head_dim > 128 ? 6 : 12;  // with 24 and 12 tiles of keys: more than SMs
      const Case c({.batch = 1,
                    .seqlen_q = 1500,
                    .seqlen_kv = 1500,
                    .num_heads_q = heads,
                    .num_heads_kv = heads,
                    .head_dim = head_dim,
                    .head_dim_v = head_dim});
      const DeviceTensor q = c.q.to_device(), k = c.k.to_device(), v = c.v.to_device(), dout = c.dout.to_device();
      const DeviceTensor lse = DeviceTensor::allocate(DType::f32, c.lse_shape());
      AttentionOptions options;
      options.causal = head_dim != 64;
      AttentionOptions forward = options;
      forward.lse = lse;
      const DeviceTensor out = shared_engine().attention(q, k, v, forward);
      BackwardOptions backward;
      backward.deterministic = true;
      if (*variant) backward.variant = parse_backward_variant(variant);
      std::vector<std::byte> first;
      int different = 0;
      for (int run = 0; run < 1000; ++run) {
        shared_engine().attention(busy_q, busy_k, busy_v, busy_out, of_busy);
        const Gradients made = shared_engine().attention_backward(dout, q, k, v, out, lse, options, backward);
        const HostTensor dq = HostTensor::from_device(made.dq);
        const auto* const bytes = static_cast<const std::byte*>(dq.data());
        const std::vector<std::byte> bits(bytes, bytes + dq.element_count() * size_of(dq.dtype()));
        if (first.empty()) first = bits;
        different += bits != first;
      }
      CHECK(different == 0);
    }
}
