// SPDX-License-Identifier: Apache-2.0
// Sums of products of e4m3 with the bits of a tensor core, by the reference.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "runtime/reference/aligned_sums.h"

using flashjit::reference::add_aligned;

namespace {

constexpr float kLast = 0x1p-13f;  // behind the point of 1

float sum_of(float sum, float a0, float b0, float a1, float b1, flashjit::DType format = flashjit::DType::e4m3) {
  constexpr float kUnused = 9;
  const float a[] = {a0, a1}, b[] = {b0, kUnused, b1, kUnused};
  return add_aligned(sum, a, b, 2, 2, format);
}

}  // namespace

TEST_CASE("terms lose what is more than 13 bits behind the point of the largest") {
  CHECK(sum_of(0, 1, 1, 0x1p-6f, 0x1p-7f) == 1 + kLast);
  CHECK(sum_of(0, 1, 1, 0x1p-7f, 0x1p-7f) == 1);
  CHECK(sum_of(0, 1, -1, 0x1p-6f, -0x1.8p-7f) == -1 - kLast);  // towards 0
  CHECK(sum_of(0, 2, 1, 0x1p-6f, 0x1p-7f) == 2);
}

TEST_CASE("the point of a product is where those of its factors put it, and a sum's where its own exponent does") {
  CHECK(sum_of(-2.25f, 1.5, 1.5, 0x1p-6f, 0x1p-7f) == 0);  // the sum before is larger: 2^-13 is behind its bits
  CHECK(sum_of(-1.25f, 1.5, 1.5, 0x1p-6f, 0x1p-7f) == 1 + kLast);
  CHECK(sum_of(0, 1.5, 1.5, 0x1p-6f, 0x1p-7f) == 2.25f);  // 2.25 + 2^-13 has 14 bits behind its point
}

TEST_CASE("subnormal factors have the point of the smallest normal one") {
  CHECK(sum_of(0, 0x1p-9f, 1, 0, 0) == 0x1p-9f);
  CHECK(sum_of(0, 0x1p-9f, 1, 0x1p-9f, 0x1p-9f) == 0x1p-9f + 0x1p-18f);
  CHECK(sum_of(0, 0x1p-9f, 1, 0x1p-9f, 0x1p-9f * 0x1p-2f) == 0x1p-9f);
}

TEST_CASE("of e5m2 that is further down") {
  const auto sum_of_e5m2 = [](float a0, float b0, float a1, float b1) {
    return sum_of(0, a0, b0, a1, b1, flashjit::DType::e5m2);
  };
  CHECK(sum_of_e5m2(0x1p-9f, 1, 0x1p-9f, 0x1p-11f) == 0x1p-9f + 0x1p-20f);
  CHECK(sum_of_e5m2(0x1p-16f, 1, 0x1p-16f, 0x1p-11f) == 0x1p-16f + 0x1p-27f);
  CHECK(sum_of_e5m2(0x1p-16f, 1, 0x1p-16f, 0x1p-12f) == 0x1p-16f);
}

TEST_CASE("a sum stays where products are 0, and NaN is one") {
  CHECK(sum_of(kLast, 0, 0, 0, 0) == kLast);
  CHECK(sum_of(0, 0, 0, 0, 0) == 0);
  CHECK(std::isnan(sum_of(0, std::numeric_limits<float>::quiet_NaN(), 1, 1, 1)));
}
