// SPDX-License-Identifier: Apache-2.0
// The measurements run, repeat as often as asked and compute what the call computes. No figure is judged here.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "tests/gpu/attention_case.h"

using namespace flashjit;
using tests::AttentionCase;
using tests::shared_engine;

TEST_CASE("a measured call computes its output and gives ordered times") {
  const AttentionCase c;
  for (const bool flush : {true, false}) {
    const DeviceTensor out = c.poisoned_out();
    MeasureOptions options;
    options.repeats = 7;
    options.flush_l2 = flush;
    const Timing timing = shared_engine().measure(c.q, c.k, c.v, out, {}, options);
    CHECK(timing.repeats == 7);
    CHECK(timing.min_us > 0);
    CHECK(timing.min_us <= timing.median_us);
    CHECK(timing.median_us <= timing.max_us);
    c.check_out(out);
  }
}

TEST_CASE("the host cost of a call is told beside that of a bare launch") {
  const AttentionCase c;
  const DeviceTensor out = c.poisoned_out();
  const HostCost cost = shared_engine().measure_host_cost(c.q, c.k, c.v, out);
  CHECK(cost.call_us > 0);
  CHECK(cost.bare_launch_us > 0);
  c.check_out(out);
}

TEST_CASE("packed sequences are measured as they are called, without a dimension of batches") {
  const Dims shape{90, 2, 64};
  const HostTensor q = HostTensor::random_normal(DType::bf16, shape, 1),
                   k = HostTensor::random_normal(DType::bf16, shape, 2),
                   v = HostTensor::random_normal(DType::bf16, shape, 3);
  HostTensor starts(DType::i32, {4});
  constexpr std::int32_t kStarts[] = {0, 40, 41, 90};
  std::copy(std::begin(kStarts), std::end(kStarts), static_cast<std::int32_t*>(starts.data()));
  AttentionOptions on_host, options;
  on_host.causal = options.causal = true;
  on_host.cu_seqlens_q = on_host.cu_seqlens_kv = starts.view();
  const reference::Result exact = reference::attention(q.view(), k.view(), v.view(), on_host);
  const reference::Result low = reference::attention_in_low_precision(q.view(), k.view(), v.view(), on_host);

  const DeviceTensor there[] = {q.to_device(), k.to_device(), v.to_device()}, offsets = starts.to_device();
  options.cu_seqlens_q = options.cu_seqlens_kv = offsets.view();
  const HostTensor poison = AttentionCase::poisoned(DType::bf16, shape);
  const DeviceTensor measured = poison.to_device(), timed = poison.to_device();
  CHECK(shared_engine().measure(there[0], there[1], there[2], measured, options).min_us > 0);
  CHECK(shared_engine().measure_host_cost(there[0], there[1], there[2], timed, options).call_us > 0);
  for (const DeviceTensor* out : {&measured, &timed})
    CHECK(reference::compare(HostTensor::from_device(*out), exact, low).passed);
}

TEST_CASE("the ceiling of mma.sync is a rate, alike for both element types") {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const double tflops = shared_engine().measure_mma_ceiling(dtype);
    CHECK(std::isfinite(tflops));
    CHECK(tflops > 1);
  }
}

TEST_CASE("measurements of nothing are refused") {
  const AttentionCase c({0, 9, 9, 2, 2, 64, 64});
  const DeviceTensor out = c.poisoned_out();
  CHECK_THROWS_AS(shared_engine().measure(c.q, c.k, c.v, out), Error);
  const AttentionCase good;
  MeasureOptions options;
  options.repeats = 0;
  CHECK_THROWS_AS(shared_engine().measure(good.q, good.k, good.v, good.poisoned_out(), {}, options), Error);
}
