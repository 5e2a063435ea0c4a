// SPDX-License-Identifier: Apache-2.0
// The way from a validated call to its operation on a GPU.
#pragma once

#include <cstddef>
#include <optional>

#include "flashjit/attention.h"
#include "flashjit/tensor.h"
#include "runtime/backends/kernels.h"
#include "runtime/call/operation.h"
#include "runtime/call/validate.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/stream_scratch.h"

namespace flashjit::runtime {

// Memory of an operation's launches, and of nobody else while they run: of those that come later on the stream it is
// again once this is destroyed.
class OperationScratch {
 public:
  // The stream's context is current. kept: null where there is none. Throws Error(driver).
  OperationScratch(const Driver& driver, StreamScratch* kept, Stream stream, std::size_t bytes);

  std::byte* data() const noexcept { return static_cast<std::byte*>(lent_ ? lent_->data() : own_.data()); }

 private:
  std::optional<StreamScratch::Loan> lent_;
  DeviceTensor own_;
};

// An operation on a GPU, ready to go. Enqueued again it runs again, on its stream and so after the first time.
class GpuOperation {
 public:
  // The stream's context is current. Throws Error(invalid_argument, driver).
  GpuOperation(const Driver& driver, const ForwardCall& call, const LaunchRecord& kernel, Stream stream);

  // Without a check, for measurements of the launch itself.
  CUresult launch(const Driver& driver) {
    for (int i = 0; Launch & launch : operation_) {
      void* parameters[] = {launch.arguments};
      const CUresult result = driver.cuLaunchKernelEx(&configs_[i], functions_[i], parameters, nullptr);
      if (result != CUDA_SUCCESS) return result;
      ++i;
    }
    return CUDA_SUCCESS;
  }
  void enqueue(const Driver& driver) { driver.check(launch(driver), "cuLaunchKernelEx"); }

 private:
  OperationScratch scratch_;
  Operation operation_;
  CUfunction functions_[generator::kTurns];
  CUlaunchConfig configs_[generator::kTurns];
};

// How a launch is enqueued: every field is set.
void set_config(CUlaunchConfig& config, const Launch& launch, Stream stream);
// Into its arguments. Throws Error(driver).
void write_tensor_maps(const Driver& driver, Launch& launch);
// A counter of its own for a launch on the stream.
std::uint32_t* next_tile_counter(const Driver& driver, TileCounters& counters, Stream stream);

// A launch of a kernel beside those of forward attention, without counters. Throws Error(driver).
void enqueue(const Driver& driver, Launch& launch, CUfunction function, Stream stream);

// The device that a call with these operands runs on. Throws Error(invalid_argument) when pointers or stream do not
// agree on one.
int device_of(const Driver& driver, const Operands& operands, Stream stream);

// The call's kernel on the device; made now when it has not been prepared. Throws Error(unsupported) while the stream
// captures a graph and the kernel is not there, Error(invalid_argument) when the given variant cannot read the call's
// tensors, and what making it throws.
const LaunchRecord& forward_kernel(const Driver& driver, Kernels& kernels, const ForwardCall& call,
                                   const AttentionOptions& opts, int device);

}  // namespace flashjit::runtime
