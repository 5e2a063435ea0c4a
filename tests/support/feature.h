// SPDX-License-Identifier: Apache-2.0
// For tests that ask problems for features of the table, of whichever kind their rows are.
#pragma once

#include <flashjit/attention.h>

#include "generator/features.h"

namespace flashjit::tests {

inline Score any_score() { return Score("key % 7 == 3 ? score + 1 : score - step * (key % 5)", {{"step", 0.125}}); }
inline Mask any_mask() { return Mask("key % 6 != 4 || key == query"); }

// What a problem has of a row that is a function: the library's of its first dtype, or the one above.
inline const generator::FunctionText& any_function(generator::FunctionKind kind) {
  if (kind == generator::FunctionKind::score) return *any_score().source();
  if (kind == generator::FunctionKind::mask) return *any_mask().source();
  return generator::library_function(kind, generator::library_dtypes(kind).front());
}

// Keys in two tensors, and values that are columns of keys, which other head dims do not have: tests of all features
// leave it to those of its own.
inline bool is_of_large_heads(const generator::FeatureRow& row) {
  return row.asked.flag == &Problem::k_rotary || row.asked.flag == &Problem::latent;
}

inline void ask(Problem& problem, const generator::FeatureRow& row, bool asked = true) {
  if (row.asked.flag)
    problem.*row.asked.flag = asked;
  else
    problem.*row.asked.function = asked ? &any_function(row.asked.kind) : nullptr;
  if (problem.paged) problem.ragged = true;                       // only these have pages
  if (problem.token_scales || problem.e5m2) problem.e4m3 = true;  // only these have scales, or another format
  if (problem.fast_sums || problem.block_scales || problem.values_transposed || problem.out_e4m3)
    problem.e4m3_queries = true;
  if (!problem.e4m3_queries) return;
  if (problem.values_transposed) problem.ragged = problem.paged = false;
  // Such sums have no place for scales of blocks, and ragged batches have none.
  if (problem.block_scales) problem.fast_sums = problem.ragged = problem.paged = false;
  if (problem.out_e4m3) problem.dtype = DType::bf16;
  // These have no dropout, and no scales of tokens.
  problem.e4m3 = true;
  problem.token_scales = problem.dropout = false;
  problem.dropout_mask = nullptr;
}

// Of a call for the problem; what has a tensor is the case's.
inline AttentionOptions options_for(const Problem& problem) {
  AttentionOptions options;
  options.causal = problem.causal;
  if (problem.window) options.window = {60, problem.causal || problem.prefix ? -1 : 25};
  if (problem.chunk) options.chunk = 70;
  if (problem.softcap) options.softcap = 5;
  if (problem.dropout) options.dropout = {0.3, 1234567890123, 5};
  if (problem.score) options.score = any_score();
  if (problem.mask) options.mask = any_mask();
  return options;
}

}  // namespace flashjit::tests
