// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "flashjit/error.h"
#include "flashjit/tensor.h"

using namespace flashjit;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::uint16_t stored(DType dtype, double value) {
  std::uint16_t bits = 0;
  store_element(&bits, dtype, 0, value);
  return bits;
}

double loaded(DType dtype, std::uint16_t bits) { return load_element(&bits, dtype, 0); }

struct Rounding {
  double value;
  std::uint16_t bits;
};

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double mean_square(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return sum / static_cast<double>(values.size());
}

}  // namespace

TEST_CASE("f16 is rounded to nearest even, overflows to infinity and keeps subnormal numbers") {
  const Rounding table[] = {
      {0.0, 0x0000},
      {-0.0, 0x8000},
      {1.0, 0x3c00},
      {-2.0, 0xc000},
      {1.0 + 0x1p-11, 0x3c00},               // half way: down to the even one
      {1.0 + 0x1p-11 + 0x1p-50, 0x3c01},     // a float in between would lose the last bit
      {1.0 + 3 * 0x1p-11, 0x3c02},           // half way: up to the even one
      {65504.0, 0x7bff},                     // the largest
      {std::nextafter(65520.0, 0), 0x7bff},  // not yet half way to what would come next
      {65520.0, 0x7c00},
      {-1e300, 0xfc00},
      {0x1p-14, 0x0400},            // the smallest normal number
      {0x1p-14 - 0x1p-25, 0x0400},  // half way to the largest subnormal one
      {0x1p-14 - 0x1p-24, 0x03ff},
      {0x1p-24, 0x0001},  // the smallest subnormal number
      {0x1p-25, 0x0000},  // half of it
      {std::nextafter(0x1p-25, 1), 0x0001},
      {3 * 0x1p-25, 0x0002},
      {-0x1p-26, 0x8000},
      {1e-310, 0x0000},
      {kInfinity, 0x7c00},
      {-kInfinity, 0xfc00},
  };
  for (const Rounding& row : table) {
    INFO("value ", row.value);
    CHECK(stored(DType::f16, row.value) == row.bits);
  }
}

TEST_CASE("bf16 is rounded to nearest even, overflows to infinity and keeps subnormal numbers") {
  const Rounding table[] = {
      {0.0, 0x0000},
      {-0.0, 0x8000},
      {1.0, 0x3f80},
      {-2.0, 0xc000},
      {1.0 + 0x1p-8, 0x3f80},
      {1.0 + 0x1p-8 + 0x1p-50, 0x3f81},
      {1.0 + 3 * 0x1p-8, 0x3f82},
      {0x1.fep127, 0x7f7f},  // the largest
      {std::nextafter(0x1.ffp127, 0), 0x7f7f},
      {0x1.ffp127, 0x7f80},
      {-1e300, 0xff80},
      {0x1p-126, 0x0080},  // the smallest normal number
      {0x1p-126 - 0x1p-134, 0x0080},
      {0x1p-126 - 0x1p-133, 0x007f},
      {0x1p-133, 0x0001},  // the smallest subnormal number
      {0x1p-134, 0x0000},
      {std::nextafter(0x1p-134, 1), 0x0001},
      {3 * 0x1p-134, 0x0002},
      {kInfinity, 0x7f80},
      {-kInfinity, 0xff80},
  };
  for (const Rounding& row : table) {
    INFO("value ", row.value);
    CHECK(stored(DType::bf16, row.value) == row.bits);
  }
}

TEST_CASE("every 16-bit number comes back from double as it was, and NaN as NaN") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    int wrong = 0;
    for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
      const double value = loaded(dtype, static_cast<std::uint16_t>(bits));
      const std::uint16_t again = stored(dtype, value);
      wrong += std::isnan(value) ? !std::isnan(loaded(dtype, again)) : again != bits;
    }
    CHECK(wrong == 0);
    CHECK(std::isnan(loaded(dtype, stored(dtype, std::numeric_limits<double>::quiet_NaN()))));
  }
}

TEST_CASE("half way between two neighbours the even one wins, and beside it the nearer one") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const std::uint32_t infinity = stored(dtype, kInfinity);
    int wrong = 0;
    for (std::uint32_t low = 0; low + 1 < infinity; ++low) {
      const double below = loaded(dtype, static_cast<std::uint16_t>(low));
      const double above = loaded(dtype, static_cast<std::uint16_t>(low + 1));
      const double middle = below + (above - below) / 2;
      wrong += stored(dtype, middle) != (low % 2 == 0 ? low : low + 1);
      wrong += stored(dtype, std::nextafter(middle, 0)) != low;
      wrong += stored(dtype, -std::nextafter(middle, kInfinity)) != (0x8000 | (low + 1));
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("e4m3 is rounded to nearest even, ends at 448 and has no infinity") {
  const auto value_of = [](int bits) {
    const auto byte = static_cast<std::uint8_t>(bits);
    return load_element(&byte, DType::e4m3, 0);
  };
  const auto bits_of = [](double value) {
    std::uint8_t byte = 0;
    store_element(&byte, DType::e4m3, 0, value);
    return static_cast<int>(byte);
  };
  CHECK(value_of(0x01) == 0x1p-9);
  CHECK(value_of(0x08) == 0x1p-6);
  CHECK(value_of(0x38) == 1);
  CHECK(value_of(0xb9) == -1.125);
  CHECK(value_of(0x7e) == 448);
  CHECK(std::isnan(value_of(0x7f)));
  CHECK(std::isnan(value_of(0xff)));
  for (int bits = 0; bits < 0x7e; ++bits) {
    CAPTURE(bits);
    const double below = value_of(bits), above = value_of(bits + 1), middle = (below + above) / 2;
    CHECK(bits_of(below) == bits);
    CHECK(bits_of(-below) == (bits | 0x80));
    CHECK(bits_of(middle) == (bits % 2 == 0 ? bits : bits + 1));
    CHECK(bits_of(std::nextafter(middle, 0)) == bits);
    CHECK(bits_of(std::nextafter(middle, kInfinity)) == bits + 1);
  }
  CHECK(bits_of(1e9) == 0x7e);
  CHECK(bits_of(-kInfinity) == 0xfe);
  CHECK((bits_of(std::numeric_limits<double>::quiet_NaN()) & 0x7f) == 0x7f);
}

TEST_CASE("e5m2 is the upper half of an f16, rounded to nearest even, and ends at 57344") {
  const auto value_of = [](int bits) {
    const auto byte = static_cast<std::uint8_t>(bits);
    return load_element(&byte, DType::e5m2, 0);
  };
  const auto bits_of = [](double value) {
    std::uint8_t byte = 0;
    store_element(&byte, DType::e5m2, 0, value);
    return static_cast<int>(byte);
  };
  for (int bits = 0; bits < 256; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits << 8);
    const double value = load_element(&half, DType::f16, 0);
    CHECK((value_of(bits) == value || (std::isnan(value_of(bits)) && std::isnan(value))));
  }
  for (int bits = 0; bits < 0x7b; ++bits) {
    CAPTURE(bits);
    const double below = value_of(bits), above = value_of(bits + 1), middle = (below + above) / 2;
    CHECK(bits_of(below) == bits);
    CHECK(bits_of(-below) == (bits | 0x80));
    CHECK(bits_of(middle) == (bits % 2 == 0 ? bits : bits + 1));
    CHECK(bits_of(std::nextafter(middle, 0)) == bits);
    CHECK(bits_of(std::nextafter(middle, kInfinity)) == bits + 1);
  }
  CHECK(value_of(0x7b) == 57344);
  CHECK(bits_of(1e9) == 0x7b);
  CHECK(bits_of(-kInfinity) == 0xfb);
  CHECK(std::isnan(value_of(bits_of(std::numeric_limits<double>::quiet_NaN()))));
  CHECK(std::isnan(value_of(bits_of(-std::numeric_limits<double>::quiet_NaN()))));
}

TEST_CASE("f32 elements are rounded once and addressed by their index") {
  float memory[3] = {};
  store_element(memory, DType::f32, 1, 1.0 + 0x1p-24 + 0x1p-50);
  store_element(memory, DType::f32, 2, 1e300);
  CHECK(memory[0] == 0.0f);
  CHECK(memory[1] == 1.0f + 0x1p-23f);
  CHECK(std::isinf(memory[2]));
  CHECK(load_element(memory, DType::f32, 1) == 1.0 + 0x1p-23);
}

TEST_CASE("dtypes have names and sizes") {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) CHECK(parse_dtype(to_string(dtype)) == dtype);
  CHECK(size_of(DType::f16) == 2);
  CHECK(size_of(DType::bf16) == 2);
  CHECK(size_of(DType::f32) == 4);
  CHECK_THROWS_WITH_AS(parse_dtype("float16"),
                       "dtype: must be f16, bf16, f32, i32, i64, boolean, e4m3, f64 or e5m2, was float16", Error);
}

TEST_CASE("dims hold up to eight sizes") {
  const Dims dims = {2, 128, 8, 64};
  CHECK(to_string(dims) == "[2, 128, 8, 64]");
  CHECK(to_string(Dims()) == "[]");
  CHECK(dims != Dims{2, 128, 8});
  CHECK(packed_strides(dims) == Dims{65536, 512, 64, 1});
  CHECK(packed_strides({3, 0, 5}) == Dims{5, 5, 1});
  CHECK_THROWS_WITH_AS((Dims{1, 2, 3, 4, 5, 6, 7, 8, 9}), "dims: rank must be at most 8, was 9", Error);
}

TEST_CASE("a host tensor begins with zeros and has as many elements as its shape says") {
  const HostTensor tensor(DType::f16, {2, 3});
  CHECK(tensor.element_count() == 6);
  CHECK(tensor.to_doubles() == std::vector<double>(6, 0.0));
  CHECK(HostTensor(DType::f32, {4, 0, 7}).element_count() == 0);
  CHECK(HostTensor(DType::f32, {}).element_count() == 1);
  CHECK(HostTensor().element_count() == 0);
}

TEST_CASE("shapes that no memory can hold are refused") {
  const std::int64_t huge = std::int64_t{1} << 40;
  CHECK_THROWS_WITH_AS(HostTensor(DType::f16, {2, -1}), "shape: sizes must not be negative, were [2, -1]", Error);
  CHECK_THROWS_WITH_AS(HostTensor(DType::f16, {huge, huge}),
                       "shape: must have less than 2^63 bytes, had shape [1099511627776, 1099511627776]", Error);
  CHECK(HostTensor(DType::f16, {huge, huge, 0}).element_count() == 0);
}

TEST_CASE("doubles go in and come out rounded, and their number must be right") {
  const double values[] = {1.0, 1.0 + 0x1p-9, -3.5, 1e-3};
  const HostTensor tensor = HostTensor::from_doubles(DType::bf16, {2, 2}, values, 4);
  CHECK(tensor.to_doubles() == std::vector<double>{1.0, 1.0, -3.5, loaded(DType::bf16, stored(DType::bf16, 1e-3))});
  CHECK_THROWS_WITH_AS(HostTensor::from_doubles(DType::bf16, {2, 2}, values, 3),
                       "count: must be 4, the product of shape [2, 2], was 3", Error);
  CHECK_THROWS_WITH_AS(HostTensor::from_doubles(DType::bf16, {1}, nullptr, 1),
                       "values: must point to doubles, was null", Error);
}

TEST_CASE("a conversion to a wider type is exact and one to a narrower type rounds") {
  const HostTensor narrow = HostTensor::random_normal(DType::bf16, {5, 16}, 1);
  const HostTensor wide = narrow.converted_to(DType::f32);
  CHECK(wide.dtype() == DType::f32);
  CHECK(wide.shape() == narrow.shape());
  CHECK(wide.to_doubles() == narrow.to_doubles());
  const HostTensor half = HostTensor::random_normal(DType::f32, {5, 16}, 2).converted_to(DType::f16);
  CHECK(half.converted_to(DType::f32).converted_to(DType::f16).to_doubles() == half.to_doubles());
}

TEST_CASE("random values depend on the seed alone") {
  const auto values = [](std::uint64_t seed) {
    return HostTensor::random_normal(DType::f32, {3, 5}, seed).to_doubles();
  };
  CHECK(values(7) == values(7));
  CHECK(values(7) != values(8));
}

TEST_CASE("random values are normal") {
  const auto values = HostTensor::random_normal(DType::f32, {1000, 200}, 3).to_doubles();
  CHECK(std::abs(mean(values)) < 0.01);
  CHECK(std::abs(mean_square(values) - 1) < 0.02);
  int beyond_two = 0;
  for (const double value : values) beyond_two += std::abs(value) > 2;
  CHECK(std::abs(beyond_two / 200000.0 - 0.0455) < 0.003);
}

TEST_CASE("outliers are whole rows, ten times as large, and leave the other rows as they are") {
  const Dims shape = {400, 32};
  const auto plain = HostTensor::random_normal(DType::f32, shape, 5).to_doubles();
  const auto mixed = HostTensor::random_normal(DType::f32, shape, 5, 0.25).to_doubles();
  int large_rows = 0;
  for (int row = 0; row < 400; ++row) {
    const bool large = mixed[row * 32] != plain[row * 32];
    large_rows += large;
    for (int i = row * 32; i < row * 32 + 32; ++i) {
      REQUIRE(mixed[i] == doctest::Approx((large ? 10 : 1) * plain[i]));
    }
  }
  CHECK(large_rows > 60);
  CHECK(large_rows < 140);
  CHECK_THROWS_WITH_AS(HostTensor::random_normal(DType::f32, shape, 5, 1.5),
                       "outlier_rate: must be from 0 to 1, was 1.5", Error);
  CHECK_THROWS_AS(HostTensor::random_normal(DType::f32, shape, 5, std::nan("")), Error);
}
