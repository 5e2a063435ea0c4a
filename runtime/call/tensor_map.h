// SPDX-License-Identifier: Apache-2.0
// What the copy engine of Hopper (TMA) is told of a tensor, and which tensors it can be told of.
#pragma once

#include <cstdint>

#include "flashjit/tensor.h"
#include "flashjit/variant.h"
#include "generator/arguments.h"
#include "generator/plan.h"
#include "runtime/call/validate.h"

namespace flashjit::runtime {

// What one copy brings of a tensor: this much of each dimension, of one batch entry.
struct TensorMapBox {
  int columns;  // of head_dim: rows of 32, 64 or 128 bytes, each with the swizzle of its width
  int heads, rows;
  bool operator==(const TensorMapBox&) const = default;
};

// What copies of a hopper kernel bring of the call's tensors; packed_heads_log2 is that of its arguments.
struct TensorMapBoxes {
  TensorMapBox q, k, v, out;
};
TensorMapBoxes tensor_map_boxes(const ForwardCall& call, const HopperVariant& variant, const generator::Plan& plan,
                                int packed_heads_log2);

// A [batch, seqlen, heads, head_dim] tensor in the terms of a tensor map: innermost dimension first, strides in bytes.
// Of one that comes transposed the innermost is seqlen, and head_dim in its place.
struct TensorMapShape {
  int rank;
  std::uint64_t sizes[5];    // head_dim, heads, seqlen, batch
  std::uint64_t strides[4];  // of heads, seqlen, batch
  bool operator==(const TensorMapShape&) const = default;
};
TensorMapShape tensor_map_shape(const Tensor& tensor) noexcept;
// For sequences that end before the next one begins, of which nothing may be read and written: {head_dim, heads, L,
// ends, batch}. L is how many rows a batch entry has, and the map begins as many rows before the tensor. Row i of a
// sequence of n rows that ends before row e is {L - n + i, e}: the copy engine takes rows from the sequence's end on to
// be outside of the third dimension.
TensorMapShape ended_tensor_map_shape(const Tensor& tensor) noexcept;
const void* ended_tensor_map_address(const Tensor& tensor) noexcept;

// A tensor map that belongs at an offset of a launch's arguments.
struct MapPlace {
  std::size_t offset;
  const Tensor* tensor;
  TensorMapBox box;
  bool ended;  // as ended_tensor_map_shape says
};

// False for tensors without elements, and for strides that a tensor map cannot hold.
bool has_tensor_map(const Tensor& tensor) noexcept;
// Of every operand with rows.
bool has_tensor_maps(const ForwardCall& call) noexcept;
// Throws Error(invalid_argument) which begins with the name where the tensor has none.
void require_tensor_map(const char* name, const Tensor& tensor);
// Of every operand with rows.
void require_tensor_maps(const ForwardCall& call);

}  // namespace flashjit::runtime
