// SPDX-License-Identifier: Apache-2.0
#include "runtime/forward_arguments.h"

#include <algorithm>
#include <cmath>

namespace flashjit::runtime {
namespace {

constexpr float kLog2E = 1.4426950408889634f;
// In place of a scale of 0: the kernel multiplies masked scores of -infinity by it, and 0 would make them NaN.
constexpr float kSmallestScaleLog2 = 1e-37f;
constexpr std::uint32_t kNegatePair = 0x80008000;  // the sign bits of two 16-bit numbers
constexpr std::int64_t kSectionBytes = 32 << 20;   // of K and V that a run of heads keeps in L2

// In bytes. The stride of a dimension of size 1 or 0 may be anything and is never used.
std::int64_t byte_stride(const Tensor& tensor, int dim) {
  return tensor.shape[dim] > 1 ? tensor.strides[dim] * static_cast<std::int64_t>(size_of(tensor.dtype)) : 0;
}

generator::RowStrides row_strides(const Tensor& tensor) {
  return {byte_stride(tensor, 0), byte_stride(tensor, 1), byte_stride(tensor, 2)};
}

// Of [batch, head, row].
generator::RowStrides lse_strides(const Tensor& lse) {
  return {byte_stride(lse, 0), byte_stride(lse, 2), byte_stride(lse, 1)};
}

std::int32_t heads_per_section(const ForwardCall& call, std::int64_t heads_per_group) {
  const std::int64_t row_bytes =
      (call.problem.head_dim + call.problem.head_dim_v) * static_cast<std::int64_t>(size_of(call.problem.dtype));
  const std::int64_t head_bytes = std::max<std::int64_t>(1, call.seqlen_kv * row_bytes);
  const std::int64_t groups = std::clamp<std::int64_t>(kSectionBytes / head_bytes, 1, call.num_heads_kv);
  return static_cast<std::int32_t>(groups * heads_per_group);
}

}  // namespace

generator::ForwardArguments make_forward_arguments(const ForwardCall& call, int block_q) {
  const std::int64_t heads_per_group = call.num_heads_q / call.num_heads_kv;
  generator::ForwardArguments arguments{};
  arguments.q = call.q->data;
  arguments.k = call.k->data;
  arguments.v = call.v->data;
  arguments.out = call.out->data;
  arguments.q_strides = row_strides(*call.q);
  arguments.k_strides = row_strides(*call.k);
  arguments.v_strides = row_strides(*call.v);
  arguments.out_strides = row_strides(*call.out);
  if (call.lse) {
    arguments.lse = static_cast<float*>(call.lse->data);
    arguments.lse_strides = lse_strides(*call.lse);
  }
  arguments.scale_log2 = std::max(std::fabs(call.softmax_scale) * kLog2E, kSmallestScaleLog2);
  arguments.query_sign = call.softmax_scale < 0 ? kNegatePair : 0;
  arguments.batch = static_cast<std::int32_t>(call.batch);
  arguments.seqlen_q = static_cast<std::int32_t>(call.seqlen_q);
  arguments.seqlen_kv = static_cast<std::int32_t>(call.seqlen_kv);
  arguments.num_heads_q = static_cast<std::int32_t>(call.num_heads_q);
  arguments.heads_per_group = static_cast<std::int32_t>(heads_per_group);
  arguments.num_q_tiles = static_cast<std::int32_t>((call.seqlen_q + block_q - 1) / block_q);
  arguments.heads_per_section = heads_per_section(call, heads_per_group);
  return arguments;
}

}  // namespace flashjit::runtime
