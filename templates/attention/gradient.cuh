// SPDX-License-Identifier: Apache-2.0
// Neighbouring elements of a gradient, in its dtype, to global memory.
#pragma once

#include "ptx/convert.cuh"
#include "ptx/memory.cuh"
#include "types.cuh"

__device__ __forceinline__ void store_gradients(Single, char* to, float x, float y) { ptx::st_global(to, x, y); }
template <class Stored>
__device__ __forceinline__ void store_gradients(Stored, char* to, float x, float y) {
  ptx::st_global(to, ptx::cvt_rn_x2(Stored{}, x, y));
}
