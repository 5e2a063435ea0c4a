// SPDX-License-Identifier: Apache-2.0
// What of the CUDA driver streams and events take, declared here as in CUDA 12 and later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "flashjit/tensor.h"

struct CUctx_st;
struct CUevent_st;

namespace flashjit::distributed {

// What is found in the library, and as what: each returns a CUresult.
#define FLASHJIT_DRIVER_FUNCTIONS(X)                                                   \
  X(cuInit, (unsigned))                                                                \
  X(cuDevicePrimaryCtxRetain, (CUctx_st**, int))                                       \
  X(cuDevicePrimaryCtxRelease_v2, (int))                                               \
  X(cuCtxPushCurrent_v2, (CUctx_st*))                                                  \
  X(cuCtxPopCurrent_v2, (CUctx_st**))                                                  \
  X(cuCtxGetStreamPriorityRange, (int*, int*))                                         \
  X(cuStreamCreateWithPriority, (CUstream_st**, unsigned, int))                        \
  X(cuStreamDestroy_v2, (CUstream_st*))                                                \
  X(cuStreamSynchronize, (CUstream_st*))                                               \
  X(cuStreamWaitEvent, (CUstream_st*, CUevent_st*, unsigned))                          \
  X(cuStreamIsCapturing, (CUstream_st*, int*))                                         \
  X(cuThreadExchangeStreamCaptureMode, (int*))                                         \
  X(cuMemcpyDtoDAsync_v2, (std::uintptr_t, std::uintptr_t, std::size_t, CUstream_st*)) \
  X(cuMemsetD8Async, (std::uintptr_t, unsigned char, std::size_t, CUstream_st*))       \
  X(cuEventCreate, (CUevent_st**, unsigned))                                           \
  X(cuEventDestroy_v2, (CUevent_st*))                                                  \
  X(cuEventRecord, (CUevent_st*, CUstream_st*))                                        \
  X(cuEventQuery, (CUevent_st*))                                                       \
  X(cuGetErrorName, (int, const char**))

struct DriverFunctions {
#define FLASHJIT_DECLARE(name, parameters) int(*name) parameters = nullptr;
  FLASHJIT_DRIVER_FUNCTIONS(FLASHJIT_DECLARE)
#undef FLASHJIT_DECLARE

  // Opened once. Throws Error(no_driver).
  static const DriverFunctions& load();
  // Throws Error(driver) unless the result is success.
  void check(int result, const char* function) const;
};

inline constexpr int kCudaSuccess = 0, kCudaNotReady = 600;

// A device's primary context: that of programs which use CUDA's runtime, and so NCCL's.
class DeviceContext {
 public:
  explicit DeviceContext(int device);
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  const DriverFunctions& driver() const noexcept { return driver_; }
  int device() const noexcept { return device_; }

  // Makes it current while it lives.
  class Scope {
   public:
    explicit Scope(const DeviceContext& of);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const DriverFunctions& driver_;
  };

 private:
  const DriverFunctions& driver_;
  int device_;
  CUctx_st* context_ = nullptr;
};

// While it lives, this thread may ask for events although somebody captures a graph. Otherwise the driver refuses to
// answer then, and the capture is void.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const DriverFunctions& driver);
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const DriverFunctions& driver_;
  int mode_;  // of the thread: ours while this lives, and then what it was again
};

// Where a stream has come to.
class Event {
 public:
  explicit Event(const DriverFunctions& driver);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(Stream stream) const;
  // What follows on the stream waits for it.
  void hold(Stream stream) const;
  bool has_passed() const;

 private:
  const DriverFunctions& driver_;
  CUevent_st* event_ = nullptr;
};

}  // namespace flashjit::distributed
