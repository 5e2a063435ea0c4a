// SPDX-License-Identifier: Apache-2.0
// Thread blocks that run together, and what happens beside their warps.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "emulator/machine/findings.h"
#include "emulator/machine/shared_memory.h"
#include "emulator/machine/warp.h"
#include "emulator/memory/knowledge.h"
#include "emulator/memory/random.h"
#include "emulator/ptx/instruction.h"

namespace flashjit::emulator {

class Cluster;
struct BlockState;  // barriers, mbarriers, copies and warpgroups: block_state.h

// What all blocks of a launch share.
struct LaunchState {
  LaunchState(const Launch& launch, const Memory& memory, const Code& code, Extent cluster);

  // The bytes at a global address, or null after a report.
  std::byte* global(Warp& warp, std::uint64_t address, std::size_t bytes, bool writes);

  const Launch& launch;
  const Memory& memory;
  const Code& code;
  const Extent cluster;
  std::vector<std::byte> parameters;  // 64-byte aligned from `parameters_at`
  std::byte* parameters_at = nullptr;
  std::vector<std::byte> globals;
  std::byte* globals_at = nullptr;
  Findings findings;
  Random random;
  Counters counters;                                 // without instructions, which are counted here:
  std::vector<std::uint64_t> executions, conflicts;  // by instruction
};

class Block {
 public:
  Block(Cluster& cluster, unsigned rank, Extent id);
  ~Block();

  Cluster& cluster() { return cluster_; }
  unsigned rank() const { return rank_; }  // in its cluster
  Extent id() const { return id_; }
  SharedMemory& shared() { return shared_; }
  std::uint32_t shared_bytes() const { return shared_.end() - kFirstSharedOffset; }
  BlockState& state() { return *state_; }
  std::vector<std::unique_ptr<Warp>>& warps() { return warps_; }
  bool ended() const;

  // Addresses of the .shared window: the block's rank stands above bit 24. For shared::cta it must be this block's.
  std::uint32_t shared_address(std::uint32_t offset) const { return rank_ << 24 | offset; }

 private:
  Cluster& cluster_;
  const unsigned rank_;
  const Extent id_;
  SharedMemory shared_;
  std::unique_ptr<BlockState> state_;
  std::vector<std::unique_ptr<Warp>> warps_;
};

inline constexpr int kRankShift = 24;
inline constexpr std::uint32_t kOffsetMask = (1u << kRankShift) - 1;
// Generic addresses of shared memory: this plus the address in the .shared window. No host address lies there.
inline constexpr std::uint64_t kGenericShared = 0xf000'0000'0000'0000;

class Cluster {
 public:
  Cluster(LaunchState& launch, Extent id);
  ~Cluster();

  LaunchState& launch() { return launch_; }
  Random& random() { return launch_.random; }
  std::vector<std::unique_ptr<Block>>& blocks() { return blocks_; }
  Extent id() const { return id_; }

  Agent new_agent() { return next_agent_++; }

  // What runs beside the warps. It happens at some later time, in any order; the caller keeps what must stay in order.
  // What it reports names the instruction that asked for it.
  void later(std::function<void()> operation);
  // Blocked warps look again.
  void something_happened() { ++events_; }
  std::uint64_t events() const { return events_; }

  // Runs something for a while. False when all blocks have ended. Reports a deadlock, and throws StopLaunch, when
  // nothing can run.
  bool advance();

  // Where an address of the .shared window lies, seen from a block: its own memory for shared::cta, any block's for
  // shared::cluster. Block null after a report.
  struct SharedPlace {
    Block* block = nullptr;
    std::uint32_t offset = 0;
  };
  SharedPlace find_shared(Warp& warp, std::uint32_t address, std::uint32_t bytes, bool of_cluster);

 private:
  struct Later {
    std::function<void()> run;
    Warp* issuer;
    std::uint32_t instruction;
  };
  Warp* choose_warp();
  void complete_one();
  [[noreturn]] void report_deadlock();

  LaunchState& launch_;
  const Extent id_;
  Agent next_agent_ = 0;
  std::uint64_t events_ = 1;
  std::vector<Later> pending_;
  Warp* running_ = nullptr;
  // In half of the clusters one warp hardly runs while another can: all get ahead of it.
  Warp* slow_ = nullptr;
  int turns_of_others_ = 0;
  std::vector<std::unique_ptr<Block>> blocks_;
};

inline Cluster& Warp::cluster() { return block_.cluster(); }

}  // namespace flashjit::emulator
