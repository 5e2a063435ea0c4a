// SPDX-License-Identifier: Apache-2.0
#include "distributed/driver.h"

#include <string>

#include "distributed/opened_library.h"

namespace flashjit::distributed {
namespace {

constexpr unsigned kWithoutTiming = 2;  // CU_EVENT_DISABLE_TIMING
constexpr int kRelaxed = 2;             // CU_STREAM_CAPTURE_MODE_RELAXED

DriverFunctions open() {
  const OpenedLibrary library("libcuda.so.1", ErrorCode::no_driver);
  DriverFunctions of;
#define FLASHJIT_FIND(name, parameters) library.find(#name, of.name);
  FLASHJIT_DRIVER_FUNCTIONS(FLASHJIT_FIND)
#undef FLASHJIT_FIND
  of.check(of.cuInit(0), "cuInit");
  return of;
}

}  // namespace

const DriverFunctions& DriverFunctions::load() {
  static const DriverFunctions opened = open();
  return opened;
}

void DriverFunctions::check(int result, const char* function) const {
  if (result == kCudaSuccess) return;
  const char* name = nullptr;
  if (cuGetErrorName(result, &name) != kCudaSuccess || !name) name = "unknown error";
  throw Error(ErrorCode::driver, std::string(function) + " failed: " + name);
}

DeviceContext::DeviceContext(int device) : driver_(DriverFunctions::load()), device_(device) {
  driver_.check(driver_.cuDevicePrimaryCtxRetain(&context_, device), "cuDevicePrimaryCtxRetain");
}
DeviceContext::~DeviceContext() { driver_.cuDevicePrimaryCtxRelease_v2(device_); }

DeviceContext::Scope::Scope(const DeviceContext& of) : driver_(of.driver_) {
  driver_.check(driver_.cuCtxPushCurrent_v2(of.context_), "cuCtxPushCurrent");
}
DeviceContext::Scope::~Scope() {
  CUctx_st* popped = nullptr;
  driver_.cuCtxPopCurrent_v2(&popped);
}

RelaxedCapture::RelaxedCapture(const DriverFunctions& driver) : driver_(driver), mode_(kRelaxed) {
  driver_.check(driver_.cuThreadExchangeStreamCaptureMode(&mode_), "cuThreadExchangeStreamCaptureMode");
}
RelaxedCapture::~RelaxedCapture() { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }

Event::Event(const DriverFunctions& driver) : driver_(driver) {
  driver_.check(driver_.cuEventCreate(&event_, kWithoutTiming), "cuEventCreate");
}
Event::~Event() { driver_.cuEventDestroy_v2(event_); }

void Event::record(Stream stream) const { driver_.check(driver_.cuEventRecord(event_, stream), "cuEventRecord"); }
void Event::hold(Stream stream) const {
  driver_.check(driver_.cuStreamWaitEvent(stream, event_, 0), "cuStreamWaitEvent");
}
bool Event::has_passed() const {
  const int result = driver_.cuEventQuery(event_);
  if (result != kCudaNotReady) driver_.check(result, "cuEventQuery");
  return result == kCudaSuccess;
}

}  // namespace flashjit::distributed
