// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/ragged_backward.h"

#include <algorithm>

#include "generator/backward.h"
#include "runtime/call/backward_kernels.h"
#include "runtime/call/forward_arguments.h"
#include "runtime/call/tensor_dims.h"
#include "runtime/support/ceil_quotient.h"
#include "runtime/support/reject.h"

namespace flashjit::runtime {
namespace {

bool lse_lacks_batch(const Tensor& lse, const AttentionOptions& opts) noexcept {
  constexpr int kRankWithout = kLseRules.rank - 1;
  return opts.cu_seqlens_q && lse.shape.size() == kRankWithout && lse.strides.size() == kRankWithout;
}

void add_batch(std::optional<Tensor>& tensor, const std::optional<Tensor>& cu_seqlens) {
  if (tensor && lacks_batch(*tensor, cu_seqlens)) tensor = with_batch(*tensor);
}

std::int64_t places(const Tensor& tensor, const Tensor* offsets, std::int64_t sequences, std::int64_t block) {
  const std::int64_t rows = tensor.shape[seqlen_dim];
  return offsets ? rows / block + sequences : ceil_quotient(rows, block);
}

Tiling row_tiling(const BackwardCall& call) {
  const int block_q = generator::block_q(call.variant);
  return {.block_q = is_whole(call) ? generator::backward_job_rows(block_q) : block_q};
}

std::byte* bytes_of(const Tensor& list) { return static_cast<std::byte*>(list.data); }
Tensor list_of(std::int64_t tiles) {
  const auto bytes = static_cast<std::int64_t>(batch_plan_bytes(tiles));
  return Tensor(nullptr, DType::f32, {bytes / static_cast<std::int64_t>(sizeof(float))});
}

// Of the batch with queries and keys exchanged.
generator::BatchPlanMaker key_tiles_maker(const BackwardCall& call) {
  const ForwardCall& forward = call.forward;
  const std::int64_t group = forward.num_heads_kv > 0 ? forward.num_heads_q / forward.num_heads_kv : 1;
  generator::BatchPlanMaker maker{};
  maker.head = batch_plan_head(bytes_of(call.scratch.key_tiles));
  maker.tiles = batch_plan_tiles(bytes_of(call.scratch.key_tiles));
  maker.most_tiles = static_cast<unsigned>(most_key_tiles(call));
  maker.queries = key_rows(forward), maker.keys = query_rows(forward);
  if (forward.num_heads_q == 0) maker.keys.rows = 0;
  maker.batch = static_cast<int>(forward.batch);
  maker.key_batch_count = static_cast<int>(call.given.q.shape[batch_dim]);
  maker.block_rows = generator::block_kv(call.variant);
  maker.groups = static_cast<int>(forward.num_heads_kv);
  maker.heads_per_group = 1;
  maker.section_keys =
      static_cast<int>(kSectionBytes / (row_bytes(forward.problem) * std::max<std::int64_t>(group, 1)));
  maker.section_tiles = static_cast<int>(kSectionTiles);
  maker.section_heads = static_cast<int>(kSectionHeads);
  return maker;
}

PlainLaunch make_list_launch(const generator::BatchPlanMaker& maker, const Architecture& architecture,
                             PlainKernels& kernels) {
  PlainLaunch made = plain_launch(key_tiles_kernel(architecture, kernels), 1, "k");
  made.launch.write_argument(0, maker);
  return made;
}

PlainLaunch make_clear_rows_launch(const char* name, const Tensor& rows, const Architecture& architecture,
                                   PlainKernels& kernels) {
  constexpr std::int64_t kChunkElements = 8;
  const Dims& shape = rows.shape;
  generator::BackwardClearRowsArguments arguments{};
  arguments.chunks = static_cast<int>(shape[head_dim_dim] / kChunkElements);
  arguments.rows = {.count = shape[batch_dim] * shape[heads_dim] * shape[seqlen_dim],
                    .seqlen = static_cast<int>(shape[seqlen_dim]),
                    .padded_seqlen = static_cast<int>(shape[seqlen_dim]),
                    .num_heads = static_cast<int>(shape[heads_dim]),
                    .lanes_log2 = row_lanes_log2(arguments.chunks)};
  arguments.to = static_cast<char*>(rows.data);
  arguments.strides = row_strides(rows);
  const generator::PlainKernel& kernel = backward_clear_rows_kernel(rows.dtype, architecture, kernels);
  const std::int64_t rows_of_block = kernel.threads >> arguments.rows.lanes_log2;
  PlainLaunch made = plain_launch(kernel, ceil_quotient(arguments.rows.count, rows_of_block), name);
  made.launch.write_argument(0, arguments);
  return made;
}

}  // namespace

bool GradientsWithBatch::is_needed(const GivenGradients& given) noexcept {
  return CallWithBatch::is_needed(given.q, given.k, given.v, given.opts);
}

GradientsWithBatch::GradientsWithBatch(const GivenGradients& given)
    : call(given.q, given.k, given.v, given.out, given.opts),
      dout(given.dout),
      lse(given.lse),
      into(given.into),
      backward(given.backward) {
  const AttentionOptions& opts = given.opts;
  if (lacks_batch(dout, opts.cu_seqlens_q)) dout = with_batch(dout);
  if (lse_lacks_batch(lse, opts)) lse = with_batch(lse);
  if (backward.dlse && lse_lacks_batch(*backward.dlse, opts)) backward.dlse = with_batch(*backward.dlse);
  add_batch(into.dq, opts.cu_seqlens_q);
  add_batch(into.dk, opts.cu_seqlens_kv);
  add_batch(into.dv, opts.cu_seqlens_kv);
}

void check_places_of_gradients(const AttentionOptions& opts) {
  struct Row {
    const char* name;
    const std::optional<Tensor>& option;
  };
  for (const auto& [name, option] : {Row{"batch_indices_kv", opts.batch_indices_kv}, {"page_table", opts.page_table}})
    if (option)
      throw Error(ErrorCode::unsupported, fmt::format("{}: must not be given, it has no backward kernels yet", name));
}

bool wants_row_tiles(const BackwardCall& call) {
  return call.forward.problem.ragged && (is_whole(call) || (is_in_passes(call) && call.given.into.dq));
}
std::int64_t most_query_tiles(const BackwardCall& call) { return most_clusters(call.forward, row_tiling(call)); }
std::int64_t query_places(const BackwardCall& call) {
  return places(call.given.q, call.forward.ragged.cu_seqlens_q, call.forward.batch, generator::block_q(call.variant));
}
std::int64_t key_places(const BackwardCall& call) {
  return places(call.given.k, call.forward.ragged.cu_seqlens_kv, call.forward.batch, generator::block_kv(call.variant));
}
std::int64_t most_key_tiles(const BackwardCall& call) {
  const std::int64_t entries = call.forward.ragged.cu_seqlens_kv ? 1 : call.forward.batch;
  return entries * key_places(call);
}

Tensor key_tile_list(const BackwardCall& call) {
  return call.forward.problem.ragged ? list_of(most_key_tiles(call)) : Tensor();
}
Tensor row_tile_list(const BackwardCall& call) {
  return wants_row_tiles(call) ? list_of(most_clusters(call.forward, row_tiling(call))) : Tensor();
}
generator::BackwardRowTiles row_tiles(const BackwardCall& call) {
  return {ragged_arguments(call.forward, bytes_of(call.scratch.row_tiles))};
}

PlainLaunch make_key_tiles_launch(const BackwardCall& call, const Architecture& architecture, PlainKernels& kernels) {
  return make_list_launch(key_tiles_maker(call), architecture, kernels);
}
PlainLaunch make_row_tiles_launch(const BackwardCall& call, const Architecture& architecture, PlainKernels& kernels) {
  return make_list_launch(batch_plan_maker(call.forward, bytes_of(call.scratch.row_tiles), row_tiling(call)),
                          architecture, kernels);
}
PlainLaunch make_clear_dq_launch(const BackwardCall& call, const Architecture& architecture, PlainKernels& kernels) {
  return make_clear_rows_launch("dq", *call.given.into.dq, architecture, kernels);
}
PlainLaunch make_clear_dk_launch(const BackwardCall& call, const Architecture& architecture, PlainKernels& kernels) {
  return make_clear_rows_launch("dk", *call.given.into.dk, architecture, kernels);
}
PlainLaunch make_clear_dv_launch(const BackwardCall& call, const Architecture& architecture, PlainKernels& kernels) {
  return make_clear_rows_launch("dv", *call.given.into.dv, architecture, kernels);
}

}  // namespace flashjit::runtime
