// SPDX-License-Identifier: Apache-2.0
// The GPUs of this process, and which context work for them runs in.
#pragma once

#include <cstddef>
#include <vector>

#include "flashjit/engine.h"
#include "flashjit/tensor.h"
#include "runtime/cuda/driver.h"

namespace flashjit::runtime {

struct Device {
  DeviceInfo info;
  const Architecture* architecture = nullptr;  // null when no kernel here runs on it
  int smem_per_block = 0;                      // bytes, with opt-in
  CUcontext primary = nullptr;
  CUmemoryPool pool = nullptr;  // null when the device has no memory pools
};

// The device with its primary context, which is retained at first use and for the rest of the process, as the CUDA
// runtime does: tensors may outlive every engine. Throws Error(invalid_argument, no_driver, no_device, driver).
const Device& device(int ordinal);
// The architecture of the device's kernels. Throws Error(unsupported).
const Architecture& require_architecture(const Device& device);

// -1 when no context is current. The driver's device handles are the ordinals.
int current_device(const Driver& driver) noexcept;
// -1 becomes the current context's device, or 0.
int resolve_device(const Driver& driver, int ordinal);
// The context of a stream; null for the default streams, which are in any, and when it cannot be said.
CUcontext stream_context(const Driver& driver, Stream stream) noexcept;
// The device of a stream; -1 for the default streams, which are on any, and when it cannot be said.
int stream_device(const Driver& driver, Stream stream) noexcept;
// Whether work that is enqueued on the stream becomes part of a graph. Throws Error(driver).
bool is_capturing(const Driver& driver, Stream stream);

// In the stream's order; a context of the device is current. Where the device has no pools, freeing waits for it.
// Throws Error(driver).
void* allocate_memory(const Driver& driver, const Device& device, std::size_t bytes, Stream stream);
void free_memory(const Driver& driver, const Device& device, void* memory, Stream stream) noexcept;

std::vector<DeviceInfo> describe_devices(const Driver& driver);

// While it lives a context of the device is current: the one that is, if it is of that device, else the stream's own,
// else the primary one. On destruction the context is as before.
class ContextScope {
 public:
  ContextScope(const Driver& driver, int ordinal, Stream stream = nullptr) : driver_(driver) {
    if (current_device(driver) != ordinal) push(ordinal, stream);
  }
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  void push(int ordinal, Stream stream);

  const Driver& driver_;
  bool pushed_ = false;
};

}  // namespace flashjit::runtime
