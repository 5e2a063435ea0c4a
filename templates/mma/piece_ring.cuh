// SPDX-License-Identifier: Apache-2.0
// A ring of pieces that all threads of a block request by cp.async and read. Every piece has a barrier of the block,
// behind which it is there and the one before it is read, so that a later piece may come in its place.
#pragma once

#include "ptx/barrier.cuh"
#include "ptx/cp_async.cuh"
#include "types.cuh"

// Shape: kSlots of kSlotBytes, the first at kRing of shared memory.
template <class Shape>
struct PieceRing {
  // So many pieces are requested before the one at hand, whose slot the next one but these gets.
  static constexpr int kLead = Shape::kSlots - 1;
  static constexpr int kEnd = Shape::kRing + Shape::kSlots * Shape::kSlotBytes;

  SmemAddress next, past;  // of the pieces that are read next and were read last

  __device__ __forceinline__ static SmemAddress slot(SmemAddress smem, int piece) {
    return smem + Shape::kRing + piece * Shape::kSlotBytes;
  }
  // When the first kLead pieces were requested, each into the slot of its number.
  __device__ __forceinline__ void begin(SmemAddress smem) { next = slot(smem, 0), past = slot(smem, kLead); }

  // Waits for the next piece. request(slot): of the one that comes kLead behind it, into the slot that everybody has
  // read then.
  template <class Request>
  __device__ __forceinline__ SmemAddress take(SmemAddress smem, Request request) {
    ptx::cp_async_wait_group<kLead - 1>();
    ptx::bar_sync();
    request(past);
    past = next;
    next = next + Shape::kSlotBytes == smem + kEnd ? slot(smem, 0) : next + Shape::kSlotBytes;
    return past;
  }
};
