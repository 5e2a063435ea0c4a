// SPDX-License-Identifier: Apache-2.0
// The kernels of calls for gradients, each rendered once by an engine: by which calls and preparations get the same.
#pragma once

#include <vector>

#include "flashjit/backward.h"
#include "generator/backward.h"
#include "runtime/call/plain_kernels.h"

namespace flashjit::runtime {

const generator::PlainKernel& backward_kernel(const Problem& problem, const BackwardVariant& variant,
                                              const generator::KernelGradients& gradients,
                                              const Architecture& architecture, PlainKernels& kernels);
const generator::PlainKernel& backward_clear_kernel(const Architecture& architecture, PlainKernels& kernels);
const generator::PlainKernel& backward_prepare_kernel(DType dtype, const Architecture& architecture,
                                                      PlainKernels& kernels);
const generator::PlainKernel& backward_finish_kernel(DType dtype, const Architecture& architecture,
                                                     PlainKernels& kernels);
// Of ragged batches.
const generator::PlainKernel& key_tiles_kernel(const Architecture& architecture, PlainKernels& kernels);
const generator::PlainKernel& backward_clear_rows_kernel(DType dtype, const Architecture& architecture,
                                                         PlainKernels& kernels);
const generator::PlainKernel& sink_gradient_kernel(const Architecture& architecture, PlainKernels& kernels);
const generator::PlainKernel& slope_gradient_kernel(const Architecture& architecture, PlainKernels& kernels);
const generator::PlainKernel& bias_gradient_kernel(DType dtype, const Architecture& architecture,
                                                   PlainKernels& kernels);

// The one that calls for the problem get, and all that may stand beside those of these variants, each once.
const generator::PlainKernel& backward_kernel(const BackwardProblem& problem, const BackwardVariant& variant,
                                              const Architecture& architecture, PlainKernels& kernels);
std::vector<const generator::PlainKernel*> kernels_beside(const BackwardProblem& problem,
                                                          const std::vector<BackwardVariant>& variants,
                                                          const Architecture& architecture, PlainKernels& kernels);

}  // namespace flashjit::runtime
