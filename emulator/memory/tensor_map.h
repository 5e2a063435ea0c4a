// SPDX-License-Identifier: Apache-2.0
// Tensor maps (PTX ISA, "Tensors") and the boxes that copies take from them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "flashjit/emulator.h"

namespace flashjit::emulator {

inline constexpr int kMostDimensions = 5;

// None for bytes that encode_tensor_map did not make.
std::optional<TensorMapDescription> decode_tensor_map(const std::byte* bytes);

std::uint32_t bytes_of(TensorElement element);

// Where what belongs at an address of shared memory lies: 16-byte units change places within rows of 32, 64 or 128
// bytes (PTX ISA, "Swizzling modes"). The pattern is one of addresses, wherever the box begins.
std::uint32_t swizzle(TensorSwizzle mode, std::uint32_t address);

// What a copy moves: rows of global memory from and to rows of shared memory, but for the swizzle. What lies outside
// the tensor belongs to no row here and is filled when the box is loaded. Rows that are narrower than the swizzle's
// pattern lie as far apart as the pattern is wide, and what is between them is left alone (measured on an H200).
struct CopyBox {
  struct Row {
    std::uint32_t offset = 0;  // from the beginning of the box in shared memory
    std::uint32_t bytes = 0;
    std::byte* global = nullptr;
  };
  std::uint32_t bytes = 0;  // that are moved: what an mbarrier counts
  std::uint32_t row_bytes = 0, row_pitch = 0;
  std::uint32_t shared_bytes = 0;  // with what is between the rows
  TensorSwizzle swizzle = TensorSwizzle::none;
  TensorElement element = TensorElement::u8;
  TensorFill fill = TensorFill::zeros;
  std::vector<Row> rows;
};
// The box at these coordinates of its first element, without what lies outside the tensor.
CopyBox box_at(const TensorMapDescription& map, const std::array<std::int32_t, kMostDimensions>& coordinates);

// An even number of bytes, as floating-point elements have.
void fill(TensorFill mode, std::byte* at, std::uint32_t bytes);

// Calls f(offset in the box, offset in shared memory, bytes) for the pieces of a row that lie side by side, when the
// box begins at `begin` of shared memory.
template <class F>
void for_each_piece(const CopyBox& box, const CopyBox::Row& row, std::uint32_t begin, const F& f) {
  constexpr std::uint32_t kUnit = 16;
  if (box.swizzle == TensorSwizzle::none) return f(row.offset, begin + row.offset, row.bytes);
  const std::uint32_t end = row.offset + row.bytes;
  for (std::uint32_t at = row.offset; at < end;) {
    const std::uint32_t next = std::min(end, (at / kUnit + 1) * kUnit);
    f(at, swizzle(box.swizzle, begin + at), next - at);
    at = next;
  }
}

// Calls f(offset in shared memory, bytes) for all that a load of the box writes.
template <class F>
void for_each_written(const CopyBox& box, std::uint32_t begin, const F& f) {
  if (box.row_bytes == box.row_pitch) return f(begin, box.shared_bytes);  // the swizzle stays inside
  for (std::uint32_t at = 0; at < box.shared_bytes; at += box.row_pitch)
    for_each_piece(box, {at, box.row_bytes}, begin,
                   [&](std::uint32_t, std::uint32_t offset, std::uint32_t bytes) { f(offset, bytes); });
}

}  // namespace flashjit::emulator
