// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlpack/dlpack.h>

#include "flashjit/tensor.h"

namespace flashjit::tests {

// A tensor as callers through C have it, with the sizes that it points to. What is wrong in a test is set afterwards.
struct DlpackView : DLTensor {
  DlpackView(const Tensor& view, DLDeviceType type) : DLTensor{}, sizes(view.shape), steps(view.strides) {
    data = view.data;
    device = {type, 0};
    ndim = sizes.size();
    dtype = {static_cast<std::uint8_t>(view.dtype == DType::bf16 ? kDLBfloat : kDLFloat),
             static_cast<std::uint8_t>(8 * size_of(view.dtype)), 1};
    shape = &sizes[0];
    strides = &steps[0];
  }
  DlpackView(const DlpackView&) = delete;
  DlpackView& operator=(const DlpackView&) = delete;

  Dims sizes, steps;
};

}  // namespace flashjit::tests
