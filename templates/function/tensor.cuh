// SPDX-License-Identifier: Apache-2.0
// Tensors that texts capture.
#pragma once

namespace text {

// Elements in memory, and what a text gets of them.
struct F16 {
  using Value = float;
  static constexpr int kBytes = 2;
  static __device__ __forceinline__ float load(const char* at) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(*reinterpret_cast<const unsigned short*>(at)));
    return value;
  }
};
struct Bf16 {
  using Value = float;
  static constexpr int kBytes = 2;
  static __device__ __forceinline__ float load(const char* at) {
    return __uint_as_float(static_cast<unsigned>(*reinterpret_cast<const unsigned short*>(at)) << 16);
  }
};
template <class T>
struct AsItIs {
  using Value = T;
  static constexpr int kBytes = sizeof(T);
  static __device__ __forceinline__ T load(const char* at) { return *reinterpret_cast<const T*>(at); }
};
using F32 = AsItIs<float>;
using I32 = AsItIs<int>;
using I64 = AsItIs<long long>;
struct Boolean {
  using Value = bool;
  static constexpr int kBytes = 1;
  static __device__ __forceinline__ bool load(const char* at) { return *at != 0; }
};

// What the host writes of a tensor: runtime/call/function_arguments.cpp. An index outside of it gives 0: a kernel asks
// for rows and keys that do not exist, too, and a text's mistake reads no memory of others. kPacked: the elements of
// the last dimension are neighbours, so that the columns of a lane differ by constants.
template <class Element, int kRank, bool kPacked>
struct View {
  const char* data;
  long long strides[kRank];  // in bytes
  unsigned sizes[kRank];

  using Value = typename Element::Value;

 protected:
  // Index by index, from the first dimension on.
  struct Place {
    const char* at;
    bool inside;
  };
  template <int kDim>
  __device__ __forceinline__ Place step(const Place& from, int index) const {
    constexpr bool kNeighbours = kPacked && kDim == kRank - 1;
    const long long stride = kNeighbours ? static_cast<long long>(Element::kBytes) : strides[kDim];
    return {from.at + index * stride, from.inside && static_cast<unsigned>(index) < sizes[kDim]};
  }
  __device__ __forceinline__ Place first(int index) const { return step<0>({data, true}, index); }
  __device__ __forceinline__ static Value load(const Place& place) {
    return place.inside ? Element::load(place.at) : Value{};
  }
};

template <class Element, int kRank, bool kPacked>
struct Tensor;

template <class Element, bool kPacked>
struct Tensor<Element, 0, kPacked> {
  const char* data;

  __device__ __forceinline__ typename Element::Value operator()() const { return Element::load(data); }
};
template <class Element, bool kPacked>
struct Tensor<Element, 1, kPacked> : View<Element, 1, kPacked> {
  __device__ __forceinline__ typename Element::Value operator()(int i) const { return this->load(this->first(i)); }
};
template <class Element, bool kPacked>
struct Tensor<Element, 2, kPacked> : View<Element, 2, kPacked> {
  __device__ __forceinline__ typename Element::Value operator()(int i, int j) const {
    return this->load(this->template step<1>(this->first(i), j));
  }
};
template <class Element, bool kPacked>
struct Tensor<Element, 3, kPacked> : View<Element, 3, kPacked> {
  __device__ __forceinline__ typename Element::Value operator()(int i, int j, int k) const {
    return this->load(this->template step<2>(this->template step<1>(this->first(i), j), k));
  }
};
template <class Element, bool kPacked>
struct Tensor<Element, 4, kPacked> : View<Element, 4, kPacked> {
  __device__ __forceinline__ typename Element::Value operator()(int i, int j, int k, int l) const {
    const auto of_two = this->template step<1>(this->first(i), j);
    return this->load(this->template step<3>(this->template step<2>(of_two, k), l));
  }
};

}  // namespace text
