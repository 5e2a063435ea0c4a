// SPDX-License-Identifier: Apache-2.0
// PTX ISA 9.7.1 "Integer Arithmetic Instructions" and 9.7.8 "Logic and Shift Instructions".
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "emulator/machine/lanes.h"
#include "emulator/operations/arithmetic.h"

namespace flashjit::emulator {
namespace {

__extension__ typedef __int128 Int128;
__extension__ typedef unsigned __int128 UnsignedInt128;

// The type of an exact product; of 16 and 32 bits it is the one that .wide gives.
template <class T>
struct Twice;
template <>
struct Twice<std::int16_t> {
  using type = std::int32_t;
};
template <>
struct Twice<std::uint16_t> {
  using type = std::uint32_t;
};
template <>
struct Twice<std::int32_t> {
  using type = std::int64_t;
};
template <>
struct Twice<std::uint32_t> {
  using type = std::uint64_t;
};
template <>
struct Twice<std::int64_t> {
  using type = Int128;
};
template <>
struct Twice<std::uint64_t> {
  using type = UnsignedInt128;
};
template <class T>
using TwiceOf = typename Twice<T>::type;

template <class T>
constexpr int kBits = 8 * sizeof(T);

// --- Arithmetic: results wrap, as those of unsigned types do in C++ -------------------------------------------------

// Unsigned, and not narrower than int: what arithmetic is done in.
template <class T>
using Wrapping = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

template <class T>
T add(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
}
template <class T>
T sub(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(b));
}
template <class T>
T mul_lo(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
}
template <class T>
T mul_hi(T a, T b) {
  return static_cast<T>(static_cast<TwiceOf<T>>(a) * static_cast<TwiceOf<T>>(b) >> kBits<T>);
}
template <class T>
TwiceOf<T> mul_wide(T a, T b) {
  return static_cast<TwiceOf<T>>(a) * static_cast<TwiceOf<T>>(b);
}
template <class T>
T mad_lo(T a, T b, T c) {
  return add(mul_lo(a, b), c);
}
template <class T>
T mad_hi(T a, T b, T c) {
  return add(mul_hi(a, b), c);
}
template <class T>
TwiceOf<T> mad_wide(T a, T b, TwiceOf<T> c) {
  return add(mul_wide(a, b), c);
}

std::int32_t saturated(std::int64_t value) {
  constexpr std::int64_t kLeast = std::numeric_limits<std::int32_t>::min(), kMost = ~kLeast;
  return static_cast<std::int32_t>(value < kLeast ? kLeast : value > kMost ? kMost : value);
}
std::int32_t add_sat(std::int32_t a, std::int32_t b) { return saturated(std::int64_t{a} + b); }
std::int32_t sub_sat(std::int32_t a, std::int32_t b) { return saturated(std::int64_t{a} - b); }
std::int32_t mad_hi_sat(std::int32_t a, std::int32_t b, std::int32_t c) {
  return saturated(std::int64_t{mul_hi(a, b)} + c);
}

// What a division by zero gives is not specified; the devices' long division gives these.
template <class T>
T div(T a, T b) {
  if (b == 0) return static_cast<T>(-1);
  if constexpr (std::is_signed_v<T>)
    if (b == -1) return sub(T{0}, a);
  return static_cast<T>(a / b);
}
template <class T>
T rem(T a, T b) {
  if (b == 0) return a;
  if constexpr (std::is_signed_v<T>)
    if (b == -1) return 0;
  return static_cast<T>(a % b);
}

template <class T>
T neg(T a) {
  return sub(T{0}, a);
}
template <class T>
T abs(T a) {
  return a < 0 ? neg(a) : a;
}
template <class T>
T min(T a, T b) {
  return a < b ? a : b;
}
template <class T>
T max(T a, T b) {
  return a > b ? a : b;
}
// What is negative becomes 0.
std::int32_t min_relu(std::int32_t a, std::int32_t b) { return max(min(a, b), 0); }
std::int32_t max_relu(std::int32_t a, std::int32_t b) { return max(max(a, b), 0); }
template <class T>
T sad(T a, T b, T c) {
  return add(c, a < b ? sub(b, a) : sub(a, b));
}

// --- Bits -----------------------------------------------------------------------------------------------------------

template <class T>
std::uint32_t popc(T a) {
  return static_cast<std::uint32_t>(std::popcount(a));
}
template <class T>
std::uint32_t clz(T a) {
  return static_cast<std::uint32_t>(std::countl_zero(a));
}
// The place of the highest bit that differs from the sign, all ones when there is none; or its distance from the top.
template <class T, bool is_shift_amount>
std::uint32_t bfind(T a) {
  const std::make_unsigned_t<T> bits = static_cast<std::make_unsigned_t<T>>(a < 0 ? ~a : a);
  if (bits == 0) return UINT32_MAX;
  const auto from_top = static_cast<std::uint32_t>(std::countl_zero(bits));
  return is_shift_amount ? from_top : static_cast<std::uint32_t>(kBits<T>) - 1 - from_top;
}
template <class T>
T brev(T a) {
  T reversed = 0;
  for (int i = 0; i < kBits<T>; ++i) reversed = static_cast<T>(reversed << 1 | (a >> i & 1));
  return reversed;
}

// The lowest `count` bits.
std::uint64_t low_bits(std::uint32_t count) {
  return count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

// A position or a length. PTX allows no more than 255; of more an H200 takes 8 bits in fields of 32-bit values, and
// whatever is there in those of 64-bit ones.
template <class T>
std::uint32_t field_number(std::uint32_t value) {
  constexpr std::uint32_t kMost = 255;
  return sizeof(T) == 4 ? value & kMost : std::min(value, kMost);
}

template <class T>
T bfe(T a, std::uint32_t position, std::uint32_t length) {
  position = field_number<T>(position);
  length = field_number<T>(length);
  if (length == 0) return 0;
  const std::uint32_t top = std::min<std::uint32_t>(position + length - 1, kBits<T> - 1);
  const bool is_negative = std::is_signed_v<T> && (a >> top & 1) != 0;
  const auto bits = static_cast<std::make_unsigned_t<T>>(a);
  const std::uint64_t field = position < kBits<T> ? std::uint64_t{bits} >> position : 0;
  const std::uint32_t taken = position < kBits<T> ? std::min<std::uint32_t>(length, kBits<T> - position) : 0;
  const std::uint64_t mask = low_bits(taken);
  return static_cast<T>((field & mask) | (is_negative ? ~mask : 0));
}
template <class T>
T bfi(T a, T b, std::uint32_t position, std::uint32_t length) {
  position = field_number<T>(position);
  length = field_number<T>(length);
  if (position >= static_cast<std::uint32_t>(kBits<T>)) return b;
  const std::uint64_t mask = low_bits(length) << position;
  return static_cast<T>((std::uint64_t{a} << position & mask) | (std::uint64_t{b} & ~mask));
}

template <class T>
T bit_and(T a, T b) {
  return a & b;
}
template <class T>
T bit_or(T a, T b) {
  return a | b;
}
template <class T>
T bit_xor(T a, T b) {
  return a ^ b;
}
template <class T>
T bit_not(T a) {
  return static_cast<T>(~a);
}
template <class T>
T cnot(T a) {
  return a == 0 ? 1 : 0;
}
// Bit i of the table is the result where the bits of a, b, c are those of i.
std::uint32_t lop3(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t table) {
  std::uint32_t result = 0;
  for (std::uint32_t i = 0; i < 8; ++i) {
    const std::uint32_t matches = (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    result |= matches & (0 - (table >> i & 1));
  }
  return result;
}

// Amounts beyond the width shift everything out.
template <class T>
T shl(T a, std::uint32_t amount) {
  return amount < static_cast<std::uint32_t>(kBits<T>) ? static_cast<T>(a << amount) : 0;
}
template <class T>
T shr(T a, std::uint32_t amount) {
  return static_cast<T>(a >> std::min<std::uint32_t>(amount, kBits<T> - 1) >>
                        (amount < static_cast<std::uint32_t>(kBits<T>) ? 0 : 1));
}
// b is above a.
template <bool wraps>
std::uint32_t shf_l(std::uint32_t a, std::uint32_t b, std::uint32_t amount) {
  const std::uint32_t n = wraps ? amount & 31 : std::min(amount, 32u);
  return static_cast<std::uint32_t>((std::uint64_t{b} << 32 | a) << n >> 32);
}
template <bool wraps>
std::uint32_t shf_r(std::uint32_t a, std::uint32_t b, std::uint32_t amount) {
  const std::uint32_t n = wraps ? amount & 31 : std::min(amount, 32u);
  return static_cast<std::uint32_t>((std::uint64_t{b} << 32 | a) >> n);
}

// --- Predicates -----------------------------------------------------------------------------------------------------

template <LaneMask (*function)(LaneMask, LaneMask)>
Outcome run_predicates(Warp& warp, const Instruction& instruction, LaneMask active) {
  const LaneMask a = warp.read_predicate(instruction.operand[1], active);
  const LaneMask b = warp.read_predicate(instruction.operand[2], active);
  warp.write_predicate(instruction.operand[0], function(a, b), active);
  return Outcome::next;
}

// PTX ISA 9.7.8 and, or, xor, with .pred
template <LaneMask (*function)(LaneMask, LaneMask)>
void decode_predicate_logic(Decoding& decoding, Instruction& instruction) {
  require_operands(decoding, 3);
  decoding.finish();
  for (std::size_t i = 0; i < 3; ++i) instruction.operand[i] = decoding.predicate(i);
  instruction.run = run_predicates<function>;
  instruction.op_class = OpClass::predicate;
}

Outcome run_not_predicate(Warp& warp, const Instruction& instruction, LaneMask active) {
  warp.write_predicate(instruction.operand[0], ~warp.read_predicate(instruction.operand[1], active), active);
  return Outcome::next;
}

// --- Decoders -------------------------------------------------------------------------------------------------------

template <Decoder decode>
void decode_integer(Decoding& decoding, Instruction& instruction) {
  instruction.op_class = OpClass::integer;
  decode(decoding, instruction);
}
template <Decoder integer, Decoder floating>
void decode_by_type(Decoding& decoding, Instruction& instruction) {
  const bool is_floating = has_floating_type(decoding);
  instruction.op_class = is_floating ? OpClass::floating : OpClass::integer;
  (is_floating ? floating : integer)(decoding, instruction);
}

// PTX ISA 9.7.1 add
void decode_add(Decoding& decoding, Instruction& instruction) {
  if (decoding.take("sat")) return take_uniform(decoding, instruction, 3, {{"s32", 32, elementwise<add_sat>}});
  take_uniform(decoding, instruction, 3, integer_types([]<class T> { return elementwise<add<T>>; }));
}

// PTX ISA 9.7.1 sub
void decode_sub(Decoding& decoding, Instruction& instruction) {
  if (decoding.take("sat")) return take_uniform(decoding, instruction, 3, {{"s32", 32, elementwise<sub_sat>}});
  take_uniform(decoding, instruction, 3, integer_types([]<class T> { return elementwise<sub<T>>; }));
}

// Of the types that .wide takes.
template <class Make>
std::array<TypedHandler, 4> widened_types(const Make& make) {
  return {{{"s16", 16, make.template operator()<std::int16_t>()},
           {"s32", 32, make.template operator()<std::int32_t>()},
           {"u16", 16, make.template operator()<std::uint16_t>()},
           {"u32", 32, make.template operator()<std::uint32_t>()}}};
}

// PTX ISA 9.7.1 mul
void decode_mul(Decoding& decoding, Instruction& instruction) {
  if (decoding.take("wide")) {
    const auto types = widened_types([]<class T> { return elementwise<mul_wide<T>>; });
    const int bits = choose_type(decoding, instruction, types);
    return take_operands(decoding, instruction, {2 * bits, bits, bits});
  }
  if (decoding.take("hi"))
    return take_uniform(decoding, instruction, 3, integer_types([]<class T> { return elementwise<mul_hi<T>>; }));
  if (!decoding.take("lo")) decoding.fail("one of .lo, .hi, .wide is missing");
  take_uniform(decoding, instruction, 3, integer_types([]<class T> { return elementwise<mul_lo<T>>; }));
}

// PTX ISA 9.7.1 mad
void decode_mad(Decoding& decoding, Instruction& instruction) {
  if (decoding.take("wide")) {
    const auto types = widened_types([]<class T> { return elementwise<mad_wide<T>>; });
    const int bits = choose_type(decoding, instruction, types);
    return take_operands(decoding, instruction, {2 * bits, bits, bits, 2 * bits});
  }
  if (decoding.take("hi")) {
    if (decoding.take("sat")) return take_uniform(decoding, instruction, 4, {{"s32", 32, elementwise<mad_hi_sat>}});
    return take_uniform(decoding, instruction, 4, integer_types([]<class T> { return elementwise<mad_hi<T>>; }));
  }
  if (!decoding.take("lo")) decoding.fail("one of .lo, .hi, .wide is missing");
  take_uniform(decoding, instruction, 4, integer_types([]<class T> { return elementwise<mad_lo<T>>; }));
}

// PTX ISA 9.7.1 div
void decode_div(Decoding& decoding, Instruction& instruction) {
  take_uniform(decoding, instruction, 3, integer_types([]<class T> { return elementwise<div<T>>; }));
}

// PTX ISA 9.7.1 rem
void decode_rem(Decoding& decoding, Instruction& instruction) {
  take_uniform(decoding, instruction, 3, integer_types([]<class T> { return elementwise<rem<T>>; }));
}

// PTX ISA 9.7.1 sad
void decode_sad(Decoding& decoding, Instruction& instruction) {
  take_uniform(decoding, instruction, 4, integer_types([]<class T> { return elementwise<sad<T>>; }));
}

// PTX ISA 9.7.1 abs
void decode_abs(Decoding& decoding, Instruction& instruction) {
  take_uniform(decoding, instruction, 2, signed_types([]<class T> { return elementwise<abs<T>>; }));
}

// PTX ISA 9.7.1 neg
void decode_neg(Decoding& decoding, Instruction& instruction) {
  take_uniform(decoding, instruction, 2, signed_types([]<class T> { return elementwise<neg<T>>; }));
}

// PTX ISA 9.7.1 min
void decode_min(Decoding& decoding, Instruction& instruction) {
  if (decoding.take("relu")) return take_uniform(decoding, instruction, 3, {{"s32", 32, elementwise<min_relu>}});
  take_uniform(decoding, instruction, 3, integer_types([]<class T> { return elementwise<min<T>>; }));
}

// PTX ISA 9.7.1 max
void decode_max(Decoding& decoding, Instruction& instruction) {
  if (decoding.take("relu")) return take_uniform(decoding, instruction, 3, {{"s32", 32, elementwise<max_relu>}});
  take_uniform(decoding, instruction, 3, integer_types([]<class T> { return elementwise<max<T>>; }));
}

// A count or a place of bits: 32 bits, whatever the source has.
void take_counted(Decoding& decoding, Instruction& instruction, TypedHandlers handlers) {
  const int bits = choose_type(decoding, instruction, handlers);
  take_operands(decoding, instruction, {32, bits});
}

// PTX ISA 9.7.1 popc
void decode_popc(Decoding& decoding, Instruction& instruction) {
  take_counted(decoding, instruction, wide_bit_types([]<class T> { return elementwise<popc<T>>; }));
}

// PTX ISA 9.7.1 clz
void decode_clz(Decoding& decoding, Instruction& instruction) {
  take_counted(decoding, instruction, wide_bit_types([]<class T> { return elementwise<clz<T>>; }));
}

// PTX ISA 9.7.1 bfind
void decode_bfind(Decoding& decoding, Instruction& instruction) {
  if (decoding.take("shiftamt"))
    return take_counted(decoding, instruction, wide_integer_types([]<class T> { return elementwise<bfind<T, true>>; }));
  take_counted(decoding, instruction, wide_integer_types([]<class T> { return elementwise<bfind<T, false>>; }));
}

// PTX ISA 9.7.1 brev
void decode_brev(Decoding& decoding, Instruction& instruction) {
  take_uniform(decoding, instruction, 2, wide_bit_types([]<class T> { return elementwise<brev<T>>; }));
}

// PTX ISA 9.7.1 bfe
void decode_bfe(Decoding& decoding, Instruction& instruction) {
  const auto types = wide_integer_types([]<class T> { return elementwise<bfe<T>>; });
  const int bits = choose_type(decoding, instruction, types);
  take_operands(decoding, instruction, {bits, bits, 32, 32});
}

// PTX ISA 9.7.1 bfi
void decode_bfi(Decoding& decoding, Instruction& instruction) {
  const auto types = wide_bit_types([]<class T> { return elementwise<bfi<T>>; });
  const int bits = choose_type(decoding, instruction, types);
  take_operands(decoding, instruction, {bits, bits, bits, 32, 32});
}

// PTX ISA 9.7.8 and
void decode_and(Decoding& decoding, Instruction& instruction) {
  if (decoding.take("pred")) return decode_predicate_logic<bit_and<LaneMask>>(decoding, instruction);
  take_uniform(decoding, instruction, 3, bit_types([]<class T> { return elementwise<bit_and<T>>; }));
}

// PTX ISA 9.7.8 or
void decode_or(Decoding& decoding, Instruction& instruction) {
  if (decoding.take("pred")) return decode_predicate_logic<bit_or<LaneMask>>(decoding, instruction);
  take_uniform(decoding, instruction, 3, bit_types([]<class T> { return elementwise<bit_or<T>>; }));
}

// PTX ISA 9.7.8 xor
void decode_xor(Decoding& decoding, Instruction& instruction) {
  if (decoding.take("pred")) return decode_predicate_logic<bit_xor<LaneMask>>(decoding, instruction);
  take_uniform(decoding, instruction, 3, bit_types([]<class T> { return elementwise<bit_xor<T>>; }));
}

// PTX ISA 9.7.8 not
void decode_not(Decoding& decoding, Instruction& instruction) {
  if (!decoding.take("pred"))
    return take_uniform(decoding, instruction, 2, bit_types([]<class T> { return elementwise<bit_not<T>>; }));
  require_operands(decoding, 2);
  decoding.finish();
  instruction.operand[0] = decoding.predicate(0);
  instruction.operand[1] = decoding.predicate(1);
  instruction.run = run_not_predicate;
  instruction.op_class = OpClass::predicate;
}

// PTX ISA 9.7.8 cnot
void decode_cnot(Decoding& decoding, Instruction& instruction) {
  take_uniform(decoding, instruction, 2, bit_types([]<class T> { return elementwise<cnot<T>>; }));
}

// PTX ISA 9.7.8 lop3
void decode_lop3(Decoding& decoding, Instruction& instruction) {
  take_uniform(decoding, instruction, 5, {{"b32", 32, elementwise<lop3>}});
  if (const std::uint64_t table = decoding.immediate(4); table > 0xff)
    decoding.fail(fmt::format("immLut must be from 0 to 255, was {}", table));
}

// The amount has 32 bits, whatever is shifted.
void take_shift(Decoding& decoding, Instruction& instruction, TypedHandlers handlers) {
  const int bits = choose_type(decoding, instruction, handlers);
  take_operands(decoding, instruction, {bits, bits, 32});
}

// PTX ISA 9.7.8 shl
void decode_shl(Decoding& decoding, Instruction& instruction) {
  take_shift(decoding, instruction, bit_types([]<class T> { return elementwise<shl<T>>; }));
}

// PTX ISA 9.7.8 shr
void decode_shr(Decoding& decoding, Instruction& instruction) {
  constexpr auto kMake = []<class T> { return elementwise<shr<T>>; };
  if (decoding.peek().starts_with('b')) return take_shift(decoding, instruction, bit_types(kMake));
  take_shift(decoding, instruction, integer_types(kMake));
}

// PTX ISA 9.7.8 shf
void decode_shf(Decoding& decoding, Instruction& instruction) {
  const bool left = decoding.take("l");
  if (!left && !decoding.take("r")) decoding.fail("one of .l, .r is missing");
  const bool wraps = decoding.take("wrap");
  if (!wraps && !decoding.take("clamp")) decoding.fail("one of .wrap, .clamp is missing");
  const Handler of_left = wraps ? elementwise<shf_l<true>> : elementwise<shf_l<false>>;
  const Handler of_right = wraps ? elementwise<shf_r<true>> : elementwise<shf_r<false>>;
  take_uniform(decoding, instruction, 4, {{"b32", 32, left ? of_left : of_right}});
}

}  // namespace

void add_integer_operations(OperationTable& table) {
  table["add"] = decode_by_type<decode_add, decode_floating_add>;
  table["sub"] = decode_by_type<decode_sub, decode_floating_sub>;
  table["mul"] = decode_by_type<decode_mul, decode_floating_mul>;
  table["mad"] = decode_by_type<decode_mad, decode_floating_mad>;
  table["div"] = decode_by_type<decode_div, decode_floating_div>;
  table["abs"] = decode_by_type<decode_abs, decode_floating_abs>;
  table["neg"] = decode_by_type<decode_neg, decode_floating_neg>;
  table["min"] = decode_by_type<decode_min, decode_floating_min>;
  table["max"] = decode_by_type<decode_max, decode_floating_max>;
  table["rem"] = decode_integer<decode_rem>;
  table["sad"] = decode_integer<decode_sad>;
  table["popc"] = decode_integer<decode_popc>;
  table["clz"] = decode_integer<decode_clz>;
  table["bfind"] = decode_integer<decode_bfind>;
  table["brev"] = decode_integer<decode_brev>;
  table["bfe"] = decode_integer<decode_bfe>;
  table["bfi"] = decode_integer<decode_bfi>;
  table["and"] = decode_integer<decode_and>;
  table["or"] = decode_integer<decode_or>;
  table["xor"] = decode_integer<decode_xor>;
  table["not"] = decode_integer<decode_not>;
  table["cnot"] = decode_integer<decode_cnot>;
  table["lop3"] = decode_integer<decode_lop3>;
  table["shl"] = decode_integer<decode_shl>;
  table["shr"] = decode_integer<decode_shr>;
  table["shf"] = decode_integer<decode_shf>;
  add_compare_operations(table);
}

}  // namespace flashjit::emulator
