// SPDX-License-Identifier: Apache-2.0
// Operands that are addresses of shared memory, of barriers and copies.
#pragma once

#include <fmt/format.h>

#include <bit>
#include <cstdint>

#include "emulator/machine/cluster.h"

namespace flashjit::emulator {

enum class SharedSpace { cta, cluster, generic };

// Calls f(lane) for each lane of the mask.
template <class F>
void for_each_lane(LaneMask lanes, const F& f) {
  for (; lanes != 0; lanes &= lanes - 1) f(std::countr_zero(lanes));
}

// ".shared", ".shared::cta" or ".shared::cluster"; an address without a state space is generic.
inline bool take_shared_space(Decoding& decoding, SharedSpace& space) {
  if (decoding.take("shared::cluster"))
    space = SharedSpace::cluster;
  else if (decoding.take("shared") || decoding.take("shared::cta"))
    space = SharedSpace::cta;
  else
    return false;
  return true;
}

struct LaneAddresses {
  std::uint64_t lane[kLanes] = {};
};

inline LaneAddresses read_addresses(Warp& warp, const Decoding::Address& operand, LaneMask active) {
  LaneAddresses addresses;
  const auto read = [&]<class T>(const T* base) {
    for (int lane = 0; lane < kLanes; ++lane)
      addresses.lane[lane] = static_cast<T>((base ? base[lane] : 0) + static_cast<std::uint64_t>(operand.offset));
  };
  if (operand.base == kNoSlot)
    read(static_cast<const std::uint64_t*>(nullptr));
  else if (operand.bits == 32)
    read(warp.read<std::uint32_t>(operand.base, active));
  else
    read(warp.read<std::uint64_t>(operand.base, active));
  return addresses;
}

// Where `bytes` at an address lie, which must be a multiple of `alignment`. Block null after a report.
inline Cluster::SharedPlace find_aligned_shared(Warp& warp, SharedSpace space, std::uint64_t address,
                                                std::uint32_t bytes, std::uint32_t alignment) {
  if (space == SharedSpace::generic) address -= kGenericShared;
  if (address > UINT32_MAX) {
    warp.report(FindingKind::shared_out_of_bounds, [&] {
      const std::uint64_t given = space == SharedSpace::generic ? address + kGenericShared : address;
      return fmt::format("{:#x} is no address of shared memory", given);
    });
    return {};
  }
  if (address % alignment != 0) {
    warp.report(FindingKind::misaligned, [&] {
      return fmt::format("the address in shared memory must be a multiple of {}, was {:#x}", alignment, address);
    });
    return {};
  }
  return warp.cluster().find_shared(warp, static_cast<std::uint32_t>(address), bytes, space != SharedSpace::cta);
}

}  // namespace flashjit::emulator
