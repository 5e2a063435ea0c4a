// SPDX-License-Identifier: Apache-2.0
#include "generator/dtype.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <vector>

#include "flashjit/error.h"

namespace flashjit {
namespace generator {
namespace {

// How a 16-bit format divides its bits; the sign takes the first one.
struct Format {
  int mantissa_bits;
  int exponent_bias;
};
constexpr Format kF16{10, 15};
constexpr Format kBf16{7, 127};
constexpr Format kF64{52, 1023};

// Straight from double: a detour over float would round twice.
std::uint16_t encode(Format format, double value) noexcept {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 63 << 15);
  const std::uint16_t infinity = static_cast<std::uint16_t>(0x7fff >> format.mantissa_bits << format.mantissa_bits);
  if (std::isnan(value)) return sign | infinity | static_cast<std::uint16_t>(1 << (format.mantissa_bits - 1));
  if (std::isinf(value)) return sign | infinity;
  const int exponent = static_cast<int>(bits >> kF64.mantissa_bits & 0x7ff) - kF64.exponent_bias + format.exponent_bias;
  const std::uint64_t implicit_one = std::uint64_t{1} << kF64.mantissa_bits;
  const std::uint64_t significand = (bits & (implicit_one - 1)) | implicit_one;
  // Below the smallest normal number each power of two costs a bit.
  const int shift = kF64.mantissa_bits - format.mantissa_bits + (exponent < 1 ? 1 - exponent : 0);
  if (shift > kF64.mantissa_bits + 1) return sign;  // less than half of the smallest subnormal number
  const std::uint64_t rest = significand & ((std::uint64_t{1} << shift) - 1);
  const std::uint64_t half = std::uint64_t{1} << (shift - 1);
  std::uint64_t rounded = significand >> shift;
  if (rest > half || (rest == half && (rounded & 1) != 0)) ++rounded;
  // The implicit one counts as one step of the exponent, and so does a carry out of the mantissa.
  if (exponent > 1) rounded += static_cast<std::uint64_t>(exponent - 1) << format.mantissa_bits;
  return sign | (rounded < infinity ? static_cast<std::uint16_t>(rounded) : infinity);
}

double decode_f16(std::uint16_t bits) noexcept {
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const int exponent = bits >> kF16.mantissa_bits & 0x1f;
  const int mantissa = bits & 0x3ff;
  if (exponent == 0x1f) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * mantissa * 0x1p-24;
  const std::uint64_t wide = static_cast<std::uint64_t>(exponent - kF16.exponent_bias + kF64.exponent_bias)
                             << kF64.mantissa_bits;
  return sign * std::bit_cast<double>(wide | static_cast<std::uint64_t>(mantissa)
                                                 << (kF64.mantissa_bits - kF16.mantissa_bits));
}

double decode_bf16(std::uint16_t bits) noexcept { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

template <typename T>
T read(const void* data, std::int64_t index) noexcept {
  T value;
  std::memcpy(&value, static_cast<const T*>(data) + index, sizeof(T));
  return value;
}

template <typename T>
void write(void* data, std::int64_t index, T value) noexcept {
  std::memcpy(static_cast<T*>(data) + index, &value, sizeof(T));
}

// E4m3 is what a 16-bit format with as many bits of exponent would be, without the bits that it has not: numbers of the
// largest exponent are numbers, but for the last one.
constexpr Format kE4m3{3, 7};
constexpr double kLargestE4m3 = 448;
// The upper half of an f16, but that numbers beyond the largest become that, as in e4m3.
constexpr Format kE5m2{2, 15};
constexpr double kLargestE5m2 = 57344;
constexpr std::uint8_t kNan8 = 0x7f;  // of both; in e4m3 no other byte is one, but for the sign

std::uint8_t encode_8_bits(Format format, double largest, double value) noexcept {
  const std::uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return sign | kNan8;
  return sign | static_cast<std::uint8_t>(encode(format, std::min(std::abs(value), largest)));
}

double decode_e4m3(std::uint8_t bits) noexcept {
  const double sign = (bits & 0x80) != 0 ? -1.0 : 1.0;
  const int exponent = bits >> kE4m3.mantissa_bits & 0xf, mantissa = bits & 0x7;
  if ((bits & kNan8) == kNan8) return std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - kE4m3.exponent_bias - kE4m3.mantissa_bits);
  return sign * std::ldexp(8 + mantissa, exponent - kE4m3.exponent_bias - kE4m3.mantissa_bits);
}

double load_f16(const void* data, std::int64_t index) noexcept { return decode_f16(read<std::uint16_t>(data, index)); }
double load_bf16(const void* data, std::int64_t index) noexcept {
  return decode_bf16(read<std::uint16_t>(data, index));
}
double load_f32(const void* data, std::int64_t index) noexcept { return read<float>(data, index); }
void store_f16(void* data, std::int64_t index, double value) noexcept { write(data, index, encode(kF16, value)); }
void store_bf16(void* data, std::int64_t index, double value) noexcept { write(data, index, encode(kBf16, value)); }
void store_f32(void* data, std::int64_t index, double value) noexcept { write(data, index, static_cast<float>(value)); }
double load_f64(const void* data, std::int64_t index) noexcept { return read<double>(data, index); }
void store_f64(void* data, std::int64_t index, double value) noexcept { write(data, index, value); }

double load_e4m3(const void* data, std::int64_t index) noexcept { return decode_e4m3(read<std::uint8_t>(data, index)); }
void store_e4m3(void* data, std::int64_t index, double value) noexcept {
  write(data, index, encode_8_bits(kE4m3, kLargestE4m3, value));
}

double load_e5m2(const void* data, std::int64_t index) noexcept {
  return decode_f16(static_cast<std::uint16_t>(read<std::uint8_t>(data, index) << 8));
}
void store_e5m2(void* data, std::int64_t index, double value) noexcept {
  write(data, index, encode_8_bits(kE5m2, kLargestE5m2, value));
}

// Whole numbers: to the nearest even, and those beyond the type to its ends; NaN is 0.
template <typename T>
double load_whole(const void* data, std::int64_t index) noexcept {
  return static_cast<double>(read<T>(data, index));
}
template <typename T>
void store_whole(void* data, std::int64_t index, double value) noexcept {
  using Limits = std::numeric_limits<T>;
  const double rounded = std::nearbyint(value);
  T stored = 0;
  if (rounded >= static_cast<double>(Limits::max()))
    stored = Limits::max();
  else if (rounded <= static_cast<double>(Limits::min()))
    stored = Limits::min();
  else if (!std::isnan(rounded))
    stored = static_cast<T>(rounded);
  write(data, index, stored);
}
double load_boolean(const void* data, std::int64_t index) noexcept {
  return read<std::uint8_t>(data, index) != 0 ? 1.0 : 0.0;
}
void store_boolean(void* data, std::int64_t index, double value) noexcept {
  write(data, index, static_cast<std::uint8_t>(value != 0));
}

constexpr DTypeRow kRows[] = {
    {DType::f16, "f16", 2, 0x1p-11, "Half", load_f16, store_f16},
    {DType::bf16, "bf16", 2, 0x1p-8, "BFloat16", load_bf16, store_bf16},
    {DType::f32, "f32", 4, 0x1p-24, nullptr, load_f32, store_f32},
    {DType::i32, "i32", 4, 0.5, nullptr, load_whole<std::int32_t>, store_whole<std::int32_t>},
    {DType::i64, "i64", 8, 0.5, nullptr, load_whole<std::int64_t>, store_whole<std::int64_t>},
    {DType::boolean, "boolean", 1, 0.5, nullptr, load_boolean, store_boolean},
    {DType::e4m3, "e4m3", 1, 0x1p-4, nullptr, load_e4m3, store_e4m3},
    {DType::f64, "f64", 8, 0x1p-53, nullptr, load_f64, store_f64},
    {DType::e5m2, "e5m2", 1, 0x1p-3, nullptr, load_e5m2, store_e5m2},
};

// "f16, bf16 or f32", of the rows that are wanted.
template <class Wanted>
std::string names_of(const Wanted& wanted) {
  std::vector<const char*> names;
  for (const DTypeRow& row : kRows)
    if (wanted(row)) names.push_back(row.name);
  const char* const last = names.back();
  names.pop_back();
  return names.empty() ? last : fmt::format("{} or {}", fmt::join(names, ", "), last);
}

}  // namespace

std::span<const DTypeRow> dtypes() noexcept { return kRows; }

const DTypeRow* find_dtype(DType dtype) noexcept {
  const auto index = static_cast<std::size_t>(dtype);
  return index < std::size(kRows) ? &kRows[index] : nullptr;
}

const DTypeRow& row_of(DType dtype) noexcept { return kRows[static_cast<std::size_t>(dtype)]; }

bool has_kernels(DType dtype) noexcept {
  const DTypeRow* row = find_dtype(dtype);
  return row && row->element;
}

std::string all_dtypes() {
  return names_of([](const DTypeRow&) { return true; });
}

double largest_of_8_bits(DType dtype) noexcept { return dtype == DType::e5m2 ? kLargestE5m2 : kLargestE4m3; }
bool is_of_8_bits(DType dtype) noexcept { return dtype == DType::e4m3 || dtype == DType::e5m2; }

bool may_be_captured(DType dtype) noexcept { return find_dtype(dtype) && !is_of_8_bits(dtype) && dtype != DType::f64; }

std::string captured_dtypes() {
  return names_of([](const DTypeRow& row) { return may_be_captured(row.dtype); });
}

std::string kernel_dtypes() {
  return names_of([](const DTypeRow& row) { return row.element != nullptr; });
}

}  // namespace generator

const char* to_string(DType dtype) noexcept {
  const generator::DTypeRow* row = generator::find_dtype(dtype);
  return row ? row->name : "unknown";
}

DType parse_dtype(const std::string& text) {
  for (const generator::DTypeRow& row : generator::dtypes())
    if (text == row.name) return row.dtype;
  throw Error(ErrorCode::invalid_argument, fmt::format("dtype: must be {}, was {}", generator::all_dtypes(), text));
}

std::size_t size_of(DType dtype) noexcept {
  const generator::DTypeRow* row = generator::find_dtype(dtype);
  return row ? row->bytes : 0;
}

double load_element(const void* data, DType dtype, std::int64_t index) noexcept {
  return generator::row_of(dtype).load(data, index);
}

void store_element(void* data, DType dtype, std::int64_t index, double value) noexcept {
  generator::row_of(dtype).store(data, index, value);
}

}  // namespace flashjit
