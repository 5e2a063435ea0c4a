// SPDX-License-Identifier: Apache-2.0
#include "runtime/reference/check_call.h"

#include <cmath>

#include "generator/dtype.h"
#include "runtime/call/masks.h"
#include "runtime/call/ragged.h"
#include "runtime/call/scales.h"
#include "runtime/call/scores.h"
#include "runtime/call/tensor_dims.h"
#include "runtime/reference/reference_tensors.h"
#include "runtime/reference/sequences.h"
#include "runtime/support/byte_count.h"
#include "runtime/support/reject.h"

namespace flashjit::reference {

using namespace runtime;

namespace {

void check_view(const char* name, const Tensor& tensor) {
  if (tensor.shape.size() != kRank) {
    reject("{}: rank must be {}, was {} with shape {}", name, kRank, tensor.shape.size(), to_string(tensor.shape));
  }
  if (tensor.strides.size() != kRank) {
    reject("{}: must have {} strides like its shape, had {}", name, kRank, tensor.strides.size());
  }
  const std::size_t bytes = byte_count(name, tensor.dtype, tensor.shape);
  if (tensor.shape[head_dim_dim] == 0) reject("{}: head_dim must be at least 1, was 0", name);
  if (bytes > 0 && !tensor.data) reject("{}: must point to host memory, was null", name);
}

void check_like(const char* name, const Tensor& tensor, Dim dim, const char* other_name, const Tensor& other) {
  if (tensor.shape[dim] == other.shape[dim]) return;
  reject("{}: {} must be {} like that of {}, was {}", name, kDimNames[dim], other.shape[dim], other_name,
         tensor.shape[dim]);
}

void check_dtype(const char* name, const Tensor& tensor, const char* other_name, const Tensor& other) {
  if (tensor.dtype == other.dtype) return;
  reject("{}: dtype must be {} like that of {}, was {}", name, to_string(other.dtype), other_name,
         to_string(tensor.dtype));
}

void check_of_heads(const char* name, const std::optional<Tensor>& given, const Tensor& q, std::int64_t batch) {
  if (!given) return;
  const Tensor& values = *given;
  const int rank = values.shape.size();
  const Dims wanted = rank == 1 ? Dims{q.shape[heads_dim]} : Dims{batch, q.shape[heads_dim]};
  if (values.dtype != DType::f32) reject("{}: dtype must be f32, was {}", name, to_string(values.dtype));
  if (values.shape != wanted || values.strides.size() != rank)
    reject("{}: must be [{}] or [{}, {}], the heads of q and its batch, had shape {} and strides {}", name,
           q.shape[heads_dim], batch, q.shape[heads_dim], to_string(values.shape), to_string(values.strides));
  if (byte_count(name, values.dtype, values.shape) > 0 && !values.data)
    reject("{}: must point to host memory, was null", name);
}

void check_k_rotary(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& k_rotary) {
  check_view("k_rotary", k_rotary);
  if (generator::is_of_8_bits(q.dtype)) reject("k_rotary: must not be given beside q of {}", to_string(q.dtype));
  check_dtype("k_rotary", k_rotary, "q", q);
  for (const Dim dim : {batch_dim, seqlen_dim, heads_dim}) check_like("k_rotary", k_rotary, dim, "k", k);
  check_like("k", k, head_dim_dim, "v", v);
  const std::int64_t columns = k.shape[head_dim_dim], rotary = k_rotary.shape[head_dim_dim];
  if (q.shape[head_dim_dim] != columns + rotary)
    reject("q: head_dim must be {}, the {} of k and the {} of k_rotary, was {}", columns + rotary, columns, rotary,
           q.shape[head_dim_dim]);
}

void check_out_scale(const Tensor& scale) {
  if (scale.dtype != DType::f32) reject("out_scale: dtype must be f32, was {}", to_string(scale.dtype));
  if (scale.shape != Dims{1}) reject("out_scale: must be [1], had shape {}", to_string(scale.shape));
  if (!scale.data) reject("out_scale: must point to host memory, was null");
}

void check_head_scales(const Tensor& q, const Tensor& k, const AttentionOptions& opts, std::int64_t batch) {
  if (opts.q_scale) check_head_scale("q_scale", *opts.q_scale, "q", q, batch, is_ragged(opts));
  if (opts.k_scale) check_head_scale("k_scale", *opts.k_scale, "k", k, batch, is_ragged(opts));
  if (opts.v_scale) check_head_scale("v_scale", *opts.v_scale, "v", k, batch, is_ragged(opts));
}

}  // namespace

void check_functions(const AttentionOptions& opts) {
  for (const char* name : {opts.score ? "score" : nullptr, opts.mask ? "mask" : nullptr})
    if (name)
      throw Error(ErrorCode::unsupported,
                  fmt::format("{}: must not be given to reference::attention, which has no compiler; "
                              "Engine::reference takes it",
                              name));
  for (const char* name : {opts.query_offsets ? "query_offsets" : nullptr, opts.key_offsets ? "key_offsets" : nullptr})
    if (name) reject("{}: must not be given without score or mask, which see them", name);
}

void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts) {
  check_view("q", q);
  check_view("k", k);
  check_view("v", v);
  const bool is_q_of_8_bits = generator::is_of_8_bits(q.dtype), is_k_of_8_bits = generator::is_of_8_bits(k.dtype);
  if (q.dtype > DType::f32 && q.dtype != DType::f64 && !is_q_of_8_bits)
    reject("q: dtype must be f16, bf16, f32, f64, e4m3 or e5m2, was {}", to_string(q.dtype));
  require_e4m3_options(opts, q.dtype);
  if (opts.out_scale) check_out_scale(*opts.out_scale);
  if (is_q_of_8_bits || !is_k_of_8_bits) check_dtype("k", k, "q", q);
  check_dtype("v", v, is_k_of_8_bits ? "k" : "q", is_k_of_8_bits ? k : q);
  if (!is_q_of_8_bits) check_scales({opts.k_scale, opts.v_scale}, "k", k);
  if (!is_ragged(opts)) check_like("k", k, batch_dim, "q", q);
  if (opts.k_rotary)
    check_k_rotary(q, k, v, *opts.k_rotary);
  else
    check_like("k", k, head_dim_dim, "q", q);
  if (is_ragged(opts))
    check_like("v", v, batch_dim, "k", k);
  else
    check_like("v", v, batch_dim, "q", q);
  check_like("v", v, seqlen_dim, "k", k);
  check_like("v", v, heads_dim, "k", k);
  const std::int64_t heads_q = q.shape[heads_dim], heads_kv = k.shape[heads_dim];
  if (heads_q > 0 && (heads_kv == 0 || heads_q % heads_kv != 0)) {
    reject("k: num_heads must divide the {} of q, was {}", heads_q, heads_kv);
  }
  if (opts.softmax_scale && !std::isfinite(*opts.softmax_scale)) {
    reject("softmax_scale: must be finite, was {}", *opts.softmax_scale);
  }
  // These refuse what no call may have.
  masks_of(opts);
  softmax_scale_of(opts, q.shape[head_dim_dim]);
  const SequenceBounds bounds = sequence_bounds(q, k, opts);
  if (is_q_of_8_bits) check_head_scales(q, k, opts, bounds.batch);
  check_of_heads("alibi_slopes", opts.alibi_slopes, q, bounds.batch);
  check_of_heads("sinks", opts.sinks, q, bounds.batch);
  check_tensors_of_scores(opts, bounds, q.shape[heads_dim]);
}

}  // namespace flashjit::reference
