// SPDX-License-Identifier: Apache-2.0
// A call that adds rows up: checked, and as a launch.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "flashjit/sum.h"
#include "runtime/call/operands.h"
#include "runtime/call/operation.h"

namespace flashjit::runtime {

// Points into the caller's tensors and lives no longer than these.
struct SumCall {
  std::vector<std::string> names;  // of the parts, for messages
  Operands operands;               // of the parts, but for one that is the result, and of the result
  std::span<const Tensor> parts;
  const Tensor* out = nullptr;

  bool nothing_to_do() const noexcept { return out->shape[0] == 0 || out->shape[1] == 0 || out->shape[2] == 0; }
};

// Throws Error(invalid_argument).
SumCall validate_sum(const std::vector<Tensor>& parts, const Tensor& out);
// Throws Error(invalid_argument).
const generator::PlainKernel& sum_kernel(DType part, DType out, const Architecture& architecture,
                                         PlainKernels& kernels);
PlainLaunch make_sum_launch(const SumCall& call, const Architecture& architecture, PlainKernels& kernels);

}  // namespace flashjit::runtime
