// SPDX-License-Identifier: Apache-2.0
// Eight neighbouring elements of a row, as kernels beside those of attention compute with them: in f32.
#pragma once

#include "ptx/convert.cuh"
#include "ptx/memory.cuh"
#include "types.cuh"

struct Octet {
  float x[kChunkElements];

  __device__ __forceinline__ void add(float factor, const Octet& other) {
#pragma unroll
    for (int i = 0; i < kChunkElements; ++i) x[i] = __fmaf_rn(factor, other.x[i], x[i]);
  }
};

// How they lie in memory.
template <class Element>
struct Octets {
  static constexpr int kBytes = 16;

  static __device__ __forceinline__ Octet load(const char* at) { return of(ptx::ld_global(at)); }
  static __device__ __forceinline__ Octet of(const ptx::Chunk& pairs) {
    Octet octet;
    ptx::cvt_x2(Element{}, pairs.x, octet.x[0], octet.x[1]);
    ptx::cvt_x2(Element{}, pairs.y, octet.x[2], octet.x[3]);
    ptx::cvt_x2(Element{}, pairs.z, octet.x[4], octet.x[5]);
    ptx::cvt_x2(Element{}, pairs.w, octet.x[6], octet.x[7]);
    return octet;
  }
  static __device__ __forceinline__ ptx::Chunk to_pairs(const Octet& octet) {
    return {ptx::cvt_rn_x2(Element{}, octet.x[0], octet.x[1]), ptx::cvt_rn_x2(Element{}, octet.x[2], octet.x[3]),
            ptx::cvt_rn_x2(Element{}, octet.x[4], octet.x[5]), ptx::cvt_rn_x2(Element{}, octet.x[6], octet.x[7])};
  }
  static __device__ __forceinline__ void store(char* at, const Octet& octet) { ptx::st_global(at, to_pairs(octet)); }
};

template <>
struct Octets<Single> {
  static constexpr int kBytes = 32;

  static __device__ __forceinline__ Octet load(const char* at) {
    const ptx::Chunk low = ptx::ld_global(at), high = ptx::ld_global(at + 16);
    return {__uint_as_float(low.x),  __uint_as_float(low.y),  __uint_as_float(low.z),  __uint_as_float(low.w),
            __uint_as_float(high.x), __uint_as_float(high.y), __uint_as_float(high.z), __uint_as_float(high.w)};
  }
  static __device__ __forceinline__ void store(char* at, const Octet& octet) {
    const auto bits = [&](int i) { return __float_as_uint(octet.x[i]); };
    ptx::st_global(at, ptx::Chunk{bits(0), bits(1), bits(2), bits(3)});
    ptx::st_global(at + 16, ptx::Chunk{bits(4), bits(5), bits(6), bits(7)});
  }
};
