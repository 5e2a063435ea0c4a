// SPDX-License-Identifier: Apache-2.0
// The mbarriers of a block (PTX ISA, "mbarrier"): objects of their own that stand beside the bytes of shared
// memory which they occupy.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "emulator/machine/cluster.h"

namespace flashjit::emulator {

inline constexpr std::uint32_t kMbarrierBytes = 8;
inline constexpr std::uint32_t kMostArrivals = (1u << 20) - 1;
inline constexpr std::int64_t kMostTransactionBytes = (1 << 20) - 1;

struct Mbarrier {
  std::uint32_t offset = 0;
  std::uint32_t expected = 0, pending = 0;  // arrivals
  std::int64_t bytes = 0;                   // pending; below 0 when bytes came before they were expected
  std::uint32_t phase = 0;                  // the open one. An initialisation goes on from an even number
  Knowledge open, released;                 // of who arrived in the open phase, and in the one before
  Agent agent = 0;                          // copies that complete here have written as it, at the clock phase + 1

  // The initialisation.
  Agent initialiser = 0;
  int initialising_warp = 0;
  Clock initialised_at = 0, fenced_at = 0;  // clocks of it; 0 without fence.mbarrier_init
  std::uint32_t first_phase = 0;
  bool lost = false;  // to mbarrier.inval or to a write

  struct Waiter {
    static constexpr std::int64_t kNone = -2;
    std::int64_t observed = kNone;  // the phase whose end it saw last; first_phase - 1 is a phase, too
    LaneMask observers = 0;
    bool blocked = false;
    std::uint32_t awaited = 0;      // while it is blocked: the phase
    std::uint32_t instruction = 0;  // and where
  };
  std::vector<Waiter> waiters;  // by warp

  Findings::Who last_bytes{};  // who changed `bytes`

  std::uint32_t parity() const { return phase & 1; }
};

struct Arrival {
  std::uint32_t count = 1;
  std::uint32_t bytes = 0;  // expected from now on
  bool drops = false;       // is not expected in later phases
  bool completes = true;    // false for .noComplete
};

class Mbarriers {
 public:
  explicit Mbarriers(Block& block) : block_(block) {}

  void initialise(Warp& warp, std::uint32_t offset, std::uint32_t count);
  void invalidate(Warp& warp, std::uint32_t offset);
  // fence.mbarrier_init: what this warp has initialised may be used by other blocks and by copies.
  void fence_initialisations(const Warp& warp);
  // The bytes were overwritten.
  void written(std::uint32_t offset, std::uint32_t bytes);

  // Who uses a barrier: asynchronous copies and other blocks need a fence after its initialisation.
  enum class User { own_block, other_block, copy };
  // Null after a report when there is none.
  Mbarrier* find(Warp& warp, std::uint32_t offset, User user);
  // Without a report.
  const Mbarrier* look(std::uint32_t offset) const;

  // These name the instruction that `who` executes now.
  void arrive(Warp& who, Mbarrier& barrier, const Arrival& arrival);
  void expect_bytes(Warp& who, Mbarrier& barrier, std::uint32_t bytes);
  void complete_bytes(Warp& who, Mbarrier& barrier, std::uint32_t bytes);
  // The bytes of a copy that was started when the barrier was like this.
  struct Ticket {
    std::uint32_t offset = 0, phase = 0;
  };
  void land_bytes(Warp& issuer, const Ticket& ticket, std::uint32_t bytes);

  // The block has ended: reports bytes that nobody has expected, and, unless copies are in flight, those that have not
  // come.
  void finish(bool copies_in_flight);

  // "3 of 16 arrivals and 8192 bytes pending"
  static std::string pending_text(const Mbarrier& barrier);

 private:
  void check_initialisation(Warp& warp, const Mbarrier& barrier, User user);
  void settle(Warp& who, Mbarrier& barrier);
  void complete_phase(Mbarrier& barrier);

  Block& block_;
  std::map<std::uint32_t, Mbarrier> barriers_;  // by offset
};

void add_mbarrier_operations(OperationTable& table);

}  // namespace flashjit::emulator
