// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/timer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "runtime/support/statistics.h"

namespace flashjit::runtime {
namespace {

constexpr int kBatchCalls = 200;
constexpr int kBatches = 31;
constexpr int kWarmupBatches = 3;
constexpr unsigned char kFlushByte = 0;

double host_microseconds_per_call(const Driver& driver, Stream stream, const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kBatchCalls; ++i) call();
  const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - start;
  driver.check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
  return elapsed.count() / kBatchCalls;
}

}  // namespace

EventPair::EventPair(const Driver& driver) : driver_(driver) {
  driver_.check(driver_.cuEventCreate(&start_, CU_EVENT_DEFAULT), "cuEventCreate");
  const CUresult result = driver_.cuEventCreate(&stop_, CU_EVENT_DEFAULT);
  if (result != CUDA_SUCCESS) driver_.cuEventDestroy(start_);
  driver_.check(result, "cuEventCreate");
}

EventPair::EventPair(EventPair&& other) noexcept
    : driver_(other.driver_),
      start_(std::exchange(other.start_, nullptr)),
      stop_(std::exchange(other.stop_, nullptr)) {}

EventPair::~EventPair() {
  if (start_) driver_.cuEventDestroy(start_);
  if (stop_) driver_.cuEventDestroy(stop_);
}

void EventPair::start(Stream stream) const { driver_.check(driver_.cuEventRecord(start_, stream), "cuEventRecord"); }

void EventPair::stop(Stream stream) const { driver_.check(driver_.cuEventRecord(stop_, stream), "cuEventRecord"); }

double EventPair::wait_for_microseconds() const {
  driver_.check(driver_.cuEventSynchronize(stop_), "cuEventSynchronize");
  float milliseconds = 0;
  driver_.check(driver_.elapsed_time(&milliseconds, start_, stop_), "cuEventElapsedTime");
  return milliseconds * 1e3;
}

KernelTimer::KernelTimer(const Driver& driver, const Device& device, Stream stream, bool flush_l2)
    : driver_(driver), stream_(stream) {
  if (flush_l2) flush_ = DeviceTensor::allocate(DType::f32, {device.info.l2_bytes / 2}, stream, device.info.ordinal);
}

std::vector<double> KernelTimer::measure(int repeats, const std::function<void()>& enqueue) {
  const auto count = static_cast<std::size_t>(repeats);
  events_.reserve(count);
  while (events_.size() < count) events_.emplace_back(driver_);
  for (std::size_t i = 0; i < count; ++i) {
    flush();
    events_[i].start(stream_);
    enqueue();
    events_[i].stop(stream_);
  }
  std::vector<double> times;
  for (std::size_t i = 0; i < count; ++i) times.push_back(events_[i].wait_for_microseconds());
  return times;
}

void KernelTimer::flush() const {
  if (!flush_.data()) return;
  driver_.check(
      driver_.cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(flush_.data()), kFlushByte, flush_.size_bytes(), stream_),
      "cuMemsetD8Async");
}

Timing measure_kernel(const Driver& driver, const Device& device, Stream stream, const MeasureOptions& options,
                      const std::function<void()>& enqueue) {
  if (options.repeats < 1 || options.warmup < 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("options: repeats must be at least 1 and warmup at least 0, were {} and {}",
                            options.repeats, options.warmup));
  }
  KernelTimer timer(driver, device, stream, options.flush_l2);
  for (int i = 0; i < options.warmup; ++i) enqueue();
  std::vector<double> times = timer.measure(options.repeats, enqueue);
  Timing timing;
  timing.repeats = options.repeats;
  timing.min_us = *std::min_element(times.begin(), times.end());
  timing.max_us = *std::max_element(times.begin(), times.end());
  timing.median_us = median(std::move(times));
  return timing;
}

HostCost measure_host(const Driver& driver, Stream stream, const std::function<void()>& call,
                      const std::function<void()>& bare) {
  std::vector<double> calls, launches;
  for (int i = -kWarmupBatches; i < kBatches; ++i) {
    const double call_us = host_microseconds_per_call(driver, stream, call);
    const double bare_us = host_microseconds_per_call(driver, stream, bare);
    if (i < 0) continue;
    calls.push_back(call_us);
    launches.push_back(bare_us);
  }
  return {median(std::move(calls)), median(std::move(launches))};
}

}  // namespace flashjit::runtime
