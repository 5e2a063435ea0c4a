// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "types.cuh"

namespace ptx {

// bar.sync 0;   every warp of the block arrives and waits:                                   PTX ISA 1.0, sm_10
__device__ __forceinline__ void bar_sync() { asm volatile("bar.sync 0;" ::: "memory"); }

// bar.red.or.pred any, 0, predicate;   the same, and whether it holds in any of their threads: PTX ISA 2.0, sm_20
__device__ __forceinline__ bool bar_sync_any(bool predicate) {
  int any;
  asm volatile(
      "{\n\t.reg .pred p, q;\n\tsetp.ne.s32 p, %1, 0;\n\tbar.red.or.pred q, 0, p;\n\tselp.s32 %0, 1, 0, q;\n\t}"
      : "=r"(any)
      : "r"(static_cast<int>(predicate))
      : "memory");
  return any != 0;
}

// bar.sync barrier, threads;   arrives at a named barrier and waits until so many threads have: PTX ISA 2.0, sm_20
template <int kThreads>
__device__ __forceinline__ void bar_sync(NamedBarrier barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(static_cast<uint32>(barrier)), "n"(kThreads) : "memory");
}

// bar.arrive barrier, threads;   arrives and does not wait:                                  PTX ISA 2.0, sm_20
template <int kThreads>
__device__ __forceinline__ void bar_arrive(NamedBarrier barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(static_cast<uint32>(barrier)), "n"(kThreads) : "memory");
}

// bar.warp.sync 0xffffffff;   orders shared memory among the lanes of a warp:                PTX ISA 6.0, sm_30
__device__ __forceinline__ void bar_warp_sync() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

// vote.sync.ballot.b32 lanes, predicate, 0xffffffff;   a bit for each lane:                     PTX ISA 6.0, sm_30
__device__ __forceinline__ uint32 vote_ballot(bool predicate) {
  uint32 lanes;
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %1, 0;\n\tvote.sync.ballot.b32 %0, p, 0xffffffff;\n\t}"
               : "=r"(lanes)
               : "r"(static_cast<int>(predicate)));
  return lanes;
}

// vote.sync.any.pred any, predicate, 0xffffffff;                                             PTX ISA 6.0, sm_30
__device__ __forceinline__ bool vote_any(bool predicate) {
  int any;
  asm volatile(
      "{\n\t.reg .pred p, q;\n\tsetp.ne.s32 p, %1, 0;\n\tvote.sync.any.pred q, p, 0xffffffff;\n\t"
      "selp.s32 %0, 1, 0, q;\n\t}"
      : "=r"(any)
      : "r"(static_cast<int>(predicate)));
  return any != 0;
}

// elect.sync _|p, 0xffffffff;   true in one lane, always the same:                           PTX ISA 8.0, sm_90
__device__ __forceinline__ bool elect() {
  int elected;
  asm volatile("{\n\t.reg .pred p;\n\telect.sync _|p, 0xffffffff;\n\tselp.s32 %0, 1, 0, p;\n\t}" : "=r"(elected));
  return elected != 0;
}

// elect.sync lane|p, 0xffffffff;   the same, and which lane that is:                         PTX ISA 8.0, sm_90
__device__ __forceinline__ bool elect(uint32& lane) {
  int elected;
  asm volatile("{\n\t.reg .pred p;\n\telect.sync %1|p, 0xffffffff;\n\tselp.s32 %0, 1, 0, p;\n\t}"
               : "=r"(elected), "=r"(lane));
  return elected != 0;
}

// shfl.sync.idx.b32 y, x, lane, 0x1f, 0xffffffff;                                            PTX ISA 6.0, sm_30
__device__ __forceinline__ uint32 shfl_from(uint32 lane, uint32 x) {
  uint32 y;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(y) : "r"(x), "r"(lane));
  return y;
}

__device__ __forceinline__ int shfl_from(uint32 lane, int x) {
  return static_cast<int>(shfl_from(lane, static_cast<uint32>(x)));
}
__device__ __forceinline__ float shfl_from(uint32 lane, float x) {
  return __uint_as_float(shfl_from(lane, __float_as_uint(x)));
}

// shfl.sync.idx.b32 y, x, lane, 0x1c1f, 0xffffffff;   of the four lanes that this one is among: PTX ISA 6.0, sm_30
__device__ __forceinline__ uint32 shfl_from_quad(uint32 lane, uint32 x) {
  uint32 y;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1c1f, 0xffffffff;" : "=r"(y) : "r"(x), "r"(lane));
  return y;
}

// shfl.sync.idx.b32 y, x, 0, 0x1f, 0xffffffff;   lane 0's value, known to be the same in all: PTX ISA 6.0, sm_30
__device__ __forceinline__ int shfl_first(int x) {
  int y;
  asm volatile("shfl.sync.idx.b32 %0, %1, 0, 0x1f, 0xffffffff;" : "=r"(y) : "r"(x));
  return y;
}

// shfl.sync.bfly.b32 y, x, lane_xor, 0x1f, members;   among these lanes alone:                PTX ISA 6.0, sm_30
__device__ __forceinline__ float shfl_xor(uint32 members, float x, int lane_xor) {
  float y;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, %3;" : "=f"(y) : "f"(x), "r"(lane_xor), "r"(members));
  return y;
}

// shfl.sync.bfly.b32 y, x, lane_xor, 0x1f, 0xffffffff;                                       PTX ISA 6.0, sm_30
__device__ __forceinline__ uint32 shfl_xor(uint32 x, int lane_xor) {
  uint32 y;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(y) : "r"(x), "r"(lane_xor));
  return y;
}
__device__ __forceinline__ float shfl_xor(float x, int lane_xor) {
  float y;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(y) : "f"(x), "r"(lane_xor));
  return y;
}

}  // namespace ptx
