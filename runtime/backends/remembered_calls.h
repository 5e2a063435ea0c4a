// SPDX-License-Identifier: Apache-2.0
// Calls with a plan that ran, as they ran. Those of a model's other layers, and of the next steps, differ from them in
// addresses alone, so that nothing of them has to be found out again.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/backends/launch_record.h"
#include "runtime/call/movable_operation.h"
#include "runtime/cuda/driver.h"

namespace flashjit::runtime {

// Addresses that were looked at and found to be of the right device's memory. Thread-safe, takes no lock, and may
// forget: then the driver is asked again.
class KnownAddresses {
 public:
  bool has(std::uintptr_t address) const noexcept { return place(address).load(std::memory_order_relaxed) == address; }
  void add(std::uintptr_t address) noexcept { place(address).store(address, std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kLog2Places = 8;  // more than a model's layers have keys, values and scales
  std::atomic<std::uintptr_t>& place(std::uintptr_t address) const noexcept {
    constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;  // spreads addresses that are multiples of a size
    return places_[address * kGolden >> (64 - kLog2Places)];
  }
  mutable std::array<std::atomic<std::uintptr_t>, std::size_t{1} << kLog2Places> places_{};
};

// One of them.
class RememberedCall {
 public:
  struct Where {
    std::uint64_t backend;  // a number that no other one has
    int device;
  };
  // The call ran there just now, as the record says, and its context is current; the driver has
  // cuTensorMapReplaceAddress. Throws Error.
  RememberedCall(const Driver& driver, const GivenCall& call, const LaunchRecord& record, const Where& where);

  // Whether a call differs from it in nothing that matters.
  bool serves(const Driver& driver, const GivenCall& call, const CallTensors& tensors, std::uint64_t backend) const;
  // Enqueues one that it serves. Thread-safe. Throws Error(driver).
  void repeat(const Driver& driver, const CallTensors& tensors, Stream stream) const;

 private:
  struct EncodedMap {
    std::size_t offset;
    int tensor;
    std::uintptr_t behind;   // the tensor's beginning, modulo 2^64
    std::uintptr_t address;  // in the map
    generator::TensorMap map;
  };
  struct Enqueued {
    CUfunction function;
    CUlaunchConfig config;
    std::vector<EncodedMap> maps;
  };

  bool is_there(const Driver& driver, const CallTensors& tensors, Stream stream) const;
  void enqueue(const Driver& driver, const MovableOperation::MovableLaunch& launch, const Enqueued& made,
               const CallTensors& tensors, Stream stream) const;

  const Where where_;
  CUcontext context_ = nullptr;
  TileCounters* const tile_counters_;
  const MovableOperation operation_;
  std::vector<Enqueued> enqueued_;
  mutable KnownAddresses known_;
};

// Those of a plan, the latest of each kind. Thread-safe.
class RememberedCalls {
 public:
  RememberedCalls() = default;
  RememberedCalls(const RememberedCalls&) = delete;
  RememberedCalls& operator=(const RememberedCalls&) = delete;

  // By one that serves the call. False: there is none, and nothing was enqueued.
  bool repeat(const Driver& driver, const GivenCall& call, std::uint64_t backend);
  // Whether another one would pay: where each call is of a kind of its own, none does.
  bool wants_more() const noexcept;
  // In place of the oldest where there are many; not one that does not even serve its own call, nor a second for it.
  void add(const Driver& driver, std::shared_ptr<const RememberedCall> one, const GivenCall& call,
           std::uint64_t backend);

 private:
  static constexpr std::size_t kMost = 4;  // with and without lse, say, each in two alignments
  std::shared_ptr<const RememberedCall> find(const Driver& driver, const GivenCall& call, const CallTensors& tensors,
                                             std::uint64_t backend) const;

  std::array<std::atomic<std::shared_ptr<const RememberedCall>>, kMost> calls_;
  std::mutex mutex_;  // of who adds
  std::atomic<std::size_t> added_{0};
  std::atomic<bool> repeated_{false};  // since one was added
};

}  // namespace flashjit::runtime
