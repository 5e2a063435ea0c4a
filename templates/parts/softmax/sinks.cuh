// SPDX-License-Identifier: Apache-2.0
// Attention sinks (Xiao et al. 2024, as learned logits): each query head has a score that no key stands for.
#pragma once

#include "abi.cuh"
#include "attention/row_place.cuh"
#include "types.cuh"

struct Sinks {
  const HeadArguments& sinks;

  template <class Arguments>
  __device__ __forceinline__ explicit Sinks(const Arguments& args) : sinks(args.sinks) {}

  template <class PlaceOfRow>
  __device__ __forceinline__ float term(PlaceOfRow place) const {
    return value_of_head(sinks, place()) * kLog2E;
  }
};
