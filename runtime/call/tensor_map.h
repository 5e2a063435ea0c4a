// SPDX-License-Identifier: Apache-2.0
// What the copy engine of Hopper (TMA) is told of a tensor, and which tensors it can be told of. Only encoding needs
// the driver.
#pragma once

#include <cstdint>

#include "flashjit/tensor.h"
#include "flashjit/variant.h"
#include "generator/arguments.h"
#include "generator/plan.h"
#include "runtime/call/validate.h"

namespace flashjit::runtime {

class Driver;

// What one copy brings of a tensor: this much of each dimension, of one batch entry.
struct TensorMapBox {
  int columns;  // of head_dim: 16, 32 or 64, each with the swizzle of its row's width
  int heads, rows;
  bool operator==(const TensorMapBox&) const = default;
};

// What copies of a hopper kernel bring of the call's tensors; packed_heads_log2 is that of its arguments.
struct TensorMapBoxes {
  TensorMapBox q, k, v, out;
};
TensorMapBoxes tensor_map_boxes(const HopperVariant& variant, const generator::Plan& plan, int packed_heads_log2);

// A [batch, seqlen, heads, head_dim] tensor in the terms of a tensor map: innermost dimension first, strides in bytes.
struct TensorMapShape {
  std::uint64_t sizes[4];    // head_dim, heads, seqlen, batch
  std::uint64_t strides[3];  // of heads, seqlen, batch
  bool operator==(const TensorMapShape&) const = default;
};
TensorMapShape tensor_map_shape(const Tensor& tensor) noexcept;

// False for tensors without elements, and for strides that a tensor map cannot hold.
bool has_tensor_map(const Tensor& tensor) noexcept;
// Of every operand with rows.
bool has_tensor_maps(const ForwardCall& call) noexcept;
// Throws Error(invalid_argument) which names the tensor that has none.
void require_tensor_maps(const ForwardCall& call);

// Encodes the maps of a thread's calls. The calls of a model's layers differ in addresses alone: a map that only
// differs in its address from the last one at its place is that one with another address, which takes a fifth of the
// time.
class TensorMapEncoder {
 public:
  static constexpr int kPlaces = 4;

  // Of a 16-bit tensor that has one; place: below kPlaces. Until the next map of the place. Throws Error(unsupported,
  // driver).
  const generator::TensorMap& encode(const Driver& driver, int place, const Tensor& tensor, const TensorMapBox& box);

 private:
  // All that a map is made of but for its address.
  struct Shape {
    DType dtype;
    TensorMapShape tensor;
    TensorMapBox box;
    bool operator==(const Shape&) const = default;
  };
  struct Map {
    bool made = false;
    Shape shape;
    generator::TensorMap map;
  };
  Map last_[kPlaces];
};

}  // namespace flashjit::runtime
