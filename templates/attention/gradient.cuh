// SPDX-License-Identifier: Apache-2.0
// What backward kernels have in common of their rows.
#pragma once

#include "attention/row_place.cuh"
#include "attention/softmax.cuh"
#include "ptx/convert.cuh"
#include "ptx/memory.cuh"
#include "types.cuh"

// Neighbouring elements of a gradient, in its dtype, to global memory.
__device__ __forceinline__ void store_gradients(Single, char* to, float x, float y) { ptx::st_global(to, x, y); }
template <class Stored>
__device__ __forceinline__ void store_gradients(Stored, char* to, float x, float y) {
  ptx::st_global(to, ptx::cvt_rn_x2(Stored{}, x, y));
}

// In binary logarithms, of a row that sees nothing, or that pads, so that all its probabilities are 0.
__device__ __forceinline__ float backward_lse(float lse) { return lse == -infinity() ? infinity() : lse * kLog2E; }
