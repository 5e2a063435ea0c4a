// SPDX-License-Identifier: Apache-2.0
// mbarrier.* (PTX ISA, "mbarrier").
#include <fmt/format.h>

#include <optional>

#include "emulator/machine/block_state.h"
#include "emulator/machine/shared_address.h"

namespace flashjit::emulator {
namespace {

struct MbarrierUse : Detail {
  Decoding::Address address;
  SharedSpace space = SharedSpace::generic;
  bool only_own_block = false;  // init, inval and waits
  bool relaxed = false;
  Arrival arrival;        // as far as the opcode tells
  Slot count = kNoSlot;   // of arrivals, 32 bits
  Slot bytes = kNoSlot;   // 32 bits
  Slot state = kNoSlot;   // 64 bits
  Slot parity = kNoSlot;  // 32 bits, in place of the state
  Slot result = kNoSlot;  // 64 bits; of waits a predicate
};

// What mbarrier.arrive returns is opaque to programs: the phase, and the pending arrivals before this one.
constexpr int kPhaseShift = 20;

// --- Finding the barriers of the lanes -------------------------------------------------------------------------------

struct Place {
  Block* block = nullptr;
  std::uint32_t offset = 0;
};

Place find_place(Warp& warp, const MbarrierUse& use, std::uint64_t address) {
  const auto place = find_aligned_shared(warp, use.space, address, kMbarrierBytes, kMbarrierBytes);
  if (place.block && place.block != &warp.block() && use.only_own_block) {
    warp.report(FindingKind::bad_operand, [&] {
      return fmt::format(
          "the mbarrier must be in the block's own shared memory, was in that of block {} of the cluster",
          place.block->rank());
    });
    return {};
  }
  return {place.block, place.offset};
}

// Null after a report.
Mbarrier* find_barrier(Warp& warp, const Place& place) {
  const bool is_own = place.block == &warp.block();
  if (!is_own && place.block->ended()) {
    warp.report(FindingKind::left_in_flight, [&] {
      return fmt::format("uses the mbarrier at {:#x} of block {} of the cluster, which has ended", place.offset,
                         place.block->rank());
    });
    return nullptr;
  }
  const auto user = is_own ? Mbarriers::User::own_block : Mbarriers::User::other_block;
  return place.block->state().mbarriers.find(warp, place.offset, user);
}

// Calls f(lane, barrier, those of its block) for each lane whose address is that of a barrier.
template <class F>
void for_each_barrier(Warp& warp, const MbarrierUse& use, LaneMask active, const F& f) {
  const LaneAddresses addresses = read_addresses(warp, use.address, active);
  std::optional<std::uint64_t> address;  // mostly the same in all lanes
  Place place;
  Mbarrier* barrier = nullptr;
  for_each_lane(active, [&](int lane) {
    if (address != addresses.lane[lane]) {
      address = addresses.lane[lane];
      place = find_place(warp, use, *address);
      barrier = place.block ? find_barrier(warp, place) : nullptr;
    }
    if (barrier) f(lane, *barrier, place.block->state().mbarriers);
  });
}

// --- Initialisation --------------------------------------------------------------------------------------------------

Outcome run_init(Warp& warp, const Instruction& instruction, LaneMask active) {
  const auto& use = instruction.details<MbarrierUse>();
  const LaneAddresses addresses = read_addresses(warp, use.address, active);
  const std::uint32_t* const counts = warp.read<std::uint32_t>(use.count, active);
  for_each_lane(active, [&](int lane) {
    if (counts[lane] < 1 || counts[lane] > kMostArrivals) {
      warp.report(FindingKind::bad_operand, [&] {
        return fmt::format("the count of an mbarrier must be from 1 to {}, was {}", kMostArrivals, counts[lane]);
      });
      return;
    }
    const Place place = find_place(warp, use, addresses.lane[lane]);
    if (place.block) place.block->state().mbarriers.initialise(warp, place.offset, counts[lane]);
  });
  return Outcome::next;
}

Outcome run_inval(Warp& warp, const Instruction& instruction, LaneMask active) {
  const auto& use = instruction.details<MbarrierUse>();
  const LaneAddresses addresses = read_addresses(warp, use.address, active);
  for_each_lane(active, [&](int lane) {
    const Place place = find_place(warp, use, addresses.lane[lane]);
    if (place.block) place.block->state().mbarriers.invalidate(warp, place.offset);
  });
  return Outcome::next;
}

// --- Arrivals --------------------------------------------------------------------------------------------------------

Outcome run_arrive(Warp& warp, const Instruction& instruction, LaneMask active) {
  const auto& use = instruction.details<MbarrierUse>();
  const std::uint32_t* const counts = use.count == kNoSlot ? nullptr : warp.read<std::uint32_t>(use.count, active);
  const std::uint32_t* const bytes = use.bytes == kNoSlot ? nullptr : warp.read<std::uint32_t>(use.bytes, active);
  std::uint64_t states[kLanes] = {};
  const Mbarrier* last = nullptr;  // lanes that arrive in the same phase release the same
  std::uint32_t last_phase = 0;
  for_each_barrier(warp, use, active, [&](int lane, Mbarrier& barrier, Mbarriers& barriers) {
    Arrival arrival = use.arrival;
    if (counts) arrival.count = counts[lane];
    if (bytes) arrival.bytes = bytes[lane];
    if (arrival.count < 1 || arrival.count > kMostArrivals) {
      warp.report(FindingKind::bad_operand, [&] {
        return fmt::format("the count of arrivals must be from 1 to {}, was {}", kMostArrivals, arrival.count);
      });
      return;
    }
    states[lane] = std::uint64_t{barrier.phase} << kPhaseShift | barrier.pending;
    if (use.relaxed)
      barrier.open.join(warp.block().state().of(warp).at_fence);
    else if (&barrier != last || barrier.phase != last_phase)
      warp.release(barrier.open);
    last = &barrier;
    last_phase = barrier.phase;
    barriers.arrive(warp, barrier, arrival);
  });
  if (use.result != kNoSlot) warp.write(use.result, states, active);
  return Outcome::next;
}

template <auto change>  // a member of Mbarriers
Outcome run_transaction(Warp& warp, const Instruction& instruction, LaneMask active) {
  const auto& use = instruction.details<MbarrierUse>();
  const std::uint32_t* const bytes = warp.read<std::uint32_t>(use.bytes, active);
  for_each_barrier(warp, use, active, [&](int lane, Mbarrier& barrier, Mbarriers& barriers) {
    (barriers.*change)(warp, barrier, bytes[lane]);
  });
  return Outcome::next;
}

Outcome run_pending_count(Warp& warp, const Instruction& instruction, LaneMask active) {
  const std::uint64_t* const states = warp.read<std::uint64_t>(instruction.operand[1], active);
  std::uint32_t counts[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) counts[lane] = static_cast<std::uint32_t>(states[lane] & kMostArrivals);
  warp.write(instruction.operand[0], counts, active);
  return Outcome::next;
}

// --- Waits -----------------------------------------------------------------------------------------------------------

// What a lane waits for: the end of a phase.
struct Awaited {
  Mbarrier* barrier = nullptr;
  std::uint32_t phase = 0;
  bool has_ended = false;
};

Awaited find_awaited(Warp& warp, const MbarrierUse& use, Mbarrier& barrier, std::uint64_t state, std::uint32_t parity) {
  Mbarrier::Waiter& waiter = barrier.waiters[static_cast<std::size_t>(warp.index())];
  Awaited awaited{&barrier, barrier.phase, false};
  if (waiter.blocked && waiter.instruction == warp.instruction()) {
    awaited.phase = waiter.awaited;  // as it was when the lanes came here
    awaited.has_ended = barrier.phase != awaited.phase;
  } else if (use.parity == kNoSlot) {
    awaited.phase = static_cast<std::uint32_t>(state >> kPhaseShift);
    awaited.has_ended = barrier.phase != awaited.phase;
    if (awaited.phase > barrier.phase || awaited.phase + 1 < barrier.phase)
      warp.report(FindingKind::mbarrier_phase, [&] {
        return fmt::format("the state must be of the present or the preceding phase of the mbarrier at {:#x}",
                           barrier.offset);
      });
  } else if (parity > 1) {
    warp.report(FindingKind::bad_operand, [&] { return fmt::format("the parity must be 0 or 1, was {}", parity); });
  } else if (barrier.parity() != parity) {
    --awaited.phase;
    awaited.has_ended = true;
  }
  return awaited;
}

// A lane has seen that a phase has ended. With a parity it cannot tell that phase from the one that ends two later: the
// same phase twice may be a wait that passes too early. It is legal; the warp remembers it for when a race follows.
void observe(Warp& warp, const MbarrierUse& use, const Awaited& awaited, int lane) {
  Mbarrier& barrier = *awaited.barrier;
  Mbarrier::Waiter& waiter = barrier.waiters[static_cast<std::size_t>(warp.index())];
  const std::int64_t phase = std::int64_t{awaited.phase} - (awaited.phase + 1 == 0 ? std::int64_t{1} << 32 : 0);
  const LaneMask bit = LaneMask{1} << lane;
  if (waiter.observed != phase) {
    waiter.observed = phase;
    waiter.observers = 0;
    warp.forget_repeated_wait(barrier.agent);
  } else if (use.parity != kNoSlot && (waiter.observers & bit) != 0) {
    warp.note_repeated_wait(barrier.agent);
  }
  waiter.observers |= bit;
}

template <class F>
void for_each_awaited(Warp& warp, const MbarrierUse& use, LaneMask active, const F& f) {
  const std::uint64_t* const states = use.state == kNoSlot ? nullptr : warp.read<std::uint64_t>(use.state, active);
  const std::uint32_t* const parities = use.parity == kNoSlot ? nullptr : warp.read<std::uint32_t>(use.parity, active);
  for_each_barrier(warp, use, active, [&](int lane, Mbarrier& barrier, Mbarriers&) {
    f(lane, find_awaited(warp, use, barrier, states ? states[lane] : 0, parities ? parities[lane] : 0));
  });
}

void set_blocked(Warp& warp, const Awaited& awaited, bool blocked) {
  Mbarrier::Waiter& waiter = awaited.barrier->waiters[static_cast<std::size_t>(warp.index())];
  waiter.blocked = blocked;
  waiter.awaited = awaited.phase;
  waiter.instruction = warp.instruction();
}

// Lanes whose address is that of no barrier do not wait.
template <bool may_block>
Outcome run_wait(Warp& warp, const Instruction& instruction, LaneMask active) {
  const auto& use = instruction.details<MbarrierUse>();
  LaneMask ended = active;
  Awaited open;
  for_each_awaited(warp, use, active, [&](int lane, const Awaited& awaited) {
    if (awaited.has_ended) return;
    ended &= ~(LaneMask{1} << lane);
    open = awaited;
  });
  // try_wait may give up at some time; it does, so that programs that do not try again are found.
  const bool blocks = may_block && ended == 0 && !warp.cluster().random().one_in(8);
  const Mbarrier* last = nullptr;
  for_each_awaited(warp, use, active, [&](int lane, const Awaited& awaited) {
    if (awaited.has_ended) observe(warp, use, awaited, lane);
    if (awaited.barrier == last) return;
    last = awaited.barrier;
    if (awaited.has_ended && !use.relaxed) warp.acquire(last->released);
    if (may_block) set_blocked(warp, awaited, blocks);
  });
  if (blocks) return warp.block_for({Wait::For::mbarrier, open.barrier->offset, open.phase & 1});
  warp.write_predicate(use.result, ended, active);
  return Outcome::next;
}

// --- Decoding --------------------------------------------------------------------------------------------------------

void take_semantics(Decoding& decoding, MbarrierUse& use) {
  if (decoding.take("relaxed"))
    use.relaxed = true;
  else if (!decoding.take("release"))
    decoding.take("acquire");
  if (!decoding.take("cta")) decoding.take("cluster");
}

// The scope and the space, in this order, and ".b64".
void take_common(Decoding& decoding, MbarrierUse& use, std::size_t address) {
  take_semantics(decoding, use);
  take_shared_space(decoding, use.space);
  if (!decoding.take("b64")) decoding.fail("the type must be b64");
  use.address = decoding.address(address);
}

void decode_init(Decoding& decoding, Instruction& instruction, MbarrierUse& use) {
  take_common(decoding, use, 0);
  use.count = decoding.source(1, 32);
  use.only_own_block = true;
  instruction.run = run_init;
}

void decode_inval(Decoding& decoding, Instruction& instruction, MbarrierUse& use) {
  take_common(decoding, use, 0);
  use.only_own_block = true;
  instruction.run = run_inval;
}

void decode_arrive(Decoding& decoding, Instruction& instruction, MbarrierUse& use) {
  const bool expects = decoding.take("expect_tx");
  use.arrival.completes = !decoding.take("noComplete");
  take_common(decoding, use, 1);
  use.result = decoding.optional_destination(decoding.operand(0), 64);
  if (expects)
    use.bytes = decoding.source(2, 32);
  else if (decoding.operand_count() > 2)
    use.count = decoding.source(2, 32);
  if (use.space == SharedSpace::cluster && use.result != kNoSlot)
    decoding.fail("the destination must be _ for an address of shared::cluster");
  instruction.run = run_arrive;
}

template <auto change>
void decode_transaction(Decoding& decoding, Instruction& instruction, MbarrierUse& use) {
  take_common(decoding, use, 0);
  use.bytes = decoding.source(1, 32);
  instruction.run = run_transaction<change>;
}

// A third operand is how long try_wait may wait at most; time is not modelled.
void decode_wait(Decoding& decoding, Instruction& instruction, MbarrierUse& use, bool may_block) {
  const bool by_parity = decoding.take("parity");
  take_common(decoding, use, 1);
  use.only_own_block = true;
  use.result = decoding.predicate(0);
  (by_parity ? use.parity : use.state) = decoding.source(2, by_parity ? 32 : 64);
  instruction.run = may_block ? run_wait<true> : run_wait<false>;
}

void decode_pending_count(Decoding& decoding, Instruction& instruction) {
  if (!decoding.take("b64")) decoding.fail("the type must be b64");
  instruction.operand[0] = decoding.destination(0, 32);
  instruction.operand[1] = decoding.source(1, 64);
  instruction.run = run_pending_count;
}

void decode_mbarrier(Decoding& decoding, Instruction& instruction) {
  auto use = std::make_unique<MbarrierUse>();
  const std::string_view operation = decoding.take_any();
  instruction.op_class = OpClass::mbarrier;
  if (operation == "init")
    decode_init(decoding, instruction, *use);
  else if (operation == "inval")
    decode_inval(decoding, instruction, *use);
  else if (operation == "expect_tx")
    decode_transaction<&Mbarriers::expect_bytes>(decoding, instruction, *use);
  else if (operation == "complete_tx")
    decode_transaction<&Mbarriers::complete_bytes>(decoding, instruction, *use);
  else if (operation == "test_wait" || operation == "try_wait")
    decode_wait(decoding, instruction, *use, operation == "try_wait");
  else if (operation == "pending_count")
    decode_pending_count(decoding, instruction);
  else if (operation == "arrive" || operation == "arrive_drop")
    decode_arrive(decoding, instruction, *use);
  else
    decoding.fail("unknown operation on an mbarrier");
  use->arrival.drops = operation == "arrive_drop";
  instruction.detail = std::move(use);
}

}  // namespace

void add_mbarrier_operations(OperationTable& table) { table["mbarrier"] = decode_mbarrier; }

}  // namespace flashjit::emulator
