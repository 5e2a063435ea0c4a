// SPDX-License-Identifier: Apache-2.0
// What NVRTC has built in and Clang takes from a toolkit's headers: only for editors (.clangd), which read templates/
// without a toolkit.
#pragma once

#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __grid_constant__

__device__ constexpr int min(int a, int b) { return a < b ? a : b; }
__device__ constexpr int max(int a, int b) { return a > b ? a : b; }
__device__ float ceilf(float);
__device__ int __clz(int);
__device__ void* __cvta_shared_to_generic(unsigned long long);
__device__ float __fadd_rz(float, float);
__device__ int __float_as_int(float);
__device__ unsigned __float_as_uint(float);
__device__ int __ffs(int);
__device__ float __fmaf_rn(float, float, float);
__device__ float __fdiv_rn(float, float);
__device__ float __fmul_rz(float, float);
__device__ float __frcp_rn(float);
__device__ unsigned __funnelshift_r(unsigned, unsigned, unsigned);
__device__ float __int_as_float(int);
__device__ int __popc(unsigned);
__device__ unsigned __umulhi(unsigned, unsigned);
__device__ float __uint_as_float(unsigned);
__device__ int abs(int);
__device__ double cospi(double);
__device__ double exp(double);
__device__ double exp2(double);
__device__ float fabs(float);
__device__ double fabs(double);
__device__ float fabsf(float);
__device__ float fmaxf(float, float);
__device__ float fminf(float, float);
__device__ double log(double);
__device__ double log2(double);
__device__ double sinpi(double);
__device__ double sqrt(double);
__device__ double tanh(double);
__device__ float ceil(float);
__device__ double ceil(double);
__device__ float erf(float);
__device__ double erf(double);
__device__ float expm1(float);
__device__ double expm1(double);
__device__ float floor(float);
__device__ double floor(double);
__device__ float log1p(float);
__device__ double log1p(double);
__device__ float rint(float);
__device__ double rint(double);
__device__ float trunc(float);
__device__ double trunc(double);
__device__ float cosf(float);
__device__ float exp2f(float);
__device__ float expf(float);
__device__ float log2f(float);
__device__ float logf(float);
__device__ float sinf(float);
__device__ float sqrtf(float);
__device__ float tanhf(float);
__device__ float pow(float, float);
__device__ double pow(double, double);
__device__ float fmod(float, float);
__device__ double fmod(double, double);
__device__ float atan2(float, float);
__device__ double atan2(double, double);
__device__ float fdim(float, float);
__device__ double fdim(double, double);
__device__ float fmin(float, float);
__device__ double fmin(double, double);
__device__ float fmax(float, float);
__device__ double fmax(double, double);
__device__ float fma(float, float, float);
__device__ double fma(double, double, double);
__device__ unsigned min(unsigned, unsigned);
__device__ long long min(long long, long long);
__device__ unsigned long long min(unsigned long long, unsigned long long);
__device__ unsigned max(unsigned, unsigned);
__device__ long long max(long long, long long);
__device__ unsigned long long max(unsigned long long, unsigned long long);
