// SPDX-License-Identifier: Apache-2.0
// PTX ISA 9.7.6 "Comparison and Selection Instructions" and 9.7.7 "Half Precision Comparison Instructions".
#include <fmt/format.h>

#include <cmath>
#include <concepts>
#include <functional>

#include "emulator/machine/lanes.h"
#include "emulator/operations/arithmetic.h"
#include "emulator/operations/rounding.h"

namespace flashjit::emulator {
namespace {

// --- Relations of two values -----------------------------------------------------------------------------------------

struct LessOrGreater {  // not of NaN, unlike !=
  template <class T>
  bool operator()(T a, T b) const {
    return a < b || a > b;
  }
};
struct AreNumbers {
  template <class T>
  bool operator()(T a, T b) const {
    return a == a && b == b;
  }
};
template <class Relation>
struct Not {
  template <class T>
  bool operator()(T a, T b) const {
    return !Relation()(a, b);
  }
};

constexpr Lanes make_lane_bits() {
  Lanes bits{};
  for (int lane = 0; lane < kLanes; ++lane) bits.lane[lane] = LaneMask{1} << lane;
  return bits;
}
constexpr Lanes kLaneBits = make_lane_bits();

// Few kinds of values are compared: those of 16 bits are as s32 and as f32, so that they need no code of their own.
template <class T>
struct ComparedAs {
  using type = T;
};
template <std::integral T>
requires(sizeof(T) == 2) struct ComparedAs<T> {
  using type = std::int32_t;
};
template <>
struct ComparedAs<F16> {
  using type = float;
};
template <>
struct ComparedAs<Bf16> {
  using type = float;
};
template <class T>
using Compared = typename ComparedAs<T>::type;

template <class T, bool ftz>
[[gnu::noinline]] void load(const LaneBits<T>* bits, Compared<T> (&to)[kLanes]) {
  for (int lane = 0; lane < kLanes; ++lane) {
    auto value = from_lane<T>(bits[lane]);
    if constexpr (ftz) value = flush(value);
    if constexpr (std::is_class_v<T>)
      to[lane] = value.widen();
    else
      to[lane] = value;
  }
}

template <class Value, class Relation>
[[gnu::noinline]] LaneMask compare(const Value* a, const Value* b) {
  LaneMask mask = 0;
  for (int lane = 0; lane < kLanes; ++lane) mask |= Relation()(a[lane], b[lane]) ? kLaneBits.lane[lane] : 0;
  return mask;
}

// The lanes where the relation holds, of what all lanes hold: LaneBits of the type.
using CompareLanes = LaneMask (*)(const void* a, const void* b);
template <class T, bool ftz, class Relation>
LaneMask compare_lanes(const void* a, const void* b) {
  Compared<T> of_a[kLanes], of_b[kLanes];
  load<T, ftz>(static_cast<const LaneBits<T>*>(a), of_a);
  load<T, ftz>(static_cast<const LaneBits<T>*>(b), of_b);
  return compare<Compared<T>, Relation>(of_a, of_b);
}

struct NamedRelation {
  std::string_view name;
  CompareLanes compare;
};
template <class T>
constexpr NamedRelation kBitRelations[] = {{"eq", compare_lanes<T, false, std::equal_to<>>},
                                           {"ne", compare_lanes<T, false, std::not_equal_to<>>}};
template <class T>
constexpr NamedRelation kSignedRelations[] = {
    {"eq", compare_lanes<T, false, std::equal_to<>>}, {"ne", compare_lanes<T, false, std::not_equal_to<>>},
    {"lt", compare_lanes<T, false, std::less<>>},     {"le", compare_lanes<T, false, std::less_equal<>>},
    {"gt", compare_lanes<T, false, std::greater<>>},  {"ge", compare_lanes<T, false, std::greater_equal<>>}};
template <class T>
constexpr NamedRelation kUnsignedRelations[] = {
    {"eq", compare_lanes<T, false, std::equal_to<>>}, {"ne", compare_lanes<T, false, std::not_equal_to<>>},
    {"lt", compare_lanes<T, false, std::less<>>},     {"le", compare_lanes<T, false, std::less_equal<>>},
    {"gt", compare_lanes<T, false, std::greater<>>},  {"ge", compare_lanes<T, false, std::greater_equal<>>},
    {"lo", compare_lanes<T, false, std::less<>>},     {"ls", compare_lanes<T, false, std::less_equal<>>},
    {"hi", compare_lanes<T, false, std::greater<>>},  {"hs", compare_lanes<T, false, std::greater_equal<>>}};
template <class T, bool ftz>
constexpr NamedRelation kFloatingRelations[] = {{"eq", compare_lanes<T, ftz, std::equal_to<>>},
                                                {"ne", compare_lanes<T, ftz, LessOrGreater>},
                                                {"lt", compare_lanes<T, ftz, std::less<>>},
                                                {"le", compare_lanes<T, ftz, std::less_equal<>>},
                                                {"gt", compare_lanes<T, ftz, std::greater<>>},
                                                {"ge", compare_lanes<T, ftz, std::greater_equal<>>},
                                                {"equ", compare_lanes<T, ftz, Not<LessOrGreater>>},
                                                {"neu", compare_lanes<T, ftz, std::not_equal_to<>>},
                                                {"ltu", compare_lanes<T, ftz, Not<std::greater_equal<>>>},
                                                {"leu", compare_lanes<T, ftz, Not<std::greater<>>>},
                                                {"gtu", compare_lanes<T, ftz, Not<std::less_equal<>>>},
                                                {"geu", compare_lanes<T, ftz, Not<std::less<>>>},
                                                {"num", compare_lanes<T, ftz, AreNumbers>},
                                                {"nan", compare_lanes<T, ftz, Not<AreNumbers>>}};

struct ComparedType {
  std::string_view name;
  int bits;
  std::span<const NamedRelation> relations;
};
constexpr ComparedType kTypes[] = {
    {"b16", 16, kBitRelations<std::uint16_t>},      {"b32", 32, kBitRelations<std::uint32_t>},
    {"b64", 64, kBitRelations<std::uint64_t>},      {"s16", 16, kSignedRelations<std::int16_t>},
    {"s32", 32, kSignedRelations<std::int32_t>},    {"s64", 64, kSignedRelations<std::int64_t>},
    {"u16", 16, kUnsignedRelations<std::uint16_t>}, {"u32", 32, kUnsignedRelations<std::uint32_t>},
    {"u64", 64, kUnsignedRelations<std::uint64_t>}, {"f16", 16, kFloatingRelations<F16, false>},
    {"bf16", 16, kFloatingRelations<Bf16, false>},  {"f32", 32, kFloatingRelations<float, false>},
    {"f64", 64, kFloatingRelations<double, false>}};
constexpr ComparedType kTypesFlushed[] = {{"f16", 16, kFloatingRelations<F16, true>},
                                          {"f32", 32, kFloatingRelations<float, true>}};

// --- setp and set ----------------------------------------------------------------------------------------------------

enum class Combine { none, with_and, with_or, with_xor };

struct Comparison : Detail {
  CompareLanes compare = nullptr;
  int bits = 32;  // of the values
  Combine combine = Combine::none;
  bool third_negated = false;
  std::uint32_t true_bits = 0;  // of set: what stands for true
};

LaneMask combined(Combine combine, LaneMask compared, LaneMask third) {
  switch (combine) {
    case Combine::none:
      return compared;
    case Combine::with_and:
      return compared & third;
    case Combine::with_or:
      return compared | third;
    case Combine::with_xor:
      return compared ^ third;
  }
  return compared;
}

// Operands: the destinations, a, b, c.
constexpr std::size_t kFirst = 0, kSecond = 1, kA = 2, kB = 3, kThird = 4;

LaneMask compared_lanes(Warp& warp, const Instruction& instruction, LaneMask active) {
  const auto& comparison = instruction.details<Comparison>();
  const Slot a = instruction.operand[kA], b = instruction.operand[kB];
  if (comparison.bits == 64)
    return comparison.compare(warp.read<std::uint64_t>(a, active), warp.read<std::uint64_t>(b, active));
  return comparison.compare(warp.read<std::uint32_t>(a, active), warp.read<std::uint32_t>(b, active));
}

LaneMask third_operand(Warp& warp, const Instruction& instruction, LaneMask active) {
  if (instruction.operand[kThird] == kNoSlot) return 0;
  const LaneMask mask = warp.read_predicate(instruction.operand[kThird], active);
  return instruction.details<Comparison>().third_negated ? ~mask : mask;
}

Outcome run_setp(Warp& warp, const Instruction& instruction, LaneMask active) {
  const auto& comparison = instruction.details<Comparison>();
  const LaneMask compared = compared_lanes(warp, instruction, active);
  const LaneMask third = third_operand(warp, instruction, active);
  if (const Slot p = instruction.operand[kFirst]; p != kNoSlot)
    warp.write_predicate(p, combined(comparison.combine, compared, third), active);
  if (const Slot q = instruction.operand[kSecond]; q != kNoSlot)
    warp.write_predicate(q, combined(comparison.combine, ~compared, third), active);
  return Outcome::next;
}

Outcome run_set(Warp& warp, const Instruction& instruction, LaneMask active) {
  const auto& comparison = instruction.details<Comparison>();
  const LaneMask holds =
      combined(comparison.combine, compared_lanes(warp, instruction, active), third_operand(warp, instruction, active));
  std::uint32_t results[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) results[lane] = holds >> lane & 1 ? comparison.true_bits : 0;
  write_lanes(warp, instruction.operand[kFirst], results, active);
  return Outcome::next;
}

// Of pairs, each half by itself.
Outcome run_set_pair(Warp& warp, const Instruction& instruction, LaneMask active) {
  const auto& comparison = instruction.details<Comparison>();
  const std::uint32_t* const a = warp.read<std::uint32_t>(instruction.operand[kA], active);
  const std::uint32_t* const b = warp.read<std::uint32_t>(instruction.operand[kB], active);
  std::uint32_t results[kLanes] = {}, of_a[kLanes], of_b[kLanes];
  for (int shift : {0, 16}) {
    for (int lane = 0; lane < kLanes; ++lane) of_a[lane] = a[lane] >> shift, of_b[lane] = b[lane] >> shift;
    const LaneMask holds = comparison.compare(of_a, of_b);
    for (int lane = 0; lane < kLanes; ++lane) results[lane] |= holds >> lane & 1 ? 0xffffu << shift : 0;
  }
  write_lanes(warp, instruction.operand[kFirst], results, active);
  return Outcome::next;
}

// What stands between the opcode and the types.
struct RelationWords {
  std::string_view relation;
  Combine combine = Combine::none;
  bool ftz = false;
};
RelationWords take_relation(Decoding& decoding) {
  RelationWords words;
  words.relation = decoding.take_any();
  if (decoding.take("and"))
    words.combine = Combine::with_and;
  else if (decoding.take("or"))
    words.combine = Combine::with_or;
  else if (decoding.take("xor"))
    words.combine = Combine::with_xor;
  words.ftz = decoding.take("ftz");
  return words;
}

const ComparedType& find_type(const Decoding& decoding, std::string_view name, bool ftz) {
  const auto find = [&](const auto& types) -> const ComparedType* {
    for (const ComparedType& type : types)
      if (type.name == name) return &type;
    return nullptr;
  };
  const ComparedType* const type = ftz ? find(kTypesFlushed) : find(kTypes);
  if (!type) decoding.fail(fmt::format("the type cannot be compared: {}", name));
  return *type;
}

// The operands from a on, which begin at operand 1 of the statement. bits: of the operands.
void take_comparison(Decoding& decoding, Instruction& instruction, const RelationWords& words, const ComparedType& type,
                     int bits, Comparison& comparison) {
  comparison.bits = bits;
  for (const NamedRelation& relation : type.relations)
    if (relation.name == words.relation) comparison.compare = relation.compare;
  if (!comparison.compare) decoding.fail(fmt::format("'{}' is no comparison of {}", words.relation, type.name));
  comparison.combine = words.combine;
  const bool has_third = words.combine != Combine::none;
  require_operands(decoding, has_third ? 4 : 3);
  decoding.finish();
  instruction.operand[kA] = decoding.source(1, bits);
  instruction.operand[kB] = decoding.source(2, bits);
  if (!has_third) return;
  Operand third = decoding.operand(3);
  comparison.third_negated = third.negated;
  third.negated = false;
  instruction.operand[kThird] = decoding.predicate(third);
}

// PTX ISA 9.7.6 and 9.7.7 setp
void decode_setp(Decoding& decoding, Instruction& instruction) {
  auto comparison = std::make_unique<Comparison>();
  const RelationWords words = take_relation(decoding);
  const ComparedType& type = find_type(decoding, decoding.take_any(), words.ftz);
  take_comparison(decoding, instruction, words, type, type.bits, *comparison);
  const Operand& destination = decoding.operand(0);
  const bool is_pair = destination.kind == OperandKind::vector;
  if (is_pair && destination.elements.size() != 2) decoding.fail("the destination must be p or p|q");
  instruction.operand[kFirst] = decoding.optional_predicate(is_pair ? destination.elements[0] : destination);
  if (is_pair) instruction.operand[kSecond] = decoding.optional_predicate(destination.elements[1]);
  instruction.detail = std::move(comparison);
  instruction.run = run_setp;
  instruction.op_class = OpClass::predicate;
}

// PTX ISA 9.7.6 and 9.7.7 set
void decode_set(Decoding& decoding, Instruction& instruction) {
  auto comparison = std::make_unique<Comparison>();
  const RelationWords words = take_relation(decoding);
  const std::string_view type = decoding.take_any();
  if (type != "u32" && type != "s32" && type != "f32")
    decoding.fail(fmt::format("the type of the result must be u32, s32 or f32, was {}", type));
  comparison->true_bits = type == "f32" ? std::bit_cast<std::uint32_t>(1.0f) : UINT32_MAX;
  std::string_view compared = decoding.take_any();
  const bool is_pair = (compared == "f16x2" || compared == "bf16x2") && type != "f32" && words.combine == Combine::none;
  if (is_pair) compared.remove_suffix(2);
  const ComparedType& of_each = find_type(decoding, compared, words.ftz);
  take_comparison(decoding, instruction, words, of_each, is_pair ? 32 : of_each.bits, *comparison);
  instruction.operand[kFirst] = decoding.destination(0, 32);
  instruction.detail = std::move(comparison);
  instruction.run = is_pair ? run_set_pair : run_set;
  instruction.op_class = OpClass::integer;
}

// --- selp ------------------------------------------------------------------------------------------------------------

// A lane reads only the value that it chooses.
template <class Bits>
Outcome run_selp(Warp& warp, const Instruction& instruction, LaneMask active) {
  const LaneMask chosen = warp.read_predicate(instruction.operand[3], active);
  const Bits* const a = warp.read<Bits>(instruction.operand[1], active & chosen);
  const Bits* const b = warp.read<Bits>(instruction.operand[2], active & ~chosen);
  Bits results[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) results[lane] = chosen & kLaneBits.lane[lane] ? a[lane] : b[lane];
  write_lanes(warp, instruction.operand[0], results, active);
  return Outcome::next;
}

// PTX ISA 9.7.6 selp
void decode_selp(Decoding& decoding, Instruction& instruction) {
  const ComparedType& type = find_type(decoding, decoding.take_any(), false);
  require_operands(decoding, 4);
  instruction.operand[0] = decoding.destination(0, type.bits);
  instruction.operand[1] = decoding.source(1, type.bits);
  instruction.operand[2] = decoding.source(2, type.bits);
  instruction.operand[3] = decoding.predicate(3);
  instruction.run = type.bits == 64 ? run_selp<std::uint64_t> : run_selp<std::uint32_t>;
  instruction.op_class = OpClass::move;
}

// --- testp -----------------------------------------------------------------------------------------------------------

template <class T>
bool is_finite(T value) {
  return std::isfinite(value);
}
template <class T>
bool is_infinite(T value) {
  return std::isinf(value);
}
template <class T>
bool is_number(T value) {
  return !std::isnan(value);
}
template <class T>
bool is_not_a_number(T value) {
  return std::isnan(value);
}
template <class T>
bool is_normal(T value) {
  return std::isnormal(value) || value == 0;
}
template <class T>
bool is_subnormal(T value) {
  return std::fpclassify(value) == FP_SUBNORMAL;
}

template <class T>
Handler find_test(std::string_view name) {
  if (name == "finite") return elementwise<is_finite<T>>;
  if (name == "infinite") return elementwise<is_infinite<T>>;
  if (name == "number") return elementwise<is_number<T>>;
  if (name == "notanumber") return elementwise<is_not_a_number<T>>;
  if (name == "normal") return elementwise<is_normal<T>>;
  if (name == "subnormal") return elementwise<is_subnormal<T>>;
  return nullptr;
}

// PTX ISA 9.7.3 testp
void decode_testp(Decoding& decoding, Instruction& instruction) {
  const std::string_view test = decoding.take_any();
  const int bits =
      choose_type(decoding, instruction, {{"f32", 32, find_test<float>(test)}, {"f64", 64, find_test<double>(test)}});
  if (!instruction.run) decoding.fail(fmt::format("unknown test '{}'", test));
  require_operands(decoding, 2);
  instruction.operand[0] = decoding.predicate(0);
  instruction.operand[1] = decoding.source(1, bits);
  instruction.op_class = OpClass::predicate;
}

}  // namespace

void add_compare_operations(OperationTable& table) {
  table["setp"] = decode_setp;
  table["set"] = decode_set;
  table["selp"] = decode_selp;
  table["testp"] = decode_testp;
}

}  // namespace flashjit::emulator
