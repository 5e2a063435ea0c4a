// SPDX-License-Identifier: Apache-2.0
// The parts of flashjit/tensor.h that need no device.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <numbers>
#include <random>

#include "flashjit/error.h"
#include "flashjit/tensor.h"
#include "runtime/support/byte_count.h"

namespace flashjit {
namespace {

constexpr double kOutlierFactor = 10;

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
