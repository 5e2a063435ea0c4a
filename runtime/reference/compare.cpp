// SPDX-License-Identifier: Apache-2.0
// Kernels' results against those of the reference.
#include <algorithm>
#include <cmath>
#include <utility>

#include "flashjit/reference.h"
#include "generator/dtype.h"
#include "runtime/call/tensor_dims.h"
#include "runtime/reference/result_shapes.h"
#include "runtime/support/reject.h"

namespace flashjit::reference {
namespace {

// 0 for equal infinities and where both are NaN, as exact results are behind a NaN of the inputs; NaN when one is.
double distance(double a, double b) noexcept {
  return a == b || (std::isnan(a) && std::isnan(b)) ? 0 : std::abs(a - b);
}

// The larger one, and NaN once there was one: std::max would forget it.
void raise(double& max, double value) noexcept {
  if (!std::isnan(max) && !(value <= max)) max = value;
}

struct Expected {
  const std::vector<double>& exact;
  const std::vector<double>& low;
  const std::vector<double>& spread;  // of low; empty for none
};

// A yardstick that overflowed would let everything pass.
bool is_finite(const Expected& expected, std::size_t i) noexcept {
  return std::isfinite(expected.low[i]) && std::isfinite(expected.exact[i]);
}

// Of count values from the first on.
Comparison compare_values(const HostTensor& values, const Expected& expected, double atol, std::size_t first,
                          std::size_t count) {
  Comparison comparison;
  double low_error = 0;
  for (std::size_t i = first; i < first + count; ++i) {
    const double value = load_element(values.data(), values.dtype(), static_cast<std::int64_t>(i));
    raise(comparison.max_error, distance(value, expected.exact[i]));
    if (!is_finite(expected, i)) continue;
    const double farthest =
        distance(expected.low[i], expected.exact[i]) + (expected.spread.empty() ? 0.0 : expected.spread[i]);
    if (std::isfinite(farthest)) low_error = std::max(low_error, farthest);
  }
  comparison.bound = 2 * low_error + atol;
  comparison.passed = comparison.max_error <= comparison.bound;
  return comparison;
}

// Whether a fails where b does not, or else is nearer to its bound or farther beyond it.
bool is_worse(const Comparison& a, const Comparison& b) noexcept {
  if (a.passed != b.passed) return b.passed;
  return a.max_error * b.bound > b.max_error * a.bound;
}

// Each group of values has a bound of its own; the worst one's comparison.
Comparison compare_groups(const HostTensor& values, const Expected& expected, std::size_t group) {
  double largest = 0;
  for (std::size_t i = 0; i < expected.exact.size(); ++i)
    if (is_finite(expected, i)) largest = std::max(largest, std::abs(expected.exact[i]));
  const double atol = 2 * generator::row_of(values.dtype()).rounding * largest;
  Comparison worst = compare_values(values, expected, atol, 0, 0);
  for (std::size_t first = 0; first < expected.exact.size(); first += group) {
    const std::size_t count = std::min(group, expected.exact.size() - first);
    const Comparison comparison = compare_values(values, expected, atol, first, count);
    if (first == 0 || is_worse(comparison, worst)) worst = comparison;
  }
  return worst;
}

// Roundings to 8 bits make of a row that sees few keys more than of one that sees many, whose lost keys its bound would
// hide. A row alone has too few of them for a bound.
std::size_t elements_of_band(const Dims& shape) noexcept {
  constexpr std::int64_t kQueriesOfBand = 16;
  const int rank = shape.size();
  return static_cast<std::size_t>(kQueriesOfBand * shape[rank - 2] * shape[rank - 1]);
}

}  // namespace

void check_same_shape(const char* name, const Dims& shape, const Dims& wanted) {
  if (shape == wanted) return;
  runtime::reject("{}: shape must be {} like that of exact, was {}", name, to_string(wanted), to_string(shape));
}

Dims lse_shape(const Dims& out) {
  return out.size() == runtime::kRank ? Dims{out[runtime::batch_dim], out[runtime::heads_dim], out[runtime::seqlen_dim]}
                                      : Dims{out[1], out[0]};
}

Comparison compare(const HostTensor& out, const Result& exact, const Result& low) {
  check_same_shape("out", out.shape(), exact.shape);
  check_same_shape("low", low.shape, exact.shape);
  if (!low.spread.empty() && low.spread.size() != exact.out.size())
    runtime::reject("low: spread must have {} elements like exact or none, had {}", exact.out.size(),
                    low.spread.size());
  const std::size_t group = low.spread.empty() ? exact.out.size() : elements_of_band(exact.shape);
  return compare_groups(out, {exact.out, low.out, low.spread}, group);
}

Comparison compare(const HostTensor& values, const std::vector<double>& exact, const std::vector<double>& low) {
  for (const auto& [name, count] : {std::pair{"gradient", values.element_count()}, {"low", low.size()}})
    if (count != exact.size())
      runtime::reject("{}: must have {} elements like exact, had {}", name, exact.size(), count);
  return compare_groups(values, {exact, low, {}}, exact.size());
}

Comparison compare_lse(const HostTensor& lse, const Result& exact, const Result& low) {
  // Absolute: a kernel may sum the probabilities after rounding them to bf16, each off by up to 2^-8 of itself in
  // either direction. Relative: its scores are sums in f32, whose errors grow with them. Both are far below what a lost
  // key, a wrong scale or the wrong base of the logarithm does to a short row.
  constexpr double kAbsolute = 2e-3, kRelative = 1e-5;
  check_same_shape("lse", lse.shape(), lse_shape(exact.shape));
  check_same_shape("low", low.shape, exact.shape);
  Comparison comparison;
  double low_error = 0, largest = 0;
  for (std::size_t i = 0; i < exact.lse.size(); ++i) {
    const double value = load_element(lse.data(), lse.dtype(), static_cast<std::int64_t>(i));
    raise(comparison.max_error, distance(value, exact.lse[i]));
    if (std::isfinite(exact.lse[i])) largest = std::max(largest, std::abs(exact.lse[i]));
    if (std::isfinite(low.lse[i]) && std::isfinite(exact.lse[i]))
      low_error = std::max(low_error, distance(low.lse[i], exact.lse[i]));
  }
  comparison.bound = 2 * low_error + kAbsolute + kRelative * largest;
  comparison.passed = comparison.max_error <= comparison.bound;
  return comparison;
}

}  // namespace flashjit::reference
