// SPDX-License-Identifier: Apache-2.0
// The call in its forms: owning output, the caller's memory, LSE, strides and empty tensors. Small shapes.
#include <doctest/doctest.h>

#include <cmath>

#include "tests/gpu/attention_case.h"

using namespace flashjit;
using tests::AttentionCase;
using tests::shared_engine;
using tests::Sizes;

// initcheck of compute-sanitizer does not see what Hopper's copy engine writes: it calls each result uninitialized
// whose memory no copy has filled before. So these are not among its tests.
TEST_SUITE_BEGIN("owning calls");

TEST_CASE("the owning call returns what the reference computes, in the inputs' dtype") {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const AttentionCase c({}, dtype);
    const DeviceTensor out = shared_engine().attention(c.q, c.k, c.v);
    CHECK(out.dtype() == dtype);
    CHECK(out.shape() == c.out_shape);
    c.check_out(out);
  }
}

TEST_CASE("the free functions compute the same on the default engine") {
  const AttentionCase c;
  c.check_out(attention(c.q, c.k, c.v));
  const DeviceTensor out = c.poisoned_out();
  attention(c.q, c.k, c.v, out);
  c.check_out(out);
}

TEST_SUITE_END();
TEST_SUITE_BEGIN("sanitizer");

TEST_CASE("causal attention writes its output and LSE into the caller's memory") {
  for (const Sizes& sizes :
       {Sizes{2, 33, 77, 4, 2, 64, 64}, Sizes{1, 77, 33, 4, 1, 64, 64}, Sizes{1, 1, 40, 2, 2, 64, 64}}) {
    const AttentionCase c(sizes);
    const DeviceTensor out = c.poisoned_out(), lse = c.poisoned_lse();
    AttentionOptions opts;
    opts.causal = true;
    opts.lse = lse.view();
    shared_engine().attention(c.q, c.k, c.v, out, opts);
    c.check_out_and_lse(out, lse, opts);
  }
}

TEST_CASE("every head dim of the corners, with another one for v") {
  for (const Sizes& sizes :
       {Sizes{1, 20, 50, 2, 1, 8, 8}, Sizes{1, 20, 50, 2, 1, 72, 40}, Sizes{1, 20, 50, 2, 1, 256, 256}}) {
    const AttentionCase c(sizes);
    const DeviceTensor out = c.poisoned_out();
    shared_engine().attention(c.q, c.k, c.v, out);
    c.check_out(out);
  }
}

TEST_CASE("the scale may be given, zero or negative") {
  const AttentionCase c;
  for (const float scale : {0.3f, 0.0f, -0.2f}) {
    AttentionOptions opts;
    opts.softmax_scale = scale;
    opts.causal = true;
    CAPTURE(scale);
    const DeviceTensor out = c.poisoned_out();
    shared_engine().attention(c.q, c.k, c.v, out, opts);
    c.check_out(out, opts);
  }
}

TEST_CASE("memory in (batch, heads, seqlen, dim) order is a view of the same call") {
  const Sizes s{2, 33, 77, 4, 2, 64, 32};
  const AttentionCase c(s);
  const auto transposed = [](const HostTensor& host) {  // the same values in the other order
    const Dims& d = host.shape();
    HostTensor result(host.dtype(), {d[0], d[2], d[1], d[3]});
    for (std::int64_t b = 0; b < d[0]; ++b)
      for (std::int64_t i = 0; i < d[1]; ++i)
        for (std::int64_t h = 0; h < d[2]; ++h)
          for (std::int64_t e = 0; e < d[3]; ++e) {
            const double value = load_element(host.data(), host.dtype(), ((b * d[1] + i) * d[2] + h) * d[3] + e);
            store_element(result.data(), host.dtype(), ((b * d[2] + h) * d[1] + i) * d[3] + e, value);
          }
    return result;
  };
  const auto view_of = [](const DeviceTensor& bhsd) {
    const Dims& d = bhsd.shape();
    return Tensor(bhsd.data(), bhsd.dtype(), {d[0], d[2], d[1], d[3]}, {d[1] * d[2] * d[3], d[3], d[2] * d[3], 1});
  };
  const DeviceTensor q = transposed(c.q_host).to_device(), k = transposed(c.k_host).to_device(),
                     v = transposed(c.v_host).to_device();
  const DeviceTensor out =
      AttentionCase::poisoned(DType::bf16, {s.batch, s.num_heads_q, s.seqlen_q, s.head_dim_v}).to_device();
  shared_engine().attention(view_of(q), view_of(k), view_of(v), view_of(out));
  // Transposing back means swapping the same two dimensions again.
  c.check_out(transposed(HostTensor::from_device(out)));
}

TEST_CASE("a slice of a fused tensor is read in place, and its neighbours are not written") {
  const AttentionCase c({1, 16, 16, 2, 2, 64, 64});
  const Dims fused_shape{1, 16, 3, 2, 64};  // batch, row, slot, head, dim
  const DeviceTensor fused = AttentionCase::poisoned(DType::bf16, fused_shape).to_device();
  constexpr std::int64_t kSlot = 2 * 64;
  const auto slot = [&](int i) {
    auto* data = static_cast<char*>(fused.data()) + i * kSlot * 2;
    return Tensor(data, DType::bf16, c.out_shape, {16 * 3 * kSlot, 3 * kSlot, 64, 1});
  };
  shared_engine().attention(c.q, c.k, c.v, slot(1));
  const HostTensor host = HostTensor::from_device(fused);
  HostTensor out(DType::bf16, c.out_shape);
  int written_beside = 0;
  for (std::int64_t i = 0; i < 16 * 3 * kSlot; ++i) {
    const double value = load_element(host.data(), DType::bf16, i);
    const std::int64_t row = i / (3 * kSlot), in_row = i % (3 * kSlot);
    if (in_row / kSlot == 1)
      store_element(out.data(), DType::bf16, row * kSlot + in_row % kSlot, value);
    else
      written_beside += std::isnan(value) ? 0 : 1;
  }
  CHECK(written_beside == 0);
  c.check_out(out);
}

TEST_CASE("without keys the output is zero and the LSE minus infinity") {
  const AttentionCase c({2, 9, 0, 2, 2, 64, 64});
  const DeviceTensor out = c.poisoned_out(), lse = c.poisoned_lse();
  AttentionOptions opts;
  opts.lse = lse.view();
  shared_engine().attention(c.q, c.k, c.v, out, opts);
  for (const double value : HostTensor::from_device(out).to_doubles()) CHECK(value == 0.0);
  for (const double value : HostTensor::from_device(lse).to_doubles()) CHECK(value == -INFINITY);
}

TEST_CASE("empty batches, heads and queries need no launch") {
  for (const Sizes& sizes :
       {Sizes{0, 9, 9, 2, 2, 64, 64}, Sizes{2, 0, 9, 2, 2, 64, 64}, Sizes{2, 9, 9, 0, 0, 64, 64}}) {
    const AttentionCase c(sizes);
    const DeviceTensor out = shared_engine().attention(c.q, c.k, c.v);
    CHECK(out.shape() == c.out_shape);
    CHECK(out.size_bytes() == 0);
  }
}

TEST_CASE("the caller may choose the variant") {
  const AttentionCase c;
  for (const char* name : {"v1", "v3"}) {
    AttentionOptions opts;
    opts.variant = parse_variant(name);
    CAPTURE(name);
    c.check_out(shared_engine().attention(c.q, c.k, c.v, opts));
  }
}

TEST_SUITE_END();
