// SPDX-License-Identifier: Apache-2.0
// A stream for work that is none of the caller's.
#pragma once

#include "runtime/cuda/device.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/relaxed_capture.h"

namespace flashjit::runtime {

// While it lives a context of the device is current in this thread, which may allocate and load although streams
// capture graphs. At its end, in the same thread, its work is waited for, and memory that was only needed for it goes
// back to the device.
class PrivateStream {
 public:
  PrivateStream(const Driver& driver, const Device& device);
  ~PrivateStream();
  PrivateStream(const PrivateStream&) = delete;
  PrivateStream& operator=(const PrivateStream&) = delete;

  Stream get() const noexcept { return stream_; }
  // Throws Error(driver), also for what went wrong before and leaves the context unusable.
  void synchronize() const { driver_.check(driver_.cuStreamSynchronize(stream_), "cuStreamSynchronize"); }

 private:
  const Driver& driver_;
  const Device& device_;
  const RelaxedCapture relaxed_;
  const ContextScope context_;
  CUstream stream_ = nullptr;
};

}  // namespace flashjit::runtime
