// SPDX-License-Identifier: Apache-2.0
// Floating-point formats of 16 and 8 bits (PTX ISA 5.2.3, "Alternate Floating-Point Data Formats"): exact conversions,
// rounded to nearest even. A result that is no number has the pattern that hardware gives it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace flashjit::emulator {

// A format with a sign, an exponent and a mantissa, as its bits stand in memory.
template <int exponent_bits, int mantissa_bits>
struct SmallFloat {
  static constexpr int kBias = (1 << (exponent_bits - 1)) - 1;
  static constexpr int kSignShift = exponent_bits + mantissa_bits;
  static constexpr int kDropped = 23 - mantissa_bits;  // bits of f32's mantissa
  static constexpr std::uint32_t kMagnitude = (1u << kSignShift) - 1;
  static constexpr std::uint32_t kInfinity = kMagnitude >> mantissa_bits << mantissa_bits;

  // The value of a magnitude whose largest exponent means numbers, too.
  static float widen(std::uint32_t magnitude) {
    constexpr float kRebias = std::bit_cast<float>(static_cast<std::uint32_t>(2 * 127 - kBias) << 23);
    return std::bit_cast<float>(magnitude << kDropped) * kRebias;
  }
  // Nearest even. What is beyond the largest number comes out beyond it.
  static std::uint32_t narrow(std::uint32_t magnitude) {
    constexpr std::uint32_t kSmallestNormal = static_cast<std::uint32_t>(127 + 1 - kBias) << 23;
    // Its unit in the last place is that of the format's subnormal numbers.
    constexpr std::uint32_t kUnit = static_cast<std::uint32_t>(127 + 24 - kBias - mantissa_bits) << 23;
    constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kBias) << 23;
    const float subnormal = std::bit_cast<float>(magnitude) + std::bit_cast<float>(kUnit);
    const std::uint32_t odd = magnitude >> kDropped & 1;
    const std::uint32_t normal = (magnitude - kRebias + (1u << (kDropped - 1)) - 1 + odd) >> kDropped;
    return magnitude < kSmallestNormal ? std::bit_cast<std::uint32_t>(subnormal) - kUnit : normal;
  }
};

using F16Format = SmallFloat<5, 10>;
using E5m2Format = SmallFloat<5, 2>;
using E4m3Format = SmallFloat<4, 3>;  // no infinities; its largest magnitude is NaN

inline constexpr std::uint32_t kF32Magnitude = 0x7fffffff;
inline constexpr std::uint32_t kF32Infinity = 0x7f800000;
inline constexpr std::uint16_t kCanonicalNan16 = 0x7fff;  // of f16 and bf16
inline constexpr std::uint8_t kCanonicalNan8 = 0x7f;      // of e4m3 and e5m2

inline float with_sign(float magnitude, std::uint32_t sign) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
}

inline float from_f16(std::uint16_t bits) {
  const std::uint32_t magnitude = bits & F16Format::kMagnitude;
  const std::uint32_t special = magnitude >= F16Format::kInfinity ? kF32Infinity : 0;
  return with_sign(F16Format::widen(magnitude), special | (bits & 0x8000u) << 16);
}

inline std::uint16_t to_f16_rn(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & kF32Magnitude;
  constexpr std::uint32_t kBeyond = 0x47800000;  // 2^16; from here on the rounded bits would not fit
  const std::uint32_t finite = std::min(F16Format::narrow(std::min(magnitude, kBeyond)), F16Format::kInfinity);
  return static_cast<std::uint16_t>(magnitude > kF32Infinity ? kCanonicalNan16 : (bits >> 16 & 0x8000) | finite);
}

inline float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

inline std::uint16_t to_bf16_rn(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return static_cast<std::uint16_t>((bits & kF32Magnitude) > kF32Infinity ? kCanonicalNan16 : rounded);
}

inline float from_e4m3(std::uint8_t bits) {
  const std::uint32_t magnitude = bits & E4m3Format::kMagnitude;
  const std::uint32_t special = magnitude == E4m3Format::kMagnitude ? kF32Infinity : 0;
  return with_sign(E4m3Format::widen(magnitude), special | (bits & 0x80u) << 24);
}

inline float from_e5m2(std::uint8_t bits) {
  return from_f16(static_cast<std::uint16_t>(bits << 8));  // the upper half of an f16
}

// The nearest number of the format; what is beyond the largest becomes the largest.
template <class Format>
std::uint8_t to_fp8_satfinite(float value, std::uint32_t largest) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & kF32Magnitude;
  constexpr std::uint32_t kBeyond = 0x47800000;  // 2^16
  const std::uint32_t finite = std::min(Format::narrow(std::min(magnitude, kBeyond)), largest);
  return static_cast<std::uint8_t>(magnitude > kF32Infinity ? kCanonicalNan8 : (bits >> 24 & 0x80) | finite);
}
inline std::uint8_t to_e4m3_satfinite(float value) { return to_fp8_satfinite<E4m3Format>(value, 0x7e); }  // 448
inline std::uint8_t to_e5m2_satfinite(float value) { return to_fp8_satfinite<E5m2Format>(value, 0x7b); }  // 57344

}  // namespace flashjit::emulator
