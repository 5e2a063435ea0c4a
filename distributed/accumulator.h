// SPDX-License-Identifier: Apache-2.0
// Rows in f32 that calls add their shares to, always in the same order.
#pragma once

#include "distributed/workspace.h"

namespace flashjit::distributed {

class Accumulator {
 public:
  // shape: [batch, rows, heads, head_dim]
  Accumulator(const Workspace& work, const Dims& shape);

  // A share of some of its rows, of any dtype of rows.
  void add(const RowsView& of, const Tensor& share);
  // The sums: 0 where nothing was added.
  const Tensor& rows();
  // The sums, rounded to the dtype of into.
  void write(const Tensor& into);

 private:
  const Workspace& work_;
  DeviceTensor memory_;
  Tensor sums_;
  bool is_written_ = false;
};

}  // namespace flashjit::distributed
