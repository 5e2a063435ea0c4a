// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstring>
#include <new>
#include <utility>

#include "flashjit/error.h"
#include "flashjit/tensor.h"
#include "runtime/cuda/device.h"
#include "runtime/support/byte_count.h"

namespace flashjit {
namespace {

using runtime::byte_count;
using runtime::ContextScope;
using runtime::Driver;

constexpr std::align_val_t kHostAlignment{256};  // as the driver aligns

CUdeviceptr device_pointer(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }

void* allocate_on_host(std::size_t bytes, Stream stream) {
  if (stream) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("stream: must be null for host memory, was {}", fmt::ptr(stream)));
  }
  if (bytes == 0) return nullptr;
  // NaN of every dtype, so that an emulated kernel which reads what nobody has written never finds zeros there.
  return std::memset(::operator new(bytes, kHostAlignment), 0xff, bytes);
}

int device_of(const Driver& driver, Stream stream, int wanted) {
  if (wanted != -1) return wanted;
  const int owner = runtime::stream_device(driver, stream);
  return owner >= 0 ? owner : runtime::resolve_device(driver, -1);
}

}  // namespace

DeviceTensor::~DeviceTensor() { release(); }

DeviceTensor::DeviceTensor(DeviceTensor&& other) noexcept
    : view_(std::exchange(other.view_, {})), stream_(std::exchange(other.stream_, nullptr)), device_(other.device_) {}

DeviceTensor& DeviceTensor::operator=(DeviceTensor&& other) noexcept {
  if (this == &other) return *this;
  release();
  view_ = std::exchange(other.view_, {});
  stream_ = std::exchange(other.stream_, nullptr);
  device_ = other.device_;
  return *this;
}

DeviceTensor DeviceTensor::allocate(DType dtype, const Dims& shape, Stream stream, int device) {
  const std::size_t bytes = byte_count("shape", dtype, shape);
  if (device == kHostMemory)
    return DeviceTensor(Tensor(allocate_on_host(bytes, stream), dtype, shape), nullptr, kHostMemory);
  const Driver& driver = Driver::load();
  const runtime::Device& owner = runtime::device(device_of(driver, stream, device));
  DeviceTensor tensor(Tensor(nullptr, dtype, shape), stream, owner.info.ordinal);
  if (bytes == 0) return tensor;
  const ContextScope scope(driver, owner.info.ordinal, stream);
  tensor.view_.data = runtime::allocate_memory(driver, owner, bytes, stream);
  return tensor;
}

DeviceTensor DeviceTensor::from_host(const Tensor& host, Stream stream, int device) {
  if (host.strides != packed_strides(host.shape)) {
    throw Error(ErrorCode::invalid_argument, fmt::format("host: must be packed, had strides {} for shape {}",
                                                         to_string(host.strides), to_string(host.shape)));
  }
  const std::size_t bytes = byte_count("host", host.dtype, host.shape);
  if (bytes > 0 && !host.data) throw Error(ErrorCode::invalid_argument, "host: must point to host memory, was null");
  DeviceTensor tensor = allocate(host.dtype, host.shape, stream, device);
  if (bytes == 0) return tensor;
  if (device == kHostMemory) {
    std::memcpy(tensor.data(), host.data, bytes);
    return tensor;
  }
  const Driver& driver = Driver::load();
  const ContextScope scope(driver, tensor.device_, stream);
  driver.check(driver.cuMemcpyHtoDAsync(device_pointer(tensor.data()), host.data, bytes, stream), "cuMemcpyHtoDAsync");
  driver.check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
  return tensor;
}

void DeviceTensor::copy_to_host(void* host) const {
  const std::size_t bytes = size_bytes();
  if (bytes == 0) return;
  if (!host) throw Error(ErrorCode::invalid_argument, "host: must point to host memory, was null");
  if (device_ == kHostMemory) {
    std::memcpy(host, data(), bytes);
    return;
  }
  const Driver& driver = Driver::load();
  const ContextScope scope(driver, device_, stream_);
  driver.check(driver.cuMemcpyDtoHAsync(host, device_pointer(data()), bytes, stream_), "cuMemcpyDtoHAsync");
  driver.check(driver.cuStreamSynchronize(stream_), "cuStreamSynchronize");
}

std::size_t DeviceTensor::size_bytes() const noexcept {
  if (!view_.data) return 0;
  std::size_t bytes = size_of(view_.dtype);
  for (const std::int64_t size : view_.shape) bytes *= static_cast<std::size_t>(size);
  return bytes;
}

void DeviceTensor::release() noexcept {
  if (!view_.data) return;
  if (device_ == kHostMemory) return ::operator delete(std::exchange(view_.data, nullptr), kHostAlignment);
  void* const memory = std::exchange(view_.data, nullptr);
  try {
    const Driver& driver = Driver::load();
    const ContextScope scope(driver, device_, stream_);
    runtime::free_memory(driver, runtime::device(device_), memory, stream_);
  } catch (...) {
    // The driver is shutting down and takes the memory with it.
  }
}

HostTensor HostTensor::from_device(const DeviceTensor& tensor) {
  HostTensor host(tensor.dtype(), tensor.shape());
  tensor.copy_to_host(host.data());
  return host;
}

DeviceTensor HostTensor::to_device(Stream stream, int device) const {
  return DeviceTensor::from_host(view(), stream, device);
}

}  // namespace flashjit
