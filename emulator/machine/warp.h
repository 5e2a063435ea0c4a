// SPDX-License-Identifier: Apache-2.0
// A warp: 32 lanes with their registers, and where each of them is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "emulator/machine/findings.h"
#include "emulator/machine/shared_memory.h"
#include "emulator/memory/knowledge.h"
#include "emulator/ptx/instruction.h"

namespace flashjit::emulator {

class Block;
class Cluster;

// What lanes that are blocked wait for.
struct Wait {
  enum class For {
    nothing,
    convergence,    // the other lanes of the warp, at a .sync or .aligned instruction
    named_barrier,  // a: its number
    cluster_barrier,
    mbarrier,   // a: offset in shared memory, b: parity
    wgmma,      // the other warps of the warpgroup
    copies,     // cp.async or bulk groups
    registers,  // setmaxnreg.inc
  };
  For what = For::nothing;
  std::uint32_t a = 0, b = 0;
};

class Warp {
 public:
  Warp(Block& block, int index, LaneMask live);

  Block& block() { return block_; }
  Cluster& cluster();
  int index() const { return index_; }     // in its block
  LaneMask live() const { return live_; }  // lanes that have not ended
  bool ended() const { return live_ == 0; }

  // --- Running
  // Up to `budget` instructions. Returns how many ran.
  int run(int budget);
  bool can_run() const;  // something has happened since its lanes were blocked
  struct Place {
    LaneMask lanes;
    std::uint32_t instruction;
    Wait wait;
  };
  std::vector<Place> places() const;

  // --- Registers, for operations
  // The 32 values of a register or constant, T of 4 or 8 bytes. What the active lanes may not read is reported.
  template <class T>
  const T* read(Slot slot, LaneMask active) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    if (slot < 0) return reinterpret_cast<const T*>(constants_[~slot].lane);
    if ((readable_[slot] & active) != active) report_unreadable(slot, active);
    return reinterpret_cast<const T*>(registers_[slot].lane);
  }
  template <class T>
  void write(Slot slot, const T (&values)[kLanes], LaneMask active) {
    T* const to = begin_write<T>(slot, active);
    if (active == kAllLanes) {
      std::memcpy(to, values, sizeof(values));
    } else {
      for (int lane = 0; lane < kLanes; ++lane)
        if (active >> lane & 1) to[lane] = values[lane];
    }
  }
  // Without a report: the lanes that may be read, and a copy that hands on what may not (mov).
  LaneMask readable(Slot slot) const { return slot < 0 ? kAllLanes : readable_[slot]; }
  template <class T>
  void copy(Slot to, Slot from, LaneMask active) {
    if (from >= 0 && accumulating_[from] != 0) report_unreadable(from, active);
    const LaneMask known = readable(from);
    const T* const source = slot_values<T>(from);
    T values[kLanes];
    std::memcpy(values, source, sizeof(values));
    write(to, values, active);
    readable_[to] &= ~active | known;
  }
  LaneMask read_predicate(Slot predicate, LaneMask active) {
    if ((predicates_readable_[predicate] & active) != active) report_unreadable_predicate(predicate, active);
    return predicates_[predicate];
  }
  void write_predicate(Slot predicate, LaneMask values, LaneMask active) {
    predicates_[predicate] = (predicates_[predicate] & ~active) | (values & active);
    predicates_readable_[predicate] |= active;
  }

  // --- Registers of wgmma (PTX ISA, "Asynchronous warpgroup level matrix instructions")
  // An accumulator in flight is not readable; neither it nor a register of A in flight is writable.
  void fly(Slot slot, bool accumulator);
  void land(Slot slot, bool accumulator);
  bool accumulates(Slot slot) const { return accumulating_[slot] != 0; }  // in flight as an accumulator
  bool written_since_fence(Slot slot) const { return slot >= 0 && (state_[slot] & kWritten) != 0; }
  void fence_registers() { std::fill(state_.begin(), state_.end(), std::uint8_t{0}); }
  // The bits of a register, whatever its state.
  Lanes& raw(Slot slot) { return registers_[slot]; }
  const Lanes& raw_source(Slot slot) const { return slot < 0 ? constants_[~slot] : registers_[slot]; }

  // --- Control, for operations
  Outcome branch(std::uint32_t target, LaneMask taken);
  Outcome exit(LaneMask lanes);
  Outcome block_for(Wait wait);
  // next when the lanes of the mask that have not ended are all here, else blocked. For .sync with a mask.
  Outcome require_lanes(LaneMask members, LaneMask active);
  LaneMask here() const { return current_->lanes; }  // with those whose guard does not hold

  // --- Order
  Agent agent() const { return agent_; }
  Knowledge& knowledge() { return knowledge_; }
  Clock clock() const { return knowledge_.seen.of(agent_); }
  // What came before is in `into`; what comes after is not.
  void release(Knowledge& into) {
    into.join(knowledge_);
    tick();
  }
  void acquire(const Knowledge& from) { knowledge_.join(from); }
  void fence_async_proxy() {
    knowledge_.fenced.join(knowledge_.seen);
    tick();
  }
  // Waits by parity that passed on a phase of this mbarrier which the warp had waited for before.
  void note_repeated_wait(Agent mbarrier) { repeated_waits_[mbarrier] = present_; }
  void forget_repeated_wait(Agent mbarrier) { repeated_waits_.erase(mbarrier); }
  // Its instruction, or null.
  const std::uint32_t* repeated_wait(Agent mbarrier) const {
    const auto at = repeated_waits_.find(mbarrier);
    return at == repeated_waits_.end() ? nullptr : &at->second;
  }
  void tick() { knowledge_.seen.raise(agent_, clock() + 1); }
  Accessor accessor() { return {*this, agent_, clock(), knowledge_}; }

  // --- Reports and counters; they name the present instruction
  template <class Message>
  void report(FindingKind kind, const Message& message) {
    findings().add(kind, who(), message);
  }
  std::uint32_t instruction() const { return present_; }
  // For what a copy finds later: it names the instruction that issued it. Returns the one before.
  std::uint32_t set_instruction(std::uint32_t instruction) { return std::exchange(present_, instruction); }
  std::string name_of(std::uint32_t instruction) const;
  void count_bank_conflicts(std::uint64_t wavefronts);

 private:
  struct Split {
    LaneMask lanes;
    std::uint32_t instruction;
    Wait wait;
    std::uint64_t blocked_at = 0;  // the cluster's events then
    bool blocked = false;
  };
  enum : std::uint8_t { kWritten = 1 };  // since the last wgmma.fence, or before the first one

  template <class T>
  const T* slot_values(Slot slot) const {
    return reinterpret_cast<const T*>(slot < 0 ? constants_[~slot].lane : registers_[slot].lane);
  }
  template <class T>
  T* begin_write(Slot slot, LaneMask active) {
    if (in_flight_[slot] != 0) report_write_in_flight(slot);
    state_[slot] = kWritten;
    readable_[slot] |= active;
    return reinterpret_cast<T*>(registers_[slot].lane);
  }
  void report_unreadable(Slot slot, LaneMask active);
  void report_unreadable_predicate(Slot predicate, LaneMask active);
  void report_write_in_flight(Slot slot);
  void set_special_registers();
  std::uint32_t special(Special what, int lane) const;

  Split* choose();
  bool is_runnable(const Split& split) const;
  bool step(Split& split);  // false when it is blocked
  void merge();
  Findings& findings();
  Findings::Who who() const;

  Block& block_;
  const int index_;
  LaneMask live_;
  const Code& code_;
  const Lanes* constants_;
  // Not cleared, which would take longer than many a block: what was not written is not readable.
  std::unique_ptr<Lanes[]> registers_;
  std::vector<LaneMask> readable_, predicates_, predicates_readable_;
  std::vector<std::uint8_t> state_, in_flight_, accumulating_;
  std::deque<Split> splits_;   // a deque: references stay valid when one is added
  Split* current_ = nullptr;   // while it runs
  std::uint32_t present_ = 0;  // the instruction that reports name
  const Agent agent_;
  Knowledge knowledge_;
  std::map<Agent, std::uint32_t> repeated_waits_;
};

}  // namespace flashjit::emulator
