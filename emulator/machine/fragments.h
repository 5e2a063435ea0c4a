// SPDX-License-Identifier: Apache-2.0
// Matrix fragments in the registers of a warp, and their product. A warp multiplies 16 rows of A by columns of B in
// panels of 8, for mma.sync and for wgmma alike (PTX ISA 9.7.14.5, "Matrix fragments for mma.m16n8k16" and its
// neighbours; 9.7.15.5.1, "Register fragments"): which lane holds what depends on the size of an element only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "emulator/ptx/instruction.h"

namespace flashjit::emulator {

enum class Element { f16, bf16, tf32, e4m3, e5m2, s8, u8 };

constexpr int bytes_of(Element element) {
  switch (element) {
    case Element::f16:
    case Element::bf16:
      return 2;
    case Element::tf32:
      return 4;
    case Element::e4m3:
    case Element::e5m2:
    case Element::s8:
    case Element::u8:
      break;
  }
  return 1;
}
constexpr bool is_8_bit_float(Element element) { return element == Element::e4m3 || element == Element::e5m2; }
constexpr bool is_integer(Element element) { return element == Element::s8 || element == Element::u8; }

enum class Accumulator { f32, f16, s32 };

struct MatrixTypes {
  Accumulator accumulator = Accumulator::f32;
  Element a = Element::f16, b = Element::f16;
};
Accumulator take_accumulator(Decoding& decoding);
// ".f32.bf16.bf16" and its like. Fails for types that do not go together.
MatrixTypes take_matrix_types(Decoding& decoding);

inline constexpr int kTileRows = 16, kPanelColumns = 8;
inline constexpr int kMostDepth = 32;  // k of 8-bit elements

// 16 rows of A, 8 columns of B, and where they meet. Of the depth, k are in use.
struct RowTile {
  alignas(64) float at[kTileRows][kMostDepth];
};
struct ColumnPanel {
  alignas(64) float at[kMostDepth][kPanelColumns];
};
struct SumPanel {
  alignas(64) float at[kTileRows][kPanelColumns];
};

// The 32 values of one register.
using RegisterBits = const std::uint32_t*;

// As many elements as the bytes hold.
void convert_elements(Element element, const std::byte* from, int bytes, float* to);

// From 2 or 4 registers of A, and from 1 or 2 of B.
void gather_rows(Element element, const RegisterBits* registers, int count, RowTile& rows);
void gather_columns(Element element, const RegisterBits* registers, int count, ColumnPanel& columns);

// Accumulators: four registers of f32 or s32, or two of f16x2.
constexpr int registers_of_panel(Accumulator accumulator) { return accumulator == Accumulator::f16 ? 2 : 4; }
// Not of s32.
void gather_sums(Accumulator accumulator, const RegisterBits* registers, SumPanel& sums);
void scatter_sums(Accumulator accumulator, const SumPanel& sums, std::uint32_t* const* registers);

// Sums of products of integers, which f32 holds exactly, are added to accumulators of s32.
void add_integer_sums(const SumPanel& sums, const RegisterBits* accumulators, bool saturates,
                      std::uint32_t* const* registers);

// sums += rows * columns, in ascending k: each product is added to the accumulator in f32, rounded to nearest. Products
// of 16-bit, tf32 and 8-bit elements are exact. Tensor cores sum in an order of their own and truncate: the difference
// is at most some k units in the last place of the largest partial sum, and more for 8-bit floats, of which chips up to
// sm_90 keep fewer bits.
void multiply_add(const RowTile& rows, const ColumnPanel& columns, int depth, SumPanel& sums);

// The same as sm_90 does it with 8-bit floats: products and accumulator are aligned to the largest of their exponents
// and lose what is more than 13 bits behind its point; so does the sum, which is exact otherwise. A product's exponent
// is the sum of its factors', its significand may be up to 4. (Xie et al., "MMA-Sim", arXiv:2511.10909;
// docs/emulator.md says what was compared with an H200: e4m3 with accumulators of f32.) Products of the depths from
// first to end: chips differ in how many they add at once.
void multiply_add_aligned(const MatrixTypes& types, const RowTile& rows, const ColumnPanel& columns, int first, int end,
                          SumPanel& sums);

}  // namespace flashjit::emulator
