// SPDX-License-Identifier: Apache-2.0
#include "distributed/accumulator.h"

namespace flashjit::distributed {

Accumulator::Accumulator(const Workspace& work, const Dims& shape)
    : work_(work), memory_(work.allocate(DType::f32, shape)), sums_(memory_) {}

void Accumulator::add(const RowsView& of, const Tensor& share) {
  const bool is_all = of.first == 0 && of.count == sums_.shape[seqlen_dim];
  if (!is_written_ && is_all) {
    is_written_ = true;
    work_.sum({share}, sums_);
    return;
  }
  const Tensor into = distributed::rows(rows(), of);
  if (share.dtype == DType::f32) {
    work_.sum({into, share}, into);
    return;
  }
  const DeviceTensor widened = work_.allocate(DType::f32, share.shape);
  work_.sum({share}, widened);
  work_.sum({into, widened}, into);
}

const Tensor& Accumulator::rows() {
  if (!is_written_) work_.clear(sums_);
  is_written_ = true;
  return sums_;
}

void Accumulator::write(const Tensor& into) { work_.sum({rows()}, into); }

}  // namespace flashjit::distributed
