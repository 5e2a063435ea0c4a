// SPDX-License-Identifier: Apache-2.0
// PTX ISA 9.7.13 "Parallel Synchronization and Communication Instructions": atom and red.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>

#include "emulator/machine/lanes.h"
#include "emulator/machine/memory_access.h"
#include "emulator/machine/shared_address.h"
#include "emulator/operations/reduction.h"
#include "emulator/operations/rounding.h"

namespace flashjit::emulator {
namespace {

constexpr std::size_t kMostBytes = 16;  // of a lane
using LaneBytes = std::array<std::byte, kMostBytes>;
using AllBytes = std::array<LaneBytes, kLanes>;

struct Atomic : Detail {
  enum class What { reduce, exchange, compare_and_swap };
  MemoryAccess access;
  What what = What::reduce;
  Reduction reduction = Reduction::none;
  TensorElement element = TensorElement::u32;
  int bits = 32;                           // of a register
  std::vector<Slot> old, value, expected;  // a register for each element of a vector; old is empty for red
};

template <class Bits>
void gather(Warp& warp, Slot slot, LaneMask active, std::size_t at, std::size_t bytes, AllBytes& to) {
  const Bits* const bits = warp.read<Bits>(slot, active);
  for (std::size_t lane = 0; lane < kLanes; ++lane) std::memcpy(to[lane].data() + at, &bits[lane], bytes);
}
void gather(Warp& warp, const std::vector<Slot>& slots, int bits, LaneMask active, AllBytes& to) {
  const auto bytes = static_cast<std::size_t>(bits / 8);
  for (std::size_t i = 0; i < slots.size(); ++i)
    (bits == 64 ? gather<std::uint64_t> : gather<std::uint32_t>)(warp, slots[i], active, i * bytes, bytes, to);
}

template <class Bits>
void scatter(Warp& warp, Slot slot, LaneMask active, std::size_t at, std::size_t bytes, const AllBytes& from) {
  Bits bits[kLanes] = {};
  for (std::size_t lane = 0; lane < kLanes; ++lane) std::memcpy(&bits[lane], from[lane].data() + at, bytes);
  write_lanes(warp, slot, bits, active);
}
void scatter(Warp& warp, const std::vector<Slot>& slots, int bits, LaneMask active, const AllBytes& from) {
  const auto bytes = static_cast<std::size_t>(bits / 8);
  for (std::size_t i = 0; i < slots.size(); ++i)
    if (slots[i] != kNoSlot)
      (bits == 64 ? scatter<std::uint64_t> : scatter<std::uint32_t>)(warp, slots[i], active, i * bytes, bytes, from);
}

void flush_all(std::byte* bytes, std::size_t count) {
  for (std::size_t at = 0; at < count; at += sizeof(float)) {
    float value;
    std::memcpy(&value, bytes + at, sizeof(value));
    value = flush(value);
    std::memcpy(bytes + at, &value, sizeof(value));
  }
}

void change(const Atomic& atomic, std::byte* place, LaneBytes value, const LaneBytes& expected) {
  const std::size_t bytes = atomic.access.bytes;
  switch (atomic.what) {
    case Atomic::What::exchange:
      std::memcpy(place, value.data(), bytes);
      return;
    case Atomic::What::compare_and_swap:
      if (std::memcmp(place, expected.data(), bytes) == 0) std::memcpy(place, value.data(), bytes);
      return;
    case Atomic::What::reduce:
      break;
  }
  // Sums of f32 in global memory flush subnormal numbers, those in shared memory do not.
  const bool flushes = atomic.element == TensorElement::f32 && atomic.access.space == AccessSpace::global;
  if (flushes) flush_all(place, bytes), flush_all(value.data(), bytes);
  reduce(atomic.reduction, atomic.element, place, value.data(), bytes);
  if (flushes) flush_all(place, bytes);
}

Outcome run_atomic(Warp& warp, const Instruction& instruction, LaneMask active) {
  const auto& atomic = instruction.details<Atomic>();
  AllBytes old{}, value{}, expected{};
  gather(warp, atomic.value, atomic.bits, active, value);
  gather(warp, atomic.expected, atomic.bits, active, expected);
  const Places places = find_places(warp, atomic.access, active);
  // The lanes come in no order that a program may count on.
  const std::size_t first = warp.cluster().random().below(kLanes);
  for (std::size_t i = 0; i < kLanes; ++i) {
    const std::size_t lane = (first + i) % kLanes;
    if (!places[lane]) continue;
    std::memcpy(old[lane].data(), places[lane], atomic.access.bytes);
    change(atomic, places[lane], value[lane], expected[lane]);
  }
  scatter(warp, atomic.old, atomic.bits, active, old);
  return Outcome::next;
}

// --- Decoding --------------------------------------------------------------------------------------------------------

void take_reduction(Decoding& decoding, Atomic& atomic) {
  const std::string_view operation = decoding.take_any();
  if (operation == "exch") {
    atomic.what = Atomic::What::exchange;
  } else if (operation == "cas") {
    atomic.what = Atomic::What::compare_and_swap;
  } else if (const std::optional<Reduction> reduction = find_reduction(operation)) {
    atomic.reduction = *reduction;
  } else {
    decoding.fail(fmt::format("unknown operation '{}'", operation));
  }
  decoding.take("noftz");
  skip_hints(decoding);
}

// Exchange and compare-and-swap take bits only. f16x2 and bf16x2 are two elements of a register.
void take_type(Decoding& decoding, Atomic& atomic) {
  const std::string_view type = decoding.take_any();
  const bool is_bits = type == "b16" || type == "b32" || type == "b64";
  if (atomic.what != Atomic::What::reduce) {
    if (!is_bits) decoding.fail(fmt::format("the type must be b16, b32 or b64, was {}", type));
    atomic.bits = type == "b16" ? 16 : type == "b32" ? 32 : 64;
    return;
  }
  const bool is_pair = type == "f16x2" || type == "bf16x2";
  const auto element = find_reduction_type(is_pair ? type.substr(0, type.size() - 2) : type);
  if (!element || !can_reduce(atomic.reduction, *element))
    decoding.fail(fmt::format("the type does not go with the operation: {}", type));
  atomic.element = *element;
  atomic.bits = type.ends_with("64") ? 64 : type == "f16" || type == "bf16" ? 16 : 32;
}

void take_atomic(Decoding& decoding, Instruction& instruction, bool gives_old) {
  auto atomic = std::make_unique<Atomic>();
  atomic->access.space = take_space(decoding);
  atomic->access.reads = atomic->access.writes = true;
  take_reduction(decoding, *atomic);
  const std::size_t count = take_vector_size(decoding);
  take_type(decoding, *atomic);
  decoding.finish();
  atomic->access.bytes = static_cast<std::uint32_t>(count) * static_cast<std::uint32_t>(atomic->bits / 8);
  if (atomic->access.bytes > kMostBytes)
    decoding.fail(fmt::format("a thread must access at most {} bytes, accesses {}", kMostBytes, atomic->access.bytes));
  std::size_t next = 0;
  if (gives_old) atomic->old = decoding.optional_destinations(next++, atomic->bits);
  atomic->access.address = decoding.address(next++);
  if (atomic->what == Atomic::What::compare_and_swap) atomic->expected = decoding.sources(next++, atomic->bits);
  atomic->value = decoding.sources(next, atomic->bits);
  if (atomic->value.size() != count || (gives_old && atomic->old.size() != count))
    decoding.fail(fmt::format("it must have {} elements", count));
  instruction.op_class = class_of(atomic->access.space);
  if (instruction.op_class == OpClass::parameter) decoding.fail("parameters of a kernel cannot be written");
  instruction.detail = std::move(atomic);
  instruction.run = run_atomic;
}

// PTX ISA 9.7.13 atom
void decode_atom(Decoding& decoding, Instruction& instruction) { take_atomic(decoding, instruction, true); }

// PTX ISA 9.7.13 red
void decode_red(Decoding& decoding, Instruction& instruction) { take_atomic(decoding, instruction, false); }

}  // namespace

void add_atomic_operations(OperationTable& table) {
  table["atom"] = decode_atom;
  table["red"] = decode_red;
}

}  // namespace flashjit::emulator
