// SPDX-License-Identifier: Apache-2.0
// A call that joins partial results: checked, and as a launch.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "flashjit/merge.h"
#include "runtime/call/operands.h"
#include "runtime/call/operation.h"

namespace flashjit::runtime {

// What one launch joins: at most generator::kMostMergeParts parts.
struct MergeTurn {
  std::size_t first;  // index of the first among the caller's parts; behind 0 that one is the result so far
  std::vector<Partial> parts;
};

// Points into its turn and the caller's tensors and lives no longer than these.
struct MergeCall {
  struct PartNames {
    std::string out, lse;  // for messages
  };

  std::vector<PartNames> names;
  Operands operands;  // of the parts, but for those that are joined in place, and of what is written
  std::span<const Partial> parts;
  const Tensor* out = nullptr;
  const Tensor* lse = nullptr;  // null: not written

  bool nothing_to_do() const noexcept { return out->shape[0] == 0 || out->shape[1] == 0 || out->shape[2] == 0; }
};

// Of the first part's output, whose device a new output goes to. Throws Error(invalid_argument).
Operands operands_of_first(const Partial& part);
// At least one. Throws Error(invalid_argument).
std::vector<MergeTurn> merge_turns(const std::vector<Partial>& parts, const Tensor& out,
                                   const std::optional<Tensor>& lse);
// Throws Error(invalid_argument).
MergeCall validate_merge(const MergeTurn& turn, const Tensor& out, const std::optional<Tensor>& lse);
// Throws Error(invalid_argument).
const generator::PlainKernel& merge_kernel(DType part, DType out, const Architecture& architecture,
                                           PlainKernels& kernels);
PlainLaunch make_merge_launch(const MergeCall& call, const Architecture& architecture, PlainKernels& kernels);

}  // namespace flashjit::runtime
