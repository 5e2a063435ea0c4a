// SPDX-License-Identifier: Apache-2.0
// What the lanes of a warp do together (PTX ISA 9.7.9.6 shfl.sync, 9.7.13.1 bar.warp.sync, 9.7.13.9 to 9.7.13.14), and
// setmaxnreg (9.7.19.5).
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "emulator/machine/block_state.h"
#include "emulator/machine/participation.h"
#include "emulator/machine/shared_address.h"

namespace flashjit::emulator {
namespace {

// --- Who takes part --------------------------------------------------------------------------------------------------

// Whether the lanes `same`, which execute an operation with the mask `members`, are those that it names.
bool is_what_mask_says(Warp& warp, LaneMask members, LaneMask same) {
  const LaneMask strangers = same & ~members, absent = members & warp.here() & ~same;
  if (strangers != 0)
    warp.report(FindingKind::unequal_participation, [&] {
      return fmt::format("lanes {:#x} execute it with the mask {:#x}, which does not name them", strangers, members);
    });
  else if (absent != 0)
    warp.report(FindingKind::unequal_participation, [&] {
      return fmt::format("lanes {:#x} of the mask {:#x} do not execute it, or with another mask", absent, members);
    });
  return strangers == 0 && absent == 0;
}

// Calls f(lanes) once for each set of lanes that name each other in the mask operand: mostly one. Blocks until all that
// a mask names are here. f is not called for a set that is not what its mask says, after a report.
template <class F>
Outcome for_each_set(Warp& warp, Slot mask, LaneMask active, const F& f) {
  const std::uint32_t* const masks = warp.read<std::uint32_t>(mask, active);
  LaneMask sets[kLanes];
  int count = 0;
  for (LaneMask rest = active; rest != 0;) {
    const LaneMask members = masks[std::countr_zero(rest)];
    LaneMask same = mask < 0 ? rest : 0;  // a constant is the same for all
    if (same == 0) for_each_lane(rest, [&](int lane) { same |= masks[lane] == members ? LaneMask{1} << lane : 0; });
    rest &= ~same;
    if (!is_what_mask_says(warp, members, same)) continue;
    if (warp.require_lanes(members, active) == Outcome::blocked) return Outcome::blocked;
    sets[count++] = same;
  }
  std::for_each_n(sets, count, f);
  return Outcome::next;
}

// --- shfl ------------------------------------------------------------------------------------------------------------

enum class Shuffle { up, down, bfly, idx };

struct ShuffleOperation : Detail {
  Shuffle mode = Shuffle::idx;
  Slot d = kNoSlot, p = kNoSlot;
  Slot a = kNoSlot, b = kNoSlot, c = kNoSlot, mask = kNoSlot;
};

struct Source {
  int lane;
  bool inside;  // of the lanes that c allows
};
Source source_of(Shuffle mode, int lane, std::uint32_t b, std::uint32_t c) {
  const int by = static_cast<int>(b & 31), clamp = static_cast<int>(c & 31), segment = static_cast<int>(c >> 8 & 31);
  const int highest = (lane & segment) | (clamp & ~segment), lowest = lane & segment;
  int from = lane;
  switch (mode) {
    case Shuffle::up:
      from = lane - by;
      break;
    case Shuffle::down:
      from = lane + by;
      break;
    case Shuffle::bfly:
      from = lane ^ by;
      break;
    case Shuffle::idx:
      from = lowest | (by & ~segment);
      break;
  }
  const bool inside = mode == Shuffle::up ? from >= highest : from <= highest;
  return {inside ? from : lane, inside};
}

Outcome run_shfl(Warp& warp, const Instruction& instruction, LaneMask active) {
  const auto& shuffle = instruction.details<ShuffleOperation>();
  return for_each_set(warp, shuffle.mask, active, [&](LaneMask members) {
    const std::uint32_t* const a = warp.read<std::uint32_t>(shuffle.a, members);
    const std::uint32_t* const b = warp.read<std::uint32_t>(shuffle.b, members);
    const std::uint32_t* const c = warp.read<std::uint32_t>(shuffle.c, members);
    std::uint32_t values[kLanes] = {};
    LaneMask inside = 0;
    for_each_lane(members, [&](int lane) {
      const Source source = source_of(shuffle.mode, lane, b[lane], c[lane]);
      values[lane] = a[source.lane];
      if (source.inside) inside |= LaneMask{1} << lane;
      if ((members >> source.lane & 1) == 0)
        warp.report(FindingKind::unequal_participation, [&] {
          return fmt::format("lane {} takes the value of lane {}, which does not take part", lane, source.lane);
        });
    });
    if (shuffle.d != kNoSlot) warp.write(shuffle.d, values, members);
    if (shuffle.p != kNoSlot) warp.write_predicate(shuffle.p, inside, members);
  });
}

// d or d|p
struct Destinations {
  Slot d, p;
};
Destinations take_destinations(const Decoding& decoding) {
  const Operand& operand = decoding.operand(0);
  if (operand.kind != OperandKind::vector) return {decoding.optional_destination(operand, 32), kNoSlot};
  if (operand.elements.size() != 2) decoding.fail("the destination must be d or d|p");
  return {decoding.optional_destination(operand.elements[0], 32), decoding.optional_predicate(operand.elements[1])};
}

void take_sync(Decoding& decoding) {
  if (!decoding.take("sync")) decoding.fail("'.sync' is missing");
}

// PTX ISA 9.7.9.6 shfl.sync
void decode_shfl(Decoding& decoding, Instruction& instruction) {
  take_sync(decoding);
  auto shuffle = std::make_unique<ShuffleOperation>();
  const std::string_view mode = decoding.take_any();
  if (mode == "up")
    shuffle->mode = Shuffle::up;
  else if (mode == "down")
    shuffle->mode = Shuffle::down;
  else if (mode == "bfly")
    shuffle->mode = Shuffle::bfly;
  else if (mode != "idx")
    decoding.fail(fmt::format("unknown mode '.{}'", mode));
  if (!decoding.take("b32")) decoding.fail("the type must be '.b32'");
  const Destinations destinations = take_destinations(decoding);
  shuffle->d = destinations.d;
  shuffle->p = destinations.p;
  shuffle->a = decoding.source(1, 32);
  shuffle->b = decoding.source(2, 32);
  shuffle->c = decoding.source(3, 32);
  shuffle->mask = decoding.source(4, 32);
  instruction.run = run_shfl;
  instruction.op_class = OpClass::warp;
  instruction.detail = std::move(shuffle);
}

// --- vote, match, redux ----------------------------------------------------------------------------------------------

void write_to_all(Warp& warp, Slot slot, std::uint32_t value, LaneMask lanes) {
  if (slot == kNoSlot) return;
  std::uint32_t values[kLanes];
  std::fill_n(values, kLanes, value);
  warp.write(slot, values, lanes);
}

enum class Vote { all, any, uni, ballot };

// Operands: d, a, mask. immediate: whether a is negated.
template <Vote vote>
Outcome run_vote(Warp& warp, const Instruction& instruction, LaneMask active) {
  const Slot d = instruction.operand[0], a = instruction.operand[1], mask = instruction.operand[2];
  return for_each_set(warp, mask, active, [&](LaneMask members) {
    const LaneMask values = warp.read_predicate(a, members);
    const LaneMask holds = (instruction.immediate != 0 ? ~values : values) & members;
    if (vote == Vote::ballot) return write_to_all(warp, d, holds, members);
    const bool all = holds == members;
    const bool result = vote == Vote::all ? all : vote == Vote::any ? holds != 0 : all || holds == 0;
    warp.write_predicate(d, result ? kAllLanes : 0, members);
  });
}

// PTX ISA 9.7.13.10 vote.sync
void decode_vote(Decoding& decoding, Instruction& instruction) {
  take_sync(decoding);
  const std::string_view mode = decoding.take_any();
  const bool ballot = mode == "ballot";
  if (ballot)
    instruction.run = run_vote<Vote::ballot>;
  else if (mode == "all")
    instruction.run = run_vote<Vote::all>;
  else if (mode == "any")
    instruction.run = run_vote<Vote::any>;
  else if (mode == "uni")
    instruction.run = run_vote<Vote::uni>;
  else
    decoding.fail(fmt::format("unknown mode '.{}'", mode));
  if (!decoding.take(ballot ? "b32" : "pred")) decoding.fail("the type does not fit the mode");
  Operand a = decoding.operand(1);
  instruction.immediate = std::exchange(a.negated, false);
  instruction.operand[0] = ballot ? decoding.destination(0, 32) : decoding.predicate(0);
  instruction.operand[1] = decoding.predicate(a);
  instruction.operand[2] = decoding.source(2, 32);
  instruction.op_class = OpClass::warp;
}

// Operands: d, a, mask, p.
template <class T, bool all>
Outcome run_match(Warp& warp, const Instruction& instruction, LaneMask active) {
  const Slot d = instruction.operand[0], a = instruction.operand[1], mask = instruction.operand[2];
  const Slot p = instruction.operand[3];
  return for_each_set(warp, mask, active, [&](LaneMask members) {
    const T* const values = warp.read<T>(a, members);
    std::uint32_t equal[kLanes] = {};
    for_each_lane(members, [&](int lane) {
      for_each_lane(members, [&](int other) {
        if (values[lane] == values[other]) equal[lane] |= LaneMask{1} << other;
      });
    });
    if (!all) return warp.write(d, equal, members);
    const bool same = equal[std::countr_zero(members)] == members;
    write_to_all(warp, d, same ? members : 0, members);
    if (p != kNoSlot) warp.write_predicate(p, same ? kAllLanes : 0, members);
  });
}

// PTX ISA 9.7.13.11 match.sync
void decode_match(Decoding& decoding, Instruction& instruction) {
  const bool all = decoding.take("all");
  if (!all && !decoding.take("any")) decoding.fail("must be '.all' or '.any'");
  take_sync(decoding);
  const bool wide = decoding.take("b64");
  if (!wide && !decoding.take("b32")) decoding.fail("the type must be '.b32' or '.b64'");
  const Destinations destinations = take_destinations(decoding);
  if (destinations.p != kNoSlot && !all) decoding.fail("only match.all has a predicate");
  if (destinations.d == kNoSlot && !all) decoding.fail("the destination of match.any must be a register");
  instruction.operand = {destinations.d, decoding.source(1, wide ? 64 : 32), decoding.source(2, 32), destinations.p,
                         kNoSlot};
  instruction.run = wide ? (all ? run_match<std::uint64_t, true> : run_match<std::uint64_t, false>)
                         : (all ? run_match<std::uint32_t, true> : run_match<std::uint32_t, false>);
  instruction.op_class = OpClass::warp;
}

using Reduce = std::uint32_t (*)(std::uint32_t, std::uint32_t);
struct Reduction : Detail {
  explicit Reduction(Reduce reduce_) : reduce(reduce_) {}
  Reduce reduce;
};

std::int32_t as_signed(std::uint32_t bits) { return static_cast<std::int32_t>(bits); }

Outcome run_redux(Warp& warp, const Instruction& instruction, LaneMask active) {
  const Slot d = instruction.operand[0], a = instruction.operand[1], mask = instruction.operand[2];
  return for_each_set(warp, mask, active, [&](LaneMask members) {
    const std::uint32_t* const values = warp.read<std::uint32_t>(a, members);
    const Reduce reduce = instruction.details<Reduction>().reduce;
    std::uint32_t result = values[std::countr_zero(members)];
    for_each_lane(members & (members - 1), [&](int lane) { result = reduce(result, values[lane]); });
    write_to_all(warp, d, result, members);
  });
}

Reduce find_reduction(std::string_view operation, std::string_view type) {
  const bool is_signed = type == "s32";
  if (is_signed || type == "u32") {
    if (operation == "add") return [](std::uint32_t a, std::uint32_t b) { return a + b; };
    if (operation == "min" && is_signed)
      return [](std::uint32_t a, std::uint32_t b) { return as_signed(a) < as_signed(b) ? a : b; };
    if (operation == "min") return [](std::uint32_t a, std::uint32_t b) { return std::min(a, b); };
    if (operation == "max" && is_signed)
      return [](std::uint32_t a, std::uint32_t b) { return as_signed(a) > as_signed(b) ? a : b; };
    if (operation == "max") return [](std::uint32_t a, std::uint32_t b) { return std::max(a, b); };
  } else if (type == "b32") {
    if (operation == "and") return [](std::uint32_t a, std::uint32_t b) { return a & b; };
    if (operation == "or") return [](std::uint32_t a, std::uint32_t b) { return a | b; };
    if (operation == "xor") return [](std::uint32_t a, std::uint32_t b) { return a ^ b; };
  }
  return nullptr;
}

// PTX ISA 9.7.13.13 redux.sync
void decode_redux(Decoding& decoding, Instruction& instruction) {
  take_sync(decoding);
  const std::string_view operation = decoding.take_any(), type = decoding.take_any();
  const Reduce reduce = find_reduction(operation, type);
  if (!reduce) decoding.fail(fmt::format("unknown operation '.{}.{}'", operation, type));
  instruction.run = run_redux;
  instruction.detail = std::make_unique<Reduction>(reduce);
  instruction.operand[0] = decoding.destination(0, 32);
  instruction.operand[1] = decoding.source(1, 32);
  instruction.operand[2] = decoding.source(2, 32);
  instruction.op_class = OpClass::warp;
}

// --- elect, activemask, bar.warp -------------------------------------------------------------------------------------

// Operands: d, p, mask. PTX promises the same leader for the same mask and no more: the seed chooses it, 0 the lowest.
Outcome run_elect(Warp& warp, const Instruction& instruction, LaneMask active) {
  const Slot d = instruction.operand[0], p = instruction.operand[1], mask = instruction.operand[2];
  return for_each_set(warp, mask, active, [&](LaneMask members) {
    LaneMask rest = members;
    const auto skipped = warp.cluster().launch().launch.seed % static_cast<std::uint64_t>(std::popcount(members));
    for (std::uint64_t i = 0; i < skipped; ++i) rest &= rest - 1;
    const int leader = std::countr_zero(rest);
    write_to_all(warp, d, static_cast<std::uint32_t>(leader), members);
    warp.write_predicate(p, LaneMask{1} << leader, members);
  });
}

// PTX ISA 9.7.13.14 elect.sync
void decode_elect(Decoding& decoding, Instruction& instruction) {
  take_sync(decoding);
  const Destinations destinations = take_destinations(decoding);
  if (destinations.p == kNoSlot) decoding.fail("the destination must be d|p");
  instruction.operand = {destinations.d, destinations.p, decoding.source(1, 32), kNoSlot, kNoSlot};
  instruction.run = run_elect;
  instruction.op_class = OpClass::warp;
}

Outcome run_activemask(Warp& warp, const Instruction& instruction, LaneMask active) {
  write_to_all(warp, instruction.operand[0], active, active);
  return Outcome::next;
}

// PTX ISA 9.7.13.12 activemask
void decode_activemask(Decoding& decoding, Instruction& instruction) {
  if (!decoding.take("b32")) decoding.fail("the type must be '.b32'");
  instruction.operand[0] = decoding.destination(0, 32);
  instruction.run = run_activemask;
  instruction.op_class = OpClass::warp;
}

Outcome run_bar_warp(Warp& warp, const Instruction& instruction, LaneMask active) {
  return for_each_set(warp, instruction.operand[0], active, [](LaneMask) {});
}

// --- setmaxnreg ------------------------------------------------------------------------------------------------------

constexpr unsigned kLeastRegisters = 24, kMostRegisters = 256, kRegisterUnit = 8;
constexpr unsigned kRegistersOfSm = 65536, kMostAtLaunch = 255;

// Registers of a thread at launch: as many as the kernel's bounds leave to it, which is what ptxas takes when a kernel
// has setmaxnreg.
unsigned registers_at_launch(Block& block) {
  LaunchState& launch = block.cluster().launch();
  const Kernel& kernel = *launch.code.kernel;
  if (kernel.most_registers != 0) return kernel.most_registers;
  const std::uint64_t bound = kernel.most_threads.count();
  const std::uint64_t threads = bound != 0 ? bound : launch.launch.block.count();
  const std::uint64_t share = kRegistersOfSm / (threads * std::max(kernel.least_blocks, 1u));
  return static_cast<unsigned>(std::min<std::uint64_t>(share / kRegisterUnit * kRegisterUnit, kMostAtLaunch));
}

// That the warps of the block have given back and not taken again.
int free_registers(Block& block) {
  int free = 0;
  for (const Warpgroup& group : block.state().warpgroups)
    for (const RegisterChanges::OfWarp& warp : group.register_changes.warps) free -= warp.beyond_launch;
  return free;
}

// All four warps must come to the same setmaxnreg, each as its k-th.
void check_same_change(Warp& warp, const Instruction& instruction, RegisterChanges& changes, std::size_t number) {
  if (number == changes.instructions.size()) changes.instructions.push_back(&instruction);
  if (changes.instructions[number] == &instruction) return;
  warp.report(FindingKind::unequal_participation, [&] {
    return fmt::format("warp {} executes another setmaxnreg than the other warps of its warpgroup", warp.index());
  });
}

template <bool more>
Outcome run_setmaxnreg(Warp& warp, const Instruction& instruction, LaneMask active) {
  if (!whole_warp_takes_part(warp, active)) return Outcome::next;
  Block& block = warp.block();
  const auto index = static_cast<std::size_t>(warp.index());
  RegisterChanges& changes = block.state().warpgroups[index / kWarpsOfGroup].register_changes;
  RegisterChanges::OfWarp& own = changes.warps[index % kWarpsOfGroup];
  const int wanted = static_cast<int>(instruction.immediate);
  const int present = static_cast<int>(registers_at_launch(block)) + own.beyond_launch;
  if (more && wanted - present > free_registers(block))
    return warp.block_for({Wait::For::registers, static_cast<std::uint32_t>(wanted)});
  check_same_change(warp, instruction, changes, own.count++);
  if (more ? wanted < present : wanted > present) {
    warp.report(FindingKind::bad_operand, [&] {
      return fmt::format("must ask for {} registers than the {} that the thread has, asks for {}",
                         more ? "no fewer" : "no more", present, wanted);
    });
    return Outcome::next;
  }
  own.beyond_launch += wanted - present;
  warp.cluster().something_happened();
  return Outcome::next;
}

// PTX ISA 9.7.19.5 setmaxnreg
void decode_setmaxnreg(Decoding& decoding, Instruction& instruction) {
  const bool more = decoding.take("inc");
  if (!more && !decoding.take("dec")) decoding.fail("must be '.inc' or '.dec'");
  if (!decoding.take("sync") || !decoding.take("aligned") || !decoding.take("u32"))
    decoding.fail("must end in '.sync.aligned.u32'");
  const std::uint64_t registers = decoding.immediate(0);
  if (registers < kLeastRegisters || registers > kMostRegisters || registers % kRegisterUnit != 0)
    decoding.fail(fmt::format("the number must be a multiple of {} from {} to {}, was {}", kRegisterUnit,
                              kLeastRegisters, kMostRegisters, registers));
  instruction.immediate = static_cast<std::int64_t>(registers);
  instruction.aligned = true;
  instruction.run = more ? run_setmaxnreg<true> : run_setmaxnreg<false>;
  instruction.op_class = OpClass::other;
}

}  // namespace

// PTX ISA 9.7.13.2 bar.warp.sync
void decode_bar_warp(Decoding& decoding, Instruction& instruction) {
  take_sync(decoding);
  instruction.operand[0] = decoding.source(0, 32);
  instruction.run = run_bar_warp;
  instruction.op_class = OpClass::warp;
}

void add_warp_operations(OperationTable& table) {
  table["shfl"] = decode_shfl;
  table["vote"] = decode_vote;
  table["match"] = decode_match;
  table["redux"] = decode_redux;
  table["elect"] = decode_elect;
  table["activemask"] = decode_activemask;
  table["setmaxnreg"] = decode_setmaxnreg;
}

}  // namespace flashjit::emulator
