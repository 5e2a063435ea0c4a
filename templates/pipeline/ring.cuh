// SPDX-License-Identifier: Apache-2.0
// Rings of slots in shared memory between the copy engine and the warpgroups that use what it brings.
#pragma once

#include "ptx/mbarrier.cuh"
#include "types.cuh"

constexpr int kMbarrierBytes = 8;

// Where a ring's barriers and slots lie: kStages full barriers, kStages empty ones.
template <int kStages_, int kSlotBytes_>
struct RingPlace {
  static constexpr int kStages = kStages_;
  static constexpr int kSlotBytes = kSlotBytes_;
  static constexpr int kBarrierBytes = 2 * kStages * kMbarrierBytes;

  SmemAddress barriers, slots;

  __device__ __forceinline__ SmemAddress full(int stage) const { return barriers + kMbarrierBytes * stage; }
  __device__ __forceinline__ SmemAddress empty(int stage) const {
    return barriers + kMbarrierBytes * (kStages + stage);
  }
  __device__ __forceinline__ SmemAddress slot(int stage) const { return slots + stage * kSlotBytes; }

  // A slot is full after the arrivals of all that fill it, usually one, and the bytes that it announces, empty after
  // every user's arrival.
  __device__ __forceinline__ void init(uint32 users, uint32 fillers = 1) const {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(full(stage), fillers);
      ptx::mbarrier_init(empty(stage), users);
    }
  }
};

// One side's position. The parity flips with every round; a barrier's first phase has parity 0.
template <int kStages, bool kPowerOfTwo = (kStages & (kStages - 1)) == 0>
class RingCursor {
  int stage_ = 0;
  uint32 parity_ = 0;

 public:
  __device__ __forceinline__ int stage() const { return stage_; }
  __device__ __forceinline__ uint32 parity() const { return parity_; }
  __device__ __forceinline__ void advance() {
    if (++stage_ == kStages) stage_ = 0, parity_ ^= 1;
  }
};
// One register.
template <int kStages>
class RingCursor<kStages, true> {
  uint32 count_ = 0;

  template <int kOtherStages, bool kPowerOfTwo>
  friend class RingCursor;

 public:
  RingCursor() = default;
  // With that of another ring, whose every advance is one of this ring's; and as it was one advance before.
  template <int kOtherStages>
  __device__ __forceinline__ explicit RingCursor(const RingCursor<kOtherStages, true>& other) : count_(other.count_) {}
  __device__ __forceinline__ RingCursor before() const {
    RingCursor cursor = *this;
    --cursor.count_;
    return cursor;
  }
  __device__ __forceinline__ int stage() const { return count_ % kStages; }
  __device__ __forceinline__ uint32 parity() const { return count_ / kStages % 2; }
  __device__ __forceinline__ void advance() { ++count_; }
};

// The side that fills. The first round finds every slot empty.
template <class Place>
struct RingWriter {
  const Place place;
  RingCursor<Place::kStages> cursor;

  // cursor_: of another ring that advances with this one.
  __device__ __forceinline__ explicit RingWriter(const Place& place_, const RingCursor<Place::kStages>& cursor_ = {})
      : place(place_), cursor(cursor_) {}
  __device__ __forceinline__ void wait_empty() const {
    ptx::mbarrier_wait(place.empty(cursor.stage()), cursor.parity() ^ 1);
  }
  __device__ __forceinline__ SmemAddress full() const { return place.full(cursor.stage()); }
  __device__ __forceinline__ SmemAddress slot() const { return place.slot(cursor.stage()); }
  __device__ __forceinline__ void advance() { cursor.advance(); }
};

// The side that uses.
template <class Place, int kCluster>
struct RingReader {
  const Place place;
  RingCursor<Place::kStages> cursor;

  // cursor_: of another ring that advances with this one.
  __device__ __forceinline__ RingReader(const Place& place_, const RingCursor<Place::kStages>& cursor_ = {})
      : place(place_), cursor(cursor_) {}
  __device__ __forceinline__ void wait_full() const { ptx::mbarrier_wait(place.full(cursor.stage()), cursor.parity()); }
  __device__ __forceinline__ int stage() const { return cursor.stage(); }
  __device__ __forceinline__ SmemAddress slot() const { return place.slot(cursor.stage()); }

  // One thread of each warp signs; with multicast at every block that writes here.
  __device__ __forceinline__ void release(bool signs) {
    if (signs) arrive(place.empty(cursor.stage()));
    cursor.advance();
  }
  // For a slot that is used beyond the cursor's advance: take() it, and give_back() what was taken.
  __device__ __forceinline__ int take() {
    wait_full();
    const int stage = cursor.stage();
    cursor.advance();
    return stage;
  }
  __device__ __forceinline__ void give_back(int stage, bool signs) const {
    if (signs) arrive(place.empty(stage));
  }

 private:
  static __device__ __forceinline__ void arrive(SmemAddress empty) {
    if constexpr (kCluster == 1) {
      ptx::mbarrier_arrive(empty);
    } else {
#pragma unroll
      for (int rank = 0; rank < kCluster; ++rank) ptx::mbarrier_arrive_cluster(empty, rank);
    }
  }
};
