// SPDX-License-Identifier: Apache-2.0
// What is known of each data type: one row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "flashjit/tensor.h"

namespace flashjit::generator {

struct DTypeRow {
  DType dtype;
  const char* name;   // as users write it
  std::size_t bytes;  // of one element
  double rounding;    // half the distance from 1 to the next larger number: what one rounding near 1 can do
  // The type of templates/types.cuh that kernels of this dtype compute with; null: q and the output cannot have it.
  const char* element;
  // One element as a double, and a double rounded to the nearest element, ties to even.
  double (*load)(const void* data, std::int64_t index) noexcept;
  void (*store)(void* data, std::int64_t index, double value) noexcept;
};

std::span<const DTypeRow> dtypes() noexcept;  // by value of DType
// Null for a value that is no DType.
const DTypeRow* find_dtype(DType dtype) noexcept;
// Of a DType that exists.
const DTypeRow& row_of(DType dtype) noexcept;
bool has_kernels(DType dtype) noexcept;
bool is_of_8_bits(DType dtype) noexcept;         // e4m3 or e5m2
double largest_of_8_bits(DType dtype) noexcept;  // number of one of these
bool may_be_captured(DType dtype) noexcept;      // by functions
// For messages: "f16, bf16 or f32", those of them that q can have, and those that functions can capture.
std::string all_dtypes();
std::string kernel_dtypes();
std::string captured_dtypes();

}  // namespace flashjit::generator
