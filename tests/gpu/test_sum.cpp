// SPDX-License-Identifier: Apache-2.0
// Rows added up on the GPU, against the same in double precision.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "flashjit/flashjit.h"
#include "tests/gpu/attention_case.h"

namespace {

using namespace flashjit;

void expect_sum(DType part, DType whole, const Dims& shape, int count, bool in_place = false) {
  CAPTURE(to_string(part));
  CAPTURE(to_string(whole));
  CAPTURE(to_string(shape));
  CAPTURE(count);
  const int device = tests::test_device().ordinal;
  std::vector<DeviceTensor> parts;
  std::vector<Tensor> views;
  std::vector<double> expected;
  for (int i = 0; i < count; ++i) {
    const HostTensor made = HostTensor::random_normal(part, shape, static_cast<std::uint64_t>(i + 1));
    const std::vector<double> values = made.to_doubles();
    expected.resize(values.size());
    for (std::size_t j = 0; j < values.size(); ++j) expected[j] += values[j];
    views.push_back(parts.emplace_back(made.to_device(nullptr, device)).view());
  }
  const DeviceTensor out = in_place ? std::move(parts.back()) : DeviceTensor::allocate(whole, shape, nullptr, device);
  tests::shared_engine().sum(views, out.view());
  const std::vector<double> found = HostTensor::from_device(out).to_doubles();
  const double rounding = whole == DType::f32 ? 0 : whole == DType::f16 ? 0x1p-11 : 0x1p-8;
  bool is_right = true;
  for (std::size_t i = 0; i < expected.size(); ++i)
    is_right = is_right && std::abs(found[i] - expected[i]) <= 4e-6 + rounding * std::abs(expected[i]);
  CHECK(is_right);
}

}  // namespace

TEST_SUITE_BEGIN("sanitizer");

TEST_CASE("rows are added up, in place too, by the sanitizers' leave") {
  expect_sum(DType::bf16, DType::f32, {2, 33, 3, 72}, 3);
  expect_sum(DType::f32, DType::f32, {1, 17, 2, 264}, 2, true);
}

TEST_SUITE_END();

TEST_CASE("rows of each dtype are added up to each, few and many, narrow and wide") {
  for (const DType part : {DType::f16, DType::bf16, DType::f32})
    for (const DType whole : {DType::f16, DType::bf16, DType::f32}) expect_sum(part, whole, {2, 301, 8, 128}, 4);
  for (const int count : {1, 2, 16}) expect_sum(DType::f32, DType::bf16, {1, 1000, 4, 64}, count);
  for (const std::int64_t head_dim : {8, 96, 256, 520})
    expect_sum(DType::f32, DType::f32, {1, 77, 3, head_dim}, 2, true);
}
