// SPDX-License-Identifier: Apache-2.0
// Vector clocks: who has been waited for, how far. An agent is whatever runs by itself: a warp, the wgmma groups of a
// warp, its cp.async groups, its bulk stores, and the copies that complete at one mbarrier.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace flashjit::emulator {

using Agent = std::uint16_t;
using Clock = std::uint32_t;

class VectorClock {
 public:
  Clock of(Agent agent) const { return agent < clocks_.size() ? clocks_[agent] : 0; }
  void raise(Agent agent, Clock clock) {
    if (agent >= clocks_.size()) clocks_.resize(agent + 1u);
    clocks_[agent] = std::max(clocks_[agent], clock);
  }
  void join(const VectorClock& other) {
    if (other.clocks_.size() > clocks_.size()) clocks_.resize(other.clocks_.size());
    for (std::size_t i = 0; i < other.clocks_.size(); ++i) clocks_[i] = std::max(clocks_[i], other.clocks_[i]);
  }

 private:
  std::vector<Clock> clocks_;
};

struct Knowledge {
  VectorClock seen;    // what has happened before
  VectorClock fenced;  // the part of it that the async proxy sees, too (fence.proxy.async)

  void join(const Knowledge& other) {
    seen.join(other.seen);
    fenced.join(other.fenced);
  }
};

}  // namespace flashjit::emulator
