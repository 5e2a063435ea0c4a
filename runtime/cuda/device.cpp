// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/device.h"

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <mutex>

namespace flashjit::runtime {
namespace {

int attribute(const Driver& driver, CUdevice_attribute name, CUdevice device) {
  int value = 0;
  driver.check(driver.cuDeviceGetAttribute(&value, name, device), "cuDeviceGetAttribute");
  return value;
}

const Architecture* architecture_of(int major, int minor) {
  for (const Architecture& architecture : architectures()) {
    if (architecture.major == major && architecture.minor == minor) return &architecture;
  }
  return nullptr;
}

int device_count(const Driver& driver) {
  int count = 0;
  driver.check(driver.cuDeviceGetCount(&count), "cuDeviceGetCount");
  return count;
}

DeviceInfo describe(const Driver& driver, int ordinal) {
  CUdevice device = 0;
  driver.check(driver.cuDeviceGet(&device, ordinal), "cuDeviceGet");
  char name[256] = {};
  driver.check(driver.cuDeviceGetName(name, sizeof(name), device), "cuDeviceGetName");
  std::size_t bytes = 0;
  driver.check(driver.cuDeviceTotalMem(&bytes, device), "cuDeviceTotalMem");
  DeviceInfo info;
  info.ordinal = ordinal;
  info.name = name;
  info.major = attribute(driver, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  info.minor = attribute(driver, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  info.sm_count = attribute(driver, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
  info.l2_bytes = attribute(driver, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device);
  info.memory_bytes = static_cast<std::int64_t>(bytes);
  info.sm_clock_mhz = attribute(driver, CU_DEVICE_ATTRIBUTE_CLOCK_RATE, device) / 1000;
  info.memory_clock_mhz = attribute(driver, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, device) / 1000;
  info.memory_bus_bits = attribute(driver, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, device);
  if (const Architecture* architecture = architecture_of(info.major, info.minor))
    info.architecture = architecture->name;
  return info;
}

// Memory that is freed stays with the process: the next call's output must not wait for the operating system.
CUmemoryPool make_pool(const Driver& driver, int ordinal) {
  if (!attribute(driver, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, ordinal)) return nullptr;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = ordinal;
  CUmemoryPool pool = nullptr;
  driver.check(driver.cuMemPoolCreate(&pool, &properties), "cuMemPoolCreate");
  cuuint64_t threshold = UINT64_MAX;
  driver.check(driver.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold),
               "cuMemPoolSetAttribute");
  return pool;
}

struct Slot {
  std::once_flag opened;
  Device device;
};

void open(const Driver& driver, int ordinal, Device& device) {
  device.info = describe(driver, ordinal);
  device.architecture = architecture_of(device.info.major, device.info.minor);
  device.smem_per_block = attribute(driver, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, ordinal);
  driver.check(driver.cuDevicePrimaryCtxRetain(&device.primary, ordinal), "cuDevicePrimaryCtxRetain");
  device.pool = make_pool(driver, ordinal);
}

bool is_default(Stream stream) noexcept {
  return !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

}  // namespace

const Device& device(int ordinal) {
  const Driver& driver = Driver::load();
  static const int count = device_count(driver);
  // Never destroyed: work in other threads may still need it while the process ends.
  static Slot* const slots = new Slot[static_cast<std::size_t>(count)];
  if (count == 0) throw Error(ErrorCode::no_device, "device: there must be a GPU, was none");
  if (ordinal < 0 || ordinal >= count) {
    throw Error(ErrorCode::invalid_argument, fmt::format("device: must be from 0 to {}, was {}", count - 1, ordinal));
  }
  Slot& slot = slots[ordinal];
  std::call_once(slot.opened, [&] { open(driver, ordinal, slot.device); });
  return slot.device;
}

const Architecture& require_architecture(const Device& device) {
  if (device.architecture) return *device.architecture;
  throw Error(ErrorCode::unsupported,
              fmt::format("device: must have a compute capability that kernels exist for, was {}.{} ({})",
                          device.info.major, device.info.minor, device.info.name));
}

int current_device(const Driver& driver) noexcept {
  // Asked first whether there is a context at all: without one cuCtxGetDevice fails, which tools report.
  CUcontext context = nullptr;
  if (driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context) return -1;
  CUdevice current = -1;
  return driver.cuCtxGetDevice(&current) == CUDA_SUCCESS ? current : -1;
}

int resolve_device(const Driver& driver, int ordinal) {
  if (ordinal != -1) return ordinal;
  const int current = current_device(driver);
  return current < 0 ? 0 : current;
}

CUcontext stream_context(const Driver& driver, Stream stream) noexcept {
  CUcontext context = nullptr;
  if (is_default(stream) || driver.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS) return nullptr;
  return context;
}

int stream_device(const Driver& driver, Stream stream) noexcept {
  // Not by cuStreamGetDevice: it fails on a stream that captures, and ends the capture.
  CUcontext context = stream_context(driver, stream);
  if (!context) return -1;
  if (driver.cuCtxPushCurrent(context) != CUDA_SUCCESS) return -1;
  const int owner = current_device(driver);
  driver.cuCtxPopCurrent(&context);
  return owner;
}

bool is_capturing(const Driver& driver, Stream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver.cuStreamIsCapturing(stream, &status);
  // The default stream answers so while another stream of its context captures.
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
  driver.check(result, "cuStreamIsCapturing");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void* allocate_memory(const Driver& driver, const Device& device, std::size_t bytes, Stream stream) {
  CUdeviceptr pointer = 0;
  // Memory of the pool is the device's, not a context's: kernels in contexts of the caller's reach it too.
  if (device.pool) {
    driver.check(driver.cuMemAllocFromPoolAsync(&pointer, bytes, device.pool, stream), "cuMemAllocFromPoolAsync");
  } else {
    driver.check(driver.cuMemAlloc(&pointer, bytes), "cuMemAlloc");
  }
  return reinterpret_cast<void*>(pointer);
}

void free_memory(const Driver& driver, const Device& device, void* memory, Stream stream) noexcept {
  const auto pointer = reinterpret_cast<CUdeviceptr>(memory);
  if (device.pool) {
    driver.cuMemFreeAsync(pointer, stream);
  } else {
    driver.cuMemFree(pointer);
  }
}

std::vector<DeviceInfo> describe_devices(const Driver& driver) {
  std::vector<DeviceInfo> devices;
  const int count = device_count(driver);
  for (int ordinal = 0; ordinal < count; ++ordinal) devices.push_back(describe(driver, ordinal));
  return devices;
}

void ContextScope::push(int ordinal, Stream stream) {
  CUcontext context = nullptr;
  if (is_default(stream)) {
    context = device(ordinal).primary;
  } else {
    driver_.check(driver_.cuStreamGetCtx(stream, &context), "cuStreamGetCtx");
  }
  driver_.check(driver_.cuCtxPushCurrent(context), "cuCtxPushCurrent");
  pushed_ = true;
}

ContextScope::~ContextScope() {
  CUcontext popped = nullptr;
  if (pushed_) driver_.cuCtxPopCurrent(&popped);
}

}  // namespace flashjit::runtime
