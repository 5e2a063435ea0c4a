// SPDX-License-Identifier: Apache-2.0
// Checks the views of a call, without CUDA: what they say, not what they point to.
#pragma once

#include <cstdint>

#include "flashjit/attention.h"
#include "runtime/call/masks.h"
#include "runtime/call/operands.h"
#include "runtime/call/ragged.h"

namespace flashjit::runtime {

// A call whose views are consistent. It points into the caller's tensors and lives no longer than the call.
struct ForwardCall {
  Problem problem;
  Operands operands;  // q, k, v, what scores take, lse where it is written, and out once that was checked
  // Each of them by what it is.
  const Tensor* q = nullptr;
  const Tensor* k = nullptr;
  const Tensor* v = nullptr;
  const Tensor* out = nullptr;
  const Tensor* k_rotary = nullptr;      // null: k has all columns of keys
  const Tensor* out_scale = nullptr;     // null: 1
  const Tensor* lse = nullptr;           // null: not written
  const Tensor* alibi_slopes = nullptr;  // null: none
  const Tensor* sinks = nullptr;         // null: none
  const Tensor* prefix = nullptr;        // null: none
  // Features that are functions of a tensor, as that is called: by batch, heads and lengths. Empty where there is none.
  Tensor bias, boolean_mask, documents, tree, dropout_mask;
  Tensor q_scale, k_scale, v_scale;                               // in one form: runtime/call/scales.h
  const Tensor* block_mask = nullptr;                             // null: none
  const Score* score = nullptr;                                   // null: none
  const Mask* mask = nullptr;                                     // null: none
  const Tensor *query_offsets = nullptr, *key_offsets = nullptr;  // null: 0
  Ragged ragged;
  // Sequences, and how long they are at most; and how long on average, or else the same.
  std::int64_t batch = 0, seqlen_q = 0, seqlen_kv = 0, num_heads_q = 0, num_heads_kv = 0;
  std::int64_t usual_seqlen_q = 0, usual_seqlen_kv = 0;
  float softmax_scale = 0;
  float softcap = 0;  // 0: none
  Dropout dropout;
  const Tensor* dropout_state = nullptr;  // null: none
  Masks masks;
  std::int64_t fixed_split = 0;      // keys of each split; 0: as the GPU wants it
  const BatchPlan* plan = nullptr;   // null: none
  const Variant* variant = nullptr;  // that of the plan, or of the options; null: the library chooses

  bool nothing_to_do() const noexcept { return batch == 0 || seqlen_q == 0 || num_heads_q == 0; }
  Dims out_shape() const { return {q->shape[0], q->shape[1], num_heads_q, problem.head_dim_v}; }
};

// What a variant is chosen by: the sizes of the call, with the keys that a query sees in place of all.
CallShape tuning_shape(const ForwardCall& call) noexcept;

// Everything except out. Throws Error(invalid_argument).
ForwardCall validate_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts);
// What makes a block mask of the predicates of the options: a call without q, k, v and out, for the batch entries and
// query heads of the shape, that writes into `into`. Throws Error(invalid_argument).
ForwardCall validate_block_mask(const AttentionOptions& opts, const CallShape& shape, const Tensor& into);

// What applies the users' functions of the options to scores [rows, seqlen_kv], which it writes: a call without q, k, v
// and out for the batch entries and query heads of the shape. Throws Error(invalid_argument).
ForwardCall validate_function_scores(const AttentionOptions& opts, const CallShape& shape, const Tensor& scores,
                                     const std::optional<Tensor>& slopes);

// out against the rest of the call, and against the inputs' memory. Throws Error(invalid_argument).
void validate_out(ForwardCall& call, const Tensor& out);

}  // namespace flashjit::runtime
