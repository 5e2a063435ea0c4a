// SPDX-License-Identifier: Apache-2.0
// Exact floating-point arithmetic in every rounding mode of PTX (PTX ISA 6.5.2): numbers of 32 and fewer bits are
// computed in double, and rounded once.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "emulator/machine/half.h"

namespace flashjit::emulator {

enum class Rounding : std::uint8_t { nearest, zero, down, up };

inline constexpr float kCanonicalNan = std::bit_cast<float>(0x7fffffffu);

// Subnormal numbers become zeros of their sign (.ftz).
inline float flush(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>((bits & kF32Infinity) == 0 ? bits & ~kF32Magnitude : bits);
}
// f32 instructions give one NaN only.
inline float canonical(float value) { return value != value ? kCanonicalNan : value; }
// .sat: NaN becomes 0
template <class T>
T saturate(T value) {
  const T at_most_one = value < 1 ? value : 1;
  return value > 0 ? at_most_one : 0;
}
// .relu: what is negative and -0 become 0, NaN stays.
template <class T>
T relu(T value) {
  return value <= 0 ? 0 : value;
}

// --- Rounding to odd -------------------------------------------------------------------------------------------------
// Of the two doubles beside the exact result, the one whose last bit is set. Rounded again, to a format with at least
// two bits less, it gives what the exact result would have (Boldo and Melquiond 2008).

// `rounded` is to nearest, and `error` has the sign of what the exact result is more.
inline double to_odd(double rounded, double error) {
  const auto bits = std::bit_cast<std::uint64_t>(rounded);
  const std::uint64_t inexact = error < 0 || error > 0 ? 1 : 0;  // not for NaN, which comes of infinities
  const std::uint64_t step = inexact & ~bits;
  const std::uint64_t inwards = (std::bit_cast<std::uint64_t>(error) ^ bits) >> 63;
  return std::bit_cast<double>(inwards != 0 ? bits - step : bits + step);
}
// Where it makes a difference, a sum of 0 has the sign that the mode gives it.
inline double odd_sum(double a, double b, Rounding rounding) {
  const double sum = a + b;
  if (rounding == Rounding::down && sum == 0) return std::signbit(a) || std::signbit(b) ? -0.0 : 0.0;
  const double b_of_sum = sum - a;
  return to_odd(sum, (a - (sum - b_of_sum)) + (b - b_of_sum));  // the error is exact: Knuth's two-sum
}
// Of numbers that have at most 26 bits, as for the root.
double odd_quotient(double a, double b);
double odd_root(double a);

// --- Narrowing -------------------------------------------------------------------------------------------------------

// Whether a number that was rounded to nearest is on the side of `value` where the mode does not go.
bool is_beyond(double rounded, double value, Rounding rounding);

float narrow(double value, Rounding rounding);

// Values of 16 bits in registers.
struct F16 {
  std::uint16_t bits;
  static constexpr std::uint16_t kSmallestNormal = 0x0400, kInfinity = 0x7c00;
  static F16 nearest(float value) { return {to_f16_rn(value)}; }
  float widen() const { return from_f16(bits); }
};
struct Bf16 {
  std::uint16_t bits;
  static constexpr std::uint16_t kSmallestNormal = 0x0080, kInfinity = 0x7f80;
  static Bf16 nearest(float value) { return {to_bf16_rn(value)}; }
  float widen() const { return from_bf16(bits); }
};

// T is F16 or Bf16.
template <class T>
T narrow_to(double value, Rounding rounding);
template <class T>
T flush(T value) {
  return (value.bits & 0x7fff) < T::kSmallestNormal ? T{static_cast<std::uint16_t>(value.bits & 0x8000)} : value;
}

// Two values in a register; the first is the lower half.
template <class T>
struct Pair {
  T lower, upper;
};
using F16x2 = Pair<F16>;
using Bf16x2 = Pair<Bf16>;

}  // namespace flashjit::emulator
