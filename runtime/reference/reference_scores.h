// SPDX-License-Identifier: Apache-2.0
// The reference, with a say in its scores for those who can run users' functions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "flashjit/reference.h"

namespace flashjit::reference {

// Rows of one query head, and what scale, cap, slopes and bias make of their products with all keys.
struct ScoreRows {
  std::int64_t batch, head, first_row, count;
  std::int64_t seqlen_q, seqlen_kv;  // of the sequence
  std::vector<double>& scores;       // [count, seqlen_kv]
  std::vector<double>* slopes;       // likewise; null: not wanted
};
// Changes scores to what opts.score and opts.mask make of them, hidden ones to -infinity, and slopes to the derivatives
// of that by the scores as they were, those of hidden ones to 0; the library's masks come afterwards. Called by several
// threads at once.
using ScoreHook = std::function<void(const ScoreRows& rows)>;

// With a hook opts.score and opts.mask may be there, and it is asked whether they are or not.
Result attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts,
                 const ScoreHook& hook);
Result attention_in_low_precision(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts,
                                  const ScoreHook& hook);

// Gradients by a call as it was given.
struct GivenBackward {
  const Tensor &dout, &q, &k, &v;
  const AttentionOptions& opts;
  const std::optional<Tensor>& dlse;
};
Gradients attention_backward(const GivenBackward& call, const ScoreHook& hook);
Gradients attention_backward_in_low_precision(const GivenBackward& call, const ScoreHook& hook);

}  // namespace flashjit::reference
