// SPDX-License-Identifier: Apache-2.0
#include "emulator/operations/reduction.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <type_traits>

#include "emulator/machine/half.h"

namespace flashjit::emulator {
namespace {

// 16-bit floating-point numbers, computed with as float.
template <float (*widen)(std::uint16_t), std::uint16_t (*narrow)(float)>
struct Small {
  std::uint16_t bits;
  explicit operator float() const { return widen(bits); }
  static Small from(float value) { return {narrow(value)}; }
};
using Half = Small<from_f16, to_f16_rn>;
using Bfloat = Small<from_bf16, to_bf16_rn>;

template <class T>
T add(T old, T value) {
  if constexpr (std::is_class_v<T>)
    return T::from(static_cast<float>(old) + static_cast<float>(value));
  else if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(old) + static_cast<std::make_unsigned_t<T>>(value));
  else
    return old + value;
}

// Of a NaN and a number the number; -0 is less than 0 (PTX ISA 9.7.4 min).
bool is_less(float a, float b) { return a < b || (a == b && std::signbit(a) && !std::signbit(b)); }

template <class T>
T smaller(T old, T value) {
  if constexpr (std::is_class_v<T>) {
    const auto a = static_cast<float>(old), b = static_cast<float>(value);
    return T::from(std::isnan(a) || is_less(b, a) ? b : a);
  } else {
    return std::min(old, value);
  }
}

template <class T>
T larger(T old, T value) {
  if constexpr (std::is_class_v<T>) {
    const auto a = static_cast<float>(old), b = static_cast<float>(value);
    return T::from(std::isnan(a) || is_less(a, b) ? b : a);
  } else {
    return std::max(old, value);
  }
}

// What only integers have.
template <class T>
T reduce_bits(Reduction reduction, T old, T value) {
  switch (reduction) {
    case Reduction::inc:
      return old >= value ? 0 : old + 1;
    case Reduction::dec:
      return old == 0 || old > value ? value : old - 1;
    case Reduction::bit_and:
      return old & value;
    case Reduction::bit_or:
      return old | value;
    case Reduction::bit_xor:
      return old ^ value;
    default:
      return value;
  }
}

template <class T>
T reduce_one(Reduction reduction, T old, T value) {
  if (reduction == Reduction::add) return add(old, value);
  if (reduction == Reduction::min) return smaller(old, value);
  if (reduction == Reduction::max) return larger(old, value);
  if constexpr (std::is_integral_v<T>) return reduce_bits(reduction, old, value);
  return value;
}

template <class T>
void reduce_all(Reduction reduction, std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t at = 0; at + sizeof(T) <= bytes; at += sizeof(T)) {
    T old, value;
    std::memcpy(&old, to + at, sizeof(T));
    std::memcpy(&value, from + at, sizeof(T));
    const T result = reduce_one(reduction, old, value);
    std::memcpy(to + at, &result, sizeof(T));
  }
}

template <class Value>
std::optional<Value> find(const std::map<std::string_view, Value>& values, std::string_view name) {
  const auto at = values.find(name);
  return at == values.end() ? std::nullopt : std::optional(at->second);
}

}  // namespace

std::optional<Reduction> find_reduction(std::string_view name) {
  static const std::map<std::string_view, Reduction> reductions = {
      {"add", Reduction::add}, {"min", Reduction::min},     {"max", Reduction::max},   {"inc", Reduction::inc},
      {"dec", Reduction::dec}, {"and", Reduction::bit_and}, {"or", Reduction::bit_or}, {"xor", Reduction::bit_xor}};
  return find(reductions, name);
}

std::optional<TensorElement> find_reduction_type(std::string_view name) {
  static const std::map<std::string_view, TensorElement> types = {
      {"f16", TensorElement::f16}, {"bf16", TensorElement::bf16}, {"f32", TensorElement::f32},
      {"f64", TensorElement::f64}, {"b32", TensorElement::u32},   {"u32", TensorElement::u32},
      {"s32", TensorElement::s32}, {"b64", TensorElement::u64},   {"u64", TensorElement::u64},
      {"s64", TensorElement::s64}};
  return find(types, name);
}

bool can_reduce(Reduction reduction, TensorElement element) {
  const bool is_small_float = element == TensorElement::f16 || element == TensorElement::bf16;
  const bool is_float = element == TensorElement::f32 || element == TensorElement::f64;
  const bool is_integer = element >= TensorElement::u32 && element <= TensorElement::s64;
  switch (reduction) {
    case Reduction::none:
      return true;
    case Reduction::add:
      return is_integer || is_small_float || is_float;
    case Reduction::min:
    case Reduction::max:
      return is_integer || is_small_float;
    case Reduction::inc:
    case Reduction::dec:
      return element == TensorElement::u32;
    case Reduction::bit_and:
    case Reduction::bit_or:
    case Reduction::bit_xor:
      break;
  }
  return is_integer;
}

void reduce(Reduction reduction, TensorElement element, std::byte* to, const std::byte* from, std::size_t bytes) {
  if (reduction == Reduction::none) {
    std::memcpy(to, from, bytes);
    return;
  }
  switch (element) {
    case TensorElement::u8:
    case TensorElement::u16:
      return;  // can_reduce says no
    case TensorElement::u32:
      return reduce_all<std::uint32_t>(reduction, to, from, bytes);
    case TensorElement::s32:
      return reduce_all<std::int32_t>(reduction, to, from, bytes);
    case TensorElement::u64:
      return reduce_all<std::uint64_t>(reduction, to, from, bytes);
    case TensorElement::s64:
      return reduce_all<std::int64_t>(reduction, to, from, bytes);
    case TensorElement::f16:
      return reduce_all<Half>(reduction, to, from, bytes);
    case TensorElement::bf16:
      return reduce_all<Bfloat>(reduction, to, from, bytes);
    case TensorElement::f32:
      return reduce_all<float>(reduction, to, from, bytes);
    case TensorElement::f64:
      return reduce_all<double>(reduction, to, from, bytes);
  }
}

}  // namespace flashjit::emulator
