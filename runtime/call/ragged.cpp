// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/ragged.h"

#include <algorithm>

#include "runtime/call/tensor_dims.h"
#include "runtime/call/validate.h"

namespace flashjit::runtime {
namespace {

constexpr std::size_t kHeadBytes = alignof(generator::PlannedTile);

const int* ints_of(const Tensor* tensor) noexcept { return tensor ? static_cast<const int*>(tensor->data) : nullptr; }
int as_int(std::int64_t value) noexcept { return static_cast<int>(value); }

// With a window or chunks the keys that the queries of a tile see together.
std::int64_t most_keys(const Masks& masks, int block_rows) noexcept {
  constexpr std::int64_t kAll = generator::kWindowReach;
  return std::min(kAll, keys_of_query(masks, kAll) + block_rows);
}

std::int64_t keys_behind(const Masks& masks) noexcept {
  if (masks.causal) return 0;
  constexpr std::int64_t kAll = generator::kWindowReach;
  return masks.window.right < 0 ? kAll : std::min(masks.window.right, kAll);
}

}  // namespace

bool is_ragged(const AttentionOptions& opts) noexcept {
  return opts.cu_seqlens_q || opts.cu_seqlens_kv || opts.seqused_q || opts.seqused_kv || opts.leftpad_kv ||
         opts.batch_indices_kv;
}

bool lacks_batch(const Tensor& tensor, const std::optional<Tensor>& cu_seqlens) noexcept {
  return cu_seqlens && tensor.shape.size() == kRank - 1 && tensor.strides.size() == kRank - 1;
}

Tensor with_batch(const Tensor& tensor) {
  Dims shape(tensor.shape), strides(tensor.strides);
  const auto put_in_front = [](const Dims& of, std::int64_t value) {
    std::int64_t values[Dims::kMaxRank] = {value};
    std::copy(of.begin(), of.end(), values + 1);
    return Dims(values, static_cast<std::size_t>(of.size()) + 1);
  };
  const std::int64_t elements = tensor.shape.size() > 0 ? tensor.shape[0] * tensor.strides[0] : 1;
  return {tensor.data, tensor.dtype, put_in_front(shape, 1), put_in_front(strides, elements)};
}

CallWithBatch::CallWithBatch(const Tensor& of_q, const Tensor& of_k, const Tensor& of_v, const AttentionOptions& of)
    : q(lacks_batch(of_q, of.cu_seqlens_q) ? with_batch(of_q) : of_q),
      k(lacks_batch(of_k, of.cu_seqlens_kv) ? with_batch(of_k) : of_k),
      v(lacks_batch(of_v, of.cu_seqlens_kv) ? with_batch(of_v) : of_v),
      opts(of) {
  constexpr int kLseRank = 3;
  if (opts.lse && opts.cu_seqlens_q && opts.lse->shape.size() == kLseRank - 1 &&
      opts.lse->strides.size() == kLseRank - 1)
    opts.lse = with_batch(*opts.lse);
}

std::int64_t most_tiles(const ForwardCall& call, int block_rows, int packed_heads) noexcept {
  const std::int64_t rows = call.q->shape[seqlen_dim] * packed_heads;
  if (call.ragged.cu_seqlens_q) return rows / block_rows + call.batch;
  return (rows + block_rows - 1) / block_rows * call.batch;
}

std::size_t batch_plan_bytes(std::int64_t tiles) noexcept {
  return kHeadBytes + static_cast<std::size_t>(tiles) * sizeof(generator::PlannedTile);
}

generator::RaggedArguments ragged_arguments(const ForwardCall& call, std::byte* plan) noexcept {
  return {reinterpret_cast<const generator::PlannedTile*>(plan + kHeadBytes), reinterpret_cast<const unsigned*>(plan),
          as_int(call.q->shape[seqlen_dim]), as_int(call.k->shape[seqlen_dim])};
}

generator::BatchPlanMaker batch_plan_maker(const ForwardCall& call, std::byte* plan, std::int64_t tiles, int block_rows,
                                           int packed_heads_log2) noexcept {
  generator::BatchPlanMaker maker{};
  maker.count = reinterpret_cast<unsigned*>(plan);
  maker.tiles = reinterpret_cast<generator::PlannedTile*>(plan + kHeadBytes);
  maker.most_tiles = static_cast<unsigned>(tiles);
  maker.query_offsets = ints_of(call.ragged.cu_seqlens_q);
  maker.key_offsets = ints_of(call.ragged.cu_seqlens_kv);
  maker.used_queries = ints_of(call.ragged.seqused_q);
  maker.used_keys = ints_of(call.ragged.seqused_kv);
  maker.padding_keys = ints_of(call.ragged.leftpad_kv);
  maker.key_batches = ints_of(call.ragged.batch_indices_kv);
  maker.batch = as_int(call.batch);
  maker.query_rows = as_int(call.q->shape[seqlen_dim]);
  maker.key_rows = as_int(call.k->shape[seqlen_dim]);
  maker.key_batch_count = as_int(call.k->shape[batch_dim]);
  maker.block_rows = block_rows;
  maker.packed_heads_log2 = packed_heads_log2;
  maker.keys_behind = as_int(keys_behind(call.masks));
  maker.most_keys = as_int(most_keys(call.masks, block_rows));
  return maker;
}

}  // namespace flashjit::runtime
