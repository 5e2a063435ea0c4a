// SPDX-License-Identifier: Apache-2.0
// A text in the slot of predicates.
#pragma once

#include "attention/predicate.cuh"
#include "function/text.cuh"

// kMember: of the launch's arguments.
template <class Function, auto kMember>
struct MaskFunction {
  const TextArguments<Function>& function;

  template <class Arguments>
  __device__ __forceinline__ explicit MaskFunction(const Arguments& args) : function(args.*kMember) {}

  struct Row {
    TextRow<Function> text;

    __device__ __forceinline__ Row at(int position) const { return {text.at(position)}; }
    __device__ __forceinline__ Row beside(const Row& other) const { return {text.beside(other.text)}; }
    __device__ __forceinline__ bool sees(Key key) const { return text.sees(key.first, key.offset); }
  };
  template <class PlaceOfRow>
  __device__ __forceinline__ Row row(PlaceOfRow place) const {
    return {text_row(function, place())};
  }
};
