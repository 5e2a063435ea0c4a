// SPDX-License-Identifier: Apache-2.0
// The kernels that make gradients. Those of attention are of the mma.sync family: generator/kernels/mma_backward.cpp.
#pragma once

#include <string>

#include "flashjit/backward.h"
#include "generator/source.h"

namespace flashjit::generator {

// What of a problem its backward kernel knows: not what stands in the LSE already.
Problem backward_problem(const Problem& problem);

// For a problem that has backward kernels.
BackwardVariant default_backward_variant(const Problem& problem, const Architecture& architecture);
// Empty where there is such a kernel, else one line that says why not.
std::string why_illegal(const Problem& problem, const BackwardVariant& variant, const Architecture& architecture);

// problem: of backward_problem, without scores of users'. variant: a legal one. gradient: of k and v, their dtype or
// f32.
PlainKernel render_backward(const Problem& problem, const BackwardVariant& variant, DType gradient,
                            const Architecture& architecture, const Templates& templates = embedded_templates());
// What goes row by row through queries before it, and behind it where their gradients are wanted. dtype: of q.
PlainKernel render_backward_prepare(DType dtype, const Architecture& architecture,
                                    const Templates& templates = embedded_templates());
PlainKernel render_backward_finish(DType dtype, const Architecture& architecture,
                                   const Templates& templates = embedded_templates());

}  // namespace flashjit::generator
