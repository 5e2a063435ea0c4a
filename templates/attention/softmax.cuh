// SPDX-License-Identifier: Apache-2.0
// The online softmax of one warp's rows (Milakov and Gimelshein 2018; Dao et al. 2022, algorithm 1).
#pragma once

#include "ptx/barrier.cuh"
#include "ptx/convert.cuh"
#include "types.cuh"

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }
__device__ __forceinline__ float nan() { return __int_as_float(0x7fffffff); }
constexpr float kLn2 = 0.693147180559945f;
// With a rare rescale the running maximum may lag behind by this much in base 2: probabilities stay below 2^8, far from
// the largest f16, and their sum below seqlen * 2^8.
constexpr float kMaximumLag = 8.0f;
// The largest finite f32; below its negative there is no score, so a row whose maximum it is has seen no key.
constexpr float kLargestFloat = 3.40282347e38f;

// What probabilities may be that have become elements of 16 bits, as both formats have room for them:
struct WideProbabilities {
  // The binary logarithm of what a score at its row's maximum becomes, and the largest one that is taken against a
  // maximum that is out of date.
  static constexpr int kPeakLog2 = 0;
  // That of a factor that all have beside it, and that is in the scale of values: none.
  static constexpr float kCentreLog2 = 0.0f;
  static constexpr float kMostLog2 = kMaximumLag;
  // With a lazy maximum a lane's share of a row may sum to this much: every probability stays a finite f16, and the sum
  // of all far from the largest f32.
  static constexpr float kMostOfLane = 16384.0f;
  // From here on maxima in base 2 are far. Up to here rounding one takes less than 4 away: probabilities stay below
  // 2^(4 + kMaximumLag).
  static constexpr float kFar = 67108864.0f;
};
// Up to here two roundings of maxima in base 2 are off by 2^-11 at most, which no f16 shows.
constexpr float kNear = 8192.0f;

// Accumulators of mma.m16n8k16: kM tiles of 16 rows, kN of 8 columns. Lane l holds of tile (m, n), in x[m][n][e],
// row 16m + l/4 + 8 (e/2) and column 8n + 2 (l%4) + e%2.
template <int kM, int kN>
struct Accumulator {
  float x[kM][kN][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) x[m][n][e] = 0.0f;
  }
  // Of half the rows of a lane.
  __device__ __forceinline__ void multiply_rows(int half, float factor) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kN; ++n) x[m][n][2 * half] *= factor, x[m][n][2 * half + 1] *= factor;
  }
  __device__ __forceinline__ void multiply(float factor) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) x[m][n][e] *= factor;
  }
};

// A binary logarithm that an f32 has no room for: the sum of two of them, of which the second is the smaller one.
struct Log2 {
  float high, low;

  __device__ __forceinline__ bool operator<(const Log2& other) const {
    return high < other.high || (high == other.high && low < other.low);
  }
  // In an f32 all the same, and natural.
  __device__ __forceinline__ float natural() const {
    return high == -infinity() ? high : __fmaf_rn(high, kLn2, low * kLn2);
  }
};

// What all scores of a row in a block lack: of the rows of a lane, as SoftmaxRows has them. Empty where they lack
// nothing.
template <int kM, bool kAny>
struct Common {};

template <int kM>
struct Common<kM, true> {
  float x[kM][2];
};

// What a softmax keeps of two rows in each of kM tiles of 16: lane l, for half h, of row 16m + l/4 + 8h.
//
// Probabilities are 2^(score * scale - reference), where the reference of a row is its maximum in base 2. As an f32 it
// is rounded, which cancels, because the sum, the output and the LSE are relative to the same rounded number. Far from
// 0 the rounding would be more than exp2 can bridge. In the rows that are that far, the maximum is subtracted from the
// scores before they are scaled, and the reference is exact. It is asked for where it costs next to nothing.
template <int kM, class Probabilities = WideProbabilities>
struct SoftmaxRows {
  // What is subtracted from a block's scores in base 2.
  struct Shift {
    float x[kM][2];
  };

  float maximum[kM][2];  // of the raw scores; the same in the four lanes of a row
  float sum[kM][2];      // of this lane's columns only, until total()
  float scale_log2;

  __device__ __forceinline__ explicit SoftmaxRows(float scale_log2_) : scale_log2(scale_log2_) { reset(); }

  // To rows that have seen no key.
  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) maximum[m][h] = -kLargestFloat, sum[m][h] = 0.0f;
  }

  // Of this lane's columns.
  template <int kNs>
  __device__ __forceinline__ static float seen_maximum(const Accumulator<kM, kNs>& s, int m, int h) {
    float seen = fmaxf(s.x[m][0][2 * h], s.x[m][0][2 * h + 1]);
#pragma unroll
    for (int n = 1; n < kNs; ++n) seen = fmaxf(seen, fmaxf(s.x[m][n][2 * h], s.x[m][n][2 * h + 1]));
    return seen;
  }

  // Whether a score exceeds its row's maximum, which is the shift, by more than the lag.
  __device__ __forceinline__ bool exceeds(float seen, float shift, float lag) const {
    return __fmaf_rn(seen, scale_log2, -shift) > lag;
  }

  // Raises a row's maximum to what its four lanes have seen; returns the factor for what was summed before. Without
  // kAnywhere only right for rows near 0.
  template <bool kAnywhere = true>
  __device__ __forceinline__ float raise(float seen, int m, int h) {
    const float before = maximum[m][h];
    float raised = fmaxf(seen, ptx::shfl_xor(seen, 1));
    raised = fmaxf(raised, ptx::shfl_xor(raised, 2));
    raised = fmaxf(raised, before);
    maximum[m][h] = raised;
    if constexpr (!kAnywhere) return ptx::ex2((before - raised) * scale_log2);
    return factor_between(before, raised);
  }
  // For what was summed while a row's maximum was another one.
  __device__ __forceinline__ float factor_between(float before, float raised) const {
    // Towards zero the difference of finite numbers is finite, so that a scale of almost 0 leaves no NaN.
    return ptx::ex2(__fadd_rz(before, -raised) * scale_log2 + (rounded_away(raised) - rounded_away(before)));
  }

  __device__ __forceinline__ Shift shift_by_maxima() const {
    Shift shift;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) shift.x[m][h] = reference(maximum[m][h]);
    return shift;
  }
  __device__ __forceinline__ void add_common(Shift&, const Common<kM, false>&) const {}
  __device__ __forceinline__ void add_common(Shift& shift, const Common<kM, true>& common) const {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) shift.x[m][h] = __fmaf_rn(-common.x[m][h], scale_log2, shift.x[m][h]);
  }

  // After the maxima rose. True when a row of the warp is far from 0.
  template <int kNs, bool kAny>
  __device__ __forceinline__ bool subtract_far_maxima(Accumulator<kM, kNs>& s, Shift& shift,
                                                      const Common<kM, kAny>& common) const {
    if (!any_far()) return false;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float subtracted = take_out_of_shift(shift, m, h, common);
#pragma unroll
        for (int n = 0; n < kNs; ++n) s.x[m][n][2 * h] -= subtracted, s.x[m][n][2 * h + 1] -= subtracted;
      }
    return true;
  }
  // Whether a row of the warp is far from 0.
  __device__ __forceinline__ bool any_far() const {
    bool any = false;
#pragma unroll
    for (int m = 0; m < kM; ++m) any |= is_far(maximum[m][0]) || is_far(maximum[m][1]);
    return ptx::vote_any(any);
  }
  // What is to be subtracted from a row's scores before they are scaled. By selection: no lane takes a way of its own.
  // Of what the scores lack too, which is lost beside a maximum so far.
  template <bool kAny>
  __device__ __forceinline__ float take_out_of_shift(Shift& shift, int m, int h, const Common<kM, kAny>& common) const {
    float subtracted = is_far(maximum[m][h]) ? maximum[m][h] : 0.0f;
    if constexpr (kAny) subtracted -= is_far(maximum[m][h]) ? common.x[m][h] : 0.0f;
    shift.x[m][h] = is_far(maximum[m][h]) ? 0.0f - Probabilities::kCentreLog2 : shift.x[m][h];
    return subtracted;
  }

  // exp of two neighbouring scores, and into the sum.
  __device__ __forceinline__ void exponentials(const float (&s)[4], const Shift& shift, int m, int h, float& p0,
                                               float& p1) {
    p0 = ptx::ex2(__fmaf_rn(s[2 * h], scale_log2, -shift.x[m][h]));
    p1 = ptx::ex2(__fmaf_rn(s[2 * h + 1], scale_log2, -shift.x[m][h]));
    sum[m][h] += p0 + p1;
  }
  // As a pair of elements. weigh(p0, p1): what becomes of them after the sum.
  template <class Element, class Weigh>
  __device__ __forceinline__ uint32 exponentiate(const float (&s)[4], const Shift& shift, int m, int h, Weigh weigh) {
    float p0, p1;
    exponentials(s, shift, m, h, p0, p1);
    weigh(p0, p1);
    return ptx::cvt_rn_x2(Element{}, p0, p1);
  }

  // As four elements of 8 bits, of two tiles of scores that are neighbours.
  __device__ __forceinline__ uint32 exponentiate(const float (&s)[4], const float (&next)[4], const Shift& shift, int m,
                                                 int h) {
    float p[4];
    exponentials(s, shift, m, h, p[0], p[1]);
    exponentials(next, shift, m, h, p[2], p[3]);
    return ptx::cvt_rn_satfinite_x4(E4m3Element{}, p[0], p[1], p[2], p[3]);
  }

  // The whole row's sum, in each of its four lanes.
  __device__ __forceinline__ float total(int m, int h) const {
    const float half = sum[m][h] + ptx::shfl_xor(sum[m][h], 1);
    return half + ptx::shfl_xor(half, 2);
  }

  // How far a row's reference lies above a number in base 2.
  __device__ __forceinline__ float reference_above(float of, int m, int h) const {
    return __fmaf_rn(maximum[m][h], scale_log2, -of) - rounded_away(maximum[m][h]);
  }

  // Natural logarithm of the sum of exponentials; -inf for a row that saw no key. Finite if the scaled scores are.
  __device__ __forceinline__ float log_sum_exp(int m, int h, float row_total) const {
    const float above = (ptx::lg2(row_total) - rounded_away(maximum[m][h])) * kLn2;
    return row_total == 0.0f ? -infinity() : __fmaf_rn(maximum[m][h], scale_log2 * kLn2, above);
  }
  // The same, binary, and as exact beside a large maximum.
  __device__ __forceinline__ Log2 log2_sum_exp(int m, int h, float row_total) const {
    if (row_total == 0.0f) return {-infinity(), 0.0f};
    const float of = maximum[m][h], whole = in_base_2(of);
    const float high = Probabilities::kPeakLog2 == 0 || is_far(of) ? whole : reference(of);
    const float lost = is_far(of) ? __fmaf_rn(of, scale_log2, -high) - Probabilities::kCentreLog2 : 0.0f;
    return {high, lost + ptx::lg2(row_total)};
  }

 private:
  // A maximum in base 2. Towards zero: finite, also for rows that have seen no key.
  __device__ __forceinline__ float in_base_2(float of) const { return __fmul_rz(of, scale_log2); }
  // What is subtracted from scores in base 2 of a row with this maximum, unless it is far from 0.
  __device__ __forceinline__ float reference(float of) const {
    if constexpr (Probabilities::kPeakLog2 == 0) return in_base_2(of);
    return in_base_2(of) - (Probabilities::kPeakLog2 + Probabilities::kCentreLog2);
  }
  // So is a row that has seen no key: its first one may be as far as that.
  __device__ __forceinline__ bool is_far(float of) const { return fabsf(in_base_2(of)) >= Probabilities::kFar; }
  // What a reference lacks of its maximum in base 2.
  __device__ __forceinline__ float rounded_away(float of) const {
    return is_far(of) ? Probabilities::kCentreLog2 : __fmaf_rn(of, scale_log2, -reference(of));
  }
};
