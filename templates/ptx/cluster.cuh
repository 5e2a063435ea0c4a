// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ptx/memory.cuh"
#include "types.cuh"

namespace ptx {

// barrier.cluster.arrive; barrier.cluster.wait;   all threads of all blocks of the cluster:  PTX ISA 7.8, sm_90
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive;\n\tbarrier.cluster.wait;" ::: "memory");
}

// mapa.shared::cluster.u32 remote, address, rank;   the same place in another block:         PTX ISA 7.8, sm_90
__device__ __forceinline__ SmemAddress in_block_of_cluster(SmemAddress address, uint32 rank) {
  SmemAddress remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

// ld.shared::cluster.v2.b32 {x, y}, [src];                                                   PTX ISA 7.8, sm_90
__device__ __forceinline__ void ld_cluster(SmemAddress src, float& x, float& y) {
  asm volatile("ld.shared::cluster.v2.b32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(src) : "memory");
}

// ld.shared::cluster.v4.b32 chunk, [src];                                                    PTX ISA 7.8, sm_90
__device__ __forceinline__ Chunk ld_cluster(SmemAddress src) {
  Chunk chunk;
  asm volatile("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(chunk.x), "=r"(chunk.y), "=r"(chunk.z), "=r"(chunk.w)
               : "r"(src)
               : "memory");
  return chunk;
}

}  // namespace ptx
