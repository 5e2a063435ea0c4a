// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ptx/made_here.cuh"
#include "types.cuh"

namespace ptx {

// The matrix instructions themselves are generated for the products in use: Config::ScoreMma and Config::OutputMma. A
// warpgroup issues them; they run asynchronously and are waited for in groups (PTX ISA, "wgmma").

// wgmma.fence.sync.aligned;   orders earlier register accesses before the next wgmma:        PTX ISA 8.0, sm_90a
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// wgmma.commit_group.sync.aligned;                                                           PTX ISA 8.0, sm_90a
__device__ __forceinline__ void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// wgmma.wait_group.sync.aligned n;   until at most n groups are pending:                     PTX ISA 8.0, sm_90a
template <int kPending>
__device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// No instruction, between the ends of two nested loops: the compiler may not make one of them, which would unroll the
// inner one whatever it was told.
__device__ __forceinline__ void no_instruction() { asm volatile(""); }

// setmaxnreg.inc.sync.aligned.u32 n;   n registers for every thread of the warpgroup, waits until there are so many:
//                                                                                            PTX ISA 8.0, sm_90a
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// setmaxnreg.dec.sync.aligned.u32 n;   gives registers back:                                 PTX ISA 8.0, sm_90a
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace ptx
