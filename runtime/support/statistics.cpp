// SPDX-License-Identifier: Apache-2.0
#include "runtime/support/statistics.h"

#include <algorithm>
#include <cmath>

namespace flashjit::runtime {
namespace {

// Of a normal distribution: standard deviation / MAD, and standard error of the median / that of the mean, sqrt(pi /
// 2).
constexpr double kDeviationOfMad = 1.4826;
constexpr double kErrorOfMedian = 1.2533;

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

double median_deviation(std::vector<double> values) {
  const double center = median(values);
  for (double& value : values) value = std::abs(value - center);
  return median(std::move(values));
}

double median_error(double deviation, std::size_t count) {
  if (count == 0) return 0;
  return kErrorOfMedian * kDeviationOfMad * deviation / std::sqrt(static_cast<double>(count));
}

}  // namespace flashjit::runtime
