// SPDX-License-Identifier: Apache-2.0
// Partial results joined on the GPU, against the same in double precision.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "flashjit/flashjit.h"
#include "tests/gpu/attention_case.h"

namespace {

using namespace flashjit;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Random results over parts of the keys; every fifth row saw none of a part's.
struct Parts {
  Parts(DType dtype, const Dims& shape, int count) {
    for (int i = 0; i < count; ++i) {
      const auto seed = static_cast<std::uint64_t>(2 * i + 1);
      HostTensor out = HostTensor::random_normal(dtype, shape, seed);
      HostTensor lse = HostTensor::random_normal(DType::f32, {shape[0], shape[2], shape[1]}, seed + 1);
      for (std::int64_t row = i; row < static_cast<std::int64_t>(lse.element_count()); row += 5)
        store_element(lse.data(), DType::f32, row, -kInfinity);
      results.push_back({shape, out.to_doubles(), lse.to_doubles()});
      outs.push_back(out.to_device(nullptr, tests::test_device().ordinal));
      lses.push_back(lse.to_device(nullptr, tests::test_device().ordinal));
      views.push_back({outs.back().view(), lses.back().view()});
    }
  }

  std::vector<reference::Result> results;
  std::vector<DeviceTensor> outs, lses;
  std::vector<Partial> views;
};

double distance(const DeviceTensor& found, const std::vector<double>& expected) {
  const std::vector<double> values = HostTensor::from_device(found).to_doubles();
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double apart = values[i] == expected[i] ? 0 : std::abs(values[i] - expected[i]);
    if (!(apart <= worst)) worst = apart;
    if (std::isnan(apart)) return apart;
  }
  return worst;
}

double rounding(DType dtype) { return dtype == DType::f32 ? 1e-5 : dtype == DType::f16 ? 4e-3 : 3e-2; }

void expect_merged(DType part, DType whole, const Dims& shape, int count, bool in_place = false) {
  CAPTURE(to_string(part));
  CAPTURE(to_string(whole));
  CAPTURE(to_string(shape));
  CAPTURE(count);
  Parts parts(part, shape, count);
  const reference::Result expected = reference::merge(parts.results);
  const int device = tests::test_device().ordinal;
  const DeviceTensor out = in_place ? std::move(parts.outs[0]) : DeviceTensor::allocate(whole, shape, nullptr, device),
                     lse = in_place
                               ? std::move(parts.lses[0])
                               : DeviceTensor::allocate(DType::f32, {shape[0], shape[2], shape[1]}, nullptr, device);
  MergeOptions opts;
  opts.lse = lse.view();
  tests::shared_engine().merge(parts.views, out.view(), opts);
  CHECK(distance(out, expected.out) <= rounding(whole));
  CHECK(distance(lse, expected.lse) <= 1e-5);
}

}  // namespace

TEST_SUITE_BEGIN("sanitizer");

TEST_CASE("parts are joined, in place too, by the sanitizers' leave") {
  expect_merged(DType::bf16, DType::f32, {2, 33, 3, 72}, 3);
  expect_merged(DType::f32, DType::f32, {1, 17, 2, 264}, 2, true);
}

TEST_SUITE_END();
TEST_SUITE_BEGIN("merge");

TEST_CASE("parts of each dtype are joined to each, however many there are and however wide") {
  for (const DType part : {DType::f16, DType::bf16, DType::f32})
    for (const DType whole : {DType::f16, DType::bf16, DType::f32}) expect_merged(part, whole, {2, 130, 5, 128}, 3);
  for (const int count : {1, 2, 8, 16, 17, 40}) expect_merged(DType::f32, DType::f32, {1, 300, 4, 64}, count);
  for (const std::int64_t head_dim : {8, 40, 192, 256, 576})
    expect_merged(DType::f32, DType::bf16, {1, 77, 3, head_dim}, 4);
  expect_merged(DType::f32, DType::f32, {3, 1000, 8, 128}, 5, true);
}

TEST_CASE("attention over parts of the keys is joined to attention over all of them") {
  const tests::Sizes sizes{.batch = 2, .seqlen_q = 70, .seqlen_kv = 1000, .num_heads_q = 4, .num_heads_kv = 2};
  const tests::AttentionCase c(sizes);
  const auto keys = [](Tensor all, std::int64_t first, std::int64_t end) {
    all.data = static_cast<std::uint16_t*>(all.data) + first * all.strides[1];
    all.shape[1] = end - first;
    return all;
  };
  Engine& engine = tests::shared_engine();
  std::vector<DeviceTensor> outs, lses;
  std::vector<Partial> parts;
  for (const auto& [first, end] : {std::pair{0, 300}, {300, 301}, {301, 1000}}) {
    AttentionOptions opts;
    lses.push_back(DeviceTensor::allocate(DType::f32, c.lse_shape, nullptr, tests::test_device().ordinal));
    opts.lse = lses.back().view();
    outs.push_back(engine.attention(c.q.view(), keys(c.k.view(), first, end), keys(c.v.view(), first, end), opts));
    parts.push_back({outs.back().view(), lses.back().view()});
  }
  const DeviceTensor out = engine.merge(parts);
  const reference::Result exact = reference::attention(c.q_host.view(), c.k_host.view(), c.v_host.view()),
                          low =
                              reference::attention_in_low_precision(c.q_host.view(), c.k_host.view(), c.v_host.view());
  CHECK(reference::compare(HostTensor::from_device(out), exact, low).passed);
}

TEST_SUITE_END();
