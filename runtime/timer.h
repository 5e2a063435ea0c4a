// SPDX-License-Identifier: Apache-2.0
// Times of kernels by events, and of the host by its clock.
#pragma once

#include <functional>

#include "flashjit/engine.h"
#include "runtime/device.h"
#include "runtime/driver.h"

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

// enqueue() puts one piece of work on the stream. Nothing is waited for between the repeats.
Timing measure_kernel(const Driver& driver, const Device& device, Stream stream, const MeasureOptions& options,
                      const std::function<void()>& enqueue);

// call() and bare() each enqueue one launch. Their batches alternate, and the stream is drained between them so that
// its queue never fills: a full queue would make the host wait for the GPU.
HostCost measure_host(const Driver& driver, Stream stream, const std::function<void()>& call,
                      const std::function<void()>& bare);

}  // namespace flashjit::runtime
