// SPDX-License-Identifier: Apache-2.0
#include "emulator/machine/fragments.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "emulator/machine/half.h"

namespace flashjit::emulator {
namespace {

// How an element of so many bytes becomes a float.
struct F16 {
  using Bits = std::uint16_t;
  static float value(Bits bits) { return from_f16(bits); }
};
struct Bf16 {
  using Bits = std::uint16_t;
  static float value(Bits bits) { return from_bf16(bits); }
};
struct Tf32 {
  using Bits = std::uint32_t;
  static float value(Bits bits) {
    return std::bit_cast<float>(bits & 0xffffe000);  // the lower 13 bits are ignored
  }
};
struct E4m3 {
  using Bits = std::uint8_t;
  static float value(Bits bits) { return from_e4m3(bits); }
};
struct E5m2 {
  using Bits = std::uint8_t;
  static float value(Bits bits) { return from_e5m2(bits); }
};
struct S8 {
  using Bits = std::int8_t;
  static float value(Bits bits) { return bits; }
};
struct U8 {
  using Bits = std::uint8_t;
  static float value(Bits bits) { return bits; }
};

// use(Bf16{}) and so on.
template <class Use>
void with_element(Element element, Use use) {
  switch (element) {
    case Element::f16:
      return use(F16{});
    case Element::bf16:
      return use(Bf16{});
    case Element::tf32:
      return use(Tf32{});
    case Element::e4m3:
      return use(E4m3{});
    case Element::e5m2:
      return use(E5m2{});
    case Element::s8:
      return use(S8{});
    case Element::u8:
      return use(U8{});
  }
}

// A register of all lanes is 8 rows of A, columns of B, or rows of accumulators, of four lanes each.
constexpr int kLanesOfRow = 4;
constexpr int kRowsOfRegister = kLanes / kLanesOfRow;
constexpr int kBytesOfRow = kLanesOfRow * sizeof(std::uint32_t);

void convert_row(Element element, RegisterBits lanes, int row, float* to) {
  convert_elements(element, reinterpret_cast<const std::byte*>(lanes + row * kLanesOfRow), kBytesOfRow, to);
}

// Four floats in one vector register, which every machine has. Left to itself, gcc vectorises over k with shuffles.
using Vector = float __attribute__((vector_size(16)));
constexpr int kVectorsOfPanel = kPanelColumns * sizeof(float) / sizeof(Vector);

constexpr std::uint32_t kCanonicalNaN = 0x7fffffff;  // what tensor cores write

std::uint32_t bits_of(float value) { return value == value ? std::bit_cast<std::uint32_t>(value) : kCanonicalNaN; }
std::uint32_t pack_f16(float low, float high) {
  return to_f16_rn(low) | static_cast<std::uint32_t>(to_f16_rn(high)) << 16;
}

// Of sums of 8-bit floats.
constexpr int kBitsKept = 13;  // behind the point
constexpr std::uint32_t kExponentOfF32 = 0x7f800000, kDroppedOfSum = (1u << (23 - kBitsKept)) - 1;

float smallest_normal(Element element) { return element == Element::e4m3 ? 0x1p-6f : 0x1p-14f; }

// What a bit in front of the point stands for. Subnormal numbers have theirs where the smallest normal one has it.
float point_of(float value, float smallest) {
  return std::max(std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & kExponentOfF32), smallest);
}

float add_aligned(float start, const float* terms, int count, float largest_point) {
  const float to_units = (1 << kBitsKept) / largest_point;
  auto units = static_cast<std::int32_t>(start * to_units);
  for (int k = 0; k < count; ++k) units += static_cast<std::int32_t>(terms[k] * to_units);
  const float sum = static_cast<float>(units) / to_units;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(sum) & ~kDroppedOfSum);
}

Element take_element(Decoding& decoding) {
  const std::string_view name = decoding.take_any();
  if (name == "f16") return Element::f16;
  if (name == "bf16") return Element::bf16;
  if (name == "tf32") return Element::tf32;
  if (name == "e4m3") return Element::e4m3;
  if (name == "e5m2") return Element::e5m2;
  if (name == "s8") return Element::s8;
  if (name == "u8") return Element::u8;
  decoding.fail(fmt::format("unknown type of elements '.{}'", name));
}

}  // namespace

Accumulator take_accumulator(Decoding& decoding) {
  const std::string_view name = decoding.take_any();
  if (name == "f32") return Accumulator::f32;
  if (name == "f16") return Accumulator::f16;
  if (name == "s32") return Accumulator::s32;
  decoding.fail(fmt::format("unknown type of accumulators '.{}'", name));
}

MatrixTypes take_matrix_types(Decoding& decoding) {
  MatrixTypes types;
  types.accumulator = take_accumulator(decoding);
  types.a = take_element(decoding);
  types.b = take_element(decoding);
  const bool of_bytes = bytes_of(types.a) == 1 && bytes_of(types.b) == 1;
  if (types.a != types.b && !(of_bytes && is_integer(types.a) == is_integer(types.b)))
    decoding.fail("A and B must have the same type");
  if ((types.accumulator == Accumulator::s32) != is_integer(types.a))
    decoding.fail("integers need accumulators of s32, and other types do not have them");
  if (types.accumulator == Accumulator::f16 && types.a != Element::f16 && !of_bytes)
    decoding.fail("accumulators of f16 need operands of f16 or of 8 bits");
  return types;
}

void convert_elements(Element element, const std::byte* from, int bytes, float* to) {
  with_element(element, [&](auto type) {
    using Bits = typename decltype(type)::Bits;
    const int count = bytes / static_cast<int>(sizeof(Bits));
    for (int i = 0; i < count; ++i) {
      Bits bits;
      std::memcpy(&bits, from + static_cast<std::size_t>(i) * sizeof(Bits), sizeof(bits));
      to[i] = type.value(bits);
    }
  });
}

void gather_rows(Element element, const RegisterBits* registers, int count, RowTile& rows) {
  const int depth = kBytesOfRow / bytes_of(element);
  for (int i = 0; i < count; ++i)
    for (int row = 0; row < kRowsOfRegister; ++row)
      convert_row(element, registers[i], row, &rows.at[i % 2 * kRowsOfRegister + row][i / 2 * depth]);
}

void gather_columns(Element element, const RegisterBits* registers, int count, ColumnPanel& columns) {
  const int depth = kBytesOfRow / bytes_of(element);
  float elements[kBytesOfRow];
  for (int i = 0; i < count; ++i) {
    for (int column = 0; column < kPanelColumns; ++column) {
      convert_row(element, registers[i], column, elements);
      for (int k = 0; k < depth; ++k) columns.at[i * depth + k][column] = elements[k];
    }
  }
}

// A lane holds two neighbours of a row, all lanes together 8 rows.
void gather_sums(Accumulator accumulator, const RegisterBits* registers, SumPanel& sums) {
  for (int half = 0; half < 2; ++half) {
    float pairs[2 * kLanes];
    if (accumulator == Accumulator::f16) {
      for (int lane = 0; lane < kLanes; ++lane) {
        pairs[2 * lane] = from_f16(static_cast<std::uint16_t>(registers[half][lane]));
        pairs[2 * lane + 1] = from_f16(static_cast<std::uint16_t>(registers[half][lane] >> 16));
      }
    } else {
      const RegisterBits first = registers[half * 2], second = registers[half * 2 + 1];
      for (int lane = 0; lane < kLanes; ++lane) {
        pairs[2 * lane] = std::bit_cast<float>(first[lane]);
        pairs[2 * lane + 1] = std::bit_cast<float>(second[lane]);
      }
    }
    std::memcpy(sums.at[half * kRowsOfRegister], pairs, sizeof(pairs));
  }
}

void scatter_sums(Accumulator accumulator, const SumPanel& sums, std::uint32_t* const* registers) {
  for (int half = 0; half < 2; ++half) {
    float pairs[2 * kLanes];
    std::memcpy(pairs, sums.at[half * kRowsOfRegister], sizeof(pairs));
    if (accumulator == Accumulator::f16) {
      for (int lane = 0; lane < kLanes; ++lane) registers[half][lane] = pack_f16(pairs[2 * lane], pairs[2 * lane + 1]);
    } else {
      std::uint32_t *const first = registers[half * 2], *const second = registers[half * 2 + 1];
      for (int lane = 0; lane < kLanes; ++lane) {
        first[lane] = bits_of(pairs[2 * lane]);
        second[lane] = bits_of(pairs[2 * lane + 1]);
      }
    }
  }
}

void add_integer_sums(const SumPanel& sums, const RegisterBits* accumulators, bool saturates,
                      std::uint32_t* const* registers) {
  scatter_sums(Accumulator::f32, sums, registers);
  for (int i = 0; i < registers_of_panel(Accumulator::s32); ++i) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto product = static_cast<std::int64_t>(std::bit_cast<float>(registers[i][lane]));
      std::int64_t sum = static_cast<std::int32_t>(accumulators[i][lane]) + product;
      if (saturates) sum = std::clamp<std::int64_t>(sum, INT32_MIN, INT32_MAX);
      registers[i][lane] = static_cast<std::uint32_t>(sum);
    }
  }
}

void multiply_add(const RowTile& rows, const ColumnPanel& columns, int depth, SumPanel& sums) {
  constexpr int kRowsAtOnce = 4;  // their sums fit the vector registers of every machine
  for (int first = 0; first < kTileRows; first += kRowsAtOnce) {
    Vector sum[kRowsAtOnce][kVectorsOfPanel];
    std::memcpy(sum, sums.at[first], sizeof(sum));
    for (int k = 0; k < depth; ++k) {
      Vector column[kVectorsOfPanel];
      std::memcpy(column, columns.at[k], sizeof(column));
      for (int row = 0; row < kRowsAtOnce; ++row)
        for (int i = 0; i < kVectorsOfPanel; ++i) sum[row][i] += rows.at[first + row][k] * column[i];
    }
    std::memcpy(sums.at[first], sum, sizeof(sum));
  }
}

void multiply_add_aligned(const MatrixTypes& types, const RowTile& rows, const ColumnPanel& columns, int first, int end,
                          SumPanel& sums) {
  ColumnPanel column_points;
  for (int k = first; k < end; ++k)
    for (int column = 0; column < kPanelColumns; ++column)
      column_points.at[k][column] = point_of(columns.at[k][column], smallest_normal(types.b));
  for (int row = 0; row < kTileRows; ++row) {
    float row_points[kMostDepth];
    for (int k = first; k < end; ++k) row_points[k] = point_of(rows.at[row][k], smallest_normal(types.a));
    for (int column = 0; column < kPanelColumns; ++column) {
      float& sum = sums.at[row][column];
      float terms[kMostDepth], plain = sum, largest_point = point_of(sum, 0);
      for (int k = first; k < end; ++k) {
        plain += terms[k - first] = rows.at[row][k] * columns.at[k][column];
        largest_point = std::max(largest_point, row_points[k] * column_points.at[k][column]);
      }
      sum = std::isfinite(plain) ? add_aligned(sum, terms, end - first, largest_point) : plain;
    }
  }
}

}  // namespace flashjit::emulator
