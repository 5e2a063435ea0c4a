// SPDX-License-Identifier: Apache-2.0
// A text that is outer * tanh(inner * score): a softcap, of any sign.
#pragma once

#include "function/text.cuh"
#include "parts/score/softcap.cuh"

// kMember: of the launch's arguments.
template <class Function, auto kMember>
struct CappingFunction {
  static constexpr bool kMayHide = false, kIsLong = false, kFetches = false;
  static constexpr bool kIsCurved = true;  // backward kernels have it as curved_function.cuh
  // Above 0 even where all scores are 0: the softmax multiplies by it, and what masks hide is -infinity.
  static constexpr float kSmallestUnit = 0x1p-100f;

  template <bool kDefers>
  using Row = Softcap::Row<kDefers>;

  const Function& text;

  template <class Arguments>
  __device__ __forceinline__ explicit CappingFunction(const Arguments& args) : text((args.*kMember).function) {}

  // Positive, and NaN where it is.
  __device__ __forceinline__ float unit(float) const {
    const float unit = fabsf(text.formula_outer()) * kLog2E;
    return unit < kSmallestUnit ? kSmallestUnit : unit;
  }
  template <bool kDefers, class PlaceOfRow>
  __device__ __forceinline__ Row<kDefers> row(PlaceOfRow, float taken) const {
    const float caps = taken * kLn2 * text.formula_inner();
    return {text.formula_outer() < 0.0f ? -caps : caps};
  }
};
