// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ptx/memory.cuh"
#include "types.cuh"

namespace ptx {

// barrier.cluster.arrive; barrier.cluster.wait;   all threads of all blocks of the cluster:  PTX ISA 7.8, sm_90
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive;\n\tbarrier.cluster.wait;" ::: "memory");
}

// barrier.cluster.arrive.relaxed;   which orders nothing but what fence.mbarrier_init has:   PTX ISA 8.0, sm_90
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}

// barrier.cluster.wait;   acquire, after the arrivals of all threads:                        PTX ISA 7.8, sm_90
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait;" ::: "memory"); }

// mapa.shared::cluster.u32 remote, address, rank;   the same place in another block:         PTX ISA 7.8, sm_90
__device__ __forceinline__ SmemAddress in_block_of_cluster(SmemAddress address, uint32 rank) {
  SmemAddress remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

// st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [dst], chunk, [barrier];   both in the same block;
// the bytes are there when its barrier has counted them:                                     PTX ISA 8.1, sm_90
__device__ __forceinline__ void st_async(SmemAddress dst, Chunk chunk, SmemAddress barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(dst),
      "r"(chunk.x), "r"(chunk.y), "r"(chunk.z), "r"(chunk.w), "r"(barrier)
      : "memory");
}

// st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [dst], {x, y}, [barrier];   PTX ISA 8.1, sm_90
__device__ __forceinline__ void st_async(SmemAddress dst, float x, float y, SmemAddress barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(dst),
               "f"(x), "f"(y), "r"(barrier)
               : "memory");
}

}  // namespace ptx
