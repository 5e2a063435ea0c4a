// SPDX-License-Identifier: Apache-2.0
// What stands for users' functions in the calls of tuning.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/reference/reference_scores.h"
#include "runtime/tuning/option_tensors.h"

namespace flashjit::runtime {

// The options with the problem's functions, whose tensors have no memory yet. Throws Error(unsupported) for a problem
// that is not its own class: what users' texts are called with only users know.
AttentionOptions with_stand_ins(const Problem& problem, AttentionOptions options);
// What these functions capture in a call of this shape.
std::vector<OptionTensor> make_captured_tensors(const Problem& problem, const CallShape& shape);

// Where rows that the reference computes stand in a call.
struct RowsInCall {
  CallShape shape;
  std::int64_t batch = 0, head = 0, row = 0;  // of the first one
};
// What these functions make of scores, without running a text: in f64, or in f32 as low precision has it. Empty where
// the problem has none.
reference::ScoreHook stand_in_hook(const Problem& problem, const RowsInCall& rows, bool in_f32);

}  // namespace flashjit::runtime
