// SPDX-License-Identifier: Apache-2.0
// The CUDA driver, opened when it is first needed: a program that links this library starts on machines without one.
#pragma once

#include <cuda.h>

#include <string>

#include "flashjit/error.h"

namespace flashjit::runtime {

// cuda.h defines many of these names as macros of a versioned symbol; a use expands them alike in all places.
#define FLASHJIT_DRIVER_FUNCTIONS(X)             \
  X(cuInit)                                      \
  X(cuDriverGetVersion)                          \
  X(cuGetErrorName)                              \
  X(cuGetErrorString)                            \
  X(cuDeviceGetCount)                            \
  X(cuDeviceGet)                                 \
  X(cuDeviceGetName)                             \
  X(cuDeviceTotalMem)                            \
  X(cuDeviceGetAttribute)                        \
  X(cuDevicePrimaryCtxRetain)                    \
  X(cuCtxGetCurrent)                             \
  X(cuCtxGetDevice)                              \
  X(cuCtxPushCurrent)                            \
  X(cuCtxPopCurrent)                             \
  X(cuStreamCreate)                              \
  X(cuStreamDestroy)                             \
  X(cuStreamGetCtx)                              \
  X(cuStreamIsCapturing)                         \
  X(cuStreamSynchronize)                         \
  X(cuThreadExchangeStreamCaptureMode)           \
  X(cuEventCreate)                               \
  X(cuEventDestroy)                              \
  X(cuEventRecord)                               \
  X(cuEventSynchronize)                          \
  X(cuPointerGetAttribute)                       \
  X(cuPointerGetAttributes)                      \
  X(cuMemAlloc)                                  \
  X(cuMemFree)                                   \
  X(cuMemPoolCreate)                             \
  X(cuMemPoolSetAttribute)                       \
  X(cuMemPoolTrimTo)                             \
  X(cuMemAllocFromPoolAsync)                     \
  X(cuMemFreeAsync)                              \
  X(cuMemcpyHtoDAsync)                           \
  X(cuMemcpyDtoHAsync)                           \
  X(cuMemsetD8Async)                             \
  X(cuLibraryLoadData)                           \
  X(cuLibraryUnload)                             \
  X(cuLibraryGetKernel)                          \
  X(cuKernelGetFunction)                         \
  X(cuKernelSetAttribute)                        \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor) \
  X(cuLaunchKernelEx)

// Null when the driver is older than they are.
#define FLASHJIT_OPTIONAL_DRIVER_FUNCTIONS(X) \
  X(cuFuncLoad)                               \
  X(cuStreamGetId)                            \
  X(cuTensorMapEncodeTiled)                   \
  X(cuTensorMapReplaceAddress)

struct DriverFunctions {
#define FLASHJIT_DECLARE(name) decltype(&::name) name = nullptr;
  FLASHJIT_DRIVER_FUNCTIONS(FLASHJIT_DECLARE)
  FLASHJIT_OPTIONAL_DRIVER_FUNCTIONS(FLASHJIT_DECLARE)
#undef FLASHJIT_DECLARE
  // Its first version has the signature of every later one, and all drivers have it.
  CUresult (*elapsed_time)(float* milliseconds, CUevent start, CUevent end) = nullptr;
};

class Driver : public DriverFunctions {
 public:
  // The driver, initialised. Throws Error(no_driver, no_device), again on every call: nothing is tried twice.
  static const Driver& load();
  // load() without throwing: null when it would throw, and why.
  static const Driver* try_load(std::string* why = nullptr);

  // "13.0" of the driver that is installed, even if it has no device; empty when there is none.
  static std::string installed_version();

  // Throws Error(driver) with the name of the function and of the error.
  void check(CUresult result, const char* function) const {
    if (result != CUDA_SUCCESS) fail(result, function);
  }
  std::string describe(CUresult result) const;

 private:
  struct Opened;
  static const Opened& open();
  [[noreturn]] void fail(CUresult result, const char* function) const;

  int version_ = 0;
};

std::string version_text(int cuda_version);  // 13000 -> "13.0"

}  // namespace flashjit::runtime
