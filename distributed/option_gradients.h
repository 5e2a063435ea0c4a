// SPDX-License-Identifier: Apache-2.0
// Gradients of options that have numbers for query heads, as sinks have: the sum of what ranks make of their rows, on
// all ranks and the same there bit by bit.
#pragma once

#include "distributed/workspace.h"

namespace flashjit::distributed {

class OptionGradient {
 public:
  // option: what it is of. A rank's share is 0 at first.
  OptionGradient(const Workspace& work, const Tensor& option);

  // Of the shape of the option, f32: what this rank adds is written there.
  Tensor share() const;
  // Adds shares up, in the order of ranks, on the first one, from which all others have the sum. into: as share().
  void write(const Tensor& into) const;

 private:
  std::vector<DeviceTensor> gathered() const;
  DeviceTensor row() const;

  const Workspace& work_;
  const Dims shape_;
  DeviceTensor share_;  // as a row of what sum() takes
};

}  // namespace flashjit::distributed
