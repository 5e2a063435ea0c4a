// SPDX-License-Identifier: Apache-2.0
// One head of one sequence, row by row, wherever its rows lie.
#pragma once

#include <cstdint>
#include <vector>

#include "flashjit/tensor.h"
#include "runtime/call/tensor_dims.h"
#include "runtime/reference/sequences.h"

namespace flashjit::reference {

using runtime::batch_dim, runtime::seqlen_dim, runtime::heads_dim, runtime::head_dim_dim;

struct HeadView {
  const Tensor& tensor;
  SequenceRows of;
  std::int64_t head;
  Tensor scale = {};               // what rows are multiplied by, as in_one_form makes it; without data: nothing
  std::int64_t rows_of_scale = 1;  // that have one

  std::int64_t rows() const { return of.count; }
  std::int64_t width() const { return tensor.shape[head_dim_dim]; }
  double at(std::int64_t row, std::int64_t column) const {
    return load_element(tensor.data, tensor.dtype, place(tensor, row) + column * tensor.strides[head_dim_dim]);
  }
  HeadView without_scale() const { return {tensor, of, head}; }
  double scale_of(std::int64_t row) const {
    return scale.data ? load_element(scale.data, scale.dtype, place(scale, row / rows_of_scale)) : 1;
  }

 private:
  std::int64_t place(const Tensor& in, std::int64_t row) const {
    const Dims& strides = in.strides;
    const std::int64_t first = of.pages.empty()
                                   ? of.batch * strides[batch_dim] + (of.first + row) * strides[seqlen_dim]
                                   : of.pages[static_cast<std::size_t>(row / of.page_size)] * strides[batch_dim] +
                                         row % of.page_size * strides[seqlen_dim];
    return first + head * strides[heads_dim];
  }
};

// [rows, width], or [width, rows] when transposed.
template <typename Real>
std::vector<Real> unpack(const HeadView& view, bool transposed) {
  const std::int64_t rows = view.rows(), width = view.width();
  std::vector<Real> values(static_cast<std::size_t>(rows * width));
  for (std::int64_t row = 0; row < rows; ++row) {
    const double scale = view.scale_of(row);
    for (std::int64_t column = 0; column < width; ++column) {
      values[transposed ? column * rows + row : row * width + column] = static_cast<Real>(view.at(row, column) * scale);
    }
  }
  return values;
}

// sum += factor * values, element by element: what the compiler makes vector instructions of.
template <typename Real>
void add_multiple(Real factor, const Real* values, Real* sum, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sum[i] += factor * values[i];
}

}  // namespace flashjit::reference
