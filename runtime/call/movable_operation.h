// SPDX-License-Identifier: Apache-2.0
// An operation that serves many calls: its launches are made once, and given the addresses of each call's tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/call/given_call.h"
#include "runtime/call/operation.h"
#include "runtime/call/ragged.h"

namespace flashjit::runtime {

class MovableOperation {
 public:
  // Of a call with a plan, for others with it. Throws Error(invalid_argument) as validation does.
  MovableOperation(const GivenCall& call, const generator::KernelSpec& kernel, const DeviceLimits& limits);
  MovableOperation(const MovableOperation&) = delete;
  MovableOperation& operator=(const MovableOperation&) = delete;

  // Whether the call is one that it serves: it differs from that which it was made of in nothing but addresses, these
  // are aligned as those were, and what is written has no part in other tensors.
  bool serves(const GivenCall& call, const CallTensors& tensors) const noexcept;

  // Where an argument has an address: so many bytes behind the beginning of a tensor.
  struct Place {
    std::size_t offset;
    int tensor;
    std::uintptr_t behind;
  };
  struct Map {
    MapPlace of;  // of a tensor that is nowhere
    int tensor;
  };
  struct MovableLaunch {
    Launch launch;  // its addresses mean nothing, and it has no maps: these are
    std::vector<Place> places;
    std::vector<Map> maps;

    // All arguments but for tensor maps.
    void write(const CallTensors& tensors, std::byte* arguments) const noexcept;
  };
  const std::vector<MovableLaunch>& launches() const noexcept { return launches_; }

 private:
  // What a call reaches: a tensor, from its beginning on, or memory of the plan, which is always at the same place.
  struct Span {
    int tensor;  // or kPlanMemory
    MemoryRange range;
    bool written;
  };

  CallLayout layout_;
  CallWithBatch with_;  // maps point to its tensors
  std::vector<std::uintptr_t> addresses_;
  std::vector<MovableLaunch> launches_;
  std::vector<Span> spans_;  // what is written first
};

}  // namespace flashjit::runtime
