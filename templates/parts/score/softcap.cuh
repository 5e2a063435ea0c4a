// SPDX-License-Identifier: Apache-2.0
// Softcap: cap * tanh(score / cap), which keeps scores between -cap and cap (Gemma 2; Bello et al. 2016). The cap
// becomes the unit: what is left to do to each score is one multiplication and the hyperbolic tangent.
#pragma once

#include "abi.cuh"
#include "attention/score.cuh"
#include "ptx/convert.cuh"

// tanh(x) = x P(x^2 - kNearCap^2) for |x| < kNearCap, with a relative error of 2^-11.2, as that of the instruction. The
// sign of what P takes says whether x is near; the factors of score and exponent are in the coefficients of P, so that
// the logarithm of a probability takes four instructions and no tanh, which the exponential's unit would compute.
struct NearSoftcap {
  static constexpr float kNearCap = 0.85f;  // of the cap
  static constexpr int kDegree = 2;

  float square;
  float coefficients[kDegree + 1];

  // caps: of a product, in one; unit: of a capped score.
  __device__ __forceinline__ NearSoftcap(float caps, float unit) {
    constexpr float kTanh[] = {0.813362325f, -0.192871967f, 0.0897885824f};
    const float reach = ptx::rcp(caps) * kNearCap;
    // Elsewhere a coefficient could be infinite or vanish: nothing is near then.
    const bool is_usual = caps > 0x1p-24f && caps < 0x1p24f;
    square = is_usual ? -reach * reach : 0.0f;
    float factor = caps * unit;
#pragma unroll
    for (int i = 0; i <= kDegree; ++i, factor *= caps * caps) coefficients[i] = kTanh[i] * factor;
  }
  __device__ __forceinline__ float nearness(float product) const { return __fmaf_rn(product, product, square); }
  __device__ __forceinline__ float log2(float product, float nearness, float shift) const {
    float y = coefficients[kDegree];
#pragma unroll
    for (int i = kDegree - 1; i >= 0; --i) y = __fmaf_rn(y, nearness, coefficients[i]);
    return __fmaf_rn(product, y, shift);
  }
};

struct Softcap {
  static constexpr bool kMayHide = false, kIsLong = false, kFetches = false, kIsCurved = true;

  const SoftcapArguments& softcap;

  template <class Arguments>
  __device__ __forceinline__ explicit Softcap(const Arguments& args) : softcap(args.softcap) {}

  template <bool kDefers>
  struct Row {
    static constexpr bool kCommon = false, kHasNear = true;
    float caps;  // in the unit of what is taken

    __device__ __forceinline__ NearSoftcap near(float unit) const { return {caps, unit}; }

    __device__ __forceinline__ Row at(int) const { return *this; }
    __device__ __forceinline__ float apply(float score, Key) const { return ptx::tanh(score * caps); }
    __device__ __forceinline__ float apply_with_derivative(float& score, Key key) const {
      score = apply(score, key);
      return __fmaf_rn(-score, score, 1.0f);
    }
  };
  __device__ __forceinline__ float unit(float) const { return softcap.cap_log2; }
  template <bool kDefers, class PlaceOfRow>
  __device__ __forceinline__ Row<kDefers> row(PlaceOfRow, float taken) const {
    return {taken * softcap.inverse_log2};
  }
};
