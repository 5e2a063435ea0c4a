// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "types.cuh"

namespace ptx {

// Two f32 to a pair of 16-bit elements, round to nearest even; low goes to the lower half.

// cvt.rn.bf16x2.f32 pair, high, low;                                                         PTX ISA 7.0, sm_80
__device__ __forceinline__ uint32 cvt_rn_x2(BFloat16, float low, float high) {
  uint32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// cvt.rn.f16x2.f32 pair, high, low;                                                          PTX ISA 7.0, sm_80
__device__ __forceinline__ uint32 cvt_rn_x2(Half, float low, float high) {
  uint32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// And back, exactly.

// cvt.f32.f16 value, half;   of both halves:                                                  PTX ISA 1.0, sm_53
__device__ __forceinline__ void cvt_x2(Half, uint32 pair, float& low, float& high) {
  asm("{\n\t.reg .b16 lower, upper;\n\tmov.b32 {lower, upper}, %2;\n\t"
      "cvt.f32.f16 %0, lower;\n\tcvt.f32.f16 %1, upper;\n\t}"
      : "=f"(low), "=f"(high)
      : "r"(pair));
}

// A bf16 is the upper half of an f32.
__device__ __forceinline__ void cvt_x2(BFloat16, uint32 pair, float& low, float& high) {
  low = __uint_as_float(pair << 16), high = __uint_as_float(pair & 0xffff0000);
}

// cvt.rn.f16x2.e4m3x2 pair, bytes;   of both halves of a word, exactly:                      PTX ISA 8.1, sm_89
__device__ __forceinline__ void cvt_rn_f16x2_e4m3x4(uint32 bytes, uint32& low, uint32& high) {
  asm("{\n\t.reg .b16 lower, upper;\n\tmov.b32 {lower, upper}, %2;\n\t"
      "cvt.rn.f16x2.e4m3x2 %0, lower;\n\tcvt.rn.f16x2.e4m3x2 %1, upper;\n\t}"
      : "=r"(low), "=r"(high)
      : "r"(bytes));
}

// cvt.rn.satfinite.e4m3x2.f32 pair, high, low;   low goes to the lower byte:                   PTX ISA 8.1, sm_89
__device__ __forceinline__ uint32 cvt_rn_satfinite_e4m3x2(float low, float high) {
  uint32 pair;
  asm("{\n\t.reg .b16 bytes;\n\tcvt.rn.satfinite.e4m3x2.f32 bytes, %2, %1;\n\tcvt.u32.u16 %0, bytes;\n\t}"
      : "=r"(pair)
      : "f"(low), "f"(high));
  return pair;
}

// cvt.rn.satfinite.e4m3x2.f32 pair, high, low;   four of them, the first in the lowest byte:   PTX ISA 8.1, sm_89
__device__ __forceinline__ uint32 cvt_rn_satfinite_x4(E4m3Element, float a, float b, float c, float d) {
  uint32 bytes;
  asm("{\n\t.reg .b16 lower, upper;\n\tcvt.rn.satfinite.e4m3x2.f32 lower, %2, %1;\n\t"
      "cvt.rn.satfinite.e4m3x2.f32 upper, %4, %3;\n\tmov.b32 %0, {lower, upper};\n\t}"
      : "=r"(bytes)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return bytes;
}

// cvt.rn.satfinite.e5m2x2.f32 pair, high, low;   four of them, the first in the lowest byte:   PTX ISA 8.1, sm_89
__device__ __forceinline__ uint32 cvt_rn_satfinite_x4(E5m2Element, float a, float b, float c, float d) {
  uint32 bytes;
  asm("{\n\t.reg .b16 lower, upper;\n\tcvt.rn.satfinite.e5m2x2.f32 lower, %2, %1;\n\t"
      "cvt.rn.satfinite.e5m2x2.f32 upper, %4, %3;\n\tmov.b32 %0, {lower, upper};\n\t}"
      : "=r"(bytes)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return bytes;
}

// prmt.b32 y, x, 0, order;   bytes of x in the order of four digits, the lowest byte's last:     PTX ISA 2.0, sm_20
__device__ __forceinline__ uint32 prmt(uint32 x, uint32 order) {
  uint32 y;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(y) : "r"(x), "r"(order));
  return y;
}

// prmt.b32 y, x, z, order;   of the bytes of x, which are 0 to 3, and of z, likewise:           PTX ISA 2.0, sm_20
__device__ __forceinline__ uint32 prmt(uint32 x, uint32 z, uint32 order) {
  uint32 y;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(z), "r"(order));
  return y;
}

// lop3.b32 y, a, b, c, 0xf8;   a | b & c:                                                      PTX ISA 4.3, sm_50
__device__ __forceinline__ uint32 lop3_or_and(uint32 a, uint32 b, uint32 c) {
  uint32 y;
  asm("lop3.b32 %0, %1, %2, %3, 0xf8;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
  return y;
}

// ex2.approx.ftz.f32 y, x;   2^x, 2 ulp:                                                     PTX ISA 1.4, sm_10
__device__ __forceinline__ float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// lg2.approx.ftz.f32 y, x;   log2(x), absolute error 2^-22 between 0.5 and 2:                PTX ISA 1.4, sm_10
__device__ __forceinline__ float lg2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// rcp.approx.ftz.f32 y, x;   1/x, 1 ulp:                                                     PTX ISA 1.4, sm_10
__device__ __forceinline__ float rcp(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// tanh.approx.f32 y, x;   relative error 2^-11:                                              PTX ISA 7.0, sm_75
__device__ __forceinline__ float tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// set.ge.u32.f16x2 bits, a, b;   all bits of the halves in which a >= b; none for NaN:        PTX ISA 4.2, sm_53
__device__ __forceinline__ uint32 set_ge_f16x2(uint32 a, uint32 b) {
  uint32 bits;
  asm("set.ge.u32.f16x2 %0, %1, %2;" : "=r"(bits) : "r"(a), "r"(b));
  return bits;
}

}  // namespace ptx
