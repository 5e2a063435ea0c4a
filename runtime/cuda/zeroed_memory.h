// SPDX-License-Identifier: Apache-2.0
// Device memory that starts as zeros and lives as long as its owner.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/cuda/device.h"
#include "runtime/cuda/driver.h"

namespace flashjit::runtime {

// Of one device. May be used while streams capture graphs.
class ZeroedMemory {
 public:
  ZeroedMemory(const Driver& driver, const Device& device);
  ~ZeroedMemory();
  ZeroedMemory(const ZeroedMemory&) = delete;
  ZeroedMemory& operator=(const ZeroedMemory&) = delete;

  // The zeros are there when it returns. Throws Error(driver).
  void* allocate(std::size_t bytes);

 private:
  const Driver& driver_;
  const Device& device_;
  CUstream stream_ = nullptr;  // of its own: the default ones may be captured or wait for a capture
  std::vector<CUdeviceptr> blocks_;
};

}  // namespace flashjit::runtime
