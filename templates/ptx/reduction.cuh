// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "types.cuh"

namespace ptx {

// Into global memory, in no order with other threads' sums.

// red.global.add.f32 [dst], x;                                                               PTX ISA 2.0, sm_20
__device__ __forceinline__ void red_add(float* dst, float x) {
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(dst), "f"(x) : "memory");
}

// red.global.add.v2.f32 [dst], {x, y};                                                       PTX ISA 8.1, sm_90
__device__ __forceinline__ void red_add(float* dst, float x, float y) {
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(dst), "f"(x), "f"(y) : "memory");
}

}  // namespace ptx
