// SPDX-License-Identifier: Apache-2.0
// The parts of flashjit/tensor.h that need no device.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <random>

#include "flashjit/error.h"
#include "flashjit/tensor.h"
#include "runtime/byte_count.h"

namespace flashjit {
namespace {

constexpr double kOutlierFactor = 10;

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

// Normal (0, 1) values by the method of Box and Muller: std::normal_distribution gives each library's own sequence.
class NormalSource {
 public:
  explicit NormalSource(std::uint64_t seed) : bits_(seed) {}

  double uniform() { return static_cast<double>(bits_() >> 11) * 0x1p-53; }  // from 0 to below 1

  double normal() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    const double angle = 2 * std::numbers::pi * uniform();
    spare_ = radius * std::sin(angle);
    has_spare_ = true;
    return radius * std::cos(angle);
  }

 private:
  std::mt19937_64 bits_;
  double spare_ = 0;
  bool has_spare_ = false;
};

}  // namespace

std::size_t runtime::byte_count(const char* name, DType dtype, const Dims& shape) {
  std::size_t bytes = size_of(dtype);
  bool empty = false, overflow = false;
  for (const std::int64_t size : shape) {
    if (size < 0) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: sizes must not be negative, were {}", name, to_string(shape)));
    }
    empty |= size == 0;
    overflow |= __builtin_mul_overflow(bytes, static_cast<std::size_t>(size), &bytes) || bytes > PTRDIFF_MAX;
  }
  if (empty) return 0;
  if (overflow) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: must have less than 2^63 bytes, had shape {}", name, to_string(shape)));
  }
  return bytes;
}

const char* to_string(DType dtype) noexcept {
  switch (dtype) {
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::f32:
      return "f32";
  }
  return "unknown";
}

DType parse_dtype(const std::string& text) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    if (text == to_string(dtype)) return dtype;
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("dtype: must be f16, bf16 or f32, was {}", text));
}

std::size_t size_of(DType dtype) noexcept { return dtype == DType::f32 ? 4 : 2; }

Dims::Dims(const std::int64_t* values, std::size_t count) {
  if (count > kMaxRank) {
    throw Error(ErrorCode::invalid_argument, fmt::format("dims: rank must be at most {}, was {}", kMaxRank, count));
  }
  std::copy_n(values, count, values_.begin());
  size_ = static_cast<int>(count);
}

std::string to_string(const Dims& dims) { return fmt::format("[{}]", fmt::join(dims, ", ")); }

Dims packed_strides(const Dims& shape) {
  Dims strides = shape;
  std::uint64_t step = 1;  // unsigned: a shape that no memory can hold is refused later, by who knows its name
  for (int i = shape.size() - 1; i >= 0; --i) {
    strides[i] = static_cast<std::int64_t>(step);
    step *= static_cast<std::uint64_t>(std::max<std::int64_t>(shape[i], 1));
  }
  return strides;
}

double load_element(const void* data, DType dtype, std::int64_t index) noexcept {
  if (dtype == DType::f32) return read<float>(data, index);
  const auto bits = read<std::uint16_t>(data, index);
  return dtype == DType::f16 ? decode_f16(bits) : decode_bf16(bits);
}

void store_element(void* data, DType dtype, std::int64_t index, double value) noexcept {
  if (dtype == DType::f32) return write(data, index, static_cast<float>(value));
  write(data, index, encode(dtype == DType::f16 ? kF16 : kBf16, value));
}

HostTensor::HostTensor(DType dtype, const Dims& shape)
    : dtype_(dtype), shape_(shape), bytes_(runtime::byte_count("shape", dtype, shape)) {}

HostTensor HostTensor::random_normal(DType dtype, const Dims& shape, std::uint64_t seed, double outlier_rate) {
  if (!(outlier_rate >= 0 && outlier_rate <= 1)) {
    throw Error(ErrorCode::invalid_argument, fmt::format("outlier_rate: must be from 0 to 1, was {}", outlier_rate));
  }
  HostTensor tensor(dtype, shape);
  const auto count = static_cast<std::int64_t>(tensor.element_count());
  const std::int64_t row = shape.size() > 0 ? shape[shape.size() - 1] : 1;
  NormalSource source(seed);
  double factor = 1;
  for (std::int64_t i = 0; i < count; ++i) {
    // Drawn at every rate, so that the rate changes the size of rows and nothing else.
    if (i % row == 0) factor = source.uniform() < outlier_rate ? kOutlierFactor : 1.0;
    store_element(tensor.data(), dtype, i, factor * source.normal());
  }
  return tensor;
}

HostTensor HostTensor::from_doubles(DType dtype, const Dims& shape, const double* values, std::size_t count) {
  HostTensor tensor(dtype, shape);
  if (count != tensor.element_count()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("count: must be {}, the product of shape {}, was {}",
                                                         tensor.element_count(), to_string(shape), count));
  }
  if (count > 0 && !values) throw Error(ErrorCode::invalid_argument, "values: must point to doubles, was null");
  for (std::size_t i = 0; i < count; ++i) {
    store_element(tensor.data(), dtype, static_cast<std::int64_t>(i), values[i]);
  }
  return tensor;
}

std::vector<double> HostTensor::to_doubles() const {
  std::vector<double> values(element_count());
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = load_element(data(), dtype_, static_cast<std::int64_t>(i));
  }
  return values;
}

HostTensor HostTensor::converted_to(DType dtype) const {
  HostTensor converted;
  converted.dtype_ = dtype;
  converted.shape_ = shape_;
  converted.bytes_.resize(element_count() * size_of(dtype));
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(element_count()); ++i) {
    store_element(converted.data(), dtype, i, load_element(data(), dtype_, i));
  }
  return converted;
}

}  // namespace flashjit
