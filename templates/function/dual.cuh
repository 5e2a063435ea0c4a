// SPDX-License-Identifier: Apache-2.0
// Dual numbers: what users' texts compute in where their derivatives by the score are wanted. A text is a template on
// Number, so what it makes of a Dual is its value with its derivative by the chain rule, one operation after the other.
// Comparisons are of values; casts to whole numbers and indices drop the derivative, which is 0 almost everywhere.
// There is no way back to a plain real number: what has no overload here is refused by the compiler, and not taken for
// a constant.
#pragma once

#include "function/math.cuh"
#include "function/tensor.cuh"

namespace text {

template <class T>
struct Dual {
  T value, derivative;

  Dual() = default;
  __device__ __forceinline__ constexpr Dual(T value, T derivative) : value(value), derivative(derivative) {}
  // What does not depend on the score: all that a real number may be made of without a cast.
  template <class U, class = decltype(*static_cast<T*>(nullptr) = *static_cast<U*>(nullptr))>
  __device__ __forceinline__ constexpr Dual(U constant) : value(static_cast<T>(constant)), derivative(0) {}

  template <class Whole, class = typename OnlyIf<Whole, !IsReal<Whole>::value>::type>
  __device__ __forceinline__ explicit operator Whole() const {
    return static_cast<Whole>(value);
  }
  __device__ __forceinline__ operator Index() const { return value; }

  __device__ __forceinline__ Dual operator+() const { return *this; }
  __device__ __forceinline__ Dual operator-() const { return {-value, -derivative}; }
  template <class U>
  __device__ __forceinline__ Dual& operator+=(U other) {
    return *this = *this + other;
  }
  template <class U>
  __device__ __forceinline__ Dual& operator-=(U other) {
    return *this = *this - other;
  }
  template <class U>
  __device__ __forceinline__ Dual& operator*=(U other) {
    return *this = *this * other;
  }
  template <class U>
  __device__ __forceinline__ Dual& operator/=(U other) {
    return *this = *this / other;
  }

  __device__ __forceinline__ Dual& operator++() { return *this = *this + T(1); }
  __device__ __forceinline__ Dual& operator--() { return *this = *this - T(1); }
  __device__ __forceinline__ Dual operator++(int) {
    const Dual before = *this;
    ++*this;
    return before;
  }
  __device__ __forceinline__ Dual operator--(int) {
    const Dual before = *this;
    --*this;
    return before;
  }

  friend __device__ __forceinline__ bool operator<(Dual a, Dual b) { return a.value < b.value; }
  friend __device__ __forceinline__ bool operator>(Dual a, Dual b) { return a.value > b.value; }
  friend __device__ __forceinline__ bool operator<=(Dual a, Dual b) { return a.value <= b.value; }
  friend __device__ __forceinline__ bool operator>=(Dual a, Dual b) { return a.value >= b.value; }
  friend __device__ __forceinline__ bool operator==(Dual a, Dual b) { return a.value == b.value; }
  friend __device__ __forceinline__ bool operator!=(Dual a, Dual b) { return a.value != b.value; }

  // The value is that of the smaller one, and so is the derivative; where both are as small, of the first.
  friend __device__ __forceinline__ Dual fmin(Dual a, Dual b) {
    return {text::fmin(a.value, b.value), a.value <= b.value || b.value != b.value ? a.derivative : b.derivative};
  }
  friend __device__ __forceinline__ Dual fmax(Dual a, Dual b) {
    return {text::fmax(a.value, b.value), a.value >= b.value || b.value != b.value ? a.derivative : b.derivative};
  }
  friend __device__ __forceinline__ Dual min(Dual a, Dual b) { return fmin(a, b); }
  friend __device__ __forceinline__ Dual max(Dual a, Dual b) { return fmax(a, b); }
  friend __device__ __forceinline__ Dual fminf(Dual a, Dual b) { return fmin(a, b); }
  friend __device__ __forceinline__ Dual fmaxf(Dual a, Dual b) { return fmax(a, b); }
  friend __device__ __forceinline__ Dual fdim(Dual a, Dual b) {
    return {text::fdim(a.value, b.value), a.value > b.value ? a.derivative - b.derivative : T(0)};
  }
  friend __device__ __forceinline__ Dual fdimf(Dual a, Dual b) { return fdim(a, b); }
  friend __device__ __forceinline__ Dual fmodf(Dual a, Dual b) { return fmod(a, b); }
  friend __device__ __forceinline__ Dual fmod(Dual a, Dual b) {
    const T whole = b.derivative == T(0) ? T(0) : ::trunc(a.value / b.value) * b.derivative;
    return {text::fmod(a.value, b.value), a.derivative - whole};
  }
  friend __device__ __forceinline__ Dual fma(Dual a, Dual b, Dual c) {
    return {text::fma(a.value, b.value, c.value), a.derivative * b.value + a.value * b.derivative + c.derivative};
  }
  friend __device__ __forceinline__ Dual fmaf(Dual a, Dual b, Dual c) { return fma(a, b, c); }
  friend __device__ __forceinline__ Dual atan2(Dual a, Dual b) {
    const T turn = a.derivative * b.value - a.value * b.derivative;
    return {text::atan2(a.value, b.value), turn == T(0) ? T(0) : turn / (a.value * a.value + b.value * b.value)};
  }
  friend __device__ __forceinline__ Dual atan2f(Dual a, Dual b) { return atan2(a, b); }
  // Of one power, as they take long. What stands still adds nothing, also where its own derivative is none.
  friend __device__ __forceinline__ Dual pow(Dual a, Dual b) {
    const T power = text::pow(a.value, b.value);
    const T at_0 = b.value == T(1) ? T(1) : b.value > T(1) ? T(0) : T(infinity);
    const T slope = b.value == T(0) ? T(0) : a.value == T(0) ? at_0 : b.value * power / a.value;
    T derivative = a.derivative == T(0) ? T(0) : a.derivative * slope;
    if (b.derivative != T(0) && power != T(0)) derivative += b.derivative * power * text::log(a.value);
    return {power, derivative};
  }
  friend __device__ __forceinline__ Dual powf(Dual a, Dual b) { return pow(a, b); }

  friend __device__ __forceinline__ Dual tanh(Dual x) {
    const T y = tanh(x.value);
    return Dual::chain(x, y, T(1) - y * y);
  }
  friend __device__ __forceinline__ Dual sigmoid(Dual x) {
    const T y = sigmoid(x.value);
    return Dual::chain(x, y, y * (T(1) - y));
  }
  friend __device__ __forceinline__ Dual exp(Dual x) {
    const T y = exp(x.value);
    return Dual::chain(x, y, y);
  }
  friend __device__ __forceinline__ Dual exp2(Dual x) {
    const T y = exp2(x.value);
    return Dual::chain(x, y, y * T(0.69314718055994531));
  }
  friend __device__ __forceinline__ Dual log(Dual x) { return Dual::chain(x, log(x.value), T(1) / x.value); }
  friend __device__ __forceinline__ Dual log2(Dual x) {
    return Dual::chain(x, log2(x.value), T(1.4426950408889634) / x.value);
  }
  friend __device__ __forceinline__ Dual sin(Dual x) { return Dual::chain(x, sin(x.value), cos(x.value)); }
  friend __device__ __forceinline__ Dual cos(Dual x) { return Dual::chain(x, cos(x.value), -sin(x.value)); }
  friend __device__ __forceinline__ Dual sqrt(Dual x) {
    const T y = sqrt(x.value);
    return Dual::chain(x, y, T(0.5) / y);
  }
  friend __device__ __forceinline__ Dual rsqrt(Dual x) {
    const T y = rsqrt(x.value);
    return Dual::chain(x, y, T(-0.5) * y * y * y);
  }
  // At 0 neither side's slope.
  friend __device__ __forceinline__ Dual abs(Dual x) {
    return Dual::chain(x, abs(x.value), x.value > T(0) ? T(1) : x.value < T(0) ? T(-1) : T(0));
  }

  // Of CUDA's functions, which are exact, those that scores are likely to go through. As friends, so that the texts
  // find CUDA's own for plain numbers.
  friend __device__ __forceinline__ Dual fabs(Dual x) { return abs(x); }
  friend __device__ __forceinline__ Dual fabsf(Dual x) { return abs(x); }
  friend __device__ __forceinline__ Dual tanhf(Dual x) {
    const T y = ::tanhf(x.value);
    return Dual::chain(x, y, T(1) - y * y);
  }
  friend __device__ __forceinline__ Dual expf(Dual x) {
    const T y = ::expf(x.value);
    return Dual::chain(x, y, y);
  }
  friend __device__ __forceinline__ Dual exp2f(Dual x) {
    const T y = ::exp2f(x.value);
    return Dual::chain(x, y, y * T(0.69314718055994531));
  }
  friend __device__ __forceinline__ Dual expm1(Dual x) {
    const T y = ::expm1(x.value);
    return Dual::chain(x, y, y + T(1));
  }
  friend __device__ __forceinline__ Dual expm1f(Dual x) { return expm1(x); }
  friend __device__ __forceinline__ Dual logf(Dual x) { return Dual::chain(x, T(::logf(x.value)), T(1) / x.value); }
  friend __device__ __forceinline__ Dual log2f(Dual x) {
    return Dual::chain(x, T(::log2f(x.value)), T(1.4426950408889634) / x.value);
  }
  friend __device__ __forceinline__ Dual log1p(Dual x) {
    return Dual::chain(x, ::log1p(x.value), T(1) / (T(1) + x.value));
  }
  friend __device__ __forceinline__ Dual log1pf(Dual x) { return log1p(x); }
  friend __device__ __forceinline__ Dual sinf(Dual x) { return Dual::chain(x, T(::sinf(x.value)), cos(x.value)); }
  friend __device__ __forceinline__ Dual cosf(Dual x) { return Dual::chain(x, T(::cosf(x.value)), -sin(x.value)); }
  friend __device__ __forceinline__ Dual sqrtf(Dual x) {
    const T y = ::sqrtf(x.value);
    return Dual::chain(x, y, T(0.5) / y);
  }
  friend __device__ __forceinline__ Dual rsqrtf(Dual x) { return rsqrt(x); }
  friend __device__ __forceinline__ Dual erf(Dual x) {
    return Dual::chain(x, ::erf(x.value), T(1.1283791670955126) * exp(-x.value * x.value));
  }
  friend __device__ __forceinline__ Dual erff(Dual x) { return erf(x); }
  friend __device__ __forceinline__ Dual floor(Dual x) { return Dual(::floor(x.value)); }
  friend __device__ __forceinline__ Dual floorf(Dual x) { return floor(x); }
  friend __device__ __forceinline__ Dual ceil(Dual x) { return Dual(::ceil(x.value)); }
  friend __device__ __forceinline__ Dual ceilf(Dual x) { return ceil(x); }
  friend __device__ __forceinline__ Dual rint(Dual x) { return Dual(::rint(x.value)); }
  friend __device__ __forceinline__ Dual rintf(Dual x) { return rint(x); }
  friend __device__ __forceinline__ bool isnan(Dual x) { return x.value != x.value; }

 private:
  // Of a function of x: its value, and its slope there. What stands still adds nothing, also where the slope is none.
  static __device__ __forceinline__ Dual chain(Dual x, T value, T slope) {
    return {value, x.derivative == T(0) ? T(0) : slope * x.derivative};
  }
};

// --- Arithmetic; a constant costs no more than what it does to value and derivative -------------------------------

template <class T>
__device__ __forceinline__ Dual<T> operator+(Dual<T> a, Dual<T> b) {
  return {a.value + b.value, a.derivative + b.derivative};
}
template <class T, class U>
__device__ __forceinline__ Dual<T> operator+(Dual<T> a, U b) {
  return {static_cast<T>(a.value + b), a.derivative};
}
template <class T, class U>
__device__ __forceinline__ Dual<T> operator+(U a, Dual<T> b) {
  return {static_cast<T>(a + b.value), b.derivative};
}
template <class T>
__device__ __forceinline__ Dual<T> operator-(Dual<T> a, Dual<T> b) {
  return {a.value - b.value, a.derivative - b.derivative};
}
template <class T, class U>
__device__ __forceinline__ Dual<T> operator-(Dual<T> a, U b) {
  return {static_cast<T>(a.value - b), a.derivative};
}
template <class T, class U>
__device__ __forceinline__ Dual<T> operator-(U a, Dual<T> b) {
  return {static_cast<T>(a - b.value), -b.derivative};
}
template <class T>
__device__ __forceinline__ Dual<T> operator*(Dual<T> a, Dual<T> b) {
  return {a.value * b.value, a.derivative * b.value + a.value * b.derivative};
}
template <class T, class U>
__device__ __forceinline__ Dual<T> operator*(Dual<T> a, U b) {
  return {static_cast<T>(a.value * b), static_cast<T>(a.derivative * b)};
}
template <class T, class U>
__device__ __forceinline__ Dual<T> operator*(U a, Dual<T> b) {
  return {static_cast<T>(a * b.value), static_cast<T>(a * b.derivative)};
}
template <class T>
__device__ __forceinline__ Dual<T> operator/(Dual<T> a, Dual<T> b) {
  const T quotient = a.value / b.value;
  return {quotient, (a.derivative - quotient * b.derivative) / b.value};
}
template <class T, class U>
__device__ __forceinline__ Dual<T> operator/(Dual<T> a, U b) {
  return {static_cast<T>(a.value / b), static_cast<T>(a.derivative / b)};
}
template <class T, class U>
__device__ __forceinline__ Dual<T> operator/(U a, Dual<T> b) {
  const T quotient = static_cast<T>(a / b.value);
  return {quotient, -quotient * b.derivative / b.value};
}

}  // namespace text
