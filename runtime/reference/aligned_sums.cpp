// SPDX-License-Identifier: Apache-2.0
#include "runtime/reference/aligned_sums.h"

#include <algorithm>
#include <cmath>

namespace flashjit::reference {
namespace {

constexpr int kBitsKept = 13;          // behind the point
constexpr int kSmallestExponent = -6;  // of normal numbers of e4m3; subnormal ones have their point there, too

int exponent_of(float element) noexcept {
  return element == 0 ? kSmallestExponent : std::max(std::ilogb(element), kSmallestExponent);
}

double truncated(double value, int exponent) noexcept {
  return std::ldexp(std::trunc(std::ldexp(value, kBitsKept - exponent)), exponent - kBitsKept);
}

}  // namespace

float add_aligned(float sum, const float* a, const float* b, std::int64_t stride, int count) noexcept {
  double plain = sum;
  for (int i = 0; i < count; ++i) plain += 1.0 * a[i] * b[i * stride];
  if (!std::isfinite(plain)) return static_cast<float>(plain);
  int largest = sum == 0 ? 2 * kSmallestExponent : std::ilogb(sum);
  for (int i = 0; i < count; ++i) largest = std::max(largest, exponent_of(a[i]) + exponent_of(b[i * stride]));
  double total = truncated(sum, largest);
  for (int i = 0; i < count; ++i) total += truncated(1.0 * a[i] * b[i * stride], largest);
  return static_cast<float>(total == 0 ? 0 : truncated(total, std::ilogb(total)));
}

}  // namespace flashjit::reference
