// SPDX-License-Identifier: Apache-2.0
// A cubin that the driver has loaded: one handle for all devices and contexts.
#pragma once

#include <memory>
#include <string>

#include "runtime/cuda/device.h"
#include "runtime/cuda/driver.h"

namespace flashjit::runtime {

class Module {
 public:
  // Loads the cubin and its kernel, in the current context too, so that the first launch loads nothing and may be
  // captured in a graph. On failure null, and the driver's result with the function that gave it.
  struct Failure {
    CUresult result = CUDA_SUCCESS;
    const char* function = "";
  };
  static std::unique_ptr<Module> open(const Driver& driver, const std::string& cubin, const std::string& entry,
                                      Failure& failure);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // Makes the kernel ready for launches with this much dynamic shared memory on the device, in whose context it is
  // called. Throws Error(unsupported, driver).
  struct Ready {
    CUfunction function = nullptr;
    int blocks_per_sm = 0;  // that run at once
  };
  Ready prepare(const Device& device, const std::string& name, int threads, int smem_bytes) const;

 private:
  explicit Module(const Driver& driver) : driver_(driver) {}

  const Driver& driver_;
  CUlibrary library_ = nullptr;
  CUkernel kernel_ = nullptr;
};

}  // namespace flashjit::runtime
