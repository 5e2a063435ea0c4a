// SPDX-License-Identifier: Apache-2.0
// How users' texts see positions: as whole numbers, of which the compiler knows one term. What takes long to compute of
// a position, above all its conversion to a floating-point number, is then computed once for all columns of a lane.
#pragma once

namespace text {

// A number type that texts compute in, and nothing else that they meet.
template <class T>
struct IsReal {
  static constexpr bool value = false;
};
template <>
struct IsReal<float> {
  static constexpr bool value = true;
};
template <>
struct IsReal<double> {
  static constexpr bool value = true;
};
template <class T, bool kIs>
struct OnlyIf {};
template <class T>
struct OnlyIf<T, true> {
  using type = T;
};
template <class T>
using Real = typename OnlyIf<T, IsReal<T>::value>::type;

// The sum of both; exact as an f32 below 2^24.
struct Position {
  int first;
  int offset;  // known when the kernel is compiled

  __device__ __forceinline__ operator int() const { return first + offset; }
  template <class T, class = Real<T>>
  __device__ __forceinline__ explicit operator T() const {
    return static_cast<T>(first) + static_cast<T>(offset);
  }
  // Term by term, so that a row's factor is multiplied with what the columns share once; and in one instruction, or the
  // products of offsets would be kept for all columns.
  __device__ __forceinline__ float times(float a) const {
    return __fmaf_rn(a, static_cast<float>(offset), a * static_cast<float>(first));
  }
  __device__ __forceinline__ double times(double a) const { return a * static_cast<double>(*this); }
};

// That of a query: the same for all columns of a lane.
struct RowPosition : Position {};

__device__ __forceinline__ Position operator+(Position a, Position b) {
  return {a.first + b.first, a.offset + b.offset};
}
__device__ __forceinline__ Position operator-(Position a, Position b) {
  return {a.first - b.first, a.offset - b.offset};
}
__device__ __forceinline__ Position operator+(Position a, int b) { return {a.first + b, a.offset}; }
__device__ __forceinline__ Position operator+(int a, Position b) { return b + a; }
__device__ __forceinline__ Position operator-(Position a, int b) { return {a.first - b, a.offset}; }
__device__ __forceinline__ Position operator-(int a, Position b) { return {a - b.first, -b.offset}; }
__device__ __forceinline__ Position operator-(Position a) { return {-a.first, -a.offset}; }

// Beside whole numbers of other types than int, as an i64 tensor has them, a position is an int.
template <class T>
struct IsOtherWhole {
  static constexpr bool value = false;
};
template <>
struct IsOtherWhole<bool> {
  static constexpr bool value = true;
};
template <>
struct IsOtherWhole<unsigned> {
  static constexpr bool value = true;
};
template <>
struct IsOtherWhole<long long> {
  static constexpr bool value = true;
};
template <>
struct IsOtherWhole<unsigned long long> {
  static constexpr bool value = true;
};
template <class T>
using OtherWhole = typename OnlyIf<T, IsOtherWhole<T>::value>::type;

template <class T, class = OtherWhole<T>>
__device__ __forceinline__ auto operator+(Position a, T b) {
  return static_cast<int>(a) + b;
}
template <class T, class = OtherWhole<T>>
__device__ __forceinline__ auto operator+(T a, Position b) {
  return a + static_cast<int>(b);
}
template <class T, class = OtherWhole<T>>
__device__ __forceinline__ auto operator-(Position a, T b) {
  return static_cast<int>(a) - b;
}
template <class T, class = OtherWhole<T>>
__device__ __forceinline__ auto operator-(T a, Position b) {
  return a - static_cast<int>(b);
}

// |a|, which has no such terms as a whole number, but has them as a real one.
struct Magnitude {
  Position of;

  __device__ __forceinline__ operator int() const { return ::abs(static_cast<int>(of)); }
  template <class T, class = Real<T>>
  __device__ __forceinline__ explicit operator T() const {
    return ::fabs(static_cast<T>(of));
  }
};
__device__ __forceinline__ Magnitude abs(Position a) { return {a}; }
__device__ __forceinline__ int abs(int a) { return ::abs(a); }

// --- Beside real numbers, which they become ----------------------------------------------------------------------

template <class T, class = Real<T>>
__device__ __forceinline__ T operator+(T a, Position b) {
  return a + static_cast<T>(b);
}
template <class T, class = Real<T>>
__device__ __forceinline__ T operator+(Position a, T b) {
  return static_cast<T>(a) + b;
}
template <class T, class = Real<T>>
__device__ __forceinline__ T operator-(T a, Position b) {
  return a - static_cast<T>(b);
}
template <class T, class = Real<T>>
__device__ __forceinline__ T operator-(Position a, T b) {
  return static_cast<T>(a) - b;
}
template <class T, class = Real<T>>
__device__ __forceinline__ T operator*(T a, Position b) {
  return b.times(a);
}
template <class T, class = Real<T>>
__device__ __forceinline__ T operator*(Position a, T b) {
  return a.times(b);
}
template <class T, class = Real<T>>
__device__ __forceinline__ T operator/(Position a, T b) {
  return static_cast<T>(a) / b;
}
template <class T, class = Real<T>>
__device__ __forceinline__ T operator/(T a, Position b) {
  return a / static_cast<T>(b);
}
template <class T, class = Real<T>>
__device__ __forceinline__ T operator+(T a, Magnitude b) {
  return a + static_cast<T>(b);
}
template <class T, class = Real<T>>
__device__ __forceinline__ T operator+(Magnitude a, T b) {
  return static_cast<T>(a) + b;
}
template <class T, class = Real<T>>
__device__ __forceinline__ T operator-(T a, Magnitude b) {
  return a - static_cast<T>(b);
}
template <class T, class = Real<T>>
__device__ __forceinline__ T operator-(Magnitude a, T b) {
  return static_cast<T>(a) - b;
}
template <class T, class = Real<T>>
__device__ __forceinline__ T operator*(T a, Magnitude b) {
  return a * static_cast<T>(b);
}
template <class T, class = Real<T>>
__device__ __forceinline__ T operator*(Magnitude a, T b) {
  return static_cast<T>(a) * b;
}
template <class T, class = Real<T>>
__device__ __forceinline__ T operator/(Magnitude a, T b) {
  return static_cast<T>(a) / b;
}
template <class T, class = Real<T>>
__device__ __forceinline__ T operator/(T a, Magnitude b) {
  return a / static_cast<T>(b);
}

}  // namespace text
