// SPDX-License-Identifier: Apache-2.0
// PTX ISA 9.7.9 "Data Movement and Conversion Instructions": those that move memory, and that change addresses.
#include <fmt/format.h>

#include <algorithm>

#include "emulator/machine/lanes.h"
#include "emulator/machine/memory_access.h"
#include "emulator/machine/shared_address.h"
#include "emulator/operations/async_store.h"

namespace flashjit::emulator {
namespace {

constexpr std::uint32_t kMostBytes = 16;  // of a lane

// The elements of a vector stand in operands 0 to 3.
struct Move : Detail {
  MemoryAccess access;
  std::size_t count = 1;
};

// T is what lies in memory, Bits what a register holds: it may be wider.
template <class T, class Bits>
Outcome run_ld(Warp& warp, const Instruction& instruction, LaneMask active) {
  const auto& move = instruction.details<Move>();
  const Places places = find_places(warp, move.access, active);
  for (std::size_t i = 0; i < move.count; ++i) {
    if (instruction.operand[i] == kNoSlot) continue;
    Bits values[kLanes] = {};
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      if (!places[lane]) continue;
      T value;
      std::memcpy(&value, places[lane] + i * sizeof(T), sizeof(T));
      values[lane] = static_cast<Bits>(value);
    }
    write_lanes(warp, instruction.operand[i], values, active);
  }
  return Outcome::next;
}

template <class T, class Bits>
Outcome run_st(Warp& warp, const Instruction& instruction, LaneMask active) {
  const auto& move = instruction.details<Move>();
  const Places places = find_places(warp, move.access, active);
  for (std::size_t i = 0; i < move.count; ++i) {
    const Bits* const values = warp.read<Bits>(instruction.operand[i], active);
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      if (!places[lane]) continue;
      const auto value = static_cast<T>(values[lane]);
      std::memcpy(places[lane] + i * sizeof(T), &value, sizeof(T));
    }
  }
  return Outcome::next;
}

struct MovedType {
  std::string_view name;
  std::uint32_t bytes;
  Handler ld_32, ld_64, st_32, st_64;  // by the bits of the registers
};
template <class T>
constexpr MovedType moved(std::string_view name) {
  return {name,
          sizeof(T),
          run_ld<T, LaneBits<T>>,
          run_ld<T, std::uint64_t>,
          run_st<UnsignedOf<sizeof(T)>, LaneBits<T>>,
          run_st<UnsignedOf<sizeof(T)>, std::uint64_t>};
}
constexpr MovedType kMovedTypes[] = {
    moved<std::uint8_t>("b8"),   moved<std::uint8_t>("u8"),   moved<std::int8_t>("s8"),    moved<std::uint16_t>("b16"),
    moved<std::uint16_t>("u16"), moved<std::int16_t>("s16"),  moved<std::uint32_t>("b32"), moved<std::uint32_t>("u32"),
    moved<std::int32_t>("s32"),  moved<std::uint32_t>("f32"), moved<std::uint64_t>("b64"), moved<std::uint64_t>("u64"),
    moved<std::int64_t>("s64"),  moved<std::uint64_t>("f64")};

const MovedType& take_moved_type(Decoding& decoding) {
  const std::string_view name = decoding.take_any();
  for (const MovedType& type : kMovedTypes)
    if (type.name == name) return type;
  decoding.fail(fmt::format("the type must have 8 to 64 bits, was {}", name));
}

// The bits of the registers that hold the elements.
int register_bits(const Decoding& decoding, const Operand& registers, std::uint32_t bytes) {
  const Operand& first = registers.kind == OperandKind::vector ? registers.elements.at(0) : registers;
  const int least = std::max(16, static_cast<int>(bytes) * 8);
  if (first.kind != OperandKind::reg) return least;
  if (first.bits < static_cast<int>(bytes) * 8)
    decoding.fail(fmt::format("'{}' must have at least {} bits, has {}", first.text, bytes * 8, first.bits));
  return first.bits;
}

// What ld and st share: space, vector, type, address and registers.
struct MoveOperands {
  std::size_t registers, address;  // their places among the operands
  bool stores;
};
void take_move(Decoding& decoding, Instruction& instruction, const MoveOperands& operands) {
  auto move = std::make_unique<Move>();
  move->access.space = take_space(decoding);
  move->access.reads = !operands.stores;
  move->access.writes = operands.stores;
  move->count = take_vector_size(decoding);
  const MovedType& type = take_moved_type(decoding);
  decoding.finish();
  move->access.bytes = type.bytes * static_cast<std::uint32_t>(move->count);
  if (move->access.bytes > kMostBytes)
    decoding.fail(fmt::format("a thread must access at most {} bytes, accesses {}", kMostBytes, move->access.bytes));
  move->access.address = decoding.address(operands.address);
  const Operand& registers = decoding.operand(operands.registers);
  const int bits = register_bits(decoding, registers, type.bytes);
  const std::vector<Slot> slots = operands.stores ? decoding.sources(operands.registers, bits)
                                                  : decoding.optional_destinations(operands.registers, bits);
  if (slots.size() != move->count)
    decoding.fail(fmt::format("it must have {} elements, has {}", move->count, slots.size()));
  std::copy(slots.begin(), slots.end(), instruction.operand.begin());
  instruction.op_class = class_of(move->access.space);
  if (operands.stores)
    instruction.run = bits == 64 ? type.st_64 : type.st_32;
  else
    instruction.run = bits == 64 ? type.ld_64 : type.ld_32;
  instruction.detail = std::move(move);
}

// PTX ISA 9.7.9 ld, ld.global.nc. A third operand is a cache policy.
void decode_ld(Decoding& decoding, Instruction& instruction) {
  take_move(decoding, instruction, {.registers = 0, .address = 1, .stores = false});
}

// PTX ISA 9.7.9 st. A third operand is a cache policy.
void decode_st(Decoding& decoding, Instruction& instruction) {
  if (decoding.take("async")) return decode_async_store(decoding, instruction);
  take_move(decoding, instruction, {.registers = 1, .address = 0, .stores = true});
  if (instruction.op_class == OpClass::parameter) decoding.fail("parameters of a kernel cannot be written");
}

// --- Hints -----------------------------------------------------------------------------------------------------------

Outcome run_nothing(Warp&, const Instruction&, LaneMask) { return Outcome::next; }

// PTX ISA 9.7.9 prefetch, prefetchu: there are no caches.
void decode_prefetch(Decoding& decoding, Instruction& instruction) {
  while (decoding.take("global") || decoding.take("param") || decoding.take("const")) continue;
  if (!decoding.take("tensormap") && !decoding.take("L1") && !decoding.take("L2") &&
      !decoding.peek().starts_with("L2::evict"))
    decoding.fail("the level must be L1, L2 or tensormap");
  skip_hints(decoding);
  require_operands(decoding, 1);
  decoding.address(0);
  instruction.run = run_nothing;
  instruction.op_class = OpClass::other;
}

std::uint64_t no_policy() { return 0; }

// PTX ISA 9.7.9 createpolicy: any value will do.
void decode_createpolicy(Decoding& decoding, Instruction& instruction) {
  if (!decoding.take("fractional")) decoding.fail("the policy must be .fractional");
  skip_hints(decoding);
  choose_type(decoding, instruction, {{"b64", 64, elementwise<no_policy>}});
  instruction.operand[0] = decoding.destination(0, 64);
  instruction.op_class = OpClass::other;
}

// --- Generic addresses -----------------------------------------------------------------------------------------------

std::uint64_t shared_to_generic(std::uint64_t address) { return address + kGenericShared; }
std::uint64_t generic_to_shared(std::uint64_t address) { return address - kGenericShared; }
std::uint64_t same_address(std::uint64_t address) { return address; }

// PTX ISA 9.7.9 cvta
void decode_cvta(Decoding& decoding, Instruction& instruction) {
  const bool from_generic = decoding.take("to");
  SharedSpace space;
  Handler run = elementwise<same_address>;
  if (take_shared_space(decoding, space))
    run = from_generic ? elementwise<generic_to_shared> : elementwise<shared_to_generic>;
  else if (!decoding.take("global") && !decoding.take("param") && !decoding.take("param::entry") &&
           !decoding.take("const"))
    decoding.fail("the space must be shared, global, const or param");
  choose_type(decoding, instruction, {{"u64", 64, run}});
  take_operands(decoding, instruction, {64, 64});
  instruction.op_class = OpClass::integer;
}

template <AccessSpace space>
Outcome run_isspacep(Warp& warp, const Instruction& instruction, LaneMask active) {
  const std::uint64_t* const addresses = warp.read<std::uint64_t>(instruction.operand[1], active);
  const LaunchState& launch = warp.cluster().launch();
  const auto parameters = reinterpret_cast<std::uintptr_t>(launch.parameters_at);
  bool results[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const std::uint64_t address = addresses[lane];
    const bool is_shared = address >= kGenericShared;
    const bool is_own = is_shared && (address - kGenericShared) >> kRankShift == warp.block().rank();
    const bool is_parameter = address >= parameters && address - parameters < launch.launch.parameters.size();
    results[lane] = space == AccessSpace::shared_cluster ? is_shared
                    : space == AccessSpace::shared_cta   ? is_own
                    : space == AccessSpace::parameter    ? is_parameter
                                                         : !is_shared && !is_parameter;
  }
  write_lanes(warp, instruction.operand[0], results, active);
  return Outcome::next;
}

// PTX ISA 9.7.9 isspacep
void decode_isspacep(Decoding& decoding, Instruction& instruction) {
  SharedSpace space;
  if (take_shared_space(decoding, space))
    instruction.run =
        space == SharedSpace::cta ? run_isspacep<AccessSpace::shared_cta> : run_isspacep<AccessSpace::shared_cluster>;
  else if (decoding.take("global"))
    instruction.run = run_isspacep<AccessSpace::global>;
  else if (decoding.take("param") || decoding.take("param::entry"))
    instruction.run = run_isspacep<AccessSpace::parameter>;
  else
    decoding.fail("the space must be shared, global or param");
  require_operands(decoding, 2);
  instruction.operand[0] = decoding.predicate(0);
  instruction.operand[1] = decoding.source(1, 64);
  instruction.op_class = OpClass::predicate;
}

}  // namespace

void add_memory_operations(OperationTable& table) {
  table["ld"] = decode_ld;
  table["st"] = decode_st;
  table["prefetch"] = decode_prefetch;
  table["prefetchu"] = decode_prefetch;
  table["createpolicy"] = decode_createpolicy;
  table["cvta"] = decode_cvta;
  table["isspacep"] = decode_isspacep;
  add_atomic_operations(table);
}

}  // namespace flashjit::emulator
