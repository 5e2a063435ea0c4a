// SPDX-License-Identifier: Apache-2.0
// What is known of the barriers of a block (PTX ISA, "bar, barrier") and of a cluster ("barrier.cluster").
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "emulator/memory/knowledge.h"
#include "emulator/ptx/instruction.h"

namespace flashjit::emulator {

inline constexpr unsigned kNamedBarriers = 16;

// Completes again and again. Who waits keeps the generation that it arrived at: the next may be complete, too, before
// the waiting warp runs.
struct NamedBarrier {
  struct Generation {
    unsigned expected = 0;  // threads; 0 before the first arrival
    unsigned arrived = 0;
    bool whole_block = false;        // no count was given: warps that have ended are not waited for
    std::uint32_t warps = 0;         // that have arrived, a bit for each
    std::uint32_t instruction = 0;   // of the first arrival
    unsigned votes = 0, voters = 0;  // bar.red: threads whose predicate holds, and all
    bool complete = false;
    Knowledge knowledge;  // of those that have arrived
  };
  std::shared_ptr<Generation> open = std::make_shared<Generation>();
};

struct ClusterBarrier {
  struct Generation {
    std::vector<LaneMask> arrived;  // by rank of the block and warp
    bool complete = false;
    Knowledge knowledge;
    VectorClock initialisations;  // of mbarriers, which relaxed arrivals hand on, too: BlockState::WarpState
  };
  std::shared_ptr<Generation> open = std::make_shared<Generation>();
};

}  // namespace flashjit::emulator
