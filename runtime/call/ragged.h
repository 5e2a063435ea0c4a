// SPDX-License-Identifier: Apache-2.0
// Batches whose sequences are not equally long: what options say of them, and the list of tiles that a kernel makes of
// it on the device before attention begins.
#pragma once

#include <cstddef>
#include <cstdint>

#include "flashjit/attention.h"
#include "generator/arguments.h"

namespace flashjit::runtime {

struct ForwardCall;

// Where sequences lie; null: nothing is said.
struct Ragged {
  const Tensor *cu_seqlens_q = nullptr, *cu_seqlens_kv = nullptr;
  const Tensor *seqused_q = nullptr, *seqused_kv = nullptr;
  const Tensor *leftpad_kv = nullptr, *batch_indices_kv = nullptr;
  const Tensor* page_table = nullptr;
};

bool is_ragged(const AttentionOptions& opts) noexcept;

// Beside a page table, which says where keys lie. Throws Error(invalid_argument).
void require_no_other_places(const AttentionOptions& opts);

// Whether a packed tensor has no dimension of batches; the tensor with one in front.
bool lacks_batch(const Tensor& tensor, const std::optional<Tensor>& cu_seqlens) noexcept;
Tensor with_batch(const Tensor& tensor);
Dims without_batch(const Dims& dims);

// A call of which some packed tensor has none, with it.
struct CallWithBatch {
  static bool is_needed(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts) noexcept;
  // out may be empty.
  CallWithBatch(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const AttentionOptions& opts);

  Tensor q, k, v, out;
  AttentionOptions opts;
};

struct Tiling;
// Clusters of tiles of rows that a batch has at most, of one head or one pack of them.
std::int64_t most_clusters(const ForwardCall& call, const Tiling& tiling) noexcept;

// Rows of keys that a sequence may have where no offsets say how many: of a batch entry of k, or of a row of the table.
std::int64_t key_rows(const Tensor& k, const Tensor* page_table) noexcept;
// The power of two that divides the size of a page: rows of these lie beside each other.
int page_box_rows(const Tensor& k) noexcept;
// Where the call's rows of q and k lie.
generator::SequenceRows query_rows(const ForwardCall& call) noexcept;
generator::SequenceRows key_rows(const ForwardCall& call) noexcept;
generator::PagedArguments paged_arguments(const ForwardCall& call) noexcept;

// What a list takes: its head, then so many tiles. more_tiles: beyond most_clusters.
std::size_t batch_plan_bytes(std::int64_t tiles) noexcept;
std::size_t batch_plan_bytes(const ForwardCall& call, const Tiling& tiling, std::int64_t more_tiles) noexcept;
generator::BatchPlanHead* batch_plan_head(std::byte* plan) noexcept;
generator::PlannedTile* batch_plan_tiles(std::byte* plan) noexcept;
generator::RaggedArguments ragged_arguments(const ForwardCall& call, std::byte* plan) noexcept;
generator::BatchPlanMaker batch_plan_maker(const ForwardCall& call, std::byte* plan, const Tiling& tiling) noexcept;

}  // namespace flashjit::runtime
