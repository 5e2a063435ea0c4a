// SPDX-License-Identifier: Apache-2.0
// From a validated call to what its kernel is given. Needs no CUDA.
#pragma once

#include "generator/arguments.h"
#include "runtime/validate.h"

namespace flashjit::runtime {

// For a call that has output elements.
generator::ForwardArguments make_forward_arguments(const ForwardCall& call, int block_q);

}  // namespace flashjit::runtime
