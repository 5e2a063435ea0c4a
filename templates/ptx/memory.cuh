// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "types.cuh"

namespace ptx {

struct Chunk {
  uint32 x, y, z, w;
};

// cvta.to.shared.u64 and a cut to 32 bits: the address in the shared window:                 PTX ISA 2.0, sm_20
__device__ __forceinline__ SmemAddress cvta_to_shared(const void* generic) {
  SmemAddress address;
  asm("{\n\t.reg .u64 shared;\n\tcvta.to.shared.u64 shared, %1;\n\tcvt.u32.u64 %0, shared;\n\t}"
      : "=r"(address)
      : "l"(generic));
  return address;
}

// st.shared.b32 [dst], value;                                                                PTX ISA 1.0, sm_10
__device__ __forceinline__ void st_shared(SmemAddress dst, uint32 value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(dst), "r"(value) : "memory");
}

// st.shared.v4.b32 [dst], chunk;                                                             PTX ISA 1.0, sm_10
__device__ __forceinline__ void st_shared(SmemAddress dst, Chunk chunk) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(dst), "r"(chunk.x), "r"(chunk.y), "r"(chunk.z),
               "r"(chunk.w)
               : "memory");
}

// st.shared.v2.b32 [dst], {x, y};                                                            PTX ISA 1.0, sm_10
__device__ __forceinline__ void st_shared(SmemAddress dst, float x, float y) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(dst), "f"(x), "f"(y) : "memory");
}

// st.shared.v2.b32 [dst], {x, y};                                                            PTX ISA 1.0, sm_10
__device__ __forceinline__ void st_shared(SmemAddress dst, uint32 x, uint32 y) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(dst), "r"(x), "r"(y) : "memory");
}

// ld.shared.v2.b32 {x, y}, [src];                                                            PTX ISA 1.0, sm_10
__device__ __forceinline__ void ld_shared(SmemAddress src, float& x, float& y) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(src) : "memory");
}

// ld.shared.v4.b32 chunk, [src];                                                             PTX ISA 1.0, sm_10
__device__ __forceinline__ Chunk ld_shared(SmemAddress src) {
  Chunk chunk;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(chunk.x), "=r"(chunk.y), "=r"(chunk.z), "=r"(chunk.w)
               : "r"(src)
               : "memory");
  return chunk;
}

// ld.shared.b32 value, [src];                                                                PTX ISA 1.0, sm_10
__device__ __forceinline__ uint32 ld_shared_word(SmemAddress src) {
  uint32 value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(src) : "memory");
  return value;
}

// The same memory for plain loads, which the compiler may merge, of what is ordered by barriers.
__device__ __forceinline__ const uint32* shared_words(SmemAddress src) {
  return static_cast<const uint32*>(__cvta_shared_to_generic(src));
}

// st.shared.u16 [dst], value;                                                                PTX ISA 1.0, sm_10
__device__ __forceinline__ void st_shared_16(SmemAddress dst, uint32 value) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(dst), "r"(value) : "memory");
}

// prefetch.global.L2 [src];                                                                  PTX ISA 2.0, sm_20
__device__ __forceinline__ void prefetch_global_l2(const void* src) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(src) : "memory");
}

// atom.global.add.u32 old, [counter], 1;                                                     PTX ISA 1.1, sm_11
__device__ __forceinline__ uint32 atom_increment(uint32* counter) {
  uint32 old;
  asm volatile("atom.global.add.u32 %0, [%1], 1;" : "=r"(old) : "l"(counter) : "memory");
  return old;
}

// atom.acq_rel.gpu.global.add.u32 old, [counter], 1;                                         PTX ISA 6.0, sm_70
__device__ __forceinline__ uint32 atom_increment_acq_rel(uint32* counter) {
  uint32 old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(old) : "l"(counter) : "memory");
  return old;
}

// red.release.gpu.global.add.u32 [counter], 1;   says what the thread has done before:         PTX ISA 6.0, sm_70
__device__ __forceinline__ void red_increment_release(uint32* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

// ld.acquire.gpu.global.u32 value, [src];   and sees what was done before it was written:       PTX ISA 6.0, sm_70
__device__ __forceinline__ uint32 ld_acquire(const uint32* src) {
  uint32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(src) : "memory");
  return value;
}

// atom.shared.add.u32 old, [counter], value;                                                 PTX ISA 1.2, sm_12
__device__ __forceinline__ uint32 atom_add_shared(SmemAddress counter, uint32 value) {
  uint32 old;
  asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(old) : "r"(counter), "r"(value) : "memory");
  return old;
}

// red.shared.max.s32 [at], value;                                                            PTX ISA 1.2, sm_12
__device__ __forceinline__ void red_max_shared(SmemAddress at, int value) {
  asm volatile("red.shared.max.s32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}

// ld.global.b32 value, [src];                                                                PTX ISA 1.0, sm_10
__device__ __forceinline__ float ld_global_float(const void* src) {
  float value;
  asm volatile("ld.global.b32 %0, [%1];" : "=f"(value) : "l"(src) : "memory");
  return value;
}

// ld.global.b32 value, [src];                                                                PTX ISA 1.0, sm_10
__device__ __forceinline__ int ld_global_int(const int* src) {
  int value;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(value) : "l"(src) : "memory");
  return value;
}

// ld.global.v4.b32 chunk, [src];                                                             PTX ISA 1.0, sm_10
__device__ __forceinline__ Chunk ld_global(const void* src) {
  Chunk chunk;
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(chunk.x), "=r"(chunk.y), "=r"(chunk.z), "=r"(chunk.w)
               : "l"(src)
               : "memory");
  return chunk;
}

// ld.global.v2.b32 {x, y}, [src];                                                            PTX ISA 1.0, sm_10
__device__ __forceinline__ void ld_global(const float* src, float& x, float& y) {
  asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "l"(src) : "memory");
}

// st.global.b32 [dst], value;                                                                PTX ISA 1.0, sm_10
__device__ __forceinline__ void st_global(void* dst, float value) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(dst), "f"(value) : "memory");
}

// st.global.b32 [dst], value;                                                                PTX ISA 1.0, sm_10
__device__ __forceinline__ void st_global(void* dst, uint32 value) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(dst), "r"(value) : "memory");
}

// st.global.u16 [dst], value;                                                                PTX ISA 1.0, sm_10
__device__ __forceinline__ void st_global_16(void* dst, uint32 value) {
  asm volatile("st.global.u16 [%0], %1;" ::"l"(dst), "h"(static_cast<unsigned short>(value)) : "memory");
}

// st.global.v2.b32 [dst], {x, y};                                                            PTX ISA 1.0, sm_10
__device__ __forceinline__ void st_global(void* dst, float x, float y) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(dst), "f"(x), "f"(y) : "memory");
}

// st.global.v2.b32 [dst], {x, y};                                                            PTX ISA 1.0, sm_10
__device__ __forceinline__ void st_global(void* dst, uint32 x, uint32 y) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(dst), "r"(x), "r"(y) : "memory");
}

// st.global.v4.b32 [dst], chunk;                                                             PTX ISA 1.0, sm_10
__device__ __forceinline__ void st_global(void* dst, Chunk chunk) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(dst), "r"(chunk.x), "r"(chunk.y), "r"(chunk.z),
               "r"(chunk.w)
               : "memory");
}

}  // namespace ptx
