// SPDX-License-Identifier: Apache-2.0
#include "emulator/machine/warp.h"

#include <fmt/format.h>

#include <bit>

#include "emulator/machine/cluster.h"

namespace flashjit::emulator {

Warp::Warp(Block& block, int index, LaneMask live)
    : block_(block),
      index_(index),
      live_(live),
      code_(block.cluster().launch().code),
      constants_(code_.constants.data()),
      registers_(std::make_unique_for_overwrite<Lanes[]>(static_cast<std::size_t>(code_.kernel->slots))),
      readable_(static_cast<std::size_t>(code_.kernel->slots)),
      predicates_(static_cast<std::size_t>(code_.kernel->predicates)),
      predicates_readable_(predicates_.size()),
      state_(readable_.size(), std::uint8_t{kWritten}),
      in_flight_(readable_.size()),
      accumulating_(readable_.size()),
      splits_{{live, 0, {}}},
      agent_(block.cluster().new_agent()) {
  knowledge_.seen.raise(agent_, 1);
  set_special_registers();
}

// --- Running ---------------------------------------------------------------------------------------------------------

bool Warp::is_runnable(const Split& split) const {
  return !split.blocked || split.blocked_at != block_.cluster().events();
}

bool Warp::can_run() const {
  return std::any_of(splits_.begin(), splits_.end(), [this](const Split& split) { return is_runnable(split); });
}

// The lanes that are furthest behind in the text: compilers lay out code so that those ahead are where all meet again.
Warp::Split* Warp::choose() {
  Split* chosen = nullptr;
  for (Split& split : splits_)
    if (is_runnable(split) && (!chosen || split.instruction < chosen->instruction)) chosen = &split;
  return chosen;
}

int Warp::run(int budget) {
  int ran = 0;
  while (ran < budget && !splits_.empty()) {
    Split* const split = splits_.size() == 1 && is_runnable(splits_.front()) ? &splits_.front() : choose();
    if (!split) break;
    current_ = split;
    if (step(*split)) ++ran;
    if (splits_.size() > 1) merge();
  }
  current_ = nullptr;
  block_.cluster().launch().counters.by_warp[index_] += static_cast<std::uint64_t>(ran);
  return ran;
}

bool Warp::step(Split& split) {
  const std::uint32_t index = present_ = split.instruction;
  if (index >= code_.instructions.size()) {
    exit(split.lanes);
    return true;
  }
  const Instruction& instruction = code_.instructions[index];
  split.blocked = false;
  LaneMask active = split.lanes;
  if (instruction.guard != kNoSlot) {
    const LaneMask guard = read_predicate(instruction.guard, active);
    active &= instruction.guard_negated ? ~guard : guard;
  }
  Outcome outcome = Outcome::next;
  if (instruction.aligned && split.lanes != live_)
    outcome = block_for({Wait::For::convergence});
  else if (active != 0)
    outcome = instruction.run(*this, instruction, active);
  if (outcome == Outcome::blocked) return false;
  LaunchState& launch = block_.cluster().launch();
  ++launch.executions[index];
  launch.counters.thread_instructions += static_cast<std::uint64_t>(std::popcount(active));
  if (outcome == Outcome::next) ++split.instruction;
  return true;
}

// Lanes that have come to the same place go on together.
void Warp::merge() {
  for (std::size_t i = 0; i < splits_.size(); ++i) {
    for (std::size_t j = i + 1; j < splits_.size();) {
      if (splits_[i].instruction != splits_[j].instruction) {
        ++j;
        continue;
      }
      splits_[i].lanes |= splits_[j].lanes;
      splits_[i].blocked = false;
      splits_.erase(splits_.begin() + static_cast<std::ptrdiff_t>(j));
    }
  }
}

std::vector<Warp::Place> Warp::places() const {
  std::vector<Place> places;
  for (const Split& split : splits_) places.push_back({split.lanes, split.instruction, split.wait});
  return places;
}

// --- Control ---------------------------------------------------------------------------------------------------------

Outcome Warp::branch(std::uint32_t target, LaneMask taken) {
  if (taken == current_->lanes) {
    current_->instruction = target;
    return Outcome::jumped;
  }
  current_->lanes &= ~taken;
  splits_.push_back({taken, target, {}});
  return Outcome::next;
}

Outcome Warp::exit(LaneMask lanes) {
  live_ &= ~lanes;
  if (lanes == current_->lanes) {
    const auto at = std::find_if(splits_.begin(), splits_.end(), [this](const Split& s) { return &s == current_; });
    splits_.erase(at);
  } else {
    current_->lanes &= ~lanes;
    ++current_->instruction;
  }
  for (Split& split : splits_) split.blocked = false;  // fewer lanes have to be together now
  block_.cluster().something_happened();
  return Outcome::exited;
}

Outcome Warp::block_for(Wait wait) {
  current_->wait = wait;
  current_->blocked = true;
  current_->blocked_at = block_.cluster().events();
  return Outcome::blocked;
}

Outcome Warp::require_lanes(LaneMask members, LaneMask active) {
  if ((members & live_ & ~active) == 0) return Outcome::next;
  return block_for({Wait::For::convergence});
}

// --- Registers -------------------------------------------------------------------------------------------------------

void Warp::fly(Slot slot, bool accumulator) {
  if (slot < 0) return;
  ++in_flight_[slot];
  if (!accumulator) return;
  ++accumulating_[slot];
  readable_[slot] = 0;
}

void Warp::land(Slot slot, bool accumulator) {
  if (slot < 0) return;
  --in_flight_[slot];
  if (accumulator && --accumulating_[slot] == 0) readable_[slot] = kAllLanes;
}

void Warp::report_unreadable(Slot slot, LaneMask active) {
  if (accumulating_[slot] != 0) {
    report(FindingKind::register_in_flight,
           [&] { return std::string("reads an accumulator of a wgmma that has not been waited for"); });
    return;
  }
  const int lane = std::countr_zero(~readable_[slot] & active);
  report(FindingKind::unwritten_register,
         [&] { return fmt::format("reads a register before any write, lane {}", lane); });
}

void Warp::report_unreadable_predicate(Slot predicate, LaneMask active) {
  const int lane = std::countr_zero(~predicates_readable_[predicate] & active);
  report(FindingKind::unwritten_register,
         [&] { return fmt::format("reads a predicate before any write, lane {}", lane); });
}

void Warp::report_write_in_flight(Slot slot) {
  report(FindingKind::register_in_flight, [&] {
    return fmt::format("writes {} of a wgmma that has not been waited for",
                       accumulating_[slot] != 0 ? "an accumulator" : "a register of A");
  });
}

void Warp::set_special_registers() {
  for (const SpecialRegister& reg : code_.kernel->specials) {
    for (int lane = 0; lane < kLanes; ++lane) registers_[reg.slot].lane[lane] = special(reg.what, lane);
    readable_[reg.slot] = kAllLanes;
  }
  LaunchState& launch = block_.cluster().launch();
  for (const SymbolAddress& symbol : code_.kernel->symbols) {
    std::uint64_t address = 0;
    if (symbol.space == Space::parameter)
      address = reinterpret_cast<std::uintptr_t>(launch.parameters_at) + symbol.offset;
    else if (symbol.space == Space::global)
      address = reinterpret_cast<std::uintptr_t>(launch.globals_at) + symbol.offset;
    else
      address = block_.shared_address(kFirstSharedOffset + static_cast<std::uint32_t>(symbol.offset));
    auto* const wide = reinterpret_cast<std::uint64_t*>(registers_[symbol.slot].lane);
    std::fill_n(wide, kLanes, address);
    std::fill_n(registers_[symbol.slot_32].lane, kLanes, static_cast<std::uint32_t>(address));
    readable_[symbol.slot] = readable_[symbol.slot_32] = kAllLanes;
  }
}

std::uint32_t Warp::special(Special what, int lane) const {
  const LaunchState& launch = block_.cluster().launch();
  const Extent threads = launch.launch.block, grid = launch.launch.grid, cluster = launch.cluster, id = block_.id();
  const unsigned thread = static_cast<unsigned>(index_ * kLanes + lane);
  const LaneMask bit = LaneMask{1} << lane;
  switch (what) {
    case Special::tid_x:
      return thread % threads.x;
    case Special::tid_y:
      return thread / threads.x % threads.y;
    case Special::tid_z:
      return thread / threads.x / threads.y;
    case Special::ntid_x:
      return threads.x;
    case Special::ntid_y:
      return threads.y;
    case Special::ntid_z:
      return threads.z;
    case Special::ctaid_x:
      return id.x;
    case Special::ctaid_y:
      return id.y;
    case Special::ctaid_z:
      return id.z;
    case Special::nctaid_x:
      return grid.x;
    case Special::nctaid_y:
      return grid.y;
    case Special::nctaid_z:
      return grid.z;
    case Special::laneid:
      return static_cast<std::uint32_t>(lane);
    case Special::warpid:
      return static_cast<std::uint32_t>(index_);
    case Special::nwarpid:
      return static_cast<std::uint32_t>((threads.count() + kLanes - 1) / kLanes);
    case Special::lanemask_eq:
      return bit;
    case Special::lanemask_lt:
      return bit - 1;
    case Special::lanemask_le:
      return bit | (bit - 1);
    case Special::lanemask_gt:
      return ~(bit | (bit - 1));
    case Special::lanemask_ge:
      return ~(bit - 1);
    case Special::cluster_ctarank:
      return block_.rank();
    case Special::cluster_nctarank:
      return static_cast<std::uint32_t>(cluster.count());
    case Special::cluster_ctaid_x:
      return id.x % cluster.x;
    case Special::cluster_ctaid_y:
      return id.y % cluster.y;
    case Special::cluster_ctaid_z:
      return id.z % cluster.z;
    case Special::cluster_nctaid_x:
      return cluster.x;
    case Special::cluster_nctaid_y:
      return cluster.y;
    case Special::cluster_nctaid_z:
      return cluster.z;
    case Special::clusterid_x:
      return id.x / cluster.x;
    case Special::clusterid_y:
      return id.y / cluster.y;
    case Special::clusterid_z:
      return id.z / cluster.z;
    case Special::nclusterid_x:
      return grid.x / cluster.x;
    case Special::nclusterid_y:
      return grid.y / cluster.y;
    case Special::nclusterid_z:
      return grid.z / cluster.z;
    case Special::dynamic_smem_size:
      return static_cast<std::uint32_t>(launch.launch.dynamic_shared_bytes);
    case Special::total_smem_size:
      return block_.shared_bytes();
  }
  return 0;
}

// --- Reports ---------------------------------------------------------------------------------------------------------

Findings& Warp::findings() { return block_.cluster().launch().findings; }

Findings::Who Warp::who() const { return {block_.id(), index_, present_}; }

std::string Warp::name_of(std::uint32_t instruction) const {
  return block_.cluster().launch().findings.name(instruction);
}

void Warp::count_bank_conflicts(std::uint64_t wavefronts) {
  LaunchState& launch = block_.cluster().launch();
  launch.conflicts[present_] += wavefronts;
  launch.counters.bank_conflicts += wavefronts;
}

}  // namespace flashjit::emulator
