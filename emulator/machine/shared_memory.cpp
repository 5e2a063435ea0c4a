// SPDX-License-Identifier: Apache-2.0
#include "emulator/machine/shared_memory.h"

#include <fmt/format.h>

#include "emulator/machine/warp.h"

namespace flashjit::emulator {
namespace {

// Bits of the bytes from `begin` to `end` that lie in the granule at `granule`, all three in bytes.
std::uint8_t byte_mask(std::uint32_t granule, std::uint32_t begin, std::uint32_t end) {
  std::uint8_t mask = 0;
  for (std::uint32_t byte = 0; byte < 4; ++byte)
    if (granule + byte >= begin && granule + byte < end) mask |= static_cast<std::uint8_t>(1 << byte);
  return mask;
}

}  // namespace

SharedMemory::SharedMemory(std::uint32_t bytes)
    : end_(kFirstSharedOffset + bytes), bytes_(end_), granules_((end_ + kGranule - 1) / kGranule) {}

void SharedMemory::record_read(const Accessor& accessor, std::uint32_t offset, std::uint32_t bytes) {
  const std::uint32_t first = offset / kGranule, last = (offset + bytes - 1) / kGranule;
  if (accessor.agent >= readers_.size()) readers_.resize(accessor.agent + 1u);
  std::unique_ptr<Reader>& reader = readers_[accessor.agent];
  if (!reader) {
    reader = std::make_unique<Reader>();
    reader->clocks.resize(granules_.size());
    reader->instructions.resize(granules_.size());
  }
  const std::uint32_t instruction = accessor.issuer.instruction();
  for (std::uint32_t i = first; i <= last; ++i) {
    const Granule& granule = granules_[i];
    const bool whole = i != first && i != last;
    const std::uint8_t wanted = whole ? kAllBytes : byte_mask(i * kGranule, offset, offset + bytes);
    const std::uint32_t at = std::max(i * kGranule, offset);
    if (check_written(accessor, granule, wanted, at)) check_against_write(accessor, granule, at, false);
    reader->clocks[i] = accessor.clock;
    reader->instructions[i] = instruction;
  }
}

void SharedMemory::record_write(const Accessor& accessor, std::uint32_t offset, std::uint32_t bytes) {
  const std::uint32_t first = offset / kGranule, last = (offset + bytes - 1) / kGranule;
  check_against_reads(accessor, first, last);
  if (observer_) observer_(offset, bytes);
  const std::uint32_t instruction = accessor.issuer.instruction();
  for (std::uint32_t i = first; i <= last; ++i) {
    Granule& granule = granules_[i];
    const bool whole = i != first && i != last;
    const std::uint8_t bytes_here = whole ? kAllBytes : byte_mask(i * kGranule, offset, offset + bytes);
    const std::uint32_t at = std::max(i * kGranule, offset);
    if (accessor.atomic) check_written(accessor, granule, bytes_here, at);
    if (granule.written != 0) check_against_write(accessor, granule, at, true);
    granule.written |= bytes_here;
    granule.writer = accessor.agent;
    granule.atomic = accessor.atomic;
    granule.proxy = accessor.proxy;
    granule.clock = accessor.clock;
    granule.instruction = instruction;
  }
}

bool SharedMemory::check_written(const Accessor& accessor, const Granule& granule, std::uint8_t wanted,
                                 std::uint32_t offset) {
  if ((granule.written & wanted) == wanted) return true;
  accessor.issuer.report(FindingKind::unwritten_shared,
                         [&] { return fmt::format("reads {:#x} of shared memory, which nobody has written", offset); });
  return false;
}

void SharedMemory::check_against_write(const Accessor& accessor, const Granule& granule, std::uint32_t offset,
                                       bool writes) {
  if (accessor.atomic && granule.atomic) return;
  const VectorClock& seen = accessor.knowledge.seen;
  if (seen.of(granule.writer) < granule.clock) {
    // The writer is a copy: its mbarrier has been waited for, but with the parity of a phase that had ended before.
    if (const std::uint32_t* const wait = accessor.issuer.repeated_wait(granule.writer)) {
      accessor.issuer.report(FindingKind::mbarrier_phase, [&] {
        return fmt::format(
            "{} {:#x} of shared memory before the write by {} is complete: {} passed at once, on a phase "
            "that this warp had waited for before",
            writes ? "writes" : "reads", offset, accessor.issuer.name_of(granule.instruction),
            accessor.issuer.name_of(*wait));
      });
      return;
    }
    accessor.issuer.report(FindingKind::race, [&] {
      return fmt::format("{} {:#x} of shared memory, and nothing orders that after the write by {}",
                         writes ? "writes" : "reads", offset, accessor.issuer.name_of(granule.instruction));
    });
  } else if (accessor.proxy == Proxy::async && granule.proxy == Proxy::generic &&
             accessor.knowledge.fenced.of(granule.writer) < granule.clock) {
    accessor.issuer.report(FindingKind::missing_proxy_fence, [&] {
      return fmt::format(
          "{} {:#x} of shared memory by the async proxy, without fence.proxy.async after the write by {}",
          writes ? "writes" : "reads", offset, accessor.issuer.name_of(granule.instruction));
    });
  }
}

void SharedMemory::check_against_reads(const Accessor& accessor, std::uint32_t first, std::uint32_t last) {
  for (std::size_t agent = 0; agent < readers_.size(); ++agent) {
    if (!readers_[agent]) continue;
    const Reader& reader = *readers_[agent];
    const Clock seen = accessor.knowledge.seen.of(static_cast<Agent>(agent));
    Clock latest = 0;
    for (std::uint32_t i = first; i <= last; ++i) latest = std::max(latest, reader.clocks[i]);
    if (latest <= seen) continue;
    std::uint32_t at = first;
    while (reader.clocks[at] <= seen) ++at;
    accessor.issuer.report(FindingKind::race, [&] {
      return fmt::format("writes {:#x} of shared memory, and nothing orders that after the read by {}", at * kGranule,
                         accessor.issuer.name_of(reader.instructions[at]));
    });
  }
}

void SharedMemory::forget(std::uint32_t offset, std::uint32_t bytes) {
  for (std::uint32_t i = offset / kGranule; i <= (offset + bytes - 1) / kGranule; ++i)
    granules_[i].written &= static_cast<std::uint8_t>(~byte_mask(i * kGranule, offset, offset + bytes));
}

}  // namespace flashjit::emulator
