// SPDX-License-Identifier: Apache-2.0
// Four warps that multiply matrices together, asynchronously (PTX ISA 9.7.15, "Asynchronous warpgroup level matrix
// multiply-accumulate instructions").
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "emulator/machine/cluster.h"
#include "emulator/machine/fragments.h"
#include "emulator/memory/descriptor.h"

namespace flashjit::emulator {

inline constexpr int kWarpsOfGroup = 4;

// A wgmma.mma_async, decoded.
struct Wgmma : Detail {
  MatrixTypes types;
  int columns = 0, depth = 0;   // N and K
  std::vector<Slot> sums;       // accumulators
  std::vector<Slot> a;          // four registers; none when A lies in shared memory
  Slot a_descriptor = kNoSlot;  // 64 bits, as is b_descriptor
  Slot b_descriptor = kNoSlot;
  Slot accumulates = kNoSlot;  // predicate scale-d
  bool accumulates_always = false;
  Major a_major = Major::k, b_major = Major::k;
  bool negates = false;  // one of imm-scale-a and imm-scale-b is -1
};

// What setmaxnreg has done to the registers of each warp's threads.
struct RegisterChanges {
  struct OfWarp {
    int beyond_launch = 0;  // more than at launch
    std::size_t count = 0;  // changes until now
  };
  std::array<OfWarp, kWarpsOfGroup> warps;
  std::vector<const Instruction*> instructions;  // all four warps must execute the same
};

// Each warp issues operations by itself. The k-th of the four are one operation of the group: it may be computed at any
// time after all four have issued it and the one before is computed, and it is when a warp waits for it.
class Warpgroup {
 public:
  void issue(Warp& warp, const Instruction& instruction);
  void commit_group(Warp& warp);
  // Blocks until all groups of the warp are computed but the newest, as many as the instruction says.
  Outcome wait_group(Warp& warp, const Instruction& instruction);
  // For BlockState::describe, of Wait::b: "wgmma 5 of the warpgroup, which its warps 2, 3 have not issued".
  std::string describe_wait(std::uint64_t operation) const;

  RegisterChanges register_changes;

 private:
  struct Run {
    std::uint32_t offset, bytes;
  };
  struct Operation {
    const Instruction* instruction = nullptr;
    std::uint64_t a = 0, b = 0;  // descriptors
    bool accumulates = false;
    bool executes = true;  // false after a finding: the accumulators keep their bits
    int issued = 0;        // by so many warps
    std::vector<Run> b_runs;

    const Wgmma& wgmma() const { return instruction->details<Wgmma>(); }
  };
  // One of the four warps. Operations and groups are counted since the launch.
  struct Member {
    Warp* warp = nullptr;                   // from its first operation on
    std::uint64_t issued = 0, landed = 0;   // operations
    std::uint64_t waits = 0;                // that it has left
    std::vector<std::uint64_t> group_ends;  // of groups that have not landed: operations issued until then
    Clock groups_landed = 0;
    Agent agent = 0;  // of its reads of shared memory; its clock is the number of the group
  };

  Member& member(const Warp& warp) { return members_[static_cast<std::size_t>(warp.index() % kWarpsOfGroup)]; }
  Operation& operation(std::uint64_t number) { return operations_[static_cast<std::size_t>(number - first_)]; }
  static Operation read_operands(Warp& warp, const Instruction& instruction);
  void check_same(Warp& warp, Operation& known, const Operation& own, std::uint64_t number);
  void check_same_wait(Warp& warp, const Instruction& instruction);
  static void check_registers(Warp& warp, const Operation& operation);
  void read_shared(Warp& warp, Operation& operation);
  static void check_descriptor(Warp& warp, Operation& operation, std::uint64_t bits, const char* name);
  static std::vector<Run> find_runs(Warp& warp, Operation& operation, const std::vector<std::uint32_t>& chunks,
                                    const char* name);

  void complete_at_some_time(Warp& warp, std::uint64_t number);
  void compute_until(std::uint64_t end);
  void compute(const Operation& operation);
  void land(Warp& warp, std::uint64_t end);
  bool give_up_on_ended(Warp& warp, std::uint64_t end);

  std::deque<Operation> operations_;  // that not all four warps have waited for
  std::uint64_t first_ = 0;           // number of the first of them
  std::uint64_t computed_ = 0;
  std::deque<const Instruction*> waits_;  // that not all four warps have left
  std::uint64_t first_wait_ = 0;          // number of the first of them
  std::array<Member, kWarpsOfGroup> members_;
  std::vector<ColumnPanel> b_;  // of the operation that is being computed
};

}  // namespace flashjit::emulator
