// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "types.cuh"

namespace ptx {

// barrier.cluster.arrive; barrier.cluster.wait;   all threads of all blocks of the cluster:  PTX ISA 7.8, sm_90
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive;\n\tbarrier.cluster.wait;" ::: "memory");
}

}  // namespace ptx
