// SPDX-License-Identifier: Apache-2.0
// The online softmax of 16 rows against the keys of one warp.
#pragma once

#include "attention/softmax.cuh"
#include "ptx/barrier.cuh"
#include "types.cuh"

template <Rescale kRescale>
struct WarpSoftmax : SoftmaxRows<1> {
  // Of what is taken against a maximum as it is. -infinity when a row of the warp is far from 0, or was not yet looked
  // at.
  float limit;

  __device__ __forceinline__ explicit WarpSoftmax(float scale) : SoftmaxRows(scale), limit(-infinity()) {}

  // Takes the maximum of new scores into account: rescales the sums and the output where it has to. The scores and the
  // result go to exponentiate().
  template <int kNs, class Output, bool kAny>
  __device__ __forceinline__ Shift raise_maximum(Accumulator<1, kNs>& s, Output& o, const Common<1, kAny>& common) {
    float seen[2] = {seen_maximum(s, 0, 0), seen_maximum(s, 0, 1)};
    if constexpr (kAny) seen[0] += common.x[0][0], seen[1] += common.x[0][1];
    Shift shift = shift_by_maxima();
    const bool grew = exceeds(seen[0], shift.x[0][0], limit) | exceeds(seen[1], shift.x[0][1], limit);
    // One vote decides for the warp, before the lanes of a row exchange anything: usually that is all.
    const bool rises = kRescale == Rescale::always || ptx::vote_any(grew);
    if (rises) {
      rescale(seen, o);
      shift = shift_by_maxima();
    }
    add_common(shift, common);
    if (rises) limit = subtract_far_maxima(s, shift, common) ? -infinity() : kMaximumLag;
    return shift;
  }

 private:
  template <class Output>
  __device__ __forceinline__ void rescale(const float (&seen)[2], Output& o) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float factor = raise(seen[h], 0, h);
      sum[0][h] *= factor;
      o.multiply_rows(h, factor);
    }
  }
};
