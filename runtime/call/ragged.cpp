// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/ragged.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "generator/dtype.h"
#include "runtime/call/forward_arguments.h"
#include "runtime/call/tensor_dims.h"
#include "runtime/call/validate.h"
#include "runtime/support/ceil_quotient.h"
#include "runtime/support/reject.h"

namespace flashjit::runtime {
namespace {

constexpr std::size_t kHeadBytes = sizeof(generator::BatchPlanHead);

const int* ints_of(const Tensor* tensor) noexcept { return tensor ? static_cast<const int*>(tensor->data) : nullptr; }
int as_int(std::int64_t value) noexcept { return static_cast<int>(value); }

bool lse_lacks_batch(const AttentionOptions& opts) noexcept {
  constexpr int kRankWithout = kLseRules.rank - 1;
  return opts.lse && opts.cu_seqlens_q && opts.lse->shape.size() == kRankWithout &&
         opts.lse->strides.size() == kRankWithout;
}

// Of tokens, which calls with q of e4m3 have not.
bool scale_lacks_batch(const std::optional<Tensor>& scale, const Tensor& q, const AttentionOptions& opts) noexcept {
  return scale && !generator::is_of_8_bits(q.dtype) && opts.cu_seqlens_kv && scale->shape.size() == 2 &&
         scale->strides.size() == 2;
}

Dims with_in_front(std::int64_t value, const Dims& dims) {
  std::int64_t values[Dims::kMaxRank] = {value};
  std::copy(dims.begin(), dims.end(), values + 1);
  return {values, static_cast<std::size_t>(dims.size()) + 1};
}

}  // namespace

bool is_ragged(const AttentionOptions& opts) noexcept {
  return opts.cu_seqlens_q || opts.cu_seqlens_kv || opts.seqused_q || opts.seqused_kv || opts.leftpad_kv ||
         opts.batch_indices_kv || opts.page_table;
}

void require_no_other_places(const AttentionOptions& opts) {
  if (!opts.page_table) return;
  for (const auto& [name, other] : {std::pair{"cu_seqlens_kv", &opts.cu_seqlens_kv}, {"leftpad_kv", &opts.leftpad_kv}})
    if (*other) reject("{}: must not be given beside page_table, which says where keys lie", name);
}

bool lacks_batch(const Tensor& tensor, const std::optional<Tensor>& cu_seqlens) noexcept {
  return cu_seqlens && tensor.shape.size() == kRank - 1 && tensor.strides.size() == kRank - 1;
}

// The stride of a dimension of size 1 is never used.
Tensor with_batch(const Tensor& tensor) {
  return {tensor.data, tensor.dtype, with_in_front(1, tensor.shape), with_in_front(0, tensor.strides)};
}

Dims without_batch(const Dims& dims) { return {dims.begin() + 1, static_cast<std::size_t>(dims.size()) - 1}; }

bool CallWithBatch::is_needed(const Tensor& q, const Tensor& k, const Tensor& v,
                              const AttentionOptions& opts) noexcept {
  return lacks_batch(q, opts.cu_seqlens_q) || lacks_batch(k, opts.cu_seqlens_kv) ||
         lacks_batch(v, opts.cu_seqlens_kv) || lse_lacks_batch(opts) || scale_lacks_batch(opts.k_scale, q, opts) ||
         scale_lacks_batch(opts.v_scale, q, opts) || (opts.k_rotary && lacks_batch(*opts.k_rotary, opts.cu_seqlens_kv));
}

CallWithBatch::CallWithBatch(const Tensor& of_q, const Tensor& of_k, const Tensor& of_v, const Tensor& of_out,
                             const AttentionOptions& of)
    : q(of_q), k(of_k), v(of_v), out(of_out), opts(of) {
  // An output lacks it if q does: else its rank is wrong.
  if (lacks_batch(q, of.cu_seqlens_q) && lacks_batch(out, of.cu_seqlens_q)) out = with_batch(out);
  if (lacks_batch(q, of.cu_seqlens_q)) q = with_batch(q);
  if (lacks_batch(k, of.cu_seqlens_kv)) k = with_batch(k);
  if (lacks_batch(v, of.cu_seqlens_kv)) v = with_batch(v);
  if (lse_lacks_batch(of)) opts.lse = with_batch(*of.lse);
  if (scale_lacks_batch(of.k_scale, of_q, of)) opts.k_scale = with_batch(*of.k_scale);
  if (scale_lacks_batch(of.v_scale, of_q, of)) opts.v_scale = with_batch(*of.v_scale);
  if (of.k_rotary && lacks_batch(*of.k_rotary, of.cu_seqlens_kv)) opts.k_rotary = with_batch(*of.k_rotary);
}

std::int64_t most_clusters(const ForwardCall& call, const Tiling& tiling) noexcept {
  const std::int64_t rows = call.q->shape[seqlen_dim] * tiling.packed_heads;
  if (call.ragged.cu_seqlens_q) return rows / tiling.cluster_rows() + call.batch;
  return ceil_quotient(rows, tiling.cluster_rows()) * call.batch;
}

std::size_t batch_plan_bytes(std::int64_t tiles) noexcept {
  return kHeadBytes + static_cast<std::size_t>(tiles) * sizeof(generator::PlannedTile);
}
std::size_t batch_plan_bytes(const ForwardCall& call, const Tiling& tiling, std::int64_t more_tiles) noexcept {
  return batch_plan_bytes(most_clusters(call, tiling) + more_tiles);
}
generator::BatchPlanHead* batch_plan_head(std::byte* plan) noexcept {
  return reinterpret_cast<generator::BatchPlanHead*>(plan);
}
generator::PlannedTile* batch_plan_tiles(std::byte* plan) noexcept {
  return reinterpret_cast<generator::PlannedTile*>(plan + kHeadBytes);
}

std::int64_t key_rows(const Tensor& k, const Tensor* page_table) noexcept {
  return page_table ? page_table->shape[1] * k.shape[seqlen_dim] : k.shape[seqlen_dim];
}

generator::SequenceRows query_rows(const ForwardCall& call) noexcept {
  return {.offsets = ints_of(call.ragged.cu_seqlens_q),
          .used = ints_of(call.ragged.seqused_q),
          .padding = nullptr,
          .rows = as_int(call.q->shape[seqlen_dim])};
}
generator::SequenceRows key_rows(const ForwardCall& call) noexcept {
  return {.offsets = ints_of(call.ragged.cu_seqlens_kv),
          .used = ints_of(call.ragged.seqused_kv),
          .padding = ints_of(call.ragged.leftpad_kv),
          .rows = as_int(key_rows(*call.k, call.ragged.page_table))};
}

generator::PagedArguments paged_arguments(const ForwardCall& call) noexcept {
  constexpr int kKeyBits = 31;
  const Tensor& table = *call.ragged.page_table;
  const auto page_size = static_cast<std::uint64_t>(call.k->shape[seqlen_dim]);
  const int shift = kKeyBits + std::bit_width(page_size - 1);
  const std::uint64_t magic = ((std::uint64_t{1} << shift) + page_size - 1) / page_size;
  return {.table = ints_of(&table),
          .row_stride = table.shape[0] > 1 ? table.strides[0] : 0,
          .pages = as_int(call.k->shape[batch_dim]),
          .page_size = static_cast<int>(page_size),
          .magic = static_cast<unsigned>(magic),
          .shift = shift,
          .box_rows = page_box_rows(*call.k)};
}

int page_box_rows(const Tensor& k) noexcept {
  return 1 << std::countr_zero(static_cast<std::uint64_t>(k.shape[seqlen_dim]));
}

generator::RaggedArguments ragged_arguments(const ForwardCall& call, std::byte* plan) noexcept {
  return {batch_plan_tiles(plan), batch_plan_head(plan), as_int(call.q->shape[seqlen_dim]),
          as_int(call.k->shape[seqlen_dim])};
}

generator::BatchPlanMaker batch_plan_maker(const ForwardCall& call, std::byte* plan, const Tiling& tiling) noexcept {
  generator::BatchPlanMaker maker{};
  maker.head = batch_plan_head(plan);
  maker.tiles = batch_plan_tiles(plan);
  maker.most_tiles = static_cast<unsigned>(most_clusters(call, tiling));
  maker.queries = query_rows(call), maker.keys = key_rows(call);
  maker.key_batches = ints_of(call.ragged.batch_indices_kv);
  maker.batch = as_int(call.batch);
  maker.key_batch_count = as_int(call.ragged.page_table ? call.ragged.page_table->shape[0] : call.k->shape[batch_dim]);
  maker.block_rows = tiling.cluster_rows();
  maker.packed_heads_log2 = tiling.packed_heads_log2();
  maker.groups = as_int(call.num_heads_kv);
  maker.heads_per_group = as_int(call.num_heads_q / call.num_heads_kv / tiling.packed_heads);
  maker.section_keys = as_int(kSectionBytes / row_bytes(call.problem));
  maker.section_tiles = as_int(kSectionTiles);
  maker.section_heads = as_int(kSectionHeads);
  return maker;
}

}  // namespace flashjit::runtime
