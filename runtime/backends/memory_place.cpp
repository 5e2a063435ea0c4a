// SPDX-License-Identifier: Apache-2.0
#include "runtime/backends/memory_place.h"

#include <fmt/format.h>

#include "runtime/cuda/device.h"

namespace flashjit::runtime {
namespace {

struct Place {
  unsigned type = 0;  // CUmemorytype; 0 when the driver does not know the pointer
  int device = -1;
};

Place place_of(const Driver& driver, CUdeviceptr pointer) {
  Place place;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* values[] = {&place.type, &place.device};
  if (driver.cuPointerGetAttributes(2, names, values, pointer) != CUDA_SUCCESS) return {};
  return place;
}

bool is_managed(const Driver& driver, CUdeviceptr pointer) {
  unsigned managed = 0;
  return driver.cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, pointer) == CUDA_SUCCESS &&
         managed != 0;
}

// Follows the device through the tensors of a call.
class CommonDevice {
 public:
  CommonDevice(const Driver& driver, Stream stream) : driver_(driver), stream_(stream) {}

  void add(const char* name, const MemoryRange& range) {
    if (range.empty()) return;
    const auto pointer = static_cast<CUdeviceptr>(range.begin);
    const Place place = place_of(driver_, pointer);
    const bool fits = place.type == CU_MEMORYTYPE_DEVICE && (device_ < 0 || device_ == place.device);
    if (!fits && !is_managed(driver_, pointer)) {
      if (place.type == 0 && may_be_of_a_graph()) return;
      refuse(name, place);
    }
    if (device_ >= 0) return;
    device_ = place.device;
    first_ = name;
  }

  int device() const noexcept { return device_; }

 private:
  bool may_be_of_a_graph() const {
    const bool can_be_asked = stream_device(driver_, stream_) >= 0 || current_device(driver_) >= 0;
    return can_be_asked && is_capturing(driver_, stream_);
  }

  [[noreturn]] void refuse(const char* name, const Place& place) const {
    std::string message;
    if (place.type == CU_MEMORYTYPE_DEVICE) {
      message = fmt::format("{}: must be on device {} like {}, was on device {}", name, device_, first_, place.device);
    } else if (place.type == CU_MEMORYTYPE_HOST) {
      message = fmt::format("{}: must be device memory, was host memory", name);
    } else {
      message = fmt::format("{}: must be device memory, was memory that CUDA does not know", name);
    }
    throw Error(ErrorCode::invalid_argument, message);
  }

  const Driver& driver_;
  const Stream stream_;
  int device_ = -1;
  const char* first_ = "";
};

}  // namespace

int common_device(const Driver& driver, const Operands& operands, Stream stream) {
  CommonDevice common(driver, stream);
  for (const Operand& operand : operands) common.add(operand.name, operand.range);
  return common.device();
}

int device_of_memory(const Driver& driver, std::uintptr_t address) {
  const Place place = place_of(driver, static_cast<CUdeviceptr>(address));
  return place.type == CU_MEMORYTYPE_DEVICE ? place.device : -1;
}

}  // namespace flashjit::runtime
