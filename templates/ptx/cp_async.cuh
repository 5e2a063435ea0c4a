// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "types.cuh"

namespace ptx {

// cp.async.cg.shared.global.L2::128B [dst], [src], 16;                                       PTX ISA 7.4, sm_80
__device__ __forceinline__ void cp_async_16(SmemAddress dst, const void* src) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
}

// cp.async.cg.shared.global.L2::128B [dst], [src], 16, src_bytes;   the rest is filled with zeros: PTX ISA 7.4, sm_80
__device__ __forceinline__ void cp_async_16_zero_fill(SmemAddress dst, const void* src, int src_bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(src_bytes)
               : "memory");
}

// cp.async.ca.shared.global [dst], [src], 4;                                                 PTX ISA 7.0, sm_80
__device__ __forceinline__ void cp_async_4(SmemAddress dst, const void* src) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(dst), "l"(src) : "memory");
}

// cp.async.commit_group;                                                                     PTX ISA 7.0, sm_80
__device__ __forceinline__ void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// cp.async.wait_group N;   all but the newest N groups of this thread are complete:          PTX ISA 7.0, sm_80
template <int kPending>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// cp.async.wait_all;   all that this thread has begun to copy is there:                      PTX ISA 7.0, sm_80
__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace ptx
