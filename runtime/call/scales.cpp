// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/scales.h"

#include <fmt/format.h>

#include <string>

#include "generator/arguments.h"
#include "generator/dtype.h"
#include "runtime/call/tensor_dims.h"
#include "runtime/support/ceil_quotient.h"
#include "runtime/support/reject.h"

namespace flashjit::runtime {
namespace {

constexpr int kRankOfTokens = kRank - 1;
constexpr const char* kOfTokensDimNames[] = {"batch", "seqlen", "num_heads"};
constexpr Rules kOfTokensRules{kOfTokensDimNames, kRankOfTokens, 1, sizeof(float), false};

void check_scale(const char* name, const Tensor& scale, const char* rows_name, const Tensor& rows) {
  if (scale.dtype != DType::f32) reject("{}: dtype must be f32, was {}", name, to_string(scale.dtype));
  const std::int64_t heads = rows.shape[heads_dim];
  if (scale.shape.size() == 1) {
    if (scale.shape[0] != 1 && scale.shape[0] != heads)
      reject("{}: must have 1 element, or one for each of the {} heads of {}, had {}", name, heads, rows_name,
             scale.shape[0]);
    return check_shape(name, scale, captured_rules(scale, false));
  }
  if (scale.shape.size() != kRankOfTokens)
    reject("{}: must be [1], [num_heads], or {} without its last dimension, had rank {} with shape {}", name, rows_name,
           scale.shape.size(), to_string(scale.shape));
  check_shape(name, scale, kOfTokensRules);
  for (const Dim dim : {batch_dim, seqlen_dim, heads_dim})
    require_size(name, scale, kOfTokensRules, dim, rows.shape[dim], rows_name);
}

// Of scales of that rank; below 0: none.
int own_dim(int rank, Dim dim) noexcept {
  if (rank == 1) return dim - heads_dim;
  if (rank == 2) return dim == batch_dim ? 0 : dim == heads_dim ? 1 : -1;
  return dim;
}
// Of [batch, num_heads, blocks], and of what has fewer of these.
int own_dim_of_head_scales(int rank, Dim dim) noexcept {
  if (rank < kRankOfTokens) return own_dim(rank, dim);
  return dim == batch_dim ? 0 : dim == heads_dim ? 1 : 2;
}

template <class OwnDim>
Tensor form_of(const std::optional<Tensor>& scale, const Tensor& rows, OwnDim own_dim_of) noexcept {
  if (!scale) return {};
  Tensor form{scale->data, scale->dtype, {rows.shape[batch_dim], rows.shape[seqlen_dim], rows.shape[heads_dim]}};
  for (const Dim dim : {batch_dim, seqlen_dim, heads_dim}) {
    const int own = own_dim_of(scale->shape.size(), dim);
    form.strides[dim] = own >= 0 && scale->shape[own] > 1 ? scale->strides[own] : 0;
  }
  return form;
}

}  // namespace

void check_scales(const GivenScales& scales, const char* rows_name, const Tensor& rows) {
  if (!scales.k && !scales.v) return;
  const char* const first = scales.k ? "k_scale" : "v_scale";
  if (!generator::is_of_8_bits(rows.dtype))
    reject("{}: must not be given unless {} is of e4m3 or e5m2, which was of {}", first, rows_name,
           to_string(rows.dtype));
  if (!scales.k || !scales.v) reject("{}: must be given beside {}, was not", scales.k ? "v_scale" : "k_scale", first);
  check_scale("k_scale", *scales.k, rows_name, rows);
  check_scale("v_scale", *scales.v, rows_name, rows);
  if (scales.of_tokens() != (scales.v->shape.size() > 1))
    reject("v_scale: must have one number for each token like k_scale, or neither, had the shapes {} and {}",
           to_string(scales.v->shape), to_string(scales.k->shape));
}

bool is_of_blocks(const std::optional<Tensor>& scale) noexcept { return scale && scale->shape.size() == kRankOfTokens; }

void check_head_scale(const char* name, const Tensor& scale, const char* rows_name, const Tensor& rows,
                      std::int64_t batch, bool is_ragged) {
  if (is_ragged && scale.shape.size() == kRankOfTokens)
    reject("{}: must not be of blocks of rows where sequences have different lengths, had shape {}", name,
           to_string(scale.shape));
  const std::int64_t heads = rows.shape[heads_dim],
                     blocks = ceil_quotient(rows.shape[seqlen_dim], std::int64_t{generator::kRowsOfScale});
  if (scale.dtype != DType::f32) reject("{}: dtype must be f32, was {}", name, to_string(scale.dtype));
  const bool is_one = scale.shape == Dims{1}, is_of_heads = scale.shape == Dims{heads};
  if (!is_one && !is_of_heads && scale.shape != Dims{batch, heads} && scale.shape != Dims{batch, heads, blocks}) {
    const std::string of_blocks = is_ragged ? ""
                                            : fmt::format(", or [{}, {}, {}], of blocks of {} rows", batch, heads,
                                                          blocks, generator::kRowsOfScale);
    reject("{}: must be [1], [{}] or [{}, {}], the heads of {} and the batch{}, had shape {}", name, heads, batch,
           heads, rows_name, of_blocks, to_string(scale.shape));
  }
  check_shape(name, scale, captured_rules(scale, false));
}

void add_scales(Operands& operands, const GivenScales& scales, bool written) {
  if (scales.k) add_operand(operands, "k_scale", *scales.k, Operand::Role::captured, written);
  if (scales.v) add_operand(operands, "v_scale", *scales.v, Operand::Role::captured, written);
}

Tensor in_one_form(const std::optional<Tensor>& scale, const Tensor& rows) noexcept {
  return form_of(scale, rows, own_dim);
}
Tensor head_scales_in_one_form(const std::optional<Tensor>& scale, const Tensor& rows) noexcept {
  return form_of(scale, rows, own_dim_of_head_scales);
}

generator::ScaleTensor scale_tensor(const Tensor& in_one_form) noexcept {
  if (!in_one_form.data) return {};
  constexpr std::int64_t kElement = sizeof(float);
  const Dims& strides = in_one_form.strides;
  return {static_cast<const char*>(in_one_form.data),
          {strides[batch_dim] * kElement, strides[seqlen_dim] * kElement, strides[heads_dim] * kElement}};
}

}  // namespace flashjit::runtime
