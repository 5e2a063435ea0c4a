// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "abi.cuh"
#include "types.cuh"

namespace ptx {

// Copies of boxes of a 4-dimensional tensor by the copy engine (PTX ISA, "cp.async.bulk.tensor"). One thread starts
// them; what lies outside of the tensor is read as zero and not written.
struct BoxOrigin {
  int column, head, row, batch;
};
// The same of a 5-dimensional one, in which rows are counted from `end` on: see parts/sequences/ragged.cuh.
struct EndedBoxOrigin {
  int column, head, row, end, batch;
};

// prefetch.tensormap [map];   so that the first copy need not wait for it:                   PTX ISA 8.0, sm_90
__device__ __forceinline__ void prefetch_tensormap(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// How long L2 is to keep what a copy brings: the values that createpolicy.fractional gives for all of an access.
enum class L2Policy : uint64 { evict_first = 0x12f0000000000000, evict_last = 0x14f0000000000000 };

// cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint
//     [dst], [map, {column, head, row, batch}], [barrier], policy;                           PTX ISA 8.0, sm_90
__device__ __forceinline__ void tma_load(SmemAddress dst, const TensorMap& map, BoxOrigin at, SmemAddress barrier,
                                         L2Policy policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(dst),
      "l"(&map), "r"(at.column), "r"(at.head), "r"(at.row), "r"(at.batch), "r"(barrier),
      "l"(static_cast<uint64>(policy))
      : "memory");
}

// cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint
//     [dst], [map, {column, head, row, end, batch}], [barrier], policy;                      PTX ISA 8.0, sm_90
__device__ __forceinline__ void tma_load(SmemAddress dst, const TensorMap& map, EndedBoxOrigin at, SmemAddress barrier,
                                         L2Policy policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(dst),
      "l"(&map), "r"(at.column), "r"(at.head), "r"(at.row), "r"(at.end), "r"(at.batch), "r"(barrier),
      "l"(static_cast<uint64>(policy))
      : "memory");
}

// The same with .multicast::cluster and a mask of ranks: into the same place of several blocks, completing on the
// barrier of each:                                                                           PTX ISA 8.0, sm_90
__device__ __forceinline__ void tma_load_multicast(SmemAddress dst, const TensorMap& map, BoxOrigin at,
                                                   SmemAddress barrier, unsigned short ranks, L2Policy policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7, %8;" ::"r"(dst),
      "l"(&map), "r"(at.column), "r"(at.head), "r"(at.row), "r"(at.batch), "r"(barrier), "h"(ranks),
      "l"(static_cast<uint64>(policy))
      : "memory");
}

// Likewise of five dimensions:                                                               PTX ISA 8.0, sm_90
__device__ __forceinline__ void tma_load_multicast(SmemAddress dst, const TensorMap& map, EndedBoxOrigin at,
                                                   SmemAddress barrier, unsigned short ranks, L2Policy policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8, %9;" ::"r"(dst),
      "l"(&map), "r"(at.column), "r"(at.head), "r"(at.row), "r"(at.end), "r"(at.batch), "r"(barrier), "h"(ranks),
      "l"(static_cast<uint64>(policy))
      : "memory");
}

// cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [map, {..}], [src];             PTX ISA 8.0, sm_90
__device__ __forceinline__ void tma_store(const TensorMap& map, BoxOrigin at, SmemAddress src) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(&map),
               "r"(at.column), "r"(at.head), "r"(at.row), "r"(at.batch), "r"(src)
               : "memory");
}

// cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [map, {..}], [src];             PTX ISA 8.0, sm_90
__device__ __forceinline__ void tma_store(const TensorMap& map, EndedBoxOrigin at, SmemAddress src) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];" ::"l"(&map),
      "r"(at.column), "r"(at.head), "r"(at.row), "r"(at.end), "r"(at.batch), "r"(src)
      : "memory");
}

// Without a tensor map: some multiple of 16 bytes, from and to multiples of 16.

// cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [dst], [src], bytes, [barrier]; PTX ISA 8.0, sm_90
__device__ __forceinline__ void bulk_load(SmemAddress dst, const void* src, uint32 bytes, SmemAddress barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst),
               "l"(src), "r"(bytes), "r"(barrier)
               : "memory");
}

// cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [dst], [src], bytes;            PTX ISA 8.0, sm_90
__device__ __forceinline__ void bulk_add(float* dst, SmemAddress src, uint32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(dst), "r"(src),
               "r"(bytes)
               : "memory");
}

// cp.async.bulk.commit_group;                                                                PTX ISA 8.0, sm_90
__device__ __forceinline__ void tma_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// cp.async.bulk.wait_group.read 0;   until this thread's stores have read their sources:     PTX ISA 8.0, sm_90
__device__ __forceinline__ void tma_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// cp.async.bulk.wait_group 0;   until they are complete:                                     PTX ISA 8.0, sm_90
__device__ __forceinline__ void tma_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// fence.proxy.async.shared::cta;   what this thread wrote is seen by the copy engine and wgmma: PTX ISA 8.0, sm_90
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// fence.proxy.async.global;   between what this thread knows of global memory and what the copy engine does with it
// next:                                                                                      PTX ISA 8.0, sm_90
__device__ __forceinline__ void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

}  // namespace ptx
