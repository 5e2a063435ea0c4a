// SPDX-License-Identifier: Apache-2.0
// PTX ISA 9.7.9 "Data Movement and Conversion Instructions": those that move and convert registers.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <optional>

#include "emulator/machine/lanes.h"
#include "emulator/operations/rounding.h"

namespace flashjit::emulator {
namespace {

// --- mov -------------------------------------------------------------------------------------------------------------

template <class Bits>
Outcome run_mov(Warp& warp, const Instruction& instruction, LaneMask active) {
  warp.copy<Bits>(instruction.operand[0], instruction.operand[1], active);
  return Outcome::next;
}

Outcome run_mov_predicate(Warp& warp, const Instruction& instruction, LaneMask active) {
  warp.write_predicate(instruction.operand[0], warp.read_predicate(instruction.operand[1], active), active);
  return Outcome::next;
}
Outcome run_set_predicate(Warp& warp, const Instruction& instruction, LaneMask active) {
  warp.write_predicate(instruction.operand[0], instruction.immediate != 0 ? kAllLanes : 0, active);
  return Outcome::next;
}

// A register and its parts; the first part is the lowest. Operand 0 is the register when it is packed, the last one
// when it is unpacked.
template <class Whole, class Part>
Outcome run_pack(Warp& warp, const Instruction& instruction, LaneMask active) {
  constexpr int kParts = sizeof(Whole) / sizeof(Part);
  LaneBits<Whole> results[kLanes] = {};
  for (int part = 0; part < kParts; ++part) {
    const LaneBits<Part>* const bits = warp.read<LaneBits<Part>>(instruction.operand[part + 1], active);
    for (int lane = 0; lane < kLanes; ++lane)
      results[lane] |= LaneBits<Whole>{from_lane<Part>(bits[lane])} << (part * 8 * sizeof(Part));
  }
  write_lanes(warp, instruction.operand[0], results, active);
  return Outcome::next;
}
template <class Whole, class Part>
Outcome run_unpack(Warp& warp, const Instruction& instruction, LaneMask active) {
  constexpr int kParts = sizeof(Whole) / sizeof(Part);
  const LaneBits<Whole>* const bits = warp.read<LaneBits<Whole>>(instruction.operand[kParts], active);
  // Read before written: a part may be the register itself.
  LaneBits<Whole> whole[kLanes];
  std::copy_n(bits, kLanes, whole);
  for (int part = 0; part < kParts; ++part) {
    if (instruction.operand[part] == kNoSlot) continue;
    LaneBits<Part> results[kLanes];
    for (int lane = 0; lane < kLanes; ++lane)
      results[lane] = static_cast<Part>(whole[lane] >> (part * 8 * sizeof(Part)));
    write_lanes(warp, instruction.operand[part], results, active);
  }
  return Outcome::next;
}

struct Packing {
  int bits;  // of the register
  std::size_t parts;
  Handler pack, unpack;
};
constexpr Packing kPackings[] = {
    {32, 2, run_pack<std::uint32_t, std::uint16_t>, run_unpack<std::uint32_t, std::uint16_t>},
    {64, 2, run_pack<std::uint64_t, std::uint32_t>, run_unpack<std::uint64_t, std::uint32_t>},
    {64, 4, run_pack<std::uint64_t, std::uint16_t>, run_unpack<std::uint64_t, std::uint16_t>}};

const Packing& find_packing(const Decoding& decoding, int bits, std::size_t parts) {
  for (const Packing& packing : kPackings)
    if (packing.bits == bits && packing.parts == parts) return packing;
  decoding.fail(fmt::format("{} parts of {} bits are not supported", parts, bits));
}

// PTX ISA 9.7.9 mov, "Move vector-to-scalar (pack) or scalar-to-vector (unpack)"
void decode_packing(Decoding& decoding, Instruction& instruction, int bits) {
  const bool packs = decoding.operand(1).kind == OperandKind::vector;
  const std::size_t parts = decoding.operand(packs ? 1 : 0).elements.size();
  const Packing& packing = find_packing(decoding, bits, parts);
  const int part_bits = bits / static_cast<int>(parts);
  instruction.run = packs ? packing.pack : packing.unpack;
  const std::vector<Slot> slots = packs ? decoding.sources(1, part_bits) : decoding.optional_destinations(0, part_bits);
  std::copy(slots.begin(), slots.end(), instruction.operand.begin() + (packs ? 1 : 0));
  if (packs)
    instruction.operand[0] = decoding.destination(0, bits);
  else
    instruction.operand[parts] = decoding.source(1, bits);
}

void decode_mov_predicate(Decoding& decoding, Instruction& instruction) {
  instruction.op_class = OpClass::predicate;
  instruction.operand[0] = decoding.predicate(0);
  if (decoding.operand(1).kind == OperandKind::immediate) {
    instruction.run = run_set_predicate;
    instruction.immediate = decoding.immediate(1) != 0;
  } else {
    instruction.run = run_mov_predicate;
    instruction.operand[1] = decoding.predicate(1);
  }
}

// PTX ISA 9.7.9 mov
void decode_mov(Decoding& decoding, Instruction& instruction) {
  require_operands(decoding, 2);
  instruction.op_class = OpClass::move;
  if (decoding.take("pred")) return decode_mov_predicate(decoding, instruction);
  const int bits = choose_type(decoding, instruction,
                               {{"b16", 16, run_mov<std::uint32_t>},
                                {"u16", 16, run_mov<std::uint32_t>},
                                {"s16", 16, run_mov<std::uint32_t>},
                                {"b32", 32, run_mov<std::uint32_t>},
                                {"u32", 32, run_mov<std::uint32_t>},
                                {"s32", 32, run_mov<std::uint32_t>},
                                {"f32", 32, run_mov<std::uint32_t>},
                                {"b64", 64, run_mov<std::uint64_t>},
                                {"u64", 64, run_mov<std::uint64_t>},
                                {"s64", 64, run_mov<std::uint64_t>},
                                {"f64", 64, run_mov<std::uint64_t>}});
  if (decoding.operand(0).kind == OperandKind::vector || decoding.operand(1).kind == OperandKind::vector)
    return decode_packing(decoding, instruction, bits);
  take_operands(decoding, instruction, {bits, bits});
}

// --- prmt ------------------------------------------------------------------------------------------------------------

// Each nibble of the selector: the byte of {b, a}, and whether its sign fills the result's.
std::uint32_t permute(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
  const std::uint64_t bytes = std::uint64_t{b} << 32 | a;
  std::uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t nibble = selector >> 4 * i;
    const auto byte = static_cast<std::uint8_t>(bytes >> 8 * (nibble & 7));
    const std::uint32_t filled = byte & 0x80 ? 0xff : 0;
    result |= (nibble & 8 ? filled : byte) << 8 * i;
  }
  return result;
}

// A mode gives the selector for each value of the two lowest bits of c.
struct PermuteMode {
  std::string_view name;
  std::uint16_t selectors[4];
};
constexpr PermuteMode kPermuteModes[] = {
    {"f4e", {0x3210, 0x4321, 0x5432, 0x6543}}, {"b4e", {0x5670, 0x6701, 0x7012, 0x0123}},
    {"rc8", {0x0000, 0x1111, 0x2222, 0x3333}}, {"ecl", {0x3210, 0x3211, 0x3222, 0x3333}},
    {"ecr", {0x0000, 0x1110, 0x2210, 0x3210}}, {"rc16", {0x1010, 0x3232, 0x1010, 0x3232}}};

template <int mode>
std::uint32_t permute_by_mode(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  return permute(a, b, kPermuteModes[mode].selectors[c & 3]);
}

// PTX ISA 9.7.9 prmt
void decode_prmt(Decoding& decoding, Instruction& instruction) {
  constexpr Handler kHandlers[] = {elementwise<permute_by_mode<0>>, elementwise<permute_by_mode<1>>,
                                   elementwise<permute_by_mode<2>>, elementwise<permute_by_mode<3>>,
                                   elementwise<permute_by_mode<4>>, elementwise<permute_by_mode<5>>};
  choose_type(decoding, instruction, {{"b32", 32, elementwise<permute>}});
  for (std::size_t mode = 0; mode < std::size(kPermuteModes); ++mode)
    if (decoding.take(kPermuteModes[mode].name)) instruction.run = kHandlers[mode];
  take_operands(decoding, instruction, {32, 32, 32, 32});
  instruction.op_class = OpClass::integer;
}

// --- cvt of one value: loaded as 64-bit integers or as doubles, which hold every value exactly, and stored ----------

using Integers = std::int64_t[kLanes];  // of u64: its bits
using Reals = double[kLanes];

// What the types and modifiers say.
struct Conversion : Detail {
  void (*load_integers)(Warp& warp, Slot slot, LaneMask active, Integers& to) = nullptr;
  void (*load_reals)(Warp& warp, Slot slot, LaneMask active, Reals& to) = nullptr;
  void (*store_integers)(Warp& warp, Slot slot, LaneMask active, const Integers& from) = nullptr;
  void (*store_reals)(Warp& warp, Slot slot, LaneMask active, const Reals& from, Rounding rounding) = nullptr;
  bool source_is_u64 = false, source_is_f32 = false, source_is_f64 = false;
  bool destination_is_f32 = false, destination_is_f64 = false;
  std::int64_t least = 0;  // of the destination's integers
  std::uint64_t most = 0;
  int destination_bits = 0;
  Rounding rounding = Rounding::nearest;
  std::optional<Rounding> integral;  // .rni, .rzi, .rmi, .rpi
  bool ftz = false, sat = false, relu = false, satfinite = false;
};

// A register may be wider than the type.
template <class T, class Bits>
void load_integers(Warp& warp, Slot slot, LaneMask active, Integers& to) {
  const Bits* const bits = warp.read<Bits>(slot, active);
  for (int lane = 0; lane < kLanes; ++lane)
    to[lane] = static_cast<std::int64_t>(static_cast<T>(static_cast<UnsignedOf<sizeof(T)>>(bits[lane])));
}
template <class T, class Bits>
void store_integers(Warp& warp, Slot slot, LaneMask active, const Integers& from) {
  Bits bits[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) bits[lane] = static_cast<Bits>(static_cast<T>(from[lane]));
  write_lanes(warp, slot, bits, active);
}

template <class T>
void load_reals(Warp& warp, Slot slot, LaneMask active, Reals& to) {
  const LaneBits<T>* const bits = warp.read<LaneBits<T>>(slot, active);
  for (int lane = 0; lane < kLanes; ++lane) {
    if constexpr (sizeof(T) == 2)
      to[lane] = from_lane<T>(bits[lane]).widen();
    else
      to[lane] = from_lane<T>(bits[lane]);
  }
}
template <class T>
T rounded(double value, Rounding rounding) {
  if constexpr (std::is_same_v<T, double>)
    return value;
  else if constexpr (std::is_same_v<T, float>)
    return canonical(narrow(value, rounding));
  else
    return narrow_to<T>(value, rounding);
}
template <class T>
void store_reals(Warp& warp, Slot slot, LaneMask active, const Reals& from, Rounding rounding) {
  LaneBits<T> bits[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) bits[lane] = to_lane(rounded<T>(from[lane], rounding));
  write_lanes(warp, slot, bits, active);
}

double to_integral(double value, Rounding rounding) {
  switch (rounding) {
    case Rounding::nearest:
      return std::nearbyint(value);
    case Rounding::zero:
      return std::trunc(value);
    case Rounding::down:
      return std::floor(value);
    case Rounding::up:
      return std::ceil(value);
  }
  return value;
}

// Out-of-range values become the nearest in range; NaN becomes 0 or, where 64 bits are on either side, the bits of the
// least signed integer.
std::int64_t to_integer(double value, const Conversion& conversion) {
  if (value != value) {
    const bool is_zero = !conversion.source_is_f64 && conversion.destination_bits != 64;
    return is_zero ? 0 : static_cast<std::int64_t>(~std::uint64_t{0} << (conversion.destination_bits - 1));
  }
  if (value <= static_cast<double>(conversion.least)) return conversion.least;
  // The doubles from the largest integer on are those from the power of two above it.
  if (value >= static_cast<double>(conversion.most)) return static_cast<std::int64_t>(conversion.most);
  return value < 0 ? static_cast<std::int64_t>(value) : static_cast<std::int64_t>(static_cast<std::uint64_t>(value));
}
std::int64_t clamp_integer(std::int64_t value, const Conversion& conversion) {
  if (!conversion.source_is_u64 && value < conversion.least) return conversion.least;
  const bool is_positive = conversion.source_is_u64 || value > 0;
  const bool is_beyond = is_positive && static_cast<std::uint64_t>(value) > conversion.most;
  return is_beyond ? static_cast<std::int64_t>(conversion.most) : value;
}

// To a type with fewer bits than a double, which 64 bits do not fit either: the sum of their halves, rounded to odd, is
// rounded once more.
double to_real(std::int64_t value, bool is_unsigned) {
  const double low = static_cast<std::uint32_t>(value);
  const double high =
      is_unsigned ? static_cast<double>(static_cast<std::uint64_t>(value) >> 32) : static_cast<double>(value >> 32);
  return odd_sum(high * 0x1p32, low, Rounding::nearest);
}
double to_f64(std::int64_t value, bool is_unsigned, Rounding rounding) {
  const auto bits = static_cast<std::uint64_t>(value);
  const double nearest = is_unsigned ? static_cast<double>(bits) : static_cast<double>(value);
  // What the integer is more: its halves and the difference are exact.
  const double high = is_unsigned ? static_cast<double>(bits >> 32) : static_cast<double>(value >> 32);
  const double error = high * 0x1p32 - nearest + static_cast<double>(static_cast<std::uint32_t>(bits));
  if (rounding == Rounding::zero) rounding = nearest < 0 ? Rounding::up : Rounding::down;
  if (!is_beyond(0, error, rounding)) return nearest;
  return std::nextafter(nearest, rounding == Rounding::down ? -HUGE_VAL : HUGE_VAL);
}
double finished(double value, const Conversion& conversion) {
  if (conversion.destination_is_f32 && conversion.ftz && std::abs(value) < 0x1p-126) value = std::copysign(0, value);
  if (conversion.sat) value = saturate(value);
  if (conversion.relu) value = relu(value);
  return value;
}

Outcome run_integer_to_integer(Warp& warp, const Instruction& instruction, LaneMask active) {
  const auto& conversion = instruction.details<Conversion>();
  Integers values;
  conversion.load_integers(warp, instruction.operand[1], active, values);
  if (conversion.sat)
    for (std::int64_t& value : values) value = clamp_integer(value, conversion);
  conversion.store_integers(warp, instruction.operand[0], active, values);
  return Outcome::next;
}

Outcome run_integer_to_real(Warp& warp, const Instruction& instruction, LaneMask active) {
  const auto& conversion = instruction.details<Conversion>();
  Integers values;
  Reals results;
  conversion.load_integers(warp, instruction.operand[1], active, values);
  for (int lane = 0; lane < kLanes; ++lane)
    results[lane] = conversion.destination_is_f64
                        ? to_f64(values[lane], conversion.source_is_u64, conversion.rounding)
                        : finished(to_real(values[lane], conversion.source_is_u64), conversion);
  conversion.store_reals(warp, instruction.operand[0], active, results, conversion.rounding);
  return Outcome::next;
}

void load_rounded(Warp& warp, const Instruction& instruction, LaneMask active, Reals& values) {
  const auto& conversion = instruction.details<Conversion>();
  conversion.load_reals(warp, instruction.operand[1], active, values);
  if (conversion.ftz && conversion.source_is_f32)
    for (double& value : values) value = flush(static_cast<float>(value));
  if (conversion.integral)
    for (double& value : values) value = to_integral(value, *conversion.integral);
}

Outcome run_real_to_integer(Warp& warp, const Instruction& instruction, LaneMask active) {
  const auto& conversion = instruction.details<Conversion>();
  Reals values;
  Integers results;
  load_rounded(warp, instruction, active, values);
  for (int lane = 0; lane < kLanes; ++lane) results[lane] = to_integer(values[lane], conversion);
  conversion.store_integers(warp, instruction.operand[0], active, results);
  return Outcome::next;
}

Outcome run_real_to_real(Warp& warp, const Instruction& instruction, LaneMask active) {
  const auto& conversion = instruction.details<Conversion>();
  Reals values;
  load_rounded(warp, instruction, active, values);
  for (double& value : values) value = finished(value, conversion);
  conversion.store_reals(warp, instruction.operand[0], active, values, conversion.rounding);
  return Outcome::next;
}

// --- cvt of two values -----------------------------------------------------------------------------------------------

struct PairMode {
  bool relu = false, satfinite = false, toward_zero = false, unused = false;
};

template <class T>
T narrow_half(PairMode mode, float value) {
  if (mode.relu) value = relu(value);
  const T result = narrow_to<T>(value, mode.toward_zero ? Rounding::zero : Rounding::nearest);
  const bool is_infinite = (result.bits & 0x7fff) == T::kInfinity;
  return {static_cast<std::uint16_t>(mode.satfinite && is_infinite ? result.bits - 1 : result.bits)};
}
template <class T>
Pair<T> to_pair_with(PairMode mode, float upper, float lower) {
  return {narrow_half<T>(mode, lower), narrow_half<T>(mode, upper)};
}
// As to_pair_with, for the mode that is nothing but .rn.
template <class T>
Pair<T> to_pair(float upper, float lower) {
  return {T::nearest(lower), T::nearest(upper)};
}

struct E4m3 {
  static std::uint8_t narrow(float value) { return to_e4m3_satfinite(value); }
  static float widen(std::uint8_t bits) { return from_e4m3(bits); }
};
struct E5m2 {
  static std::uint8_t narrow(float value) { return to_e5m2_satfinite(value); }
  static float widen(std::uint8_t bits) { return from_e5m2(bits); }
};
template <class Format>
std::uint16_t to_fp8_pair(PairMode mode, float upper, float lower) {
  const auto narrow_one = [mode](float value) -> std::uint32_t {
    return Format::narrow(mode.relu ? relu(value) : value);
  };
  return static_cast<std::uint16_t>(narrow_one(upper) << 8 | narrow_one(lower));
}
template <class Format>
std::uint16_t to_fp8_pair_of_halves(PairMode mode, F16x2 values) {
  return to_fp8_pair<Format>(mode, values.upper.widen(), values.lower.widen());
}
template <class Format>
F16x2 from_fp8_pair(PairMode mode, std::uint16_t bits) {
  return to_pair_with<F16>(mode, Format::widen(static_cast<std::uint8_t>(bits >> 8)),
                           Format::widen(static_cast<std::uint8_t>(bits)));
}

enum class Tf32Rounding { nearest_even, nearest_away, zero };
// A tf32 has the 10 highest bits of the mantissa.
template <Tf32Rounding rounding>
std::uint32_t to_tf32(float value) {
  constexpr std::uint32_t kDropped = 0x1fff;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & kF32Magnitude) > kF32Infinity) return std::bit_cast<std::uint32_t>(kCanonicalNan) & ~kDropped;
  const std::uint32_t odd = bits >> 13 & 1;
  const std::uint32_t step = rounding == Tf32Rounding::zero           ? 0
                             : rounding == Tf32Rounding::nearest_away ? 0x1000
                                                                      : 0x0fff + odd;
  return (bits & kF32Magnitude) == kF32Infinity ? bits : (bits + step) & ~kDropped;
}

// --- cvt.pack: a above b, and what c has above both ------------------------------------------------------------------

struct PackMode {
  std::uint8_t bits = 0;
  bool is_signed = false;
  std::uint8_t unused[2] = {};
};
std::uint32_t saturated_bits(PackMode mode, std::int32_t value) {
  const std::int64_t range = std::int64_t{1} << (mode.is_signed ? mode.bits - 1 : mode.bits);
  const std::int64_t least = mode.is_signed ? -range : 0;
  const std::int64_t clamped = value < least ? least : value >= range ? range - 1 : value;
  return static_cast<std::uint32_t>(clamped & ((std::int64_t{1} << mode.bits) - 1));
}
std::uint32_t pack(PackMode mode, std::int32_t a, std::int32_t b, std::uint32_t c) {
  return c << 2 * mode.bits | saturated_bits(mode, a) << mode.bits | saturated_bits(mode, b);
}
std::uint32_t pack_halves(PackMode mode, std::int32_t a, std::int32_t b) {
  return saturated_bits(mode, a) << 16 | saturated_bits(mode, b);
}

// PTX ISA 9.7.9 cvt.pack
void decode_cvt_pack(Decoding& decoding, Instruction& instruction) {
  if (!decoding.take("sat")) decoding.fail(".sat is missing");
  const std::string_view type = decoding.take_any();
  PackMode mode;
  mode.is_signed = type.starts_with('s');
  for (const int bits : {2, 4, 8, 16})
    if (type.substr(1) == std::to_string(bits)) mode.bits = static_cast<std::uint8_t>(bits);
  if (mode.bits == 0) decoding.fail(fmt::format("packing of {} is not supported", type));
  if (!decoding.take("s32")) decoding.fail("the values must be s32");
  instruction.immediate = to_lane(mode);
  if (mode.bits == 16) {
    instruction.run = elementwise_with<pack_halves>;
    return take_operands(decoding, instruction, {32, 32, 32});
  }
  if (!decoding.take("b32")) decoding.fail("operand c must be b32");
  instruction.run = elementwise_with<pack>;
  take_operands(decoding, instruction, {32, 32, 32, 32});
}

// --- Decoding cvt ----------------------------------------------------------------------------------------------------

struct Words {
  std::string_view rounding;
  bool ftz = false, sat = false, relu = false, satfinite = false;
  std::string_view to, from;
};

Words take_words(Decoding& decoding) {
  Words words;
  for (const std::string_view rounding : {"rni", "rzi", "rmi", "rpi", "rn", "rz", "rm", "rp", "rna"})
    if (decoding.take(rounding)) words.rounding = rounding;
  while (true) {
    if (decoding.take("ftz"))
      words.ftz = true;
    else if (decoding.take("satfinite"))
      words.satfinite = true;
    else if (decoding.take("sat"))
      words.sat = true;
    else if (decoding.take("relu"))
      words.relu = true;
    else
      break;
  }
  words.to = decoding.take_any();
  words.from = decoding.take_any();
  decoding.finish();
  return words;
}

struct PairConversion {
  std::string_view to, from;
  bool plain;  // of .rn only, without .relu and .satfinite
  std::vector<int> bits;
  Handler run;
};
const std::vector<PairConversion>& pair_conversions() {
  static const std::vector<PairConversion> conversions = {
      {"f16x2", "f32", true, {32, 32, 32}, elementwise<to_pair<F16>>},
      {"bf16x2", "f32", true, {32, 32, 32}, elementwise<to_pair<Bf16>>},
      {"f16x2", "f32", false, {32, 32, 32}, elementwise_with<to_pair_with<F16>>},
      {"bf16x2", "f32", false, {32, 32, 32}, elementwise_with<to_pair_with<Bf16>>},
      {"e4m3x2", "f32", false, {16, 32, 32}, elementwise_with<to_fp8_pair<E4m3>>},
      {"e5m2x2", "f32", false, {16, 32, 32}, elementwise_with<to_fp8_pair<E5m2>>},
      {"e4m3x2", "f16x2", false, {16, 32}, elementwise_with<to_fp8_pair_of_halves<E4m3>>},
      {"e5m2x2", "f16x2", false, {16, 32}, elementwise_with<to_fp8_pair_of_halves<E5m2>>},
      {"f16x2", "e4m3x2", false, {32, 16}, elementwise_with<from_fp8_pair<E4m3>>},
      {"f16x2", "e5m2x2", false, {32, 16}, elementwise_with<from_fp8_pair<E5m2>>}};
  return conversions;
}

// Whether it is one.
bool decode_pair_conversion(Decoding& decoding, Instruction& instruction, const Words& words) {
  const PairMode mode{words.relu, words.satfinite, words.rounding == "rz"};
  const bool is_plain = !mode.relu && !mode.satfinite && !mode.toward_zero;
  for (const PairConversion& conversion : pair_conversions()) {
    if (conversion.to != words.to || conversion.from != words.from || (conversion.plain && !is_plain)) continue;
    if (words.rounding != "rn" && words.rounding != "rz") decoding.fail("the rounding must be .rn or .rz");
    if (words.sat || words.ftz) decoding.fail(".sat and .ftz do not go with these types");
    instruction.run = conversion.run;
    instruction.immediate = to_lane(mode);
    take_operands(decoding, instruction, conversion.bits);
    return true;
  }
  return false;
}

void decode_to_tf32(Decoding& decoding, Instruction& instruction, const Words& words) {
  if (words.from != "f32" || words.ftz || words.sat || words.relu || words.satfinite)
    decoding.fail("the conversion to tf32 must be .rn, .rna or .rz of f32");
  if (words.rounding == "rna")
    instruction.run = elementwise<to_tf32<Tf32Rounding::nearest_away>>;
  else if (words.rounding == "rn")
    instruction.run = elementwise<to_tf32<Tf32Rounding::nearest_even>>;
  else if (words.rounding == "rz")
    instruction.run = elementwise<to_tf32<Tf32Rounding::zero>>;
  else
    decoding.fail("the rounding must be .rn, .rna or .rz");
  take_operands(decoding, instruction, {32, 32});
}

// The bits of the register where a value of `bits` lies; it may be wider.
int register_bits(const Decoding& decoding, std::size_t i, int bits) {
  const Operand& operand = decoding.operand(i);
  if (operand.kind != OperandKind::reg) return std::max(bits, 16);
  if (operand.bits < bits)
    decoding.fail(fmt::format("'{}' must have at least {} bits, has {}", operand.text, bits, operand.bits));
  return operand.bits;
}

// Calls f.operator()<T>() for the integer type of that name; whether there is one.
template <class F>
bool with_integer_type(std::string_view name, const F& f) {
  const bool is_signed = name.starts_with('s');
  if (!is_signed && !name.starts_with('u')) return false;
  const std::string_view bits = name.substr(1);
  if (bits == "8")
    is_signed ? f.template operator()<std::int8_t>() : f.template operator()<std::uint8_t>();
  else if (bits == "16")
    is_signed ? f.template operator()<std::int16_t>() : f.template operator()<std::uint16_t>();
  else if (bits == "32")
    is_signed ? f.template operator()<std::int32_t>() : f.template operator()<std::uint32_t>();
  else if (bits == "64")
    is_signed ? f.template operator()<std::int64_t>() : f.template operator()<std::uint64_t>();
  else
    return false;
  return true;
}
template <class F>
bool with_floating_type(std::string_view name, const F& f) {
  if (name == "f16")
    f.template operator()<F16>();
  else if (name == "bf16")
    f.template operator()<Bf16>();
  else if (name == "f32")
    f.template operator()<float>();
  else if (name == "f64")
    f.template operator()<double>();
  else
    return false;
  return true;
}

void take_source(Decoding& decoding, Instruction& instruction, std::string_view type, Conversion& conversion) {
  const bool is_integer = with_integer_type(type, [&]<class T> {
    const int bits = register_bits(decoding, 1, 8 * sizeof(T));
    instruction.operand[1] = decoding.source(1, bits);
    conversion.load_integers = bits == 64 ? load_integers<T, std::uint64_t> : load_integers<T, std::uint32_t>;
    conversion.source_is_u64 = std::is_same_v<T, std::uint64_t>;
  });
  const bool is_floating = !is_integer && with_floating_type(type, [&]<class T> {
    instruction.operand[1] = decoding.source(1, 8 * sizeof(T));
    conversion.load_reals = load_reals<T>;
    conversion.source_is_f32 = std::is_same_v<T, float>;
    conversion.source_is_f64 = std::is_same_v<T, double>;
  });
  if (!is_integer && !is_floating) decoding.fail(fmt::format("conversion from {} is not supported", type));
}

void take_destination(Decoding& decoding, Instruction& instruction, std::string_view type, Conversion& conversion) {
  const bool is_integer = with_integer_type(type, [&]<class T> {
    const int bits = register_bits(decoding, 0, 8 * sizeof(T));
    instruction.operand[0] = decoding.destination(0, bits);
    conversion.store_integers = bits == 64 ? store_integers<T, std::uint64_t> : store_integers<T, std::uint32_t>;
    conversion.least = static_cast<std::int64_t>(std::numeric_limits<T>::min());
    conversion.most = static_cast<std::uint64_t>(std::numeric_limits<T>::max());
    conversion.destination_bits = 8 * sizeof(T);
  });
  const bool is_floating = !is_integer && with_floating_type(type, [&]<class T> {
    instruction.operand[0] = decoding.destination(0, 8 * sizeof(T));
    conversion.store_reals = store_reals<T>;
    conversion.destination_is_f32 = std::is_same_v<T, float>;
    conversion.destination_is_f64 = std::is_same_v<T, double>;
  });
  if (!is_integer && !is_floating) decoding.fail(fmt::format("conversion to {} is not supported", type));
}

void take_rounding(const Decoding& decoding, const Words& words, Conversion& conversion) {
  if (words.rounding.empty()) return;
  if (words.rounding == "rna") decoding.fail(".rna must be of tf32");
  const char direction = words.rounding[1];
  const Rounding rounding = direction == 'n'   ? Rounding::nearest
                            : direction == 'z' ? Rounding::zero
                            : direction == 'm' ? Rounding::down
                                               : Rounding::up;
  if (words.rounding.size() == 3)
    conversion.integral = rounding;
  else
    conversion.rounding = rounding;
}

// PTX ISA 9.7.9 cvt
void decode_cvt(Decoding& decoding, Instruction& instruction) {
  instruction.op_class = OpClass::convert;
  if (decoding.take("pack")) return decode_cvt_pack(decoding, instruction);
  const Words words = take_words(decoding);
  if (words.to == "tf32") return decode_to_tf32(decoding, instruction, words);
  if (decode_pair_conversion(decoding, instruction, words)) return;
  require_operands(decoding, 2);
  auto conversion = std::make_unique<Conversion>();
  take_source(decoding, instruction, words.from, *conversion);
  take_destination(decoding, instruction, words.to, *conversion);
  take_rounding(decoding, words, *conversion);
  if (words.satfinite) decoding.fail(".satfinite does not go with these types");
  conversion->ftz = words.ftz;
  conversion->sat = words.sat;
  conversion->relu = words.relu;
  if (conversion->load_integers)
    instruction.run = conversion->store_integers ? run_integer_to_integer : run_integer_to_real;
  else
    instruction.run = conversion->store_integers ? run_real_to_integer : run_real_to_real;
  if (conversion->load_reals && conversion->store_integers && !conversion->integral)
    decoding.fail("one of .rni, .rzi, .rmi, .rpi is missing");
  instruction.detail = std::move(conversion);
}

}  // namespace

void add_convert_operations(OperationTable& table) {
  table["mov"] = decode_mov;
  table["prmt"] = decode_prmt;
  table["cvt"] = decode_cvt;
}

}  // namespace flashjit::emulator
