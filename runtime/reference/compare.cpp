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

// spread: of low; empty for none.
Comparison compare_values(const HostTensor& values, const std::vector<double>& exact, const std::vector<double>& low,
                          const std::vector<double>& spread) {
  Comparison comparison;
  double low_error = 0, largest = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double value = load_element(values.data(), values.dtype(), static_cast<std::int64_t>(i));
    raise(comparison.max_error, distance(value, exact[i]));
    const double farthest = distance(low[i], exact[i]) + (spread.empty() ? 0.0 : spread[i]);
    // A yardstick that overflowed would let everything pass.
    if (std::isfinite(low[i]) && std::isfinite(exact[i])) {
      if (std::isfinite(farthest)) low_error = std::max(low_error, farthest);
      largest = std::max(largest, std::abs(exact[i]));
    }
  }
  comparison.bound = 2 * low_error + 2 * generator::row_of(values.dtype()).rounding * largest;
  comparison.passed = comparison.max_error <= comparison.bound;
  return comparison;
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
  return compare_values(out, exact.out, low.out, low.spread);
}

Comparison compare(const HostTensor& values, const std::vector<double>& exact, const std::vector<double>& low) {
  for (const auto& [name, count] : {std::pair{"gradient", values.element_count()}, {"low", low.size()}})
    if (count != exact.size())
      runtime::reject("{}: must have {} elements like exact, had {}", name, exact.size(), count);
  return compare_values(values, exact, low, {});
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
