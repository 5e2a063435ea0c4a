// SPDX-License-Identifier: Apache-2.0
// The functions that users' texts find under these names before any others. In f32 they are single instructions, in f64
// exact: that is what references compute in.
#pragma once

#include "function/position.cuh"

namespace text {

constexpr float infinity = __builtin_bit_cast(float, 0x7f800000);
constexpr float pi = 3.14159265358979f;

// tanh.approx.f32 y, x;   relative error 2^-11:                                              PTX ISA 7.0, sm_75
__device__ __forceinline__ float tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// ex2.approx.f32 y, x;   2 ulp:                                                              PTX ISA 1.4, sm_10
__device__ __forceinline__ float exp2(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// lg2.approx.f32 y, x;   absolute error 2^-22 between 0.5 and 2:                             PTX ISA 1.4, sm_10
__device__ __forceinline__ float log2(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// sin.approx.f32, cos.approx.f32 y, x;   absolute error 2^-20.5 between -pi and pi:          PTX ISA 1.4, sm_10
__device__ __forceinline__ float sin(float x) {
  float y;
  asm("sin.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float cos(float x) {
  float y;
  asm("cos.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// rsqrt.approx.f32 y, x;   relative error 2^-22.9:                                           PTX ISA 1.4, sm_10
__device__ __forceinline__ float rsqrt(float x) {
  float y;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// sqrt.approx.f32 y, x;   relative error 2^-23:                                              PTX ISA 1.4, sm_10
__device__ __forceinline__ float sqrt(float x) {
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float exp(float x) { return exp2(x * 1.44269504088896f); }
__device__ __forceinline__ float log(float x) { return log2(x) * 0.693147180559945f; }
__device__ __forceinline__ float sigmoid(float x) { return 0.5f * tanh(0.5f * x) + 0.5f; }
__device__ __forceinline__ float abs(float x) { return ::fabsf(x); }

__device__ __forceinline__ double tanh(double x) { return ::tanh(x); }
__device__ __forceinline__ double exp2(double x) { return ::exp2(x); }
__device__ __forceinline__ double log2(double x) { return ::log2(x); }
// Of half turns: ::sin(x) would be a call for large x.
__device__ __forceinline__ double sin(double x) { return ::sinpi(x * 0.31830988618379067); }
__device__ __forceinline__ double cos(double x) { return ::cospi(x * 0.31830988618379067); }
__device__ __forceinline__ double rsqrt(double x) { return 1 / ::sqrt(x); }
__device__ __forceinline__ double sqrt(double x) { return ::sqrt(x); }
__device__ __forceinline__ double exp(double x) { return ::exp(x); }
__device__ __forceinline__ double log(double x) { return ::log(x); }
__device__ __forceinline__ double sigmoid(double x) { return 1 / (1 + ::exp(-x)); }
__device__ __forceinline__ double abs(double x) { return ::fabs(x); }

}  // namespace text
