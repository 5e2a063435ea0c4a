// SPDX-License-Identifier: Apache-2.0
// cp.async (PTX ISA, "Non-bulk copy"), and waiting for groups of any kind of copies.
#include <fmt/format.h>

#include "emulator/machine/block_state.h"
#include "emulator/machine/shared_address.h"
#include "emulator/memory/bulk_copy.h"

namespace flashjit::emulator {
namespace {

// --- cp.async --------------------------------------------------------------------------------------------------------

struct CpAsync : Detail {
  Decoding::Address to, from;
  std::uint32_t bytes = 0;
  Slot source_bytes = kNoSlot;  // the rest is zero
  Slot ignores_source = kNoSlot;
  bool ignores_source_negated = false;
};

// Of one lane.
struct Piece {
  std::uint32_t to = 0;
  const std::byte* from = nullptr;
  std::uint32_t bytes = 0, source_bytes = 0;
};

// The bytes that each lane reads of its source.
LaneAddresses read_source_bytes(Warp& warp, const CpAsync& copy, LaneMask active) {
  LaneAddresses bytes;
  std::fill_n(bytes.lane, kLanes, copy.bytes);
  if (copy.source_bytes != kNoSlot)
    std::copy_n(warp.read<std::uint32_t>(copy.source_bytes, active), kLanes, bytes.lane);
  if (copy.ignores_source != kNoSlot) {
    LaneMask ignoring = warp.read_predicate(copy.ignores_source, active);
    if (copy.ignores_source_negated) ignoring = ~ignoring;
    for_each_lane(ignoring, [&](int lane) { bytes.lane[lane] = 0; });
  }
  return bytes;
}

// False after a report.
bool check_source(Warp& warp, const CpAsync& copy, std::uint64_t address, std::uint64_t bytes) {
  if (bytes > copy.bytes)
    warp.report(FindingKind::bad_operand,
                [&] { return fmt::format("the bytes of the source must be at most {}, were {}", copy.bytes, bytes); });
  else if (address % copy.bytes != 0)
    warp.report(FindingKind::misaligned, [&] {
      return fmt::format("the address of the source must be a multiple of {}, was {:#x}", copy.bytes, address);
    });
  else
    return true;
  return false;
}

std::vector<Piece> find_pieces(Warp& warp, const CpAsync& copy, LaneMask active) {
  const LaneAddresses to = read_addresses(warp, copy.to, active), from = read_addresses(warp, copy.from, active);
  const LaneAddresses bytes = read_source_bytes(warp, copy, active);
  std::vector<Piece> pieces;
  for_each_lane(active, [&](int lane) {
    const auto place = find_aligned_shared(warp, SharedSpace::cta, to.lane[lane], copy.bytes, copy.bytes);
    if (!place.block || !check_source(warp, copy, from.lane[lane], bytes.lane[lane])) return;
    Piece piece{place.offset, nullptr, copy.bytes, static_cast<std::uint32_t>(bytes.lane[lane])};
    if (piece.source_bytes != 0)
      piece.from = warp.cluster().launch().global(warp, from.lane[lane], piece.source_bytes, false);
    if (piece.source_bytes == 0 || piece.from) pieces.push_back(piece);
  });
  return pieces;
}

void record_writes(Warp& warp, const std::vector<Piece>& pieces, CopyGroups& groups) {
  SharedMemory& shared = warp.block().shared();
  const Accessor accessor{warp, groups.agent(warp.cluster()), groups.clock(), warp.knowledge(), Proxy::generic};
  for (std::size_t i = 0; i < pieces.size();) {
    const std::uint32_t begin = pieces[i].to;
    std::uint32_t end = begin;
    for (; i < pieces.size() && pieces[i].to == end; ++i) end += pieces[i].bytes;
    shared.record_write(accessor, begin, end - begin);
  }
}

void copy_pieces(SharedMemory& shared, const std::vector<Piece>& pieces) {
  for (const Piece& piece : pieces) {
    std::byte* const to = shared.at(piece.to);
    if (piece.source_bytes != 0) std::memcpy(to, piece.from, piece.source_bytes);
    std::memset(to + piece.source_bytes, 0, piece.bytes - piece.source_bytes);
  }
}

Outcome run_cp_async(Warp& warp, const Instruction& instruction, LaneMask active) {
  std::vector<Piece> pieces = find_pieces(warp, instruction.details<CpAsync>(), active);
  if (pieces.empty()) return Outcome::next;
  Block& block = warp.block();
  CopyGroups& groups = block.state().of(warp).cp_async;
  record_writes(warp, pieces, groups);
  const std::shared_ptr<CopyGroup> group = groups.open_for(active);
  ++group->running;
  const std::uint64_t number = block.state().copy_started(warp, "writes");
  warp.cluster().later([&block, group, number, pieces = std::move(pieces)] {
    copy_pieces(block.shared(), pieces);
    --group->running;
    block.state().copy_ended(number);
  });
  return Outcome::next;
}

void skip_cache_modifiers(Decoding& decoding, std::size_t& operands) {
  if (decoding.take("L2::cache_hint")) --operands;  // the policy, which is the last
  if (!decoding.take("L2::64B") && !decoding.take("L2::128B")) decoding.take("L2::256B");
}

// After "cp.async".
void decode_cp_async(Decoding& decoding, Instruction& instruction) {
  auto copy = std::make_unique<CpAsync>();
  const bool past_l1 = decoding.take("cg");
  if (!past_l1 && !decoding.take("ca")) decoding.fail("it must be .ca or .cg");
  SharedSpace space = SharedSpace::cta;
  if (!take_shared_space(decoding, space) || space != SharedSpace::cta || !decoding.take("global"))
    decoding.fail("it must be from global to shared::cta");
  std::size_t operands = decoding.operand_count();
  skip_cache_modifiers(decoding, operands);
  copy->to = decoding.address(0);
  copy->from = decoding.address(1);
  copy->bytes = static_cast<std::uint32_t>(decoding.immediate(2));
  const bool legal = copy->bytes == 16 || (!past_l1 && (copy->bytes == 4 || copy->bytes == 8));
  if (!legal) decoding.fail(fmt::format("the size must be {}, was {}", past_l1 ? "16" : "4, 8 or 16", copy->bytes));
  if (operands > 3 && decoding.operand(3).kind == OperandKind::predicate) {
    copy->ignores_source = decoding.operand(3).slot;
    copy->ignores_source_negated = decoding.operand(3).negated;
  } else if (operands > 3) {
    copy->source_bytes = decoding.source(3, 32);
  }
  instruction.run = run_cp_async;
  instruction.detail = std::move(copy);
}

// --- Groups (PTX ISA, "cp.async.wait_group" and the like) ------------------------------------------------------------

enum class Which { cp_async, bulk };

template <Which which>
CopyGroups& groups_of(Warp& warp) {
  BlockState::WarpState& state = warp.block().state().of(warp);
  return which == Which::bulk ? state.bulk : state.cp_async;
}

template <Which which>
Outcome run_commit_group(Warp& warp, const Instruction&, LaneMask active) {
  groups_of<which>(warp).commit(active);
  return Outcome::next;
}

template <Which which, bool only_reads>
Outcome run_wait_group(Warp& warp, const Instruction& instruction, LaneMask active) {
  CopyGroups& groups = groups_of<which>(warp);
  const auto progress = groups.look(active, static_cast<std::uint64_t>(instruction.immediate), only_reads);
  if (!progress.complete) return warp.block_for({Wait::For::copies});
  if (progress.clock != 0) warp.knowledge().seen.raise(groups.agent(warp.cluster()), progress.clock);
  return Outcome::next;
}

// A commit, and a wait for all.
Outcome run_wait_all(Warp& warp, const Instruction& instruction, LaneMask active) {
  groups_of<Which::cp_async>(warp).commit(active);
  return run_wait_group<Which::cp_async, false>(warp, instruction, active);
}

void decode_wait_group(Decoding& decoding, Instruction& instruction) {
  instruction.immediate = static_cast<std::int64_t>(decoding.immediate(0));
  instruction.run = run_wait_group<Which::cp_async, false>;
}

void decode_bulk_wait_group(Decoding& decoding, Instruction& instruction) {
  const bool only_reads = decoding.take("read");
  instruction.immediate = static_cast<std::int64_t>(decoding.immediate(0));
  instruction.run = only_reads ? run_wait_group<Which::bulk, true> : run_wait_group<Which::bulk, false>;
}

// --- cp.async.mbarrier.arrive ----------------------------------------------------------------------------------------

struct CpAsyncArrive : Detail {
  Decoding::Address address;
  SharedSpace space = SharedSpace::generic;
  bool counts_itself = true;  // not .noinc: the arrival is one more than the phase expects
};

// Arrives when the copies that run now have ended. Looks now and then: copies end in any order.
void arrive_after(Warp& warp, std::vector<std::shared_ptr<CopyGroup>> running, std::function<void()> arrive) {
  warp.cluster().later([&warp, running = std::move(running), arrive = std::move(arrive)] {
    for (const auto& group : running)
      if (group->running != 0) return arrive_after(warp, running, arrive);
    arrive();
  });
}

Outcome run_cp_async_arrive(Warp& warp, const Instruction& instruction, LaneMask active) {
  const auto& use = instruction.details<CpAsyncArrive>();
  const LaneAddresses addresses = read_addresses(warp, use.address, active);
  CopyGroups& groups = groups_of<Which::cp_async>(warp);
  const Agent agent = groups.agent(warp.cluster());
  const Clock clock = groups.clock();
  const auto running = groups.seal();
  Mbarriers& barriers = warp.block().state().mbarriers;
  for_each_lane(active, [&](int lane) {
    const auto place = find_aligned_shared(warp, use.space, addresses.lane[lane], kMbarrierBytes, kMbarrierBytes);
    if (!place.block || place.block != &warp.block()) return;
    Mbarrier* const barrier = barriers.find(warp, place.offset, Mbarriers::User::own_block);
    if (!barrier) return;
    if (use.counts_itself) ++barrier->pending;
    arrive_after(warp, running, [&warp, &barriers, offset = place.offset, agent, clock] {
      Mbarrier* const open = barriers.find(warp, offset, Mbarriers::User::own_block);
      if (!open) return;
      open->open.seen.raise(agent, clock);
      barriers.arrive(warp, *open, {});
    });
  });
  return Outcome::next;
}

void decode_cp_async_arrive(Decoding& decoding, Instruction& instruction) {
  auto use = std::make_unique<CpAsyncArrive>();
  if (!decoding.take("arrive")) decoding.fail("the operation on the mbarrier must be arrive");
  use->counts_itself = !decoding.take("noinc");
  take_shared_space(decoding, use->space);
  if (!decoding.take("b64")) decoding.fail("the type must be b64");
  use->address = decoding.address(0);
  instruction.run = run_cp_async_arrive;
  instruction.detail = std::move(use);
}

// --- cp --------------------------------------------------------------------------------------------------------------

void decode_cp(Decoding& decoding, Instruction& instruction) {
  instruction.op_class = OpClass::copy;
  const bool reduces = decoding.take("reduce");
  if (!decoding.take("async")) decoding.fail("it must be cp.async or cp.reduce.async");
  const bool is_bulk = decoding.take("bulk");
  if (decoding.take("commit_group"))
    instruction.run = is_bulk ? run_commit_group<Which::bulk> : run_commit_group<Which::cp_async>;
  else if (decoding.take("wait_group"))
    (is_bulk ? decode_bulk_wait_group : decode_wait_group)(decoding, instruction);
  else if (is_bulk)
    decode_bulk_copy(decoding, instruction, reduces);
  else if (reduces)
    decoding.fail("cp.reduce.async must be .bulk");
  else if (decoding.take("wait_all"))
    instruction.run = run_wait_all;
  else if (decoding.take("mbarrier"))
    decode_cp_async_arrive(decoding, instruction);
  else
    decode_cp_async(decoding, instruction);
}

}  // namespace

void add_copy_operations(OperationTable& table) { table["cp"] = decode_cp; }

}  // namespace flashjit::emulator
