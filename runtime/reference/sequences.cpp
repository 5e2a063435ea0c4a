// SPDX-License-Identifier: Apache-2.0
#include "runtime/reference/sequences.h"

#include <algorithm>

#include "runtime/call/tensor_dims.h"
#include "runtime/support/reject.h"

namespace flashjit::reference {
namespace {

using namespace runtime;

std::int64_t at(const Tensor& values, std::int64_t index) {
  return static_cast<std::int64_t>(load_element(values.data, values.dtype, index * values.strides[0]));
}

void check(const char* name, const std::optional<Tensor>& values, std::int64_t wanted) {
  if (!values) return;
  if (values->dtype != DType::i32) reject("{}: dtype must be i32, was {}", name, to_string(values->dtype));
  if (values->shape != Dims{wanted} || values->strides.size() != 1)
    reject("{}: must have the shape [{}], had {}", name, wanted, to_string(values->shape));
  if (wanted > 0 && !values->data) reject("{}: must point to host memory, was null", name);
}

SequenceRows rows_of(std::int64_t sequence, std::int64_t rows, const std::optional<Tensor>& offsets,
                     const std::optional<Tensor>& used) {
  SequenceRows of{offsets ? 0 : sequence, 0, rows};
  if (offsets) {
    of.first = std::clamp<std::int64_t>(at(*offsets, sequence), 0, rows);
    of.count = std::clamp(at(*offsets, sequence + 1), of.first, rows) - of.first;
  }
  if (used) of.count = std::min(of.count, std::max<std::int64_t>(at(*used, sequence), 0));
  return of;
}

std::int64_t longest(std::int64_t bound, std::int64_t rows) { return bound > 0 ? std::min(bound, rows) : rows; }

}  // namespace

SequenceBounds sequence_bounds(const Tensor& q, const Tensor& k, const AttentionOptions& opts) {
  if (opts.cu_seqlens_q && opts.cu_seqlens_q->shape.size() != 1)
    reject("cu_seqlens_q: rank must be 1, was {}", opts.cu_seqlens_q->shape.size());
  return {opts.cu_seqlens_q ? opts.cu_seqlens_q->shape[0] - 1 : q.shape[batch_dim],
          longest(opts.max_seqlen_q, q.shape[seqlen_dim]), longest(opts.max_seqlen_kv, k.shape[seqlen_dim])};
}

std::vector<SequencePlace> sequences_of(const Tensor& q, const Tensor& k, const AttentionOptions& opts) {
  const std::int64_t batch = sequence_bounds(q, k, opts).batch;
  check("cu_seqlens_q", opts.cu_seqlens_q, batch + 1);
  check("cu_seqlens_kv", opts.cu_seqlens_kv, batch + 1);
  check("seqused_q", opts.seqused_q, batch);
  check("seqused_kv", opts.seqused_kv, batch);
  check("leftpad_kv", opts.leftpad_kv, batch);
  check("batch_indices_kv", opts.batch_indices_kv, batch);
  const std::int64_t k_batch = k.shape[batch_dim];
  if (opts.cu_seqlens_kv ? k_batch != 1 : !opts.batch_indices_kv && k_batch != batch)
    reject("k: batch must be {}, was {}", opts.cu_seqlens_kv ? 1 : batch, k_batch);
  std::vector<SequencePlace> places;
  for (std::int64_t i = 0; i < batch; ++i) {
    SequencePlace place{rows_of(i, q.shape[seqlen_dim], opts.cu_seqlens_q, opts.seqused_q),
                        rows_of(i, k.shape[seqlen_dim], opts.cu_seqlens_kv, opts.seqused_kv)};
    SequenceRows& keys = place.keys;
    if (opts.leftpad_kv) {
      const std::int64_t padding = std::clamp<std::int64_t>(at(*opts.leftpad_kv, i), 0, keys.count);
      keys.first += padding, keys.count -= padding;
    }
    if (opts.batch_indices_kv) keys.batch = std::clamp<std::int64_t>(at(*opts.batch_indices_kv, i), 0, k_batch - 1);
    places.push_back(place);
  }
  return places;
}

}  // namespace flashjit::reference
