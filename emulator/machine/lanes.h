// SPDX-License-Identifier: Apache-2.0
// Operations that do the same in each lane: functions of values become handlers, and what decoders of them share.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "emulator/machine/warp.h"
#include "emulator/ptx/instruction.h"

namespace flashjit::emulator {

// What a lane holds: 64 bits for values of 64, 32 for all others.
template <class T>
using LaneBits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

template <std::size_t bytes>
using UnsignedOf = std::conditional_t<
    bytes == 1, std::uint8_t,
    std::conditional_t<bytes == 2, std::uint16_t, std::conditional_t<bytes == 4, std::uint32_t, std::uint64_t>>>;

template <class T>
T from_lane(LaneBits<T> bits) {
  return std::bit_cast<T>(static_cast<UnsignedOf<sizeof(T)>>(bits));
}
template <class T>
LaneBits<T> to_lane(T value) {
  return std::bit_cast<UnsignedOf<sizeof(T)>>(value);
}
inline bool to_lane(bool value) { return value; }  // of a predicate

// Not inline: every operation would have a copy of what they do for part of a warp.
void write_lanes(Warp& warp, Slot slot, const std::uint32_t (&values)[kLanes], LaneMask active);
void write_lanes(Warp& warp, Slot slot, const std::uint64_t (&values)[kLanes], LaneMask active);
void write_lanes(Warp& warp, Slot predicate, const bool (&values)[kLanes], LaneMask active);

// Operand 0 becomes the function of the operands that follow. It is called for inactive lanes, too, with whatever they
// hold.
template <class Result, class... Arguments, class Function, std::size_t... i>
Outcome map_lanes(Warp& warp, const Instruction& instruction, LaneMask active, std::index_sequence<i...>,
                  const Function& function) {
  const std::tuple sources{warp.read<LaneBits<Arguments>>(instruction.operand[i + 1], active)...};
  decltype(to_lane(std::declval<Result>())) results[kLanes];
  for (int lane = 0; lane < kLanes; ++lane)
    results[lane] = to_lane(function(from_lane<Arguments>(std::get<i>(sources)[lane])...));
  write_lanes(warp, instruction.operand[0], results, active);
  return Outcome::next;
}

template <auto function>
struct Elementwise;
template <class Result, class... Arguments, Result (*function)(Arguments...)>
struct Elementwise<function> {
  static Outcome run(Warp& warp, const Instruction& instruction, LaneMask active) {
    return map_lanes<Result, Arguments...>(warp, instruction, active, std::index_sequence_for<Arguments...>(),
                                           [](Arguments... arguments) { return function(arguments...); });
  }
};
template <auto function>
inline constexpr Handler elementwise = Elementwise<function>::run;

// The same for a function whose first parameter is a setting of the instruction, of 4 bytes.
template <auto function>
struct ElementwiseWith;
template <class Result, class Setting, class... Arguments, Result (*function)(Setting, Arguments...)>
struct ElementwiseWith<function> {
  static Outcome run(Warp& warp, const Instruction& instruction, LaneMask active) {
    const auto setting = from_lane<Setting>(static_cast<std::uint32_t>(instruction.immediate));
    return map_lanes<Result, Arguments...>(
        warp, instruction, active, std::index_sequence_for<Arguments...>(),
        [setting](Arguments... arguments) { return function(setting, arguments...); });
  }
};
template <auto function>
inline constexpr Handler elementwise_with = ElementwiseWith<function>::run;

// --- Decoding --------------------------------------------------------------------------------------------------------

struct TypedHandler {
  std::string_view type;
  int bits;  // of its registers
  Handler run;
};
using TypedHandlers = std::span<const TypedHandler>;

// The handlers make.operator()<T>() for the types that PTX calls .s and .u, .b, of 16 to 64 bits.
template <class Make>
constexpr std::array<TypedHandler, 3> signed_types(const Make& make) {
  return {{{"s16", 16, make.template operator()<std::int16_t>()},
           {"s32", 32, make.template operator()<std::int32_t>()},
           {"s64", 64, make.template operator()<std::int64_t>()}}};
}
template <class Make>
constexpr std::array<TypedHandler, 4> wide_integer_types(const Make& make) {
  return {{{"s32", 32, make.template operator()<std::int32_t>()},
           {"s64", 64, make.template operator()<std::int64_t>()},
           {"u32", 32, make.template operator()<std::uint32_t>()},
           {"u64", 64, make.template operator()<std::uint64_t>()}}};
}
template <class Make>
constexpr std::array<TypedHandler, 6> integer_types(const Make& make) {
  return {{{"s16", 16, make.template operator()<std::int16_t>()},
           {"s32", 32, make.template operator()<std::int32_t>()},
           {"s64", 64, make.template operator()<std::int64_t>()},
           {"u16", 16, make.template operator()<std::uint16_t>()},
           {"u32", 32, make.template operator()<std::uint32_t>()},
           {"u64", 64, make.template operator()<std::uint64_t>()}}};
}
template <class Make>
constexpr std::array<TypedHandler, 2> wide_bit_types(const Make& make) {
  return {
      {{"b32", 32, make.template operator()<std::uint32_t>()}, {"b64", 64, make.template operator()<std::uint64_t>()}}};
}
template <class Make>
constexpr std::array<TypedHandler, 3> bit_types(const Make& make) {
  return {{{"b16", 16, make.template operator()<std::uint16_t>()},
           {"b32", 32, make.template operator()<std::uint32_t>()},
           {"b64", 64, make.template operator()<std::uint64_t>()}}};
}

// Takes the type, sets its handler, and returns the bits of its registers. Fails for a type that is not listed.
int choose_type(Decoding& decoding, Instruction& instruction, TypedHandlers handlers);
inline int choose_type(Decoding& decoding, Instruction& instruction, std::initializer_list<TypedHandler> handlers) {
  return choose_type(decoding, instruction, TypedHandlers(handlers.begin(), handlers.size()));
}

void require_operands(const Decoding& decoding, std::size_t count);

// The destination, then the sources, with the bits that each has. Fails when modifiers are left.
void take_operands(Decoding& decoding, Instruction& instruction, std::span<const int> bits);
inline void take_operands(Decoding& decoding, Instruction& instruction, std::initializer_list<int> bits) {
  take_operands(decoding, instruction, std::span(bits.begin(), bits.size()));
}
// The type, and then operands that all have its bits.
void take_uniform(Decoding& decoding, Instruction& instruction, std::size_t operands, TypedHandlers handlers);
inline void take_uniform(Decoding& decoding, Instruction& instruction, std::size_t operands,
                         std::initializer_list<TypedHandler> handlers) {
  take_uniform(decoding, instruction, operands, TypedHandlers(handlers.begin(), handlers.size()));
}

}  // namespace flashjit::emulator
