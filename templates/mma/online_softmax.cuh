// SPDX-License-Identifier: Apache-2.0
// The online softmax of the mma family.
#pragma once

#include "attention/softmax.cuh"

// Of one warp that multiplies with mma.sync: it rescales its output when it takes a maximum.
template <int kM, bool kRareRescale, class Probabilities = WideProbabilities>
struct OnlineSoftmax : SoftmaxRows<kM, Probabilities> {
  using Rows = SoftmaxRows<kM, Probabilities>;
  using Shift = typename Rows::Shift;
  using Rows::maximum;
  using Rows::scale_log2;
  using Rows::sum;

  static constexpr float kLag = Probabilities::kMostLog2 - Probabilities::kPeakLog2;

  float lag;  // kLag in raw scores; -infinity once far rows are expected

  __device__ __forceinline__ explicit OnlineSoftmax(float scale) : Rows(scale), lag(kLag * ptx::rcp(scale)) {}

  // Of rows that have seen no key.
  __device__ __forceinline__ void expect_far() { lag = -infinity(); }
  // By a vote, so that ptxas knows it to be the same in all lanes.
  __device__ __forceinline__ bool expects_far() const { return ptx::vote_any(lag < 0.0f); }

  // Whether a row did not stay near 0 and was not expected to be far. NaN in the inputs counts.
  __device__ __forceinline__ bool went_far() const {
    bool any = false;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) any |= !(sum[m][h] < infinity());
    return any;
  }

  // Takes the maximum of new scores into account: rescales the sums and the output where it has to. The scores and the
  // result go to exponentiate(). Right for rows near 0; with kAnywhere for all, if far ones are expected.
  template <bool kAnywhere, int kNs, int kNo, bool kAny>
  __device__ __forceinline__ Shift raise_maximum(Accumulator<kM, kNs>& s, Accumulator<kM, kNo>& o,
                                                 const Common<kM, kAny>& common) {
    float seen[kM][2];
    bool grew = false;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        seen[m][h] = Rows::seen_maximum(s, m, h);
        if constexpr (kAny) seen[m][h] += common.x[m][h];
        grew |= seen[m][h] > maximum[m][h] + lag;
      }
    // One vote decides for the warp, before the lanes of a row exchange anything: usually that is all.
    if (!kRareRescale || ptx::vote_any(grew)) rescale<kAnywhere>(seen, o);
    Shift shift = Rows::shift_by_maxima();
    Rows::add_common(shift, common);
    if (kAnywhere && expects_far()) Rows::subtract_far_maxima(s, shift, common);
    return shift;
  }

 protected:
  // Such a row's sum becomes NaN, which nothing undoes: what was computed of it is thrown away.
  template <bool kAnywhere>
  __device__ __forceinline__ bool left_unexpectedly(int m, int h) const {
    const bool far = fabsf(maximum[m][h] * scale_log2) > kNear;
    return kAnywhere ? far && lag >= 0.0f && maximum[m][h] != -kLargestFloat : far;
  }

  template <bool kAnywhere, int kNo>
  __device__ __forceinline__ void rescale(const float (&seen)[kM][2], Accumulator<kM, kNo>& o) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float factor = Rows::template raise<kAnywhere>(seen[m][h], m, h);
        sum[m][h] = left_unexpectedly<kAnywhere>(m, h) ? nan() : sum[m][h] * factor;
#pragma unroll
        for (int n = 0; n < kNo; ++n) o.x[m][n][2 * h] *= factor, o.x[m][n][2 * h + 1] *= factor;
      }
  }
};
