// SPDX-License-Identifier: Apache-2.0
// What the gradients of candidates must be. Knows no CUDA.
#pragma once

#include <string>
#include <vector>

#include "flashjit/backward.h"
#include "runtime/tuning/tuning_inputs.h"

namespace flashjit::runtime {

// With several tiles of queries and of keys and heads that share keys; the second under a causal mask with queries that
// see no key.
inline const std::vector<CallShape> kGradientCheckShapes = {
    {.batch = 1, .seqlen_q = 150, .seqlen_kv = 333, .num_heads_q = 4, .num_heads_kv = 2},
    {.batch = 2, .seqlen_q = 140, .seqlen_kv = 70, .num_heads_q = 2, .num_heads_kv = 2}};

// dq, dk and dv of a small call, exactly and with what low precision does.
struct ExpectedGradients {
  reference::Gradients exact, low;
};
ExpectedGradients expected_gradients(const CheckCase& call, const HostTensor& dout);

// Empty, or one line. made: dq, dk and dv, as those that it is compared with.
// By the reference: four times what low precision does to a call may be off.
std::string why_not_as_expected(const std::vector<HostTensor>& made, const ExpectedGradients& expected);
// By another kernel, whose errors are others: twice that.
std::string why_unlike(const std::vector<HostTensor>& made, const std::vector<HostTensor>& other,
                       const ExpectedGradients& expected);
// By another kernel, of a call that is too large for the reference: the mean square of what they differ by is small
// beside theirs.
std::string why_unlike(const std::vector<HostTensor>& made, const std::vector<HostTensor>& other);

}  // namespace flashjit::runtime
