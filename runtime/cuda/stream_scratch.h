// SPDX-License-Identifier: Apache-2.0
// Scratch memory of calls on one device, kept from one call on a stream for the next: what a stream does comes in
// order, so who follows may write there at once. Asking a pool each time would cost the host as much as a launch does.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "flashjit/tensor.h"

namespace flashjit::runtime {

// Thread-safe, and without a lock: a call that finds the memory of its stream with another call does without. Needs no
// CUDA: where memory lies is the allocator's affair.
class StreamScratch {
 public:
  static constexpr int kStreams = 8;                                // those that come later have none
  static constexpr std::size_t kMostBytes = std::size_t{32} << 20;  // more are not kept

  struct Allocator {
    // In the order of a stream that has not been destroyed.
    std::function<void*(std::size_t bytes, Stream stream)> allocate;
    std::function<void(void* memory, Stream stream)> free;
    // When no call uses it any more; its stream may be gone.
    std::function<void(void* memory)> release;
  };
  explicit StreamScratch(Allocator allocator) : allocator_(std::move(allocator)) {}
  ~StreamScratch();
  StreamScratch(const StreamScratch&) = delete;
  StreamScratch& operator=(const StreamScratch&) = delete;

  class Loan;

 private:
  struct Place {
    static constexpr std::uint64_t kNobody = ~std::uint64_t{0};
    std::atomic<std::uint64_t> stream{kNobody};  // once it is somebody's it stays so
    std::atomic<bool> lent{false};               // to a call, which alone may look at what follows
    void* memory = nullptr;
    std::size_t bytes = 0;
  };
  // Null: there is none, or a call has it.
  Place* borrow(std::uint64_t stream) noexcept;

  const Allocator allocator_;
  std::array<Place, kStreams> places_;
};

// Memory that a call has to itself, as have the launches that it enqueues on the stream meanwhile.
class StreamScratch::Loan {
 public:
  // id: of the stream, which no other one ever has. Throws what the allocator throws.
  Loan(StreamScratch& of, Stream stream, std::uint64_t id, std::size_t bytes);
  ~Loan();
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

  void* data() const noexcept { return memory_; }

 private:
  void* grow(std::size_t bytes);

  StreamScratch& of_;
  const Stream stream_;
  Place* place_;  // null: the memory is not kept
  void* memory_;
};

}  // namespace flashjit::runtime
