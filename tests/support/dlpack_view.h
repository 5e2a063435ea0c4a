// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlpack/dlpack.h>

#include <cstdint>

#include "flashjit/tensor.h"

namespace flashjit::tests {

constexpr std::uint8_t kDlpackBool = 6;   // kDLBool, which older headers lack
constexpr std::uint8_t kDlpackE4m3 = 10;  // kDLFloat8_e4m3fn, likewise
constexpr std::uint8_t kDlpackE5m2 = 12;  // kDLFloat8_e5m2, likewise

inline std::uint8_t code_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::bf16:
      return kDLBfloat;
    case DType::i32:
    case DType::i64:
      return kDLInt;
    case DType::boolean:
      return kDlpackBool;
    case DType::e4m3:
      return kDlpackE4m3;
    case DType::e5m2:
      return kDlpackE5m2;
    case DType::f16:
    case DType::f32:
    case DType::f64:
      break;
  }
  return kDLFloat;
}

// A tensor as callers through C have it, with the sizes that it points to. What is wrong in a test is set afterwards.
struct DlpackView : DLTensor {
  DlpackView(const Tensor& view, DLDeviceType type) : DLTensor{}, sizes(view.shape), steps(view.strides) {
    data = view.data;
    device = {type, 0};
    ndim = sizes.size();
    dtype = {code_of(view.dtype), static_cast<std::uint8_t>(8 * size_of(view.dtype)), 1};
    shape = &sizes[0];
    strides = &steps[0];
  }
  DlpackView(const DlpackView&) = delete;
  DlpackView& operator=(const DlpackView&) = delete;

  Dims sizes, steps;
};

}  // namespace flashjit::tests
