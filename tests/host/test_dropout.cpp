// SPDX-License-Identifier: Apache-2.0
// Which probabilities dropout keeps, by the words of include/flashjit/dropout.h.
#include <flashjit/dropout.h>
#include <flashjit/flashjit.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "doctest/doctest.h"
#include "tests/support/error_code.h"

using namespace flashjit;

namespace {

// The value of an f16, NaN among them.
double value_of(std::uint16_t bits) { return load_element(&bits, DType::f16, 0); }

std::uint32_t count_kept(const DropoutThreshold& threshold) {
  const double bound = value_of(threshold.bits);
  std::uint32_t kept = 0;
  for (std::uint32_t bits = 0; bits < 1 << 16; ++bits) {
    const bool is_at_least = value_of(static_cast<std::uint16_t>(bits)) >= bound;
    kept += is_at_least != threshold.keeps_below;
  }
  return kept;
}

}  // namespace

TEST_CASE("of all random numbers a threshold keeps the share that is told, within 2^-16 of the one asked for") {
  std::vector<double> probabilities = {0, 1e-9, 0x1p-17, 0x1.8p-17, 0.1, 0.2, 0.25, 0.3, 0.5, 0.5001, 0.75, 0.9, 0.99};
  // Where the zeros are, on both sides, and where numbers change their sign or their kind.
  for (const std::uint32_t dropped :
       {1u, 2u, 31743u, 31744u, 31745u, 31746u, 31747u, 32767u, 32768u, 32769u, 33790u, 33791u, 33792u, 65534u, 65535u})
    probabilities.push_back(dropped * 0x1p-16);
  probabilities.push_back(31745.4 * 0x1p-16);
  probabilities.push_back(31744.6 * 0x1p-16);
  probabilities.push_back(std::nextafter(1.0, 0.0));
  for (const double probability : probabilities) {
    CAPTURE(probability);
    const std::uint32_t kept = count_kept(dropout_threshold(probability));
    CHECK(kept > 0);
    CHECK(kept_share(probability) == kept * 0x1p-16);
    CHECK(std::abs(kept_share(probability) - (1 - probability)) <= 0x1p-16);
  }
}

TEST_CASE("dropout of a probability that none is, is refused") {
  for (const double probability :
       {-0.1, 1.0, 1.5, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN(),
        -std::numeric_limits<double>::denorm_min()}) {
    CAPTURE(probability);
    std::string message;
    CHECK(tests::code_of([&] { dropout_threshold(probability); }, &message) == ErrorCode::invalid_argument);
    CHECK(message.starts_with("dropout: probability must be at least 0 and below 1, was "));
    CHECK(tests::code_of([&] { kept_share(probability); }) == ErrorCode::invalid_argument);
    CHECK(tests::code_of([&] { keeps({probability}, 1, 0, 0, 0, 0); }) == ErrorCode::invalid_argument);
  }
}

TEST_CASE("what is kept is as it was in the first version") {
  // Of an implementation of its own, in Python, of what dropout.h says.
  const Dropout dropout{0.5, 0x0123456789abcdef, 0xfedcba9876543210};
  std::uint64_t bits = 0;
  for (int key = 0; key < 64; ++key) bits |= std::uint64_t{keeps(dropout, 3, 2, 1, 77, key + 1000)} << key;
  CHECK(bits == 0x7fea696b95d923b3);
}

TEST_CASE("of many probabilities as many are kept as the share says") {
  for (const double probability : {0.1, 0.5, 0.8}) {
    CAPTURE(probability);
    constexpr int kRows = 64, kKeys = 1024;
    double kept = 0;
    for (int query = 0; query < kRows; ++query)
      for (int key = 0; key < kKeys; ++key) kept += keeps({probability, 42, 0}, 8, 0, query % 8, query, key);
    const double share = kept_share(probability), count = kRows * kKeys;
    CHECK(std::abs(kept / count - share) < 4 * std::sqrt(share * (1 - share) / count));
  }
}

TEST_CASE("each coordinate, each half of the seed and each of the offset choose others") {
  const Dropout base{0.5, 1, 1};
  const auto row_of = [](const Dropout& dropout, std::int64_t batch, std::int64_t head, std::int64_t query) {
    std::vector<bool> row;
    for (int key = 0; key < 256; ++key) row.push_back(keeps(dropout, 4, batch, head, query, key));
    return row;
  };
  const std::vector<std::vector<bool>> rows = {
      row_of(base, 0, 0, 0),        row_of(base, 1, 0, 0),
      row_of(base, 0, 1, 0),        row_of(base, 0, 0, 1),
      row_of({0.5, 2, 1}, 0, 0, 0), row_of({0.5, 1 + (std::uint64_t{1} << 33), 1}, 0, 0, 0),
      row_of({0.5, 1, 2}, 0, 0, 0), row_of({0.5, 1, 1 + (std::uint64_t{1} << 32)}, 0, 0, 0)};
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) {
      int differing = 0;
      for (std::size_t key = 0; key < rows[i].size(); ++key) differing += rows[i][key] != rows[j][key];
      CHECK(differing > 90);  // 128 in the mean, with a deviation of 8
      CHECK(differing < 166);
    }
}
