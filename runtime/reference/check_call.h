// SPDX-License-Identifier: Apache-2.0
// What the reference refuses.
#pragma once

#include "flashjit/attention.h"

namespace flashjit::reference {

// Tensors in host memory, with the dimension of batches. Throws Error(invalid_argument).
void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts);
// Throws Error(unsupported) for users' functions, and Error(invalid_argument) for what only they see.
void check_functions(const AttentionOptions& opts);

}  // namespace flashjit::reference
