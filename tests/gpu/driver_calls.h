// SPDX-License-Identifier: Apache-2.0
// Driver functions that only tests need: streams, contexts, graphs and other kinds of memory.
#pragma once

#include <cuda.h>
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <stdexcept>
#include <string>

namespace flashjit::tests {

template <typename Function>
Function find_driver_function(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void* symbol = library ? dlsym(library, name) : nullptr;
  if (!symbol) throw std::runtime_error(std::string("the driver lacks ") + name);
  return reinterpret_cast<Function>(symbol);
}

}  // namespace flashjit::tests

// The name after cuda.h's macros have given it its version.
#define FLASHJIT_TEST_SYMBOL(name) #name
#define DRIVER_FUNCTION(name) flashjit::tests::find_driver_function<decltype(&::name)>(FLASHJIT_TEST_SYMBOL(name))
// Calls a driver function, which must succeed.
#define DRIVER_CALL(name, ...) REQUIRE(DRIVER_FUNCTION(name)(__VA_ARGS__) == CUDA_SUCCESS)

namespace flashjit::tests {

class ScopedStream {
 public:
  ScopedStream() { DRIVER_CALL(cuStreamCreate, &stream_, CU_STREAM_NON_BLOCKING); }
  ~ScopedStream() { DRIVER_FUNCTION(cuStreamDestroy)(stream_); }
  ScopedStream(const ScopedStream&) = delete;
  ScopedStream& operator=(const ScopedStream&) = delete;

  void synchronize() const { DRIVER_CALL(cuStreamSynchronize, stream_); }
  CUstream get() const noexcept { return stream_; }

 private:
  CUstream stream_ = nullptr;
};

inline constexpr int kNoContext = -1;

// Makes the primary context of a device, or none, current for a while.
class ScopedContext {
 public:
  explicit ScopedContext(int device) : device_(device) {
    DRIVER_CALL(cuCtxGetCurrent, &before_);
    CUcontext context = nullptr;
    if (device_ >= 0) DRIVER_CALL(cuDevicePrimaryCtxRetain, &context, device_);
    DRIVER_CALL(cuCtxSetCurrent, context);
  }
  ~ScopedContext() {
    DRIVER_FUNCTION(cuCtxSetCurrent)(before_);
    if (device_ >= 0) DRIVER_FUNCTION(cuDevicePrimaryCtxRelease)(device_);
  }
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

 private:
  int device_;
  CUcontext before_ = nullptr;
};

// Makes a context that is not the primary one, and current for a while.
class OwnContext {
 public:
  explicit OwnContext(int device) {
    DRIVER_CALL(cuCtxGetCurrent, &before_);
#if CUDA_VERSION >= 13000
    DRIVER_CALL(cuCtxCreate, &context_, nullptr, 0, device);
#else
    DRIVER_CALL(cuCtxCreate, &context_, 0, device);
#endif
  }
  ~OwnContext() {
    DRIVER_FUNCTION(cuCtxDestroy)(context_);
    DRIVER_FUNCTION(cuCtxSetCurrent)(before_);
  }
  OwnContext(const OwnContext&) = delete;
  OwnContext& operator=(const OwnContext&) = delete;

 private:
  CUcontext before_ = nullptr, context_ = nullptr;
};

inline CUcontext current_context() {
  CUcontext context = nullptr;
  DRIVER_CALL(cuCtxGetCurrent, &context);
  return context;
}

}  // namespace flashjit::tests
