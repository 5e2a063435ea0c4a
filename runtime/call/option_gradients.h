// SPDX-License-Identifier: Apache-2.0
// Gradients of a call's options: of one number for each query head, or for all.
#pragma once

#include "runtime/call/backward.h"

namespace flashjit::runtime {

// Checks those that the caller wants. Throws Error(invalid_argument).
void add_option_gradients(BackwardCall& call);

// Those that are wanted and have elements.
bool has_sink_gradients(const BackwardCall& call) noexcept;
bool has_option_gradients(const BackwardCall& call) noexcept;

// Behind the kernels that make LSE and row sums.
PlainLaunch make_sink_gradient_launch(const BackwardCall& call, const Architecture& architecture,
                                      PlainKernels& kernels);

}  // namespace flashjit::runtime
