// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/stream_scratch.h"

namespace flashjit::runtime {

StreamScratch::~StreamScratch() {
  for (const Place& place : places_)
    if (place.memory) allocator_.release(place.memory);
}

StreamScratch::Place* StreamScratch::borrow(std::uint64_t stream) noexcept {
  for (Place& place : places_) {
    std::uint64_t of = place.stream.load(std::memory_order_relaxed);
    if (of == Place::kNobody && place.stream.compare_exchange_strong(of, stream, std::memory_order_relaxed))
      of = stream;
    if (of == stream) return place.lent.exchange(true, std::memory_order_acquire) ? nullptr : &place;
  }
  return nullptr;
}

StreamScratch::Loan::Loan(StreamScratch& of, Stream stream, std::uint64_t id, std::size_t bytes)
    : of_(of), stream_(stream), place_(bytes <= kMostBytes ? of.borrow(id) : nullptr) {
  try {
    memory_ = place_ ? grow(bytes) : of.allocator_.allocate(bytes, stream);
  } catch (...) {
    if (place_) place_->lent.store(false, std::memory_order_release);
    throw;
  }
}

StreamScratch::Loan::~Loan() {
  if (place_)
    place_->lent.store(false, std::memory_order_release);
  else
    of_.allocator_.free(memory_, stream_);
}

void* StreamScratch::Loan::grow(std::size_t bytes) {
  if (place_->bytes >= bytes) return place_->memory;
  if (place_->memory) of_.allocator_.free(place_->memory, stream_);
  place_->memory = nullptr, place_->bytes = 0;
  place_->memory = of_.allocator_.allocate(bytes, stream_);
  place_->bytes = bytes;
  return place_->memory;
}

}  // namespace flashjit::runtime
