// SPDX-License-Identifier: Apache-2.0
// Gradients of a call's options: of sinks by what stands in memory behind the kernel for q, k and v; of slopes and bias
// by what that kernel sums for them.
#pragma once

#include "generator/backward.h"
#include "runtime/call/backward.h"

namespace flashjit::runtime {

// Checks those that the caller wants. Throws Error(invalid_argument).
void add_option_gradients(BackwardCall& call);

// Those that are wanted and have elements.
struct OptionGradients {
  bool sinks, slopes, bias;

  bool of_scores() const noexcept { return slopes || bias; }
  bool any() const noexcept { return sinks || of_scores(); }
};
OptionGradients option_gradients(const BackwardCall& call) noexcept;
generator::KernelGradients kernel_gradients(const BackwardCall& call) noexcept;

// Without memory, of a call with a variant; empty where there are none.
Tensor slope_gradient_sums(const BackwardCall& call);  // [batch, num_heads_q, tiles of keys, warps]
Tensor bias_gradient_sums(const BackwardCall& call);   // in the shape of the bias, where dbias is not f32 and packed
// What the kernel is told of them, behind the arguments of its parts, which stand behind so many bytes of its own.
void set_score_gradients(Launch& launch, const BackwardCall& call, std::size_t core_bytes);

// Before that kernel.
PlainLaunch make_bias_clear_launch(const BackwardCall& call, const Architecture& architecture, PlainKernels& kernels);
// Behind it.
PlainLaunch make_sink_gradient_launch(const BackwardCall& call, const Architecture& architecture,
                                      PlainKernels& kernels);
PlainLaunch make_slope_gradient_launch(const BackwardCall& call, const Architecture& architecture,
                                       PlainKernels& kernels);
PlainLaunch make_bias_gradient_launch(const BackwardCall& call, const Architecture& architecture,
                                      PlainKernels& kernels);

}  // namespace flashjit::runtime
