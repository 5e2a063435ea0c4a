// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "types.cuh"

namespace ptx {

// Each lane names one 16-byte row; lanes 8i..8i+7 hold the rows of 8x8 matrix i, which comes from the ith register.

// stmatrix.sync.aligned.m8n8.x4.shared.b16 [row], {r0, r1, r2, r3};                          PTX ISA 7.8, sm_90
__device__ __forceinline__ void stmatrix_x4(SmemAddress row, uint32 r0, uint32 r1, uint32 r2, uint32 r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(r0), "r"(r1), "r"(r2),
               "r"(r3)
               : "memory");
}

// stmatrix.sync.aligned.m8n8.x2.shared.b16 [row], {r0, r1};                                  PTX ISA 7.8, sm_90
__device__ __forceinline__ void stmatrix_x2(SmemAddress row, uint32 r0, uint32 r1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(r0), "r"(r1) : "memory");
}

}  // namespace ptx
