// SPDX-License-Identifier: Apache-2.0
// Times of kernels by events, and of the host by its clock.
#pragma once

#include <functional>
#include <vector>

#include "flashjit/engine.h"
#include "flashjit/tensor.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/driver.h"

namespace flashjit::runtime {

// Two events around work in a stream. The context must be current while it lives.
class EventPair {
 public:
  explicit EventPair(const Driver& driver);
  ~EventPair();
  EventPair(EventPair&& other) noexcept;
  EventPair& operator=(EventPair&&) = delete;

  void start(Stream stream) const;
  void stop(Stream stream) const;
  double wait_for_microseconds() const;  // waits for the end of the work

 private:
  const Driver& driver_;
  CUevent start_ = nullptr, stop_ = nullptr;
};

// Times of single pieces of work in one stream. The context must be current while it lives.
class KernelTimer {
 public:
  // flush_l2: each piece finds the L2 overwritten with a buffer of twice its size, which is allocated here, once.
  KernelTimer(const Driver& driver, const Device& device, Stream stream, bool flush_l2);

  // Microseconds of each. enqueue() puts one on the stream; nothing is waited for between them.
  std::vector<double> measure(int repeats, const std::function<void()>& enqueue);

 private:
  void flush() const;

  const Driver& driver_;
  Stream stream_;
  DeviceTensor flush_;             // empty: nothing is flushed
  std::vector<EventPair> events_;  // as many as one call has needed
};

// enqueue() puts one piece of work on the stream. Nothing is waited for between the repeats.
Timing measure_kernel(const Driver& driver, const Device& device, Stream stream, const MeasureOptions& options,
                      const std::function<void()>& enqueue);

// call() and bare() each enqueue one launch. Their batches alternate, and the stream is drained between them so that
// its queue never fills: a full queue would make the host wait for the GPU.
HostCost measure_host(const Driver& driver, Stream stream, const std::function<void()>& call,
                      const std::function<void()>& bare);

}  // namespace flashjit::runtime
