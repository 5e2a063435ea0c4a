// SPDX-License-Identifier: Apache-2.0
// Dropout by what the caller says of each probability.
#pragma once

#include "attention/probability.cuh"
#include "function/text.cuh"

// kMember: of the launch's arguments.
template <class Function, auto kMember>
struct DropoutMask {
  static constexpr bool kIsLong = true;

  const TextArguments<Function>& function;

  template <class Arguments>
  __device__ __forceinline__ explicit DropoutMask(const Arguments& args) : function(args.*kMember) {}

  __device__ __forceinline__ float scale() const { return 1.0f; }
  __device__ __forceinline__ uint32 flips() const { return 0; }

  struct Row {
    TextRow<Function> text;

    __device__ __forceinline__ Row at(int position) const { return {text.at(position)}; }
    __device__ __forceinline__ KeptPairs kept(int first) const {
      KeptPairs kept;
#pragma unroll
      for (int t = 0; t < kKeptKeys / 8; ++t)
        kept.x[t] = (text.sees(first, 8 * t) ? 0x0000ffffu : 0) | (text.sees(first, 8 * t + 1) ? 0xffff0000u : 0);
      return kept;
    }
  };
  template <class PlaceOfRow>
  __device__ __forceinline__ Row row(PlaceOfRow place) const {
    return {text_row(function, place())};
  }
};
