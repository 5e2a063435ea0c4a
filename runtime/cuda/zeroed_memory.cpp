// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/zeroed_memory.h"

#include "runtime/cuda/relaxed_capture.h"

namespace flashjit::runtime {
namespace {

// Makes the primary context current for a while, even if another one of the device is.
class PrimaryContext {
 public:
  PrimaryContext(const Driver& driver, const Device& device) : driver_(driver) {
    driver_.check(driver_.cuCtxPushCurrent(device.primary), "cuCtxPushCurrent");
  }
  ~PrimaryContext() {
    CUcontext popped = nullptr;
    driver_.cuCtxPopCurrent(&popped);
  }
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

 private:
  const Driver& driver_;
};

}  // namespace

ZeroedMemory::ZeroedMemory(const Driver& driver, const Device& device) : driver_(driver), device_(device) {
  const RelaxedCapture relaxed(driver_);
  const PrimaryContext primary(driver_, device_);
  driver_.check(driver_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
}

ZeroedMemory::~ZeroedMemory() {
  const RelaxedCapture relaxed(driver_);
  if (driver_.cuCtxPushCurrent(device_.primary) != CUDA_SUCCESS) return;
  for (const CUdeviceptr block : blocks_) driver_.cuMemFree(block);
  driver_.cuStreamDestroy(stream_);
  CUcontext popped = nullptr;
  driver_.cuCtxPopCurrent(&popped);
}

void* ZeroedMemory::allocate(std::size_t bytes) {
  const RelaxedCapture relaxed(driver_);
  const PrimaryContext primary(driver_, device_);
  blocks_.reserve(blocks_.size() + 1);
  const auto block = reinterpret_cast<CUdeviceptr>(allocate_memory(driver_, device_, bytes, stream_));
  blocks_.push_back(block);
  driver_.check(driver_.cuMemsetD8Async(block, 0, bytes, stream_), "cuMemsetD8Async");
  driver_.check(driver_.cuStreamSynchronize(stream_), "cuStreamSynchronize");
  return reinterpret_cast<void*>(block);
}

}  // namespace flashjit::runtime
