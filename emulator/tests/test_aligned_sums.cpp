// SPDX-License-Identifier: Apache-2.0
// Sums of products of 8-bit floats, as sm_90 cuts them off.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "emulator/machine/fragments.h"

using namespace flashjit::emulator;

namespace {

constexpr MatrixTypes kE4m3{Accumulator::f32, Element::e4m3, Element::e4m3},
    kE5m2{Accumulator::f32, Element::e5m2, Element::e5m2};
constexpr float kLast = 0x1p-13f;  // behind the point of 1

// sum + a0 * b0 + a1 * b1, in the last row and column of a tile.
float sum_of(const MatrixTypes& types, float sum, float a0, float b0, float a1, float b1) {
  constexpr int kRow = kTileRows - 1, kColumn = kPanelColumns - 1;
  RowTile rows = {};
  ColumnPanel columns = {};
  SumPanel sums = {};
  rows.at[kRow][0] = a0, rows.at[kRow][kMostDepth - 1] = a1;
  columns.at[0][kColumn] = b0, columns.at[kMostDepth - 1][kColumn] = b1;
  sums.at[kRow][kColumn] = sum;
  multiply_add_aligned(types, rows, columns, 0, kMostDepth, sums);
  return sums.at[kRow][kColumn];
}

}  // namespace

TEST_CASE("products of 8-bit floats lose what is more than 13 bits behind the point of the largest") {
  CHECK(sum_of(kE4m3, 0, 1, 1, 0x1p-6f, 0x1p-7f) == 1 + kLast);
  CHECK(sum_of(kE4m3, 0, 1, 1, 0x1p-7f, 0x1p-7f) == 1);
  CHECK(sum_of(kE4m3, 0, 1, -1, 0x1p-6f, -0x1.8p-7f) == -1 - kLast);  // towards 0
  CHECK(sum_of(kE4m3, -2, 1, 1, 0x1p-6f, 0x1p-7f) == -1);             // the accumulator may be the largest
}

TEST_CASE("the point of a product is where those of its factors put it, and a sum's where its own exponent does") {
  CHECK(sum_of(kE4m3, -1.25f, 1.5f, 1.5f, 0x1p-6f, 0x1p-7f) == 1 + kLast);
  CHECK(sum_of(kE4m3, 0, 1.5f, 1.5f, 0x1p-6f, 0x1p-7f) == 2.25f);
}

TEST_CASE("subnormal factors have the point of the smallest normal one, which is its format's") {
  const float third = 0x1p-9f * 0x1p-2f;
  CHECK(sum_of(kE4m3, 0, 0x1p-9f, 1, 0x1p-9f, third) == 0x1p-9f);
  CHECK(sum_of(kE5m2, 0, 0x1p-9f, 1, 0x1p-9f, third) == 0x1p-9f + 0x1p-20f);
}

TEST_CASE("a sum stays where products are 0, and what is not finite comes through") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  CHECK(sum_of(kE4m3, kLast, 0, 0, 0, 0) == kLast);
  CHECK(sum_of(kE5m2, 0, kInfinity, 1, 1, 1) == kInfinity);
  CHECK(std::isnan(sum_of(kE4m3, 0, std::numeric_limits<float>::quiet_NaN(), 1, 1, 1)));
}
