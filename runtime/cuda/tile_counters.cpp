// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/tile_counters.h"

namespace flashjit::runtime {

std::uint32_t* TileCounters::for_graph() {
  const std::lock_guard lock(mutex_);
  if (left_ == 0) {
    chunk_ = zeroed_(kChunkSize);
    left_ = kChunkSize;
  }
  return chunk_ + --left_;
}

}  // namespace flashjit::runtime
