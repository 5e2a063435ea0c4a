// SPDX-License-Identifier: Apache-2.0
// A user's text in the slot of scores of a backward kernel, with its derivative by the score. Its values are those that
// forward has of it (function.cuh).
#pragma once

#include "attention/score.cuh"
#include "function/dual.cuh"
#include "function/text.cuh"

// kMember: of the launch's arguments.
template <class Function, auto kMember>
struct CurvedFunction {
  static constexpr bool kMayHide = true;  // by -infinity
  static constexpr bool kIsLong = true, kFetches = false, kIsCurved = true;

  const TextArguments<Function>& function;

  template <class Arguments>
  __device__ __forceinline__ explicit CurvedFunction(const Arguments& args) : function(args.*kMember) {}

  template <bool kDefers>
  struct Row {
    static constexpr bool kCommon = false, kHasNear = false;

    TextRow<Function> text;
    float taken;  // the unit of what it takes
    bool exists;  // of others a text may make infinity and NaN, which would reach the sums of keys

    __device__ __forceinline__ Row at(int position) const {
      return {text.at(position), taken, position < text.sequence.keys};
    }
    __device__ __forceinline__ float apply_with_derivative(float& score, Key key) const {
      const text::Dual<float> made = text.score(text::Dual<float>{score * taken, 1.0f}, key.first, key.offset);
      score = exists ? made.value : -text::infinity;
      return made.derivative;
    }
  };
  __device__ __forceinline__ float unit(float) const { return kLog2E; }
  template <bool kDefers, class PlaceOfRow>
  __device__ __forceinline__ Row<kDefers> row(PlaceOfRow place_of, float taken) const {
    const RowPlace place = place_of();
    return {text_row(function, place), taken * kLn2, place.position < place.sequence.keys};
  }
};

template <class Function, auto kMember>
inline constexpr bool kHidesMissingRows<CurvedFunction<Function, kMember>> = true;
