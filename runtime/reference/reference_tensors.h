// SPDX-License-Identifier: Apache-2.0
// The tensors of options that scores, masks and dropout depend on, as the reference reads them: in host memory, and by
// the words of include/flashjit/attention.h rather than by what kernels are given.
#pragma once

#include <cstdint>

#include "flashjit/attention.h"
#include "runtime/reference/sequences.h"

namespace flashjit::reference {

// Throws Error(invalid_argument).
void check_tensors_of_scores(const AttentionOptions& opts, const SequenceBounds& bounds, std::int64_t num_heads_q);

// A query of a call, and the lengths of its sequence.
struct QueryPlace {
  std::int64_t batch, head, query;
  std::int64_t seqlen_q, seqlen_kv;

  // The key that it stands at.
  std::int64_t position() const noexcept { return query + seqlen_kv - seqlen_q; }
};

// What bias adds to the score of a key.
double bias_of(const Tensor& bias, const QueryPlace& place, std::int64_t key) noexcept;
// So many of the first keys are seen whatever stands behind the query.
std::int64_t prefix_of(const Tensor& prefix, std::int64_t batch) noexcept;
// Whether dropout_mask keeps the probability of a key.
bool is_kept(const Tensor& dropout_mask, const QueryPlace& place, std::int64_t key) noexcept;
// Dropout with the seed and the offset that dropout_state says, where there is one.
Dropout dropout_of(const AttentionOptions& opts) noexcept;
// Whether boolean_mask, documents and tree all show a key.
bool is_shown(const AttentionOptions& opts, const QueryPlace& place, std::int64_t key) noexcept;

}  // namespace flashjit::reference
