// SPDX-License-Identifier: Apache-2.0
#include "emulator/machine/block_state.h"

#include <fmt/format.h>

namespace flashjit::emulator {
namespace {

std::size_t warps_of(Block& block) {
  return static_cast<std::size_t>((block.cluster().launch().launch.block.count() + kLanes - 1) / kLanes);
}

}  // namespace

BlockState::BlockState(Block& block)
    : warps(warps_of(block)),
      mbarriers(block),
      warpgroups((warps.size() + kWarpsOfGroup - 1) / kWarpsOfGroup),
      block_(block) {}

std::string BlockState::describe(const Wait& wait) const {
  switch (wait.what) {
    case Wait::For::nothing:
      return "nothing";
    case Wait::For::convergence:
      return "the other lanes of the warp";
    case Wait::For::named_barrier:
      return describe_named_barrier(wait.a);
    case Wait::For::cluster_barrier:
      return "the barrier of the cluster, at which not all threads of the cluster have arrived";
    case Wait::For::mbarrier:
      return describe_mbarrier(wait.a, wait.b);
    case Wait::For::wgmma:
      return warpgroups[wait.a].describe_wait(wait.b);
    case Wait::For::copies:
      return "its copies";
    case Wait::For::registers:
      return "registers that others must give back with setmaxnreg.dec";
  }
  return "nothing";
}

std::string BlockState::describe_named_barrier(std::uint32_t number) const {
  const NamedBarrier::Generation& open = *named_barriers[number].open;
  std::string absent;
  for (std::size_t warp = 0; open.whole_block && warp < warps.size(); ++warp)
    if ((open.warps >> warp & 1) == 0 && !block_.warps()[warp]->ended())
      absent += fmt::format("{} {}", absent.empty() ? ", not of warps" : ",", warp);
  return fmt::format("named barrier {}: {} of {} threads have arrived{}", number, open.arrived, open.expected, absent);
}

std::string BlockState::describe_mbarrier(std::uint32_t offset, std::uint32_t parity) const {
  const Mbarrier* const barrier = mbarriers.look(offset);
  if (!barrier) return fmt::format("the mbarrier at {:#x}, which was not initialised", offset);
  return fmt::format("the mbarrier at {:#x} to complete the phase of parity {}: {}", offset, parity,
                     Mbarriers::pending_text(*barrier));
}

std::uint64_t BlockState::copy_started(Warp& issuer, const char* what) {
  copies_.emplace(next_copy_, CopyInFlight{{issuer.block().id(), issuer.index(), issuer.instruction()}, what});
  return next_copy_++;
}

void BlockState::finish() {
  mbarriers.finish(!copies_.empty());
  check_register_changes();
  for (const auto& [number, copy] : copies_)
    block_.cluster().launch().findings.add(FindingKind::left_in_flight, copy.issuer, [this, &copy = copy] {
      return fmt::format("block {},{},{} has ended while this copy still {} its shared memory", block_.id().x,
                         block_.id().y, block_.id().z, copy.what);
    });
}

// setmaxnreg is of a warpgroup: each of its warps must have executed all of them.
void BlockState::check_register_changes() {
  for (std::size_t warp = 0; warp < block_.warps().size(); ++warp) {
    const RegisterChanges& changes = warpgroups[warp / kWarpsOfGroup].register_changes;
    const std::size_t executed = changes.warps[warp % kWarpsOfGroup].count;
    if (executed >= changes.instructions.size()) continue;
    const Findings::Who who{block_.id(), static_cast<int>(warp), changes.instructions[executed]->statement};
    block_.cluster().launch().findings.add(FindingKind::unequal_participation, who, [&] {
      return fmt::format("warp {} has not executed this, which other warps of its warpgroup have", warp);
    });
  }
}

}  // namespace flashjit::emulator
