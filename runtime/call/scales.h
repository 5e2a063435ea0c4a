// SPDX-License-Identifier: Apache-2.0
// The scales that keys and values of e4m3 are stored with, as kernels and the reference take them: in one form.
#pragma once

#include <optional>

#include "flashjit/tensor.h"
#include "generator/arguments.h"
#include "runtime/call/operands.h"

namespace flashjit::runtime {

// As a caller gives them; the tensors are optional.
struct GivenScales {
  const std::optional<Tensor>&k, &v;

  // Whether each key of a head has one of its own.
  bool of_tokens() const noexcept { return k && k->shape.size() > 1; }
};

// rows: k as [batch, seqlen, num_heads, head_dim], called rows_name. Throws Error(invalid_argument).
void check_scales(const GivenScales& scales, const char* rows_name, const Tensor& rows);
// Adds those that there are to the operands of a call.
void add_scales(Operands& operands, const GivenScales& scales, bool written);

// Whether one of those beside q of e4m3 is of blocks of rows.
bool is_of_blocks(const std::optional<Tensor>& scale) noexcept;
// One of those beside q of e4m3: of so many sequences, and of heads, or blocks, of rows, called rows_name. Throws
// Error(invalid_argument).
void check_head_scale(const char* name, const Tensor& scale, const char* rows_name, const Tensor& rows,
                      std::int64_t batch, bool is_ragged);

// Checked scales as [batch, seqlen, num_heads], with strides of 0 where one stands for all. Without data where there is
// none, which means 1.
Tensor in_one_form(const std::optional<Tensor>& scale, const Tensor& rows) noexcept;
// The same of those beside q of e4m3: batch entries are sequences, and rows blocks.
Tensor head_scales_in_one_form(const std::optional<Tensor>& scale, const Tensor& rows) noexcept;
generator::ScaleTensor scale_tensor(const Tensor& in_one_form) noexcept;

}  // namespace flashjit::runtime
