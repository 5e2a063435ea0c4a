// SPDX-License-Identifier: Apache-2.0
// What the kernel that appends to a cache does where that is of 8 bits: a row is divided by its scale, which memory
// has, or which becomes such that the largest of its numbers is the largest that there is.
#pragma once

#include "kernels/append.cuh"
#include "ptx/convert.cuh"

// Stored: E4m3Element or E5m2Element.
template <class Stored>
struct ScaledCache {
  static constexpr bool kConverts = true;
  static constexpr int kChunkBytes = kChunkElements;
  static constexpr float kLargestFloat = 3.40282347e38f;    // infinity has no scale
  static constexpr float kSmallestScale = 1.17549435e-38f;  // a normal number: what is divided by it is no NaN

  const AppendedScales (&scales)[kAppendedCaches];

  // By the lanes of a row together. each_octet(use): the lane's chunks, use(chunk, octet). at: of the row's scale.
  template <class EachOctet>
  __device__ __forceinline__ void write(int which, char* to, int64 at, const RowLanes& lanes,
                                        EachOctet each_octet) const {
    const float scale = scale_of_row(scales[which], at, lanes, each_octet);
    each_octet([&](int chunk, const Octet& x) {
      const auto quotient = [&](int i) { return __fdiv_rn(x.x[i], scale); };  // as every caller would round it
      const auto four = [&](int i) {
        return ptx::cvt_rn_satfinite_x4(Stored{}, quotient(i), quotient(i + 1), quotient(i + 2), quotient(i + 3));
      };
      ptx::st_global(to + chunk * kChunkBytes, four(0), four(4));
    });
  }

 private:
  template <class EachOctet>
  __device__ __forceinline__ static float scale_of_row(const AppendedScales& of, int64 at, const RowLanes& lanes,
                                                       EachOctet each_octet) {
    if (of.are_written == 0) return of.first == nullptr ? 1.0f : ptx::ld_global_float(of.first + at);
    float largest = 0.0f;
    each_octet([&](int, const Octet& x) {
#pragma unroll
      for (float value : x.x) largest = fabsf(value) <= kLargestFloat ? fmaxf(largest, fabsf(value)) : largest;
    });
    for (int distance = lanes.count / 2; distance > 0; distance /= 2)
      largest = fmaxf(largest, ptx::shfl_xor(lanes.members(), largest, distance));
    const float scale = fmaxf(__fdiv_rn(largest, Stored::kLargest), kSmallestScale);
    if (lanes.own == 0) ptx::st_global(of.first + at, scale);
    return scale;
  }
};
