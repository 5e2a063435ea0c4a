// SPDX-License-Identifier: Apache-2.0
// Tensor maps as the driver makes them.
#pragma once

#include "flashjit/tensor.h"
#include "generator/arguments.h"
#include "runtime/call/tensor_map.h"

namespace flashjit::runtime {

class Driver;

// Encodes the maps of a thread's calls. The calls of a model's layers differ in addresses alone: a map that only
// differs in its address from the last one at its place is that one with another address, which takes a fifth of the
// time. One that does not differ at all is the last one.
class TensorMapEncoder {
 public:
  static constexpr int kPlaces = 5;

  // Of a 16-bit tensor that has one; place: below kPlaces. Until the next map of the place. Throws Error(unsupported,
  // driver).
  const generator::TensorMap& encode(const Driver& driver, int place, const MapPlace& of);

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
    const void* data = nullptr;  // the address in it
    generator::TensorMap map;
  };
  Map last_[kPlaces];
};

}  // namespace flashjit::runtime
