// SPDX-License-Identifier: Apache-2.0
// Counters from which persistent blocks draw their next tile (Scheduler::dynamic). A kernel finds its counter 0 and
// leaves it 0. Launches that run at the same time must not share one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>

namespace flashjit::runtime {

// Which launch gets which counter, on one device. Thread-safe. Needs no CUDA: where the counters lie is the
// allocator's affair.
class TileCounters {
 public:
  // A counter comes round again after this many launches: far more than a GPU runs at once or a stream queues. A kernel
  // that was aborted leaves its counter dirty, but then its context is lost with all that is in it.
  static constexpr std::uint32_t kRingSize = 1 << 16;
  static constexpr std::size_t kChunkSize = 1024;

  // zeroed(count) gives that many counters of 0, which live as long as this does.
  using Allocate = std::function<std::uint32_t*(std::size_t count)>;
  explicit TileCounters(Allocate zeroed) : zeroed_(std::move(zeroed)), ring_(zeroed_(kRingSize)) {}

  // For a launch that begins now. Takes no lock.
  std::uint32_t* for_launch() noexcept { return ring_ + next_.fetch_add(1, std::memory_order_relaxed) % kRingSize; }
  // For a launch that is captured in a graph, and for no other ever, because the graph may run at any time. Runs of one
  // graph at the same time would share it, but they would also write the same output.
  std::uint32_t* for_graph();

 private:
  const Allocate zeroed_;
  std::uint32_t* const ring_;
  std::atomic<std::uint32_t> next_{0};
  std::mutex mutex_;  // of what follows
  std::uint32_t* chunk_ = nullptr;
  std::size_t left_ = 0;  // in the chunk
};

}  // namespace flashjit::runtime
