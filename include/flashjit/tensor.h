// SPDX-License-Identifier: Apache-2.0
// Tensors: a view over somebody's memory, and an owner of device memory and of host memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

struct CUstream_st;

namespace flashjit {

// A CUDA stream: what the driver calls CUstream and the runtime cudaStream_t. Null is the default stream.
using Stream = CUstream_st*;

// OCP's formats of 8 bits: e4m3 has up to 448 in magnitude and no infinities (what PyTorch calls float8_e4m3fn), e5m2
// up to 57344, and the exponents, infinities and NaN of f16.
enum class DType : std::uint8_t { f16, bf16, f32, i32, i64, boolean, e4m3, f64, e5m2 };

const char* to_string(DType dtype) noexcept;  // "f16", "bf16", "f32", …
DType parse_dtype(const std::string& text);   // throws Error(invalid_argument)
std::size_t size_of(DType dtype) noexcept;    // bytes of one element

// Up to eight sizes or strides, stored in place. More than eight throw Error(invalid_argument).
class Dims {
 public:
  static constexpr int kMaxRank = 8;
  Dims() = default;
  Dims(std::initializer_list<std::int64_t> values) : Dims(values.begin(), values.size()) {}
  Dims(const std::int64_t* values, std::size_t count);

  int size() const noexcept { return size_; }
  std::int64_t operator[](int i) const noexcept { return values_[i]; }
  std::int64_t& operator[](int i) noexcept { return values_[i]; }
  const std::int64_t* begin() const noexcept { return values_.data(); }
  const std::int64_t* end() const noexcept { return values_.data() + size_; }
  friend bool operator==(const Dims& a, const Dims& b) noexcept {
    return a.size_ == b.size_ && std::equal(a.begin(), a.end(), b.begin());
  }
  friend bool operator!=(const Dims& a, const Dims& b) noexcept { return !(a == b); }

 private:
  std::array<std::int64_t, kMaxRank> values_{};
  int size_ = 0;
};

std::string to_string(const Dims& dims);  // "[2, 128, 8, 64]"

// Row-major strides, in elements, of a packed tensor of this shape.
Dims packed_strides(const Dims& shape);

// A view: it owns nothing, and copying it copies no data. Strides count elements, not bytes.
// Nothing is checked on construction; the function that receives the view checks it.
struct Tensor {
  Tensor() = default;
  // A packed (row-major) view.
  Tensor(void* memory, DType type, const Dims& sizes) : Tensor(memory, type, sizes, packed_strides(sizes)) {}
  Tensor(void* memory, DType type, const Dims& sizes, const Dims& steps)
      : data(memory), dtype(type), shape(sizes), strides(steps) {}

  void* data = nullptr;
  DType dtype = DType::bf16;
  Dims shape;
  Dims strides;
};

// In place of a device's ordinal: host memory, which is what engines that emulate compute on.
inline constexpr int kHostMemory = -2;

// Packed device memory, allocated and freed in stream order, from a pool of the library: it may be used by work that is
// enqueued on its stream right away, and by other streams once that stream has been synchronised or waited for. On
// kHostMemory it is ordinary host memory. Movable, not copyable. It may outlive the engine that made it. Not
// synchronised: one thread at a time.
class DeviceTensor {
 public:
  DeviceTensor() = default;
  ~DeviceTensor();
  DeviceTensor(DeviceTensor&& other) noexcept;
  DeviceTensor& operator=(DeviceTensor&& other) noexcept;

  // Uninitialised memory. device is a CUDA ordinal; -1 takes the stream's device, or for the null stream the current
  // context's, or 0. kHostMemory takes host memory, on the null stream and without a driver.
  // Throws Error(no_driver, no_device, driver, invalid_argument).
  static DeviceTensor allocate(DType dtype, const Dims& shape, Stream stream = nullptr, int device = -1);
  // A packed copy of packed host memory. Returns when the host memory may be reused.
  static DeviceTensor from_host(const Tensor& host, Stream stream = nullptr, int device = -1);
  // Copies everything into packed host memory of size_bytes() and waits for it.
  void copy_to_host(void* host) const;

  const Tensor& view() const noexcept { return view_; }
  operator const Tensor&() const noexcept { return view_; }
  void* data() const noexcept { return view_.data; }
  const Dims& shape() const noexcept { return view_.shape; }
  DType dtype() const noexcept { return view_.dtype; }
  std::size_t size_bytes() const noexcept;
  Stream stream() const noexcept { return stream_; }
  int device() const noexcept { return device_; }

 private:
  DeviceTensor(const Tensor& view, Stream stream, int device) : view_(view), stream_(stream), device_(device) {}
  void release() noexcept;

  Tensor view_;
  Stream stream_ = nullptr;
  int device_ = 0;
};

// Packed host memory with conversions; for tests, examples and small tools.
class HostTensor {
 public:
  HostTensor() = default;
  HostTensor(DType dtype, const Dims& shape);  // zeros

  // Normal (0, 1) values from this seed, each row (last dimension) scaled by 10 with probability outlier_rate.
  static HostTensor random_normal(DType dtype, const Dims& shape, std::uint64_t seed, double outlier_rate = 0.0);
  // count must be the product of shape. Values are rounded to nearest even.
  static HostTensor from_doubles(DType dtype, const Dims& shape, const double* values, std::size_t count);
  static HostTensor from_device(const DeviceTensor& tensor);

  DeviceTensor to_device(Stream stream = nullptr, int device = -1) const;
  std::vector<double> to_doubles() const;
  HostTensor converted_to(DType dtype) const;

  Tensor view() noexcept { return Tensor(bytes_.data(), dtype_, shape_); }
  Tensor view() const noexcept { return Tensor(const_cast<unsigned char*>(bytes_.data()), dtype_, shape_); }
  DType dtype() const noexcept { return dtype_; }
  const Dims& shape() const noexcept { return shape_; }
  std::size_t element_count() const noexcept { return bytes_.size() / size_of(dtype_); }
  void* data() noexcept { return bytes_.data(); }
  const void* data() const noexcept { return bytes_.data(); }

 private:
  DType dtype_ = DType::f32;
  Dims shape_;
  std::vector<unsigned char> bytes_;
};

// One element of packed memory as a double, and back (round to nearest even; overflow becomes infinity, in e4m3 and
// e5m2 the largest number).
double load_element(const void* data, DType dtype, std::int64_t index) noexcept;
void store_element(void* data, DType dtype, std::int64_t index, double value) noexcept;

}  // namespace flashjit
