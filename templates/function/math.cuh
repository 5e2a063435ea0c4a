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
__device__ __forceinline__ long long abs(long long x) { return x < 0 ? -x : x; }

// Templates, so that a whole number becomes a float.
template <class T>
using Double = typename OnlyIf<T, IsReal<T>::value && sizeof(T) == sizeof(double)>::type;

template <class T, class = Double<T>>
__device__ __forceinline__ T tanh(T x) {
  return ::tanh(x);
}
template <class T, class = Double<T>>
__device__ __forceinline__ T exp2(T x) {
  return ::exp2(x);
}
template <class T, class = Double<T>>
__device__ __forceinline__ T log2(T x) {
  return ::log2(x);
}
// Of half turns: ::sin(x) would be a call for large x.
template <class T, class = Double<T>>
__device__ __forceinline__ T sin(T x) {
  return ::sinpi(x * 0.31830988618379067);
}
template <class T, class = Double<T>>
__device__ __forceinline__ T cos(T x) {
  return ::cospi(x * 0.31830988618379067);
}
template <class T, class = Double<T>>
__device__ __forceinline__ T rsqrt(T x) {
  return 1 / ::sqrt(x);
}
template <class T, class = Double<T>>
__device__ __forceinline__ T sqrt(T x) {
  return ::sqrt(x);
}
template <class T, class = Double<T>>
__device__ __forceinline__ T exp(T x) {
  return ::exp(x);
}
template <class T, class = Double<T>>
__device__ __forceinline__ T log(T x) {
  return ::log(x);
}
template <class T, class = Double<T>>
__device__ __forceinline__ T sigmoid(T x) {
  return 1 / (1 + ::exp(-x));
}
template <class T, class = Double<T>>
__device__ __forceinline__ T abs(T x) {
  return ::fabs(x);
}

// --- Of whole numbers and of several, in the widest type that is among them: whole ones count as f32 where a function
// is of real ones.

template <class T>
struct IsWhole {
  static constexpr bool value = IsOtherWhole<T>::value;
};
template <>
struct IsWhole<int> {
  static constexpr bool value = true;
};
template <>
struct IsWhole<Position> {
  static constexpr bool value = true;
};
template <>
struct IsWhole<RowPosition> {
  static constexpr bool value = true;
};
template <>
struct IsWhole<Magnitude> {
  static constexpr bool value = true;
};

__device__ __forceinline__ int as_whole(Position a) { return a; }
__device__ __forceinline__ int as_whole(Magnitude a) { return a; }
template <class T, class = typename OnlyIf<T, !IsWhole<T>::value || IsOtherWhole<T>::value>::type>
__device__ __forceinline__ T as_whole(T a) {
  return a;
}
__device__ __forceinline__ int as_whole(int a) { return a; }

// The real number that stands for one of these types beside others.
template <class T, bool kIsReal>
struct RealOf {
  using type = float;
};
template <class T>
struct RealOf<T, true> {
  using type = T;
};
template <class A, class B>
using Widest = decltype(typename RealOf<A, IsReal<A>::value>::type{} + typename RealOf<B, IsReal<B>::value>::type{});
template <class A, class B>
using Numbers =
    typename OnlyIf<A, (IsReal<A>::value || IsWhole<A>::value) && (IsReal<B>::value || IsWhole<B>::value)>::type;

template <class A, class B, class = Numbers<A, B>>
__device__ __forceinline__ Widest<A, B> pow(A a, B b) {
  return ::pow(static_cast<Widest<A, B>>(a), static_cast<Widest<A, B>>(b));
}
template <class A, class B, class = Numbers<A, B>>
__device__ __forceinline__ Widest<A, B> fmod(A a, B b) {
  return ::fmod(static_cast<Widest<A, B>>(a), static_cast<Widest<A, B>>(b));
}
template <class A, class B, class = Numbers<A, B>>
__device__ __forceinline__ Widest<A, B> atan2(A a, B b) {
  return ::atan2(static_cast<Widest<A, B>>(a), static_cast<Widest<A, B>>(b));
}
template <class A, class B, class = Numbers<A, B>>
__device__ __forceinline__ Widest<A, B> fdim(A a, B b) {
  return ::fdim(static_cast<Widest<A, B>>(a), static_cast<Widest<A, B>>(b));
}
template <class A, class B, class = Numbers<A, B>>
__device__ __forceinline__ Widest<A, B> fmin(A a, B b) {
  return ::fmin(static_cast<Widest<A, B>>(a), static_cast<Widest<A, B>>(b));
}
template <class A, class B, class = Numbers<A, B>>
__device__ __forceinline__ Widest<A, B> fmax(A a, B b) {
  return ::fmax(static_cast<Widest<A, B>>(a), static_cast<Widest<A, B>>(b));
}
template <class A, class B, class C, class = Numbers<A, B>, class = Numbers<A, C>>
__device__ __forceinline__ Widest<Widest<A, B>, C> fma(A a, B b, C c) {
  using Result = Widest<Widest<A, B>, C>;
  return ::fma(static_cast<Result>(a), static_cast<Result>(b), static_cast<Result>(c));
}
template <class A, class B, class = Numbers<A, B>>
__device__ __forceinline__ auto min(A a, B b) {
  if constexpr (IsReal<A>::value || IsReal<B>::value) {
    return fmin(a, b);
  } else {
    using Result = decltype(as_whole(a) + as_whole(b));
    return ::min(static_cast<Result>(as_whole(a)), static_cast<Result>(as_whole(b)));
  }
}
template <class A, class B, class = Numbers<A, B>>
__device__ __forceinline__ auto max(A a, B b) {
  if constexpr (IsReal<A>::value || IsReal<B>::value) {
    return fmax(a, b);
  } else {
    using Result = decltype(as_whole(a) + as_whole(b));
    return ::max(static_cast<Result>(as_whole(a)), static_cast<Result>(as_whole(b)));
  }
}

}  // namespace text
