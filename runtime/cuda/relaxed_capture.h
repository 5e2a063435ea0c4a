// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/cuda/driver.h"

namespace flashjit::runtime {

// While it lives this thread may load kernels and allocate memory although a stream captures a graph, in this thread or
// another one, and the capture goes on.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace flashjit::runtime
