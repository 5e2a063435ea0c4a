// SPDX-License-Identifier: Apache-2.0
#include "runtime/reference/aligned_sums.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace flashjit::reference {
namespace {

constexpr int kBitsKept = 13;  // behind the point

// Of normal numbers; subnormal ones have their point there, too.
int smallest_exponent(DType format) noexcept { return format == DType::e5m2 ? -14 : -6; }

// Of a number that is not subnormal as an f32; far below all others of 0.
int exponent_of(float value) noexcept {
  return static_cast<int>(std::bit_cast<std::uint32_t>(value) >> 23 & 0xff) - 127;
}

}  // namespace

float add_aligned(float sum, const float* a, const float* b, std::int64_t stride, int count, DType format) noexcept {
  const int smallest = smallest_exponent(format);
  const auto exponent_of_element = [&](float element) { return std::max(exponent_of(element), smallest); };
  int largest = exponent_of(sum);
  double plain = sum;
  for (int i = 0; i < count; ++i) {
    largest = std::max(largest, exponent_of_element(a[i]) + exponent_of_element(b[i * stride]));
    plain += 1.0 * a[i] * b[i * stride];
  }
  if (!std::isfinite(plain)) return static_cast<float>(plain);
  const double to_units = std::ldexp(1.0, kBitsKept - largest);
  auto units = static_cast<std::int64_t>(sum * to_units);  // towards 0, as each term
  for (int i = 0; i < count; ++i) units += static_cast<std::int64_t>(to_units * a[i] * b[i * stride]);
  const auto exact = static_cast<float>(static_cast<double>(units) / to_units);
  const double of_sum = std::ldexp(1.0, kBitsKept - exponent_of(exact));
  return static_cast<float>(std::trunc(exact * of_sum) / of_sum);
}

}  // namespace flashjit::reference
