// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "types.cuh"

namespace ptx {

// Each lane names one 16-byte row; lanes 8i..8i+7 hold the rows of 8x8 matrix i, which arrives in r[i].

// ldmatrix.sync.aligned.m8n8.x4.shared.b16 {r0, r1, r2, r3}, [row];                          PTX ISA 6.5, sm_75
__device__ __forceinline__ void ldmatrix_x4(uint32 (&r)[4], SmemAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}

// ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {r0, r1, r2, r3}, [row];                    PTX ISA 6.5, sm_75
__device__ __forceinline__ void ldmatrix_x4_trans(uint32 (&r)[4], SmemAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}

// ldmatrix.sync.aligned.m8n8.x2.shared.b16 {r0, r1}, [row];                                  PTX ISA 6.5, sm_75
__device__ __forceinline__ void ldmatrix_x2(uint32& r0, uint32& r1, SmemAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r0), "=r"(r1) : "r"(row) : "memory");
}

// ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {r0, r1}, [row];                            PTX ISA 6.5, sm_75
__device__ __forceinline__ void ldmatrix_x2_trans(uint32& r0, uint32& r1, SmemAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r0), "=r"(r1)
               : "r"(row)
               : "memory");
}

}  // namespace ptx
