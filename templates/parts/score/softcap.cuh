// SPDX-License-Identifier: Apache-2.0
// Softcap: cap * tanh(score / cap), which keeps scores between -cap and cap (Gemma 2; Bello et al. 2016). The cap
// becomes the unit: what is left to do to each score is one multiplication and the hyperbolic tangent.
#pragma once

#include "abi.cuh"
#include "attention/score.cuh"
#include "ptx/convert.cuh"

struct Softcap {
  const SoftcapArguments& softcap;

  template <class Arguments>
  __device__ __forceinline__ explicit Softcap(const Arguments& args) : softcap(args.softcap) {}

  template <bool kDefers>
  struct Row {
    static constexpr bool kCommon = false;
    float caps;  // in the unit of what is taken

    __device__ __forceinline__ Row at(int) const { return *this; }
    __device__ __forceinline__ float apply(float score, Key) const { return ptx::tanh(score * caps); }
  };
  __device__ __forceinline__ float unit(float) const { return softcap.cap_log2; }
  template <bool kDefers, class PlaceOfRow>
  __device__ __forceinline__ Row<kDefers> row(PlaceOfRow, float taken) const {
    return {taken * softcap.inverse_log2};
  }
};
