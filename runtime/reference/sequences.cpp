// SPDX-License-Identifier: Apache-2.0
#include "runtime/reference/sequences.h"

#include <algorithm>

#include "runtime/call/ragged.h"
#include "runtime/call/tensor_dims.h"
#include "runtime/support/reject.h"

namespace flashjit::reference {
namespace {

using namespace runtime;

std::int64_t at(const Tensor& values, std::int64_t index) {
  return static_cast<std::int64_t>(load_element(values.data, values.dtype, index * values.strides[0]));
}

void check_pages(const Tensor& k, std::int64_t batch, const AttentionOptions& opts) {
  const Tensor& table = *opts.page_table;
  if (table.dtype != DType::i32) reject("page_table: dtype must be i32, was {}", to_string(table.dtype));
  if (table.shape.size() != 2 || table.strides.size() != 2 || (!opts.batch_indices_kv && table.shape[0] != batch))
    reject("page_table: must have the shape [{}, entries], had {}", batch, to_string(table.shape));
  if (k.shape[seqlen_dim] == 0) reject("k: page_size must be at least 1, was 0");
  if (k.shape[batch_dim] == 0 && table.shape[1] > 0) reject("k: pages must be at least 1 beside page_table, was 0");
  require_no_other_places(opts);
  if (table.shape[0] * table.shape[1] > 0 && !table.data) reject("page_table: must point to host memory, was null");
}

// Those that the keys need.
void find_pages(SequenceRows& keys, const Tensor& k, const Tensor& table) {
  keys.page_size = k.shape[seqlen_dim];
  for (std::int64_t first = 0; first < keys.count; first += keys.page_size) {
    const std::int64_t entry = keys.batch * table.strides[0] + first / keys.page_size * table.strides[1];
    const auto page = static_cast<std::int64_t>(load_element(table.data, table.dtype, entry));
    keys.pages.push_back(std::clamp<std::int64_t>(page, 0, k.shape[batch_dim] - 1));
  }
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
std::int64_t rows_of_keys(const Tensor& k, const AttentionOptions& opts) {
  return key_rows(k, opts.page_table ? &*opts.page_table : nullptr);
}

}  // namespace

SequenceBounds sequence_bounds(const Tensor& q, const Tensor& k, const AttentionOptions& opts) {
  if (opts.page_table && opts.page_table->shape.size() != 2)
    reject("page_table: rank must be 2, was {}", opts.page_table->shape.size());
  if (opts.cu_seqlens_q && opts.cu_seqlens_q->shape.size() != 1)
    reject("cu_seqlens_q: rank must be 1, was {}", opts.cu_seqlens_q->shape.size());
  return {opts.cu_seqlens_q ? opts.cu_seqlens_q->shape[0] - 1 : q.shape[batch_dim],
          longest(opts.max_seqlen_q, q.shape[seqlen_dim]), longest(opts.max_seqlen_kv, rows_of_keys(k, opts))};
}

std::vector<SequencePlace> sequences_of(const Tensor& q, const Tensor& k, const AttentionOptions& opts) {
  const std::int64_t batch = sequence_bounds(q, k, opts).batch;
  check("cu_seqlens_q", opts.cu_seqlens_q, batch + 1);
  check("cu_seqlens_kv", opts.cu_seqlens_kv, batch + 1);
  check("seqused_q", opts.seqused_q, batch);
  check("seqused_kv", opts.seqused_kv, batch);
  check("leftpad_kv", opts.leftpad_kv, batch);
  check("batch_indices_kv", opts.batch_indices_kv, batch);
  if (opts.page_table) check_pages(k, batch, opts);
  const std::int64_t k_batch = opts.page_table ? opts.page_table->shape[0] : k.shape[batch_dim];
  if (opts.batch_indices_kv && batch > 0 && k_batch == 0)
    reject("{}: batch must be at least 1 beside batch_indices_kv, was 0", opts.page_table ? "page_table" : "k");
  if (opts.cu_seqlens_kv ? k_batch != 1 : !opts.batch_indices_kv && k_batch != batch)
    reject("k: batch must be {}, was {}", opts.cu_seqlens_kv ? 1 : batch, k_batch);
  std::vector<SequencePlace> places;
  for (std::int64_t i = 0; i < batch; ++i) {
    SequencePlace place{rows_of(i, q.shape[seqlen_dim], opts.cu_seqlens_q, opts.seqused_q),
                        rows_of(i, rows_of_keys(k, opts), opts.cu_seqlens_kv, opts.seqused_kv)};
    SequenceRows& keys = place.keys;
    if (opts.leftpad_kv) {
      const std::int64_t padding = std::clamp<std::int64_t>(at(*opts.leftpad_kv, i), 0, keys.count);
      keys.first += padding, keys.count -= padding;
    }
    if (opts.batch_indices_kv) keys.batch = std::clamp<std::int64_t>(at(*opts.batch_indices_kv, i), 0, k_batch - 1);
    if (opts.page_table) find_pages(keys, k, *opts.page_table);
    places.push_back(std::move(place));
  }
  return places;
}

}  // namespace flashjit::reference
