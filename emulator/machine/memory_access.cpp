// SPDX-License-Identifier: Apache-2.0
#include "emulator/machine/memory_access.h"

#include <fmt/format.h>

#include <algorithm>

#include "emulator/machine/shared_address.h"
#include "emulator/memory/banks.h"

namespace flashjit::emulator {
namespace {

bool is_generic_shared(std::uint64_t address) { return address >= kGenericShared; }

// What the active lanes' addresses have in common.
struct Range {
  std::uint64_t lowest = UINT64_MAX, highest = 0;
  std::uint64_t low_bits = 0;  // that any of them has

  Range(const LaneAddresses& addresses, LaneMask active) {
    for_each_lane(active, [&](int lane) {
      const std::uint64_t address = addresses.lane[lane];
      lowest = std::min(lowest, address);
      highest = std::max(highest, address);
      low_bits |= address;
    });
  }
  // From the first byte that a lane accesses to the end of the last.
  std::uint64_t bytes(const MemoryAccess& access) const { return highest - lowest + access.bytes; }
};

// The lanes whose addresses are aligned.
LaneMask require_alignment(Warp& warp, const MemoryAccess& access, const LaneAddresses& addresses, LaneMask active) {
  LaneMask aligned = 0;
  for_each_lane(active, [&](int lane) {
    if (addresses.lane[lane] % access.bytes == 0) {
      aligned |= LaneMask{1} << lane;
      return;
    }
    warp.report(FindingKind::misaligned, [&] {
      return fmt::format("the address must be a multiple of {}, was {:#x} in lane {}", access.bytes,
                         addresses.lane[lane], lane);
    });
  });
  return aligned;
}

// Neighbouring lanes mostly access neighbouring bytes, or the same ones: they are recorded together.
class SharedRecorder {
 public:
  SharedRecorder(Warp& warp, const MemoryAccess& access) : access_(access), accessor_(warp.accessor()) {
    accessor_.atomic = access.reads && access.writes;
  }

  void add(const Cluster::SharedPlace& place) {
    const bool is_same_block = place.block == block_;
    if (is_same_block && place.offset + access_.bytes == end_) return;
    if (!is_same_block || place.offset != end_) {
      finish();
      block_ = place.block;
      begin_ = place.offset;
    }
    end_ = place.offset + access_.bytes;
  }
  void finish() {
    if (!block_) return;
    if (!access_.writes) block_->shared().record_read(accessor_, begin_, end_ - begin_);
    if (access_.writes) block_->shared().record_write(accessor_, begin_, end_ - begin_);
  }

 private:
  const MemoryAccess& access_;
  Accessor accessor_;
  Block* block_ = nullptr;
  std::uint32_t begin_ = 0, end_ = 0;
};

Cluster::SharedPlace find_shared_place(Warp& warp, const MemoryAccess& access, std::uint64_t address) {
  const SharedSpace space = access.space == AccessSpace::generic      ? SharedSpace::generic
                            : access.space == AccessSpace::shared_cta ? SharedSpace::cta
                                                                      : SharedSpace::cluster;
  return find_aligned_shared(warp, space, address, access.bytes, access.bytes);
}

void find_shared_places(Warp& warp, const MemoryAccess& access, const LaneAddresses& addresses, const Range& range,
                        LaneMask active, Places& places) {
  Block& own = warp.block();
  const std::uint64_t window = own.shared_address(0) + (access.space == AccessSpace::generic ? kGenericShared : 0);
  const bool is_inside = own.shared().contains(range.lowest - window, range.bytes(access));
  std::array<std::uint32_t, kLanes> offsets;
  offsets.fill(kNoAccess);
  SharedRecorder recorder(warp, access);
  for_each_lane(active, [&](int lane) {
    const auto at = static_cast<std::size_t>(lane);
    const std::uint64_t address = addresses.lane[lane];
    const Cluster::SharedPlace place = is_inside
                                           ? Cluster::SharedPlace{&own, static_cast<std::uint32_t>(address - window)}
                                           : find_shared_place(warp, access, address);
    if (!place.block) return;
    places[at] = place.block->shared().at(place.offset);
    recorder.add(place);
    if (place.block == &own) offsets[at] = place.offset;
  });
  recorder.finish();
  if (const int conflicts = bank_conflicts(offsets.data(), kLanes, static_cast<int>(access.bytes)); conflicts > 0)
    warp.count_bank_conflicts(static_cast<std::uint64_t>(conflicts));
}

// Whether one buffer of the caller's, or the parameters, have all that the lanes access.
bool is_in_one_buffer(const LaunchState& launch, const MemoryAccess& access, const Range& range) {
  const auto contains = [&](std::uint64_t begin, std::uint64_t end) {
    return range.lowest >= begin && range.lowest <= end && range.bytes(access) <= end - range.lowest;
  };
  if (access.space == AccessSpace::parameter) {
    const auto begin = reinterpret_cast<std::uintptr_t>(launch.parameters_at);
    return contains(begin, begin + launch.launch.parameters.size());
  }
  const auto& buffers = launch.memory.buffers();
  return std::any_of(buffers.begin(), buffers.end(), [&](const Memory::Buffer& buffer) {
    return contains(buffer.begin, buffer.end) && (buffer.writable || !access.writes);
  });
}

std::byte* find_parameter(Warp& warp, const MemoryAccess& access, std::uint64_t address) {
  LaunchState& launch = warp.cluster().launch();
  const std::uint64_t offset = address - reinterpret_cast<std::uintptr_t>(launch.parameters_at);
  const std::uint64_t end = launch.launch.parameters.size();
  if (offset <= end && access.bytes <= end - offset) return launch.parameters_at + offset;
  warp.report(FindingKind::global_out_of_bounds, [&] {
    return fmt::format("reads {} bytes at byte {} of the kernel's parameters, which have {}", access.bytes,
                       static_cast<std::int64_t>(offset), end);
  });
  return nullptr;
}

// Words that leave no trace: the order of memory operations, their scope, caches.
constexpr std::string_view kHints[] = {"weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "mmio",
                                       "cta",  "cluster", "gpu",     "sys",     "ca",      "cg",       "cs",
                                       "lu",   "cv",      "wb",      "wt",      "nc"};

}  // namespace

Places find_places(Warp& warp, const MemoryAccess& access, LaneMask active) {
  Places places{};
  const LaneAddresses addresses = read_addresses(warp, access.address, active);
  const Range range(addresses, active);
  if (range.low_bits % access.bytes != 0) active = require_alignment(warp, access, addresses, active);
  LaneMask shared = 0;
  if (access.space == AccessSpace::shared_cta || access.space == AccessSpace::shared_cluster) shared = active;
  if (access.space == AccessSpace::generic)
    for_each_lane(active, [&](int lane) { shared |= LaneMask{is_generic_shared(addresses.lane[lane])} << lane; });
  if (shared != 0) find_shared_places(warp, access, addresses, range, shared, places);
  const LaneMask others = active & ~shared;
  if (others == 0) return places;
  LaunchState& launch = warp.cluster().launch();
  const bool is_inside = is_in_one_buffer(launch, access, range);
  for_each_lane(others, [&](int lane) {
    const std::uint64_t address = addresses.lane[lane];
    places[static_cast<std::size_t>(lane)] =
        is_inside                                ? reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address))
        : access.space == AccessSpace::parameter ? find_parameter(warp, access, address)
                                                 : launch.global(warp, address, access.bytes, access.writes);
  });
  return places;
}

void skip_hints(Decoding& decoding) {
  while (true) {
    const std::string_view next = decoding.peek();
    const bool is_cache = next.starts_with("L1::") || next.starts_with("L2::");
    if (!is_cache && std::find(std::begin(kHints), std::end(kHints), next) == std::end(kHints)) return;
    decoding.take(next);
  }
}

AccessSpace take_space(Decoding& decoding) {
  skip_hints(decoding);
  SharedSpace shared;
  AccessSpace space = AccessSpace::generic;
  if (take_shared_space(decoding, shared))
    space = shared == SharedSpace::cta ? AccessSpace::shared_cta : AccessSpace::shared_cluster;
  else if (decoding.take("global") || decoding.take("const"))
    space = AccessSpace::global;
  else if (decoding.take("param") || decoding.take("param::entry"))
    space = AccessSpace::parameter;
  skip_hints(decoding);
  return space;
}

OpClass class_of(AccessSpace space) {
  switch (space) {
    case AccessSpace::shared_cta:
    case AccessSpace::shared_cluster:
      return OpClass::shared;
    case AccessSpace::parameter:
      return OpClass::parameter;
    case AccessSpace::generic:
    case AccessSpace::global:
      break;
  }
  return OpClass::global;
}

std::size_t take_vector_size(Decoding& decoding) {
  if (decoding.take("v2")) return 2;
  if (decoding.take("v4")) return 4;
  return 1;
}

}  // namespace flashjit::emulator
