// SPDX-License-Identifier: Apache-2.0
// Calls with a plan that ran, as they ran. Those of a model's other layers, and of the next steps, differ from them in
// addresses alone, so that nothing of them has to be found out again.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
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

  // Enqueues a call that differs from it in nothing that matters. False: it does, and nothing was enqueued.
  // Thread-safe. Throws Error(driver).
  bool repeat(const Driver& driver, const GivenCall& call, const CallTensors& tensors, std::uint64_t backend) const;

 private:
  friend class RememberedCalls;
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
  const RememberedCall* next_ = nullptr;
};

// Those of a plan. Thread-safe; readers take no lock.
class RememberedCalls {
 public:
  // A plan has calls of few kinds: with lse and without, say. More are not remembered.
  static constexpr int kMost = 4;

  RememberedCalls() = default;
  ~RememberedCalls();
  RememberedCalls(const RememberedCalls&) = delete;
  RememberedCalls& operator=(const RememberedCalls&) = delete;

  bool full() const noexcept { return count_.load(std::memory_order_relaxed) >= kMost; }
  void add(std::unique_ptr<RememberedCall> call) noexcept;
  // By the first that can.
  bool repeat(const Driver& driver, const GivenCall& call, std::uint64_t backend) const;

 private:
  std::atomic<const RememberedCall*> first_{nullptr};
  std::atomic<int> count_{0};
};

}  // namespace flashjit::runtime
