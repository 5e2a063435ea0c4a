// SPDX-License-Identifier: Apache-2.0
// The kernels that make gradients. Those of attention are of the mma.sync family: generator/kernels/mma_backward.cpp.
#pragma once

#include "generator/source.h"

namespace flashjit::generator {

// What of a problem its backward kernel knows: not what stands in the LSE already.
Problem backward_problem(const Problem& problem);

struct BackwardTiles {
  int block_q, block_kv;  // rows
  int warps;
  int stages;  // tiles of queries in shared memory
};
// For a problem that has backward kernels; all of them fit every architecture.
BackwardTiles backward_tiles(const Problem& problem, const Architecture& architecture);

// problem: of backward_problem, without scores of users'. gradient: of k and v, their dtype or f32.
PlainKernel render_backward(const Problem& problem, DType gradient, const Architecture& architecture,
                            const Templates& templates = embedded_templates());
// What goes row by row through queries before it, and behind it where their gradients are wanted. dtype: of q.
PlainKernel render_backward_prepare(DType dtype, const Architecture& architecture,
                                    const Templates& templates = embedded_templates());
PlainKernel render_backward_finish(DType dtype, const Architecture& architecture,
                                   const Templates& templates = embedded_templates());

}  // namespace flashjit::generator
