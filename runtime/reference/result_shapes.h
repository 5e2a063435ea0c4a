// SPDX-License-Identifier: Apache-2.0
// Shapes of results.
#pragma once

#include "flashjit/tensor.h"

namespace flashjit::reference {

// Of the LSE of outputs of a shape.
Dims lse_shape(const Dims& out);
// Throws Error(invalid_argument).
void check_same_shape(const char* name, const Dims& shape, const Dims& wanted);

}  // namespace flashjit::reference
