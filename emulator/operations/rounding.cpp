// SPDX-License-Identifier: Apache-2.0
#include "emulator/operations/rounding.h"

namespace flashjit::emulator {
namespace {

// The bits of the next number on the other side of `value`: they are ordered as magnitudes are.
template <class Bits>
Bits step_across(Bits bits, double rounded, double value) {
  return static_cast<Bits>(std::abs(rounded) > std::abs(value) ? bits - 1 : bits + 1);
}

float narrow_to_odd(double value) {
  const float inner = narrow(value, Rounding::zero);
  const std::uint32_t inexact = inner != value ? 1 : 0;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(inner) | inexact);
}

}  // namespace

bool is_beyond(double rounded, double value, Rounding rounding) {
  switch (rounding) {
    case Rounding::nearest:
      return false;
    case Rounding::zero:
      return std::abs(rounded) > std::abs(value);
    case Rounding::down:
      return rounded > value;
    case Rounding::up:
      return rounded < value;
  }
  return false;
}

double odd_quotient(double a, double b) {
  const double quotient = a / b;
  return to_odd(quotient, std::signbit(b) ? std::fma(quotient, b, -a) : std::fma(-quotient, b, a));
}

double odd_root(double a) {
  const double root = std::sqrt(a);
  return to_odd(root, std::fma(-root, root, a));
}

float narrow(double value, Rounding rounding) {
  const auto nearest = static_cast<float>(value);
  if (!is_beyond(nearest, value, rounding)) return nearest;
  return std::bit_cast<float>(step_across(std::bit_cast<std::uint32_t>(nearest), nearest, value));
}

template <class T>
T narrow_to(double value, Rounding rounding) {
  const T nearest = T::nearest(narrow_to_odd(value));
  if (!is_beyond(nearest.widen(), value, rounding)) return nearest;
  return {step_across(nearest.bits, nearest.widen(), value)};
}
template F16 narrow_to(double value, Rounding rounding);
template Bf16 narrow_to(double value, Rounding rounding);

}  // namespace flashjit::emulator
