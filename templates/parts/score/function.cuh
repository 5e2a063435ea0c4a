// SPDX-License-Identifier: Apache-2.0
// A text in the slot of scores: it takes scores in the unit of natural logarithms, and leaves them in that.
#pragma once

#include "attention/score.cuh"
#include "function/text.cuh"

// kMember: of the launch's arguments.
template <class Function, auto kMember>
struct ScoreFunction {
  static constexpr bool kMayHide = true;  // by -infinity
  static constexpr bool kIsLong = true, kFetches = false;
  static constexpr bool kIsCurved = false;  // of a bias; backward kernels have users' texts as curved_function.cuh

  const TextArguments<Function>& function;

  template <class Arguments>
  __device__ __forceinline__ explicit ScoreFunction(const Arguments& args) : function(args.*kMember) {}

  template <bool kDefers>
  struct Row {
    static constexpr bool kCommon = false, kHasNear = false;

    TextRow<Function> text;
    float taken;  // the unit of what it takes

    __device__ __forceinline__ Row at(int position) const { return {text.at(position), taken}; }
    __device__ __forceinline__ float apply(float score, Key key) const {
      return text.score(score * taken, key.first, key.offset);
    }
  };
  __device__ __forceinline__ float unit(float) const { return kLog2E; }
  template <bool kDefers, class PlaceOfRow>
  __device__ __forceinline__ Row<kDefers> row(PlaceOfRow place, float taken) const {
    return {text_row(function, place()), taken * kLn2};
  }
};
