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
};

bool is_ragged(const AttentionOptions& opts) noexcept;

// A call whose packed tensors have no dimension of batches, as one whose tensors have.
bool lacks_batch(const Tensor& tensor, const std::optional<Tensor>& cu_seqlens) noexcept;
Tensor with_batch(const Tensor& tensor);
struct CallWithBatch {
  CallWithBatch(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts);

  Tensor q, k, v;
  AttentionOptions opts;
};

// Tiles of rows that a batch has at most, of one head or one pack of them.
std::int64_t most_tiles(const ForwardCall& call, int block_rows, int packed_heads) noexcept;

// What the list takes: its length in the first 16 bytes, then the tiles.
std::size_t batch_plan_bytes(std::int64_t tiles) noexcept;
generator::RaggedArguments ragged_arguments(const ForwardCall& call, std::byte* plan) noexcept;
generator::BatchPlanMaker batch_plan_maker(const ForwardCall& call, std::byte* plan, std::int64_t tiles, int block_rows,
                                           int packed_heads_log2) noexcept;

}  // namespace flashjit::runtime
