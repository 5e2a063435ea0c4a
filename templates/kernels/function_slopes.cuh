// SPDX-License-Identifier: Apache-2.0
// Applies users' functions to scores as function_scores.cuh, and differentiates them: for gradients of references.
#pragma once

#include "function/dual.cuh"
#include "kernels/function_scores.cuh"

struct DualNumbers {
  static constexpr bool kHaveSlopes = true;

  template <class Real>
  __device__ __forceinline__ static text::Dual<Real> of(Real score) {
    return {score, Real(1)};
  }
  template <class Real>
  __device__ __forceinline__ static ChangedScore read(text::Dual<Real> made) {
    return {made.value, made.derivative};
  }
};
