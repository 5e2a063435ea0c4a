// SPDX-License-Identifier: Apache-2.0
// The state of a block that operations share: barriers, copies in flight, warpgroups.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "emulator/machine/cluster.h"
#include "emulator/machine/copy_groups.h"
#include "emulator/machine/mbarrier.h"
#include "emulator/machine/named_barrier.h"
#include "emulator/machine/warpgroup.h"

namespace flashjit::emulator {

struct BlockState {
  explicit BlockState(Block& block);

  struct WarpState {
    std::shared_ptr<NamedBarrier::Generation> named_barrier;                          // that it waits for
    std::array<std::shared_ptr<ClusterBarrier::Generation>, kLanes> cluster_barrier;  // arrived at, not waited for
    Knowledge at_fence;              // the last fence.acq_rel or .sc; a relaxed arrival releases that
    Clock initialisation_fence = 0;  // fence.mbarrier_init; a relaxed arrival at the cluster's barrier releases that
    VectorClock initialisations;     // of other warps, known that way
    CopyGroups cp_async, bulk;
  };

  // One line that says what the lanes wait for: "named barrier 3, 128 of 256 threads have arrived".
  std::string describe(const Wait& wait) const;
  // Called when the last warp of the block has ended: reports what is still in flight.
  void finish();
  // Bytes of shared memory were overwritten.
  void written(std::uint32_t offset, std::uint32_t bytes) { mbarriers.written(offset, bytes); }

  // Copies that read or will write the shared memory of this block, from `started` to `ended`.
  std::uint64_t copy_started(Warp& issuer, const char* what);
  void copy_ended(std::uint64_t copy) { copies_.erase(copy); }

  WarpState& of(const Warp& warp) { return warps[static_cast<std::size_t>(warp.index())]; }

  std::vector<WarpState> warps;
  std::array<NamedBarrier, kNamedBarriers> named_barriers;
  ClusterBarrier cluster_barrier;  // of the cluster, in its first block
  Mbarriers mbarriers;
  std::vector<Warpgroup> warpgroups;  // by warp / 4

 private:
  struct CopyInFlight {
    Findings::Who issuer;
    const char* what;  // "reads" or "writes"
  };
  void check_register_changes();
  std::string describe_named_barrier(std::uint32_t number) const;
  std::string describe_mbarrier(std::uint32_t offset, std::uint32_t parity) const;

  Block& block_;
  std::map<std::uint64_t, CopyInFlight> copies_;  // by number
  std::uint64_t next_copy_ = 0;
};

}  // namespace flashjit::emulator
