// SPDX-License-Identifier: Apache-2.0
// The way from a validated call to its launch on a GPU.
#pragma once

#include "flashjit/attention.h"
#include "runtime/backends/kernels.h"
#include "runtime/call/launch.h"
#include "runtime/call/validate.h"
#include "runtime/cuda/driver.h"

namespace flashjit::runtime {

// A launch on a GPU, ready to go. Enqueued again it runs again, on its stream and so after the first time.
struct ForwardLaunch {
  ForwardLaunch() = default;
  ForwardLaunch(const LaunchRecord& kernel, const ForwardCall& call)
      : function(kernel.function), bound(bind(call, kernel.spec, kernel.resident_blocks)) {}

  CUfunction function = nullptr;
  CUlaunchConfig config;
  Launch bound;

  CUresult launch(const Driver& driver) {
    void* parameters[] = {bound.arguments};
    return driver.cuLaunchKernelEx(&config, function, parameters, nullptr);
  }
  void enqueue(const Driver& driver) { driver.check(launch(driver), "cuLaunchKernelEx"); }
};

// Throws Error(invalid_argument, driver).
ForwardLaunch make_forward_launch(const Driver& driver, const ForwardCall& call, const LaunchRecord& record,
                                  Stream stream);

// The device that the call runs on. Throws Error(invalid_argument) when pointers or stream do not agree on one.
int forward_device(const Driver& driver, const ForwardCall& call, Stream stream);

// The call's kernel on the device; made now when it has not been prepared. Throws Error(unsupported) while the stream
// captures a graph and the kernel is not there, Error(invalid_argument) when the given variant cannot read the call's
// tensors, and what making it throws.
const LaunchRecord& forward_kernel(const Driver& driver, Kernels& kernels, const ForwardCall& call,
                                   const AttentionOptions& opts, int device);

}  // namespace flashjit::runtime
