// SPDX-License-Identifier: Apache-2.0
// Statistics that a few wild values do not move. Of no values all are 0.
#pragma once

#include <cstddef>
#include <vector>

namespace flashjit::runtime {

double median(std::vector<double> values);
// Of the distances from the median: the median absolute deviation (MAD).
double median_deviation(std::vector<double> values);
// The standard error of the median of so many values with that deviation, as if they were normal.
double median_error(double deviation, std::size_t count);

}  // namespace flashjit::runtime
