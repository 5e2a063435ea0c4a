// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "runtime/support/statistics.h"

using flashjit::runtime::median;
using flashjit::runtime::median_deviation;
using flashjit::runtime::median_error;

TEST_CASE("the median is the middle, or the mean of the middle two") {
  CHECK(median({}) == 0);
  CHECK(median({7}) == 7);
  CHECK(median({9, 1}) == 5);
  CHECK(median({3, 1, 2}) == 2);
  CHECK(median({4, 100, 1, 2}) == 3);
}

TEST_CASE("a few wild values move neither the median nor its deviation") {
  CHECK(median_deviation({}) == 0);
  CHECK(median_deviation({5}) == 0);
  CHECK(median_deviation({1, 2, 3, 4, 5}) == 1);
  CHECK(median_deviation({1, 2, 3, 4, 5000}) == 1);
}

TEST_CASE("the error of a median falls with the root of the number of values") {
  CHECK(median_error(1, 0) == 0);
  CHECK(median_error(1, 1) == doctest::Approx(1.2533 * 1.4826));
  CHECK(median_error(1, 100) == doctest::Approx(median_error(1, 1) / 10));
}
