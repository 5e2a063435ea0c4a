// SPDX-License-Identifier: Apache-2.0
// Where what is written asynchronously goes: a block's shared memory, and an mbarrier in it that counts its bytes.
#pragma once

#include <optional>

#include "emulator/machine/block_state.h"
#include "emulator/machine/shared_address.h"

namespace flashjit::emulator {

struct Landing {
  Block* block = nullptr;
  std::uint32_t offset = 0, mbarrier = 0;
};

// None after a report.
inline std::optional<Landing> find_landing(Warp& warp, SharedSpace space, std::uint64_t address, std::uint32_t bytes,
                                           std::uint32_t alignment, std::uint64_t mbarrier) {
  const auto to = find_aligned_shared(warp, space, address, bytes, alignment);
  const auto at = find_aligned_shared(warp, space, mbarrier, kMbarrierBytes, kMbarrierBytes);
  if (!to.block || !at.block) return std::nullopt;
  if (to.block != at.block) {
    warp.report(FindingKind::bad_operand, [&] {
      return fmt::format("the mbarrier must be in the block of the destination, {}, was in {}", to.block->rank(),
                         at.block->rank());
    });
    return std::nullopt;
  }
  return Landing{to.block, to.offset, at.offset};
}

// False after a report.
inline bool is_alive(Warp& warp, Block& block) {
  if (!block.ended()) return true;
  warp.report(FindingKind::left_in_flight, [&] {
    return fmt::format("writes the shared memory of block {} of the cluster, which has ended", block.rank());
  });
  return false;
}

}  // namespace flashjit::emulator
