// SPDX-License-Identifier: Apache-2.0
// PTX ISA 9.7.3 "Floating Point Instructions" and 9.7.4 "Half Precision Floating Point Instructions".
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "emulator/machine/lanes.h"
#include "emulator/operations/arithmetic.h"
#include "emulator/operations/rounding.h"

namespace flashjit::emulator {
namespace {

template <class T, std::size_t>
using Repeated = T;

// What the modifiers of an instruction say.
struct Mode {
  Rounding rounding = Rounding::nearest;
  bool ftz = false, sat = false, relu = false;
};
static_assert(sizeof(Mode) == sizeof(std::uint32_t));

// --- Rounded operations ---------------------------------------------------------------------------------------------
// nearest() is what f32 and f64 do by default; exact() is rounded to odd, for every mode of f32 and the 16-bit formats.

struct Add {
  static constexpr std::size_t kSources = 2;
  template <class T>
  static T nearest(T a, T b) {
    return a + b;
  }
  static double exact(Rounding rounding, double a, double b) { return odd_sum(a, b, rounding); }
};
struct Subtract {
  static constexpr std::size_t kSources = 2;
  template <class T>
  static T nearest(T a, T b) {
    return a - b;
  }
  static double exact(Rounding rounding, double a, double b) { return odd_sum(a, -b, rounding); }
};
struct Multiply {
  static constexpr std::size_t kSources = 2;
  template <class T>
  static T nearest(T a, T b) {
    return a * b;
  }
  static double exact(Rounding, double a, double b) { return a * b; }
};
struct FusedMultiplyAdd {
  static constexpr std::size_t kSources = 3;
  static float nearest(float a, float b, float c) { return static_cast<float>(exact(Rounding::nearest, a, b, c)); }
  static double nearest(double a, double b, double c) { return std::fma(a, b, c); }
  static double exact(Rounding rounding, double a, double b, double c) { return odd_sum(a * b, c, rounding); }
};
struct Divide {
  static constexpr std::size_t kSources = 2;
  template <class T>
  static T nearest(T a, T b) {
    return a / b;
  }
  static double exact(Rounding, double a, double b) { return odd_quotient(a, b); }
};
struct Reciprocal {
  static constexpr std::size_t kSources = 1;
  template <class T>
  static T nearest(T a) {
    return 1 / a;
  }
  static double exact(Rounding, double a) { return odd_quotient(1, a); }
};
struct SquareRoot {
  static constexpr std::size_t kSources = 1;
  template <class T>
  static T nearest(T a) {
    return std::sqrt(a);
  }
  static double exact(Rounding, double a) { return odd_root(a); }
};

template <bool ftz>
float flush_if(float value) {
  return ftz ? flush(value) : value;
}

template <class Operation, bool ftz, class... Floats>
float nearest_f32(Floats... values) {
  return canonical(flush_if<ftz>(Operation::nearest(flush_if<ftz>(values)...)));
}
template <class Operation, class... Floats>
float rounded_f32(Mode mode, Floats... values) {
  const double exact = Operation::exact(mode.rounding, mode.ftz ? flush(values) : values...);
  const float result = narrow(exact, mode.rounding);
  const float flushed = mode.ftz ? flush(result) : result;
  return mode.sat ? saturate(flushed) : canonical(flushed);
}
template <class Operation, class... Doubles>
double nearest_f64(Doubles... values) {
  return Operation::nearest(values...);
}

// T is F16 or Bf16.
template <class T>
T finished(Mode mode, T value) {
  if (mode.ftz) value = flush(value);
  if (mode.sat) value = T::nearest(saturate(value.widen()));
  if (mode.relu && value.widen() <= 0) value = {0};  // -0, too
  return value;
}
template <class Operation, class T, class... Ts>
T rounded_16(Mode mode, Ts... values) {
  const double exact = Operation::exact(mode.rounding, (mode.ftz ? flush(values) : values).widen()...);
  return finished(mode, narrow_to<T>(exact, mode.rounding));
}
template <class Operation, class T, class... Pairs>
Pair<T> rounded_16x2(Mode mode, Pairs... values) {
  return {rounded_16<Operation, T>(mode, values.lower...), rounded_16<Operation, T>(mode, values.upper...)};
}

// What is common has code of its own.
template <class Operation, std::size_t... i>
Handler f32_handler(Mode mode, std::index_sequence<i...>) {
  if (mode.rounding != Rounding::nearest || mode.sat)
    return elementwise_with<rounded_f32<Operation, Repeated<float, i>...>>;
  return mode.ftz ? elementwise<nearest_f32<Operation, true, Repeated<float, i>...>>
                  : elementwise<nearest_f32<Operation, false, Repeated<float, i>...>>;
}
template <class Operation, std::size_t... i>
std::array<TypedHandler, 2> types_of_32_and_64(Mode mode, std::index_sequence<i...> sources) {
  return {{{"f32", 32, f32_handler<Operation>(mode, sources)},
           {"f64", 64, elementwise<nearest_f64<Operation, Repeated<double, i>...>>}}};
}
template <class Operation, std::size_t... i>
std::array<TypedHandler, 4> types_of_16(std::index_sequence<i...>) {
  return {{{"f16", 16, elementwise_with<rounded_16<Operation, F16, Repeated<F16, i>...>>},
           {"bf16", 16, elementwise_with<rounded_16<Operation, Bf16, Repeated<Bf16, i>...>>},
           {"f16x2", 32, elementwise_with<rounded_16x2<Operation, F16, Repeated<F16x2, i>...>>},
           {"bf16x2", 32, elementwise_with<rounded_16x2<Operation, Bf16, Repeated<Bf16x2, i>...>>}}};
}

// --- Minimum and maximum --------------------------------------------------------------------------------------------

struct ExtremeMode {
  bool ftz = false, nan = false, xorsign_abs = false, unused = false;
};

// NaN only of two NaN; -0 is less than +0.
template <bool is_max, class T>
T extreme(T a, T b) {
  using Bits = UnsignedOf<sizeof(T)>;
  const Bits bits_a = std::bit_cast<Bits>(a), bits_b = std::bit_cast<Bits>(b);
  const T of_equals = std::bit_cast<T>(static_cast<Bits>(is_max ? bits_a & bits_b : bits_a | bits_b));
  const bool is_a_beyond = is_max ? a > b : a < b;
  const T of_numbers = is_a_beyond ? a : a == b ? of_equals : b;
  return b != b ? a : of_numbers;
}
template <bool is_max, bool ftz>
float extreme_f32(float a, float b) {
  return canonical(extreme<is_max>(flush_if<ftz>(a), flush_if<ftz>(b)));
}
template <bool is_max>
double extreme_f64(double a, double b) {
  return extreme<is_max>(a, b);
}
template <bool is_max>
float extreme_with(ExtremeMode mode, float a, float b) {
  if (mode.ftz) a = flush(a), b = flush(b);
  if (mode.nan && (a != a || b != b)) return kCanonicalNan;
  if (!mode.xorsign_abs) return canonical(extreme<is_max>(a, b));
  const float magnitude = canonical(extreme<is_max>(std::abs(a), std::abs(b)));
  return std::signbit(a) != std::signbit(b) ? -magnitude : magnitude;
}
template <bool is_max, class T>
T extreme_16(ExtremeMode mode, T a, T b) {
  if (mode.ftz) a = flush(a), b = flush(b);
  mode.ftz = false;  // of f32, which a bf16 could be flushed as
  return T::nearest(extreme_with<is_max>(mode, a.widen(), b.widen()));
}
template <bool is_max, class T>
Pair<T> extreme_16x2(ExtremeMode mode, Pair<T> a, Pair<T> b) {
  return {extreme_16<is_max>(mode, a.lower, b.lower), extreme_16<is_max>(mode, a.upper, b.upper)};
}

// --- Sign -----------------------------------------------------------------------------------------------------------

template <class Bits>
constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));

struct Negate {
  template <class Bits>
  static Bits change(Bits bits) {
    return static_cast<Bits>(bits ^ kSign<Bits>);
  }
};
struct Magnitude {
  template <class Bits>
  static Bits change(Bits bits) {
    return static_cast<Bits>(bits & ~kSign<Bits>);
  }
};
// What becomes of NaN is not specified; this is what hardware gives.
template <class Change, class T>
T change_sign(T value) {
  using Bits = UnsignedOf<sizeof(T)>;
  const auto changed = std::bit_cast<T>(Change::change(std::bit_cast<Bits>(value)));
  if constexpr (std::is_same_v<T, double>)
    return value != value ? value : changed;
  else if constexpr (std::is_same_v<T, float>)
    return canonical(changed);
  else
    return (value.bits & ~kSign<Bits>) > T::kInfinity ? T{kCanonicalNan16} : changed;
}
template <class Change, class T>
T change_sign_with(Mode mode, T value) {
  return change_sign<Change>(mode.ftz ? flush(value) : value);
}
template <class Change, class T>
Pair<T> change_signs_with(Mode mode, Pair<T> value) {
  return {change_sign_with<Change>(mode, value.lower), change_sign_with<Change>(mode, value.upper)};
}

template <class T>
T copy_sign(T sign, T magnitude) {
  return std::copysign(magnitude, sign);
}

// --- Approximations: computed in double, so that they are far within the error that PTX allows ----------------------

double reciprocal(double a) { return 1 / a; }
// The upper half of its bits, which is all that .approx.ftz.f64 gives.
double reciprocal_in_upper_half(double a) {
  constexpr std::uint64_t kUpperHalf = ~std::uint64_t{0} << 32;
  const double exact = 1 / (std::fpclassify(a) == FP_SUBNORMAL ? std::copysign(0.0, a) : a);
  return std::isnan(exact) ? exact : std::bit_cast<double>(std::bit_cast<std::uint64_t>(exact) & kUpperHalf);
}
double square_root(double a) { return std::sqrt(a); }
double reciprocal_square_root(double a) { return 1 / std::sqrt(a); }
double sine(double a) { return std::sin(a); }
double cosine(double a) { return std::cos(a); }
double logarithm(double a) { return std::log2(a); }
double exponential(double a) { return std::exp2(a); }
double hyperbolic_tangent(double a) { return std::tanh(a); }

template <double (*function)(double), bool ftz>
float approximate(float a) {
  return canonical(flush_if<ftz>(static_cast<float>(function(flush_if<ftz>(a)))));
}
template <double (*function)(double), class T>
T approximate_16(Mode mode, T a) {
  if (mode.ftz) a = flush(a);
  return finished(mode, T::nearest(static_cast<float>(function(a.widen()))));
}
template <double (*function)(double), class T>
Pair<T> approximate_16x2(Mode mode, Pair<T> a) {
  return {approximate_16<function>(mode, a.lower), approximate_16<function>(mode, a.upper)};
}

// a times an approximation of 1/b, which is 0 for b beyond 2^126.
template <bool ftz>
float div_approx(float a, float b) {
  constexpr float kLargestDivisor = 0x1p126f;
  const float quotient = nearest_f32<Divide, ftz>(a, b);
  if (!(std::abs(b) > kLargestDivisor) || std::isinf(b)) return quotient;
  return std::isinf(a) ? kCanonicalNan : std::copysign(0.0f, quotient);
}

// --- Decoders -------------------------------------------------------------------------------------------------------

bool take_rounding(Decoding& decoding, Mode& mode) {
  for (const auto& [name, rounding] : {std::pair{"rn", Rounding::nearest}, std::pair{"rz", Rounding::zero},
                                       std::pair{"rm", Rounding::down}, std::pair{"rp", Rounding::up}}) {
    if (!decoding.take(name)) continue;
    mode.rounding = rounding;
    return true;
  }
  return false;
}

void take_finish(Decoding& decoding, Mode& mode) {
  mode.ftz = decoding.take("ftz");
  mode.sat = decoding.take("sat");
  mode.relu = decoding.take("relu");
}

bool has_16_bits(std::string_view type) { return type.find("16") != std::string_view::npos; }

// Whether .ftz, .sat and .relu go with a type.
void require_finish(const Decoding& decoding, const Mode& mode) {
  const std::string_view type = decoding.last();
  const bool is_16 = has_16_bits(type), is_32 = type == "f32";
  if (mode.relu && !is_16) decoding.fail(fmt::format("the type must have 16 bits for .relu, was {}", type));
  if ((mode.ftz || mode.sat) && !is_32 && !type.starts_with("f16"))
    decoding.fail(fmt::format("the type must be f32, f16 or f16x2 for .ftz and .sat, was {}", type));
  if (mode.rounding != Rounding::nearest && !is_32)
    decoding.fail(fmt::format("the type must be f32 for a rounding other than .rn, was {}", type));
}

template <class Operation, bool has_16>
void decode_rounded(Decoding& decoding, Instruction& instruction) {
  Mode mode;
  take_rounding(decoding, mode);
  take_finish(decoding, mode);
  require_finish(decoding, mode);
  constexpr std::make_index_sequence<Operation::kSources> kSources;
  instruction.immediate = to_lane(mode);
  constexpr std::size_t kOperands = Operation::kSources + 1;
  if constexpr (has_16)
    if (has_16_bits(decoding.last()))
      return take_uniform(decoding, instruction, kOperands, types_of_16<Operation>(kSources));
  take_uniform(decoding, instruction, kOperands, types_of_32_and_64<Operation>(mode, kSources));
}

template <bool is_max>
void decode_extreme(Decoding& decoding, Instruction& instruction) {
  ExtremeMode mode;
  mode.ftz = decoding.take("ftz");
  mode.nan = decoding.take("NaN");
  if (decoding.take("xorsign")) mode.xorsign_abs = decoding.take("abs");
  const bool is_plain = !mode.nan && !mode.xorsign_abs;
  instruction.immediate = to_lane(mode);
  if (has_16_bits(decoding.last()))
    return take_uniform(decoding, instruction, 3,
                        {{"f16", 16, elementwise_with<extreme_16<is_max, F16>>},
                         {"bf16", 16, elementwise_with<extreme_16<is_max, Bf16>>},
                         {"f16x2", 32, elementwise_with<extreme_16x2<is_max, F16>>},
                         {"bf16x2", 32, elementwise_with<extreme_16x2<is_max, Bf16>>}});
  if (!is_plain) return take_uniform(decoding, instruction, 3, {{"f32", 32, elementwise_with<extreme_with<is_max>>}});
  if (mode.ftz) return take_uniform(decoding, instruction, 3, {{"f32", 32, elementwise<extreme_f32<is_max, true>>}});
  take_uniform(decoding, instruction, 3,
               {{"f32", 32, elementwise<extreme_f32<is_max, false>>}, {"f64", 64, elementwise<extreme_f64<is_max>>}});
}

template <class Change>
void decode_sign(Decoding& decoding, Instruction& instruction) {
  Mode mode;
  mode.ftz = decoding.take("ftz");
  require_finish(decoding, mode);
  instruction.immediate = to_lane(mode);
  if (!mode.ftz && decoding.last() == "f32")
    return take_uniform(decoding, instruction, 2, {{"f32", 32, elementwise<change_sign<Change, float>>}});
  take_uniform(decoding, instruction, 2,
               {{"f32", 32, elementwise_with<change_sign_with<Change, float>>},
                {"f64", 64, elementwise<change_sign<Change, double>>},
                {"f16", 16, elementwise_with<change_sign_with<Change, F16>>},
                {"bf16", 16, elementwise_with<change_sign_with<Change, Bf16>>},
                {"f16x2", 32, elementwise_with<change_signs_with<Change, F16>>},
                {"bf16x2", 32, elementwise_with<change_signs_with<Change, Bf16>>}});
}

// After .approx: {.ftz}.f32
template <double (*function)(double)>
void take_approximation(Decoding& decoding, Instruction& instruction) {
  const bool ftz = decoding.take("ftz");
  take_uniform(
      decoding, instruction, 2,
      {{"f32", 32, ftz ? elementwise<approximate<function, true>> : elementwise<approximate<function, false>>}});
}

template <double (*function)(double)>
void decode_approximation(Decoding& decoding, Instruction& instruction) {
  if (!decoding.take("approx")) decoding.fail(".approx is missing");
  take_approximation<function>(decoding, instruction);
}

// As decode_approximation, and of 16 bits.
template <double (*function)(double)>
void decode_approximation_16(Decoding& decoding, Instruction& instruction) {
  if (decoding.last() == "f32") return decode_approximation<function>(decoding, instruction);
  if (!decoding.take("approx")) decoding.fail(".approx is missing");
  Mode mode;
  mode.ftz = decoding.take("ftz");
  instruction.immediate = to_lane(mode);
  take_uniform(decoding, instruction, 2,
               {{"f16", 16, elementwise_with<approximate_16<function, F16>>},
                {"bf16", 16, elementwise_with<approximate_16<function, Bf16>>},
                {"f16x2", 32, elementwise_with<approximate_16x2<function, F16>>},
                {"bf16x2", 32, elementwise_with<approximate_16x2<function, Bf16>>}});
}

// rcp and sqrt: .approx or rounded.
template <class Operation, double (*function)(double)>
void decode_rounded_or_approximate(Decoding& decoding, Instruction& instruction) {
  if (decoding.take("approx")) return take_approximation<function>(decoding, instruction);
  decode_rounded<Operation, false>(decoding, instruction);
}

// PTX ISA 9.7.3 rcp
void decode_reciprocal(Decoding& decoding, Instruction& instruction) {
  if (decoding.last() != "f64" || !decoding.take("approx"))
    return decode_rounded_or_approximate<Reciprocal, reciprocal>(decoding, instruction);
  if (!decoding.take("ftz")) decoding.fail(".ftz is missing");
  take_uniform(decoding, instruction, 2, {{"f64", 64, elementwise<reciprocal_in_upper_half>}});
}

// PTX ISA 9.7.3 copysign
void decode_copysign(Decoding& decoding, Instruction& instruction) {
  take_uniform(decoding, instruction, 3,
               {{"f32", 32, elementwise<copy_sign<float>>}, {"f64", 64, elementwise<copy_sign<double>>}});
}

}  // namespace

// PTX ISA 9.7.3 and 9.7.4 add
void decode_floating_add(Decoding& decoding, Instruction& instruction) {
  decode_rounded<Add, true>(decoding, instruction);
}

// PTX ISA 9.7.3 and 9.7.4 sub
void decode_floating_sub(Decoding& decoding, Instruction& instruction) {
  decode_rounded<Subtract, true>(decoding, instruction);
}

// PTX ISA 9.7.3 and 9.7.4 mul
void decode_floating_mul(Decoding& decoding, Instruction& instruction) {
  decode_rounded<Multiply, true>(decoding, instruction);
}

// PTX ISA 9.7.3 mad: the same as fma
void decode_floating_mad(Decoding& decoding, Instruction& instruction) {
  decode_rounded<FusedMultiplyAdd, false>(decoding, instruction);
}

// PTX ISA 9.7.3 div
void decode_floating_div(Decoding& decoding, Instruction& instruction) {
  const bool is_approximate = decoding.take("approx");
  if (!is_approximate && !decoding.take("full")) return decode_rounded<Divide, false>(decoding, instruction);
  const bool ftz = decoding.take("ftz");
  const Handler approximate = ftz ? elementwise<div_approx<true>> : elementwise<div_approx<false>>;
  const Handler full = f32_handler<Divide>({.ftz = ftz}, std::make_index_sequence<2>());
  take_uniform(decoding, instruction, 3, {{"f32", 32, is_approximate ? approximate : full}});
}

// PTX ISA 9.7.3 and 9.7.4 abs
void decode_floating_abs(Decoding& decoding, Instruction& instruction) {
  decode_sign<Magnitude>(decoding, instruction);
}

// PTX ISA 9.7.3 and 9.7.4 neg
void decode_floating_neg(Decoding& decoding, Instruction& instruction) { decode_sign<Negate>(decoding, instruction); }

// PTX ISA 9.7.3 and 9.7.4 min
void decode_floating_min(Decoding& decoding, Instruction& instruction) { decode_extreme<false>(decoding, instruction); }

// PTX ISA 9.7.3 and 9.7.4 max
void decode_floating_max(Decoding& decoding, Instruction& instruction) { decode_extreme<true>(decoding, instruction); }

namespace {

template <Decoder decode>
void decode_floating(Decoding& decoding, Instruction& instruction) {
  instruction.op_class = OpClass::floating;
  decode(decoding, instruction);
}

}  // namespace

void add_float_operations(OperationTable& table) {
  // PTX ISA 9.7.3 and, with 16 bits, 9.7.4
  table["fma"] = decode_floating<decode_rounded<FusedMultiplyAdd, true>>;
  table["rcp"] = decode_floating<decode_reciprocal>;
  table["sqrt"] = decode_floating<decode_rounded_or_approximate<SquareRoot, square_root>>;
  table["rsqrt"] = decode_floating<decode_approximation<reciprocal_square_root>>;
  table["sin"] = decode_floating<decode_approximation<sine>>;
  table["cos"] = decode_floating<decode_approximation<cosine>>;
  table["lg2"] = decode_floating<decode_approximation<logarithm>>;
  table["ex2"] = decode_floating<decode_approximation_16<exponential>>;
  table["tanh"] = decode_floating<decode_approximation_16<hyperbolic_tangent>>;
  table["copysign"] = decode_floating<decode_copysign>;
}

}  // namespace flashjit::emulator
