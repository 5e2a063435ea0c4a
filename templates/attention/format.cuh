// SPDX-License-Identifier: Apache-2.0
// What elements of 8 bits are of, where a problem has any: e4m3, or as a part in this slot says. Its contract:
//   Key, Value                    what ptx::mma() multiplies keys as, with queries of the same format, and values, with
//                                 probabilities, which are of e4m3 in either
//   to_halves(word, low, high)    four as f16, in their order, exactly
#pragma once

#include "ptx/convert.cuh"
#include "types.cuh"

// At most one part.
template <class... Parts>
struct FormatOf;

template <>
struct FormatOf<> {
  using Key = E4m3Element;
  using Value = E4m3Element;

  __device__ __forceinline__ static void to_halves(uint32 word, uint32& low, uint32& high) {
    ptx::cvt_rn_f16x2_e4m3x4(word, low, high);
  }
};

template <class Part>
struct FormatOf<Part> : Part {};
