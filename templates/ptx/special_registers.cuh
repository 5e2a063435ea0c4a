// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "types.cuh"

namespace ptx {

// Volatile, so that a value may be read again where it is needed instead of being kept in a register.

// mov.u32 x, %tid.x;                                                                         PTX ISA 1.0, sm_10
__device__ __forceinline__ int tid_x() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

// mov.u32 x, %ctaid.x;                                                                       PTX ISA 1.0, sm_10
__device__ __forceinline__ uint32 ctaid_x() {
  uint32 x;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  return x;
}

// mov.u32 x, %ctaid.z;   0 in all grids here, which ptxas does not know:                       PTX ISA 1.0, sm_10
__device__ __forceinline__ uint32 ctaid_z() {
  uint32 x;
  asm volatile("mov.u32 %0, %%ctaid.z;" : "=r"(x));
  return x;
}

// mov.u32 x, %nctaid.x;                                                                      PTX ISA 1.0, sm_10
__device__ __forceinline__ uint32 nctaid_x() {
  uint32 x;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(x));
  return x;
}

// mov.u32 x, %cluster_ctarank;                                                               PTX ISA 7.8, sm_90
__device__ __forceinline__ uint32 cluster_ctarank() {
  uint32 x;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(x));
  return x;
}

// mov.u32 x, %cluster_nctarank;                                                              PTX ISA 7.8, sm_90
__device__ __forceinline__ uint32 cluster_nctarank() {
  uint32 x;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(x));
  return x;
}

}  // namespace ptx
