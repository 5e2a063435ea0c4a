// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "types.cuh"

namespace ptx {

// Barriers in shared memory that count arrivals and bytes (PTX ISA, "mbarrier").

// mbarrier.init.shared::cta.b64 [barrier], arrivals;                                         PTX ISA 7.0, sm_80
__device__ __forceinline__ void mbarrier_init(SmemAddress barrier, uint32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// fence.mbarrier_init.release.cluster;   the copy engine and other blocks see initialised barriers: PTX ISA 8.0, sm_90
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// mbarrier.arrive.shared::cta.b64 _, [barrier];                                              PTX ISA 7.0, sm_80
__device__ __forceinline__ void mbarrier_arrive(SmemAddress barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// mapa and mbarrier.arrive.shared::cluster.b64 _, [remote];   at the barrier of another block of the cluster. This form
// has release semantics for the cluster by default and compiles to no fence of its own:      PTX ISA 8.0, sm_90
__device__ __forceinline__ void mbarrier_arrive_cluster(SmemAddress barrier, uint32 rank) {
  asm volatile(
      "{\n\t.reg .b32 remote;\n\tmapa.shared::cluster.u32 remote, %0, %1;\n\t"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n\t}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], bytes;                             PTX ISA 8.0, sm_90
__device__ __forceinline__ void mbarrier_arrive_expect_tx(SmemAddress barrier, uint32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// mbarrier.try_wait.parity.shared::cta.b64 done, [barrier], parity;   until the phase of this parity has completed. The
// loop is also an edge across which ptxas moves no arithmetic:                               PTX ISA 7.8, sm_90
__device__ __forceinline__ void mbarrier_wait(SmemAddress barrier, uint32 parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n\tagain:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
      "@done bra finished;\n\tbra again;\n\tfinished:\n\t}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [barrier], parity;   the same, for what other blocks
// of the cluster have done before:                                                           PTX ISA 8.0, sm_90
__device__ __forceinline__ void mbarrier_wait_cluster(SmemAddress barrier, uint32 parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n\tagain:\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n\t"
      "@done bra finished;\n\tbra again;\n\tfinished:\n\t}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

}  // namespace ptx
