// SPDX-License-Identifier: Apache-2.0
// Tensors that texts capture. A text is in a kernel once for each column of a lane, so what one access compiles to,
// before the compiler finds what columns have in common, decides how long the whole kernel takes to compile: few
// values, no structs, no branches.
#pragma once

#include "function/position.cuh"

namespace text {

// ld.global.nc.type value, [at];   0 where the index is none below the size:                 PTX ISA 3.1, sm_32
__device__ __forceinline__ unsigned load_below(unsigned size, unsigned index, const unsigned char* at) {
  unsigned value;
  asm("{\n\t.reg .pred inside;\n\tsetp.lt.u32 inside, %2, %3;\n\tmov.b32 %0, 0;\n\t"
      "@inside ld.global.nc.u8 %0, [%1];\n\t}"
      : "=r"(value)
      : "l"(at), "r"(index), "r"(size));
  return value;
}
__device__ __forceinline__ unsigned load_below(unsigned size, unsigned index, const unsigned short* at) {
  unsigned value;
  asm("{\n\t.reg .pred inside;\n\tsetp.lt.u32 inside, %2, %3;\n\tmov.b32 %0, 0;\n\t"
      "@inside ld.global.nc.u16 %0, [%1];\n\t}"
      : "=r"(value)
      : "l"(at), "r"(index), "r"(size));
  return value;
}
__device__ __forceinline__ unsigned load_below(unsigned size, unsigned index, const unsigned* at) {
  unsigned value;
  asm("{\n\t.reg .pred inside;\n\tsetp.lt.u32 inside, %2, %3;\n\tmov.b32 %0, 0;\n\t"
      "@inside ld.global.nc.b32 %0, [%1];\n\t}"
      : "=r"(value)
      : "l"(at), "r"(index), "r"(size));
  return value;
}
__device__ __forceinline__ unsigned long long load_below(unsigned size, unsigned index, const unsigned long long* at) {
  unsigned long long value;
  asm("{\n\t.reg .pred inside;\n\tsetp.lt.u32 inside, %2, %3;\n\tmov.b64 %0, 0;\n\t"
      "@inside ld.global.nc.b64 %0, [%1];\n\t}"
      : "=l"(value)
      : "l"(at), "r"(index), "r"(size));
  return value;
}

// Elements: their bits in memory, and what a text gets of them.
struct F16 {
  using Value = float;
  using Bits = unsigned short;
  static __device__ __forceinline__ float value(unsigned bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<Bits>(bits)));
    return value;
  }
};
struct Bf16 {
  using Value = float;
  using Bits = unsigned short;
  static __device__ __forceinline__ float value(unsigned bits) { return __uint_as_float(bits << 16); }
};
struct F32 {
  using Value = float;
  using Bits = unsigned;
  static __device__ __forceinline__ float value(unsigned bits) { return __uint_as_float(bits); }
};
struct I32 {
  using Value = int;
  using Bits = unsigned;
  static __device__ __forceinline__ int value(unsigned bits) { return static_cast<int>(bits); }
};
struct I64 {
  using Value = long long;
  using Bits = unsigned long long;
  static __device__ __forceinline__ long long value(unsigned long long bits) { return static_cast<long long>(bits); }
};
struct Boolean {
  using Value = bool;
  using Bits = unsigned char;
  static __device__ __forceinline__ bool value(unsigned bits) { return bits != 0; }
};

// An index of any number type. What no int holds is outside of every tensor, as NaN is.
struct Index {
  int value;

  __device__ __forceinline__ Index(int i) : value(i) {}
  __device__ __forceinline__ Index(unsigned i) : value(static_cast<int>(i)) {}
  __device__ __forceinline__ Index(long i) : Index(static_cast<long long>(i)) {}
  __device__ __forceinline__ Index(unsigned long i) : Index(static_cast<unsigned long long>(i)) {}
  __device__ __forceinline__ Index(long long i) : value(static_cast<int>(i) == i ? static_cast<int>(i) : -1) {}
  __device__ __forceinline__ Index(unsigned long long i) : value(i >> 31 == 0 ? static_cast<int>(i) : -1) {}
  __device__ __forceinline__ Index(float i) : value(i == i ? static_cast<int>(i) : -1) {}
  __device__ __forceinline__ Index(double i) : value(i == i ? static_cast<int>(i) : -1) {}
  __device__ __forceinline__ Index(Position i) : value(i) {}
  __device__ __forceinline__ Index(Magnitude i) : value(i) {}

  __device__ __forceinline__ operator int() const { return value; }
};

// What the host writes of a tensor: runtime/call/function_arguments.cpp. An index outside of it gives 0: a kernel asks
// for rows and keys that do not exist, too, and a text's mistake reads no memory of others. kPacked: the elements of
// the last dimension are neighbours, so that the columns of a lane differ by constants.
template <class Element, int kRank, bool kPacked>
struct View {
  using Value = typename Element::Value;
  using Bits = typename Element::Bits;

  const char* data;
  long long strides[kRank];  // in bytes
  unsigned sizes[kRank];

  static __device__ __forceinline__ Value value(unsigned bits) { return Element::value(bits); }

 protected:
  __device__ __forceinline__ bool has(int dim, int index) const { return static_cast<unsigned>(index) < sizes[dim]; }
  // Along the last dimension.
  __device__ __forceinline__ long long stride() const {
    return kPacked ? static_cast<long long>(sizeof(Bits)) : strides[kRank - 1];
  }
  // An element that may be the same for all columns of a lane, in bytes from the first one. Its load is plain and
  // without a branch: then the compiler makes one of many. Tensors without elements have an address, too.
  __device__ __forceinline__ Value element(bool inside, long long at) const {
    const long long mask = -static_cast<long long>(inside);
    return Element::value(*reinterpret_cast<const Bits*>(data + (at & mask)) & static_cast<Bits>(mask));
  }
  // One that moves from column to column along the last dimension; at: of that dimension's first one. inside: as a mask
  // of the size, as a selection would be a branch for most of the compiler's passes.
  __device__ __forceinline__ Value element(bool inside, long long at, Position index) const {
    return Element::value(
        load_below(sizes[kRank - 1] & -static_cast<unsigned>(inside), index.first + index.offset,
                   reinterpret_cast<const Bits*>(data + at + index.first * stride() + index.offset * stride())));
  }
};

template <class Element, int kRank, bool kPacked>
struct Tensor;

template <class Element, bool kPacked>
struct Tensor<Element, 0, kPacked> {
  const char* data;

  __device__ __forceinline__ typename Element::Value operator()() const {
    return Element::value(*reinterpret_cast<const typename Element::Bits*>(data));
  }
};

template <class Element, bool kPacked>
struct Tensor<Element, 1, kPacked> : View<Element, 1, kPacked> {
  using Value = typename Element::Value;

  __device__ __forceinline__ Value operator()(Index i) const {
    return this->element(this->has(0, i), i * this->stride());
  }
  __device__ __forceinline__ Value operator()(Position i) const { return this->element(true, 0, i); }
  __device__ __forceinline__ Value operator()(RowPosition i) const { return (*this)(i.first); }
};

template <class Element, bool kPacked>
struct Tensor<Element, 2, kPacked> : View<Element, 2, kPacked> {
  using Value = typename Element::Value;

  __device__ __forceinline__ Value operator()(Index i, Index j) const {
    return this->element(this->has(0, i) & this->has(1, j), i * this->strides[0] + j * this->stride());
  }
  __device__ __forceinline__ Value operator()(Index i, Position j) const {
    return this->element(this->has(0, i), i * this->strides[0], j);
  }
  __device__ __forceinline__ Value operator()(Index i, RowPosition j) const { return (*this)(i, j.first); }
};

template <class Element, bool kPacked>
struct Tensor<Element, 3, kPacked> : View<Element, 3, kPacked> {
  using Value = typename Element::Value;

  __device__ __forceinline__ Value operator()(Index i, Index j, Index k) const {
    return this->element(this->has(0, i) & this->has(1, j) & this->has(2, k),
                         i * this->strides[0] + j * this->strides[1] + k * this->stride());
  }
  __device__ __forceinline__ Value operator()(Index i, Index j, Position k) const {
    return this->element(this->has(0, i) & this->has(1, j), i * this->strides[0] + j * this->strides[1], k);
  }
  __device__ __forceinline__ Value operator()(Index i, Index j, RowPosition k) const { return (*this)(i, j, k.first); }
};

template <class Element, bool kPacked>
struct Tensor<Element, 4, kPacked> : View<Element, 4, kPacked> {
  using Value = typename Element::Value;

  __device__ __forceinline__ Value operator()(Index i, Index j, Index k, Index l) const {
    return this->element(this->has(0, i) & this->has(1, j) & this->has(2, k) & this->has(3, l),
                         i * this->strides[0] + j * this->strides[1] + k * this->strides[2] + l * this->stride());
  }
  __device__ __forceinline__ Value operator()(Index i, Index j, Index k, Position l) const {
    return this->element(this->has(0, i) & this->has(1, j) & this->has(2, k),
                         i * this->strides[0] + j * this->strides[1] + k * this->strides[2], l);
  }
  __device__ __forceinline__ Value operator()(Index i, Index j, Index k, RowPosition l) const {
    return (*this)(i, j, k, l.first);
  }
};

}  // namespace text
