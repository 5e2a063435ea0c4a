// SPDX-License-Identifier: Apache-2.0
// The online softmax of one warp's rows (Milakov and Gimelshein 2018; Dao et al. 2022, algorithm 1).
#pragma once

#include "ptx/barrier.cuh"
#include "ptx/convert.cuh"
#include "types.cuh"

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }
constexpr float kLn2 = 0.693147180559945f;
// With a rare rescale the running maximum may lag behind by this much in base 2: probabilities stay below 2^8, far from
// the largest f16, and their sum below seqlen * 2^8.
constexpr float kMaximumLag = 8.0f;

// Accumulators of mma.m16n8k16: kM tiles of 16 rows, kN of 8 columns. Lane l holds of tile (m, n), in x[m][n][e],
// row 16m + l/4 + 8 (e/2) and column 8n + 2 (l%4) + e%2.
template <int kM, int kN>
struct Accumulator {
  float x[kM][kN][4];

  // As the generated wgmma wrappers take it: of a warpgroup each warp holds 16 rows.
  using Flat = float[kM * kN * 4];
  __device__ __forceinline__ Flat& flat() { return reinterpret_cast<Flat&>(x); }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) x[m][n][e] = 0.0f;
  }
};

// Two rows in each of kM tiles of 16: lane l keeps, for half h, row 16m + l/4 + 8h.
template <int kM, bool kRareRescale>
struct OnlineSoftmax {
  float maximum[kM][2];  // of the raw scores; the same in the four lanes of a row
  float sum[kM][2];      // of this lane's columns only, until total()
  float scale_log2;
  float lag;  // kMaximumLag in raw scores

  __device__ __forceinline__ explicit OnlineSoftmax(float scale_log2_)
      : scale_log2(scale_log2_), lag(kMaximumLag / scale_log2_) {
    reset();
  }

  // To rows that have seen no key.
  __device__ __forceinline__ void reset() {
    // Finite, so that a row without a key gives exp2(-inf) = 0 and never inf - inf; and small enough to be scaled.
    const float lowest = -1e38f * ptx::rcp(fmaxf(scale_log2, 1.0f));
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) maximum[m][h] = lowest, sum[m][h] = 0.0f;
  }

  // Takes the maximum of new scores into account: rescales the sums and the output where it has to.
  template <int kNs, int kNo>
  __device__ __forceinline__ void raise_maximum(const Accumulator<kM, kNs>& s, Accumulator<kM, kNo>& o) {
    float seen[kM][2];
    bool grew = false;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        seen[m][h] = seen_maximum(s, m, h);
        grew |= seen[m][h] > maximum[m][h] + lag;
      }
    // One vote decides for the warp, before the lanes of a row exchange anything: usually that is all.
    if (kRareRescale && !ptx::vote_any(grew)) return;
    rescale(seen, o);
  }

  // Of this lane's columns.
  template <int kNs>
  __device__ __forceinline__ static float seen_maximum(const Accumulator<kM, kNs>& s, int m, int h) {
    float seen = fmaxf(s.x[m][0][2 * h], s.x[m][0][2 * h + 1]);
#pragma unroll
    for (int n = 1; n < kNs; ++n) seen = fmaxf(seen, fmaxf(s.x[m][n][2 * h], s.x[m][n][2 * h + 1]));
    return seen;
  }

  // Raises a row's maximum to what its four lanes have seen; returns the factor for what was summed before.
  __device__ __forceinline__ float raise(float seen, int m, int h) {
    float raised = fmaxf(seen, ptx::shfl_xor(seen, 1));
    raised = fmaxf(raised, ptx::shfl_xor(raised, 2));
    raised = fmaxf(raised, maximum[m][h]);
    const float factor = ptx::ex2((maximum[m][h] - raised) * scale_log2);
    maximum[m][h] = raised;
    return factor;
  }

  template <int kNo>
  __device__ __forceinline__ void rescale(const float (&seen)[kM][2], Accumulator<kM, kNo>& o) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float factor = raise(seen[m][h], m, h);
        sum[m][h] *= factor;
#pragma unroll
        for (int n = 0; n < kNo; ++n) o.x[m][n][2 * h] *= factor, o.x[m][n][2 * h + 1] *= factor;
      }
  }

  // exp of two neighbouring scores as a pair of elements, and into the sum.
  template <class Element>
  __device__ __forceinline__ uint32 exponentiate(const float (&s)[4], int m, int h) {
    const float shift = maximum[m][h] * scale_log2;
    const float p0 = ptx::ex2(__fmaf_rn(s[2 * h], scale_log2, -shift));
    const float p1 = ptx::ex2(__fmaf_rn(s[2 * h + 1], scale_log2, -shift));
    sum[m][h] += p0 + p1;
    return ptx::cvt_rn_x2(Element{}, p0, p1);
  }

  // The whole row's sum, in each of its four lanes.
  __device__ __forceinline__ float total(int m, int h) const {
    const float half = sum[m][h] + ptx::shfl_xor(sum[m][h], 1);
    return half + ptx::shfl_xor(half, 2);
  }

  // Natural logarithm of the sum of exponentials; -inf for a row that saw no key.
  __device__ __forceinline__ float log_sum_exp(int m, int h, float row_total) const {
    return row_total == 0.0f ? -infinity() : (maximum[m][h] * scale_log2 + ptx::lg2(row_total)) * kLn2;
  }
};
