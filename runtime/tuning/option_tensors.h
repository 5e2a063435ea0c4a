// SPDX-License-Identifier: Apache-2.0
// The options of a tuned call that are tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "flashjit/attention.h"
#include "flashjit/tensor.h"
#include "generator/functions.h"

namespace flashjit::runtime {

// Of a large call no more rows are checked: the last ones of a head, alone.
inline constexpr std::int64_t kMostCheckedRows = 16;

// An option that is a tensor, or what a function among the options captures. Rows of a large one share memory.
struct OptionTensor {
  Tensor in(const void* place) const { return {const_cast<void*>(place), memory.dtype(), shape, strides}; }
  Tensor view() const { return in(memory.data()); }
  void put_into(AttentionOptions& options, const void* place) const;

  std::optional<Tensor> AttentionOptions::*option;  // null: a capture
  HostTensor memory;
  Dims shape, strides;
  generator::FunctionKind function = {};  // score or mask, and ...
  const char* capture = nullptr;          // ... the name there
};

// One for each feature of the problem that has such.
std::vector<OptionTensor> make_option_tensors(const Problem& problem, const CallShape& shape);
// The last rows of the tree of so many tokens, as those of a tree with no others.
OptionTensor make_tree(std::int64_t tokens, std::int64_t rows);
// With a value for each element.
OptionTensor make_packed(std::optional<Tensor> AttentionOptions::*option, DType dtype, const Dims& shape,
                         const std::function<double(std::int64_t index)>& value);
// Throws Error(invalid_argument) when memory could never hold them.
std::int64_t element_count(DType dtype, const Dims& shape);

}  // namespace flashjit::runtime
