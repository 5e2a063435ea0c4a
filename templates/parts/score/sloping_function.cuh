// SPDX-License-Identifier: Apache-2.0
// A text that is score + slope * (key + from) + rest: one multiplication and addition for each score, as with ALiBi.
#pragma once

#include "attention/score.cuh"
#include "function/text.cuh"
#include "ptx/convert.cuh"

// kMember: of the launch's arguments.
template <class Function, auto kMember>
struct SlopingFunction {
  static constexpr bool kMayHide = true;  // by -infinity
  static constexpr bool kIsLong = false, kFetches = false, kIsCurved = false;

  const TextArguments<Function>& function;

  template <class Arguments>
  __device__ __forceinline__ explicit SlopingFunction(const Arguments& args) : function(args.*kMember) {}

  template <bool kDefers>
  struct Row {
    static constexpr bool kCommon = kDefers, kHasNear = false;

    TextRow<Function> text;
    float in_unit;      // of one, in the unit of the scores
    float slope, rest;  // in that unit
    int from;           // from the key by which kernels know it

    __device__ __forceinline__ Row at(int position) const {
      Row other{text.at(position), in_unit, slope, rest, 0};
      other.from = other.find_from();
      if constexpr (Function::kFormulaOfQuery) other.find_slope_and_rest();
      return other;
    }
    __device__ __forceinline__ float apply(float score, Key key) const {
      const auto offset = static_cast<float>(key.offset);
      if constexpr (kDefers) return __fmaf_rn(slope, offset, score);
      const float along = static_cast<float>(key.first + from) + offset;
      return __fmaf_rn(slope, along, Function::kFormulaHasRest ? score + rest : score);
    }
    __device__ __forceinline__ float common(int first) const {
      return __fmaf_rn(slope, static_cast<float>(first + from), rest);
    }

    __device__ __forceinline__ int find_from() const {
      return text.first_key + text.function->formula_from(text.batch, text.head, text.query_position(),
                                                          text.sequence.queries, text.sequence.keys);
    }
    __device__ __forceinline__ void find_slope_and_rest() {
      const Function& of = *text.function;
      const Sequence& sequence = text.sequence;
      const text::RowPosition query = text.query_position();
      slope = of.formula_slope(text.batch, text.head, query, sequence.queries, sequence.keys) * in_unit;
      rest = of.formula_rest(text.batch, text.head, query, sequence.queries, sequence.keys) * in_unit;
    }
  };
  __device__ __forceinline__ float unit(float taken) const { return taken; }
  template <bool kDefers, class PlaceOfRow>
  __device__ __forceinline__ Row<kDefers> row(PlaceOfRow place, float taken) const {
    Row<kDefers> made{text_row(function, place()), kLog2E * ptx::rcp(taken), 0.0f, 0.0f, 0};
    made.from = made.find_from();
    made.find_slope_and_rest();
    return made;
  }
};
