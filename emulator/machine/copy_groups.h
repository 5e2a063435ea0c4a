// SPDX-License-Identifier: Apache-2.0
// Groups of asynchronous copies (PTX ISA, "Asynchronous copy operations: completion mechanisms"). Threads
// have groups each for themselves. What lanes issue together is one here, which remembers who has committed it and
// waited for it; what all who issued it have waited for is known to the whole warp.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "emulator/machine/cluster.h"

namespace flashjit::emulator {

struct CopyGroup {
  Clock last = 0;  // clock of its last copies
  LaneMask issuers = 0, committers = 0;
  std::array<std::uint64_t, kLanes> number = {};  // which one of a committer's groups it is
  LaneMask waited = 0, waited_for_reads = 0;      // who has waited for its copies, and for what they read
  int running = 0;                                // copies
  int reading = 0;                                // those of them that have not read their source

  LaneMask uncommitted() const { return issuers & ~committers; }
};

// The groups of a warp, which are one agent: their copies access shared memory at the clock at which they were issued.
class CopyGroups {
 public:
  Agent agent(Cluster& cluster) {
    if (!agent_) agent_ = cluster.new_agent();
    return *agent_;
  }
  Clock clock() const { return clock_; }
  // Of a copy that these lanes issue now.
  std::shared_ptr<CopyGroup> open_for(LaneMask lanes) {
    open_->issuers |= lanes;
    open_->last = clock_;
    return open_;
  }
  // All that each of the lanes has issued and not committed is one group of its own, also where it issued with others,
  // who commit theirs at another time.
  void commit(LaneMask lanes);

  // All groups that still run, the open one, too. What is issued later has a later clock.
  std::vector<std::shared_ptr<CopyGroup>> seal();

  // When these lanes wait for all but their `newest` groups: whether all those are complete, or have read their
  // sources, and the clock up to which everything is.
  struct Progress {
    bool complete = true;
    Clock clock = 0;
  };
  Progress look(LaneMask lanes, std::uint64_t newest, bool only_reads);

 private:
  std::optional<Agent> agent_;
  std::array<std::uint64_t, kLanes> commits_ = {};  // by each lane
  Clock clock_ = 1;
  std::shared_ptr<CopyGroup> open_ = std::make_shared<CopyGroup>();
  std::deque<std::shared_ptr<CopyGroup>> committed_;  // oldest first
};

}  // namespace flashjit::emulator
