// SPDX-License-Identifier: Apache-2.0
// The online softmax of one warp of a warpgroup. P V runs while it computes, so the output is rescaled later, and the
// scores, which are registers of a generated ScoreMatrix, become probabilities there, or with dropout in those of P.
#pragma once

#include "attention/probability.cuh"
#include "attention/softmax.cuh"

// Range: what probabilities may be.
template <class Scores, Rescale kRescale, class Range>
struct DeferredSoftmax : SoftmaxRows<1, Range> {
  using Rows = SoftmaxRows<1, Range>;
  using Rows::add_common, Rows::any_far, Rows::exceeds, Rows::maximum, Rows::raise, Rows::scale_log2,
      Rows::shift_by_maxima, Rows::sum, Rows::take_out_of_shift;
  using typename Rows::Shift;

  static constexpr float kUsualLimit = kRescale == Rescale::lazy ? Range::kMostOfLane : Range::kMostLog2;

  // Whether sums of usual scores may be above the limit where the maximum is one of a few of them.
  static constexpr bool kHasLittleRoom = kUsualLimit < WideProbabilities::kMostOfLane;

  float outgrown[2];  // where there is little room: the sums of the block that was last not taken lazily

  // Of what is taken against a maximum as it is. -infinity when a row of the warp is far from 0, or was not yet looked
  // at.
  float limit;
  float factor[2];  // of the last rise

  __device__ __forceinline__ explicit DeferredSoftmax(float scale)
      : Rows(scale), limit(-infinity()), factor{1.0f, 1.0f} {}

  // To rows that have seen no key.
  __device__ __forceinline__ void reset() {
    Rows::reset();
    limit = -infinity();
  }

  // Takes the maximum of new scores into account: true when sums and output must be multiplied by the factors. The
  // scores and the shift go to exponentiate(). A lazy maximum is always raised: what brings a block here may be a sum
  // of many probabilities none of which is large, and without a rise every later block would come here, too.
  template <bool kAny>
  __device__ __forceinline__ bool raise_maximum(Shift& shift, const Common<1, kAny>& common) {
    float seen[2];
    Scores::maximum(seen);
    if constexpr (kAny) seen[0] += common.x[0][0], seen[1] += common.x[0][1];
    shift = shift_by_maxima();
    if constexpr (kRescale == Rescale::rare) {
      const bool grew = exceeds(seen[0], shift.x[0][0], limit) | exceeds(seen[1], shift.x[0][1], limit);
      // One vote decides for the warp, before the lanes of a row exchange anything: usually that is all.
      if (!ptx::vote_any(grew)) {
        add_common(shift, common);
        return false;
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) factor[h] = raise(seen[h], 0, h);
    shift = shift_by_maxima();
    add_common(shift, common);
    limit = subtract_far(shift, common) ? -infinity() : kUsualLimit;
    return true;
  }

  // Scores to probabilities; returns the sums of this lane's. stays: AllStay or SomeStay.
  template <class Stays>
  __device__ __forceinline__ void exponentiate(const Shift& shift, float (&block_sum)[2], const Stays& stays) const {
    stays.template exponentiate<Scores>(scale_log2, {-shift.x[0][0], -shift.x[0][1]}, block_sum);
  }

  // All of a block whose maximum is taken. True: the output must be multiplied by the factors.
  template <bool kAny>
  __device__ __forceinline__ bool take_block(const Common<1, kAny>& common) {
    Shift shift;
    const bool raised = raise_maximum(shift, common);
    if (raised) sum[0][0] *= factor[0], sum[0][1] *= factor[1];
    float block_sum[2];
    exponentiate(shift, block_sum, AllStay{});
    add(block_sum);
    return raised;
  }

  // To maxima that another warp has raised; what was summed here before must be multiplied by the factors.
  __device__ __forceinline__ void follow(const float (&by)[2]) {
    sum[0][0] *= by[0], sum[0][1] *= by[1];
    limit = any_far() ? -infinity() : kUsualLimit;
  }

  __device__ __forceinline__ void take_next_exactly() { limit = -infinity(); }
  // Whether the next block can only be taken by take_block().
  __device__ __forceinline__ bool takes_exactly() const { return ptx::shfl_first(__float_as_int(limit)) < 0; }

  __device__ __forceinline__ void add(const float (&block_sum)[2]) {
    sum[0][0] += block_sum[0], sum[0][1] += block_sum[1];
  }

  // A block against the maximum as it is. False where that is too low for some row of the warp, or too far from 0: then
  // nothing is summed, and the scores are lost. NaN counts as too low.
  template <bool kAny>
  __device__ __forceinline__ bool take_block_lazily(const Common<1, kAny>& common) {
    Shift shift = shift_by_maxima();
    add_common(shift, common);
    float block_sum[2];
    exponentiate(shift, block_sum, AllStay{});
    if (ptx::vote_any(!is_within(block_sum))) return leave(block_sum);
    add(block_sum);
    return true;
  }

  // A block that was not taken lazily, from the probabilities that it has become. False where they are not finite. Sums
  // and output must be multiplied by the factors. Its scores made once more would have other bits than those of wgmma,
  // of 8-bit products so many that a row's blocks no longer weigh the same.
  __device__ __forceinline__ bool take_outgrown_block() {
    if (ptx::vote_any(!(outgrown[0] < infinity() && outgrown[1] < infinity()))) return false;
    float seen[2];
    Scores::maximum(seen);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float above = ptx::lg2(seen[h]) - Range::kPeakLog2;
      factor[h] = raise(maximum[0][h] + above / scale_log2, 0, h);
      sum[0][h] = (sum[0][h] + outgrown[h]) * factor[h];
    }
    Scores::multiply(factor);
    limit = any_far() ? -infinity() : kUsualLimit;
    return true;
  }

  // The same straight from products, by a part's shorter way: false also where one is not near enough for it, and then
  // is_near is false, too.
  template <class Near>
  __device__ __forceinline__ bool take_near_block_lazily(const Near& near, bool& is_near) {
    const Shift shift = shift_by_maxima();
    float sums[2][2] = {};
    uint32 signs = ~0u;  // of all that nearness() gives
    const auto probability = [&](float product, float minus_shift, float& row_sum) {
      const float nearness = near.nearness(product);
      signs &= __float_as_uint(nearness);
      const float p = ptx::ex2(near.log2(product, nearness, minus_shift));
      row_sum += p;
      return p;
    };
    Scores::transform([&](float x, int column) { return probability(x, -shift.x[0][0], sums[0][column % 2]); },
                      [&](float x, int column) { return probability(x, -shift.x[0][1], sums[1][column % 2]); });
    const float block_sum[2] = {sums[0][0] + sums[0][1], sums[1][0] + sums[1][1]};
    const bool far = static_cast<int>(signs) >= 0;
    if (ptx::vote_any(!is_within(block_sum) || far)) {
      is_near = !ptx::vote_any(far);
      return leave({infinity(), infinity()});
    }
    add(block_sum);
    return true;
  }

  // As take_block() or take_block_lazily(), by the same exponentials; true: the block is taken, and raised is what the
  // former returns.
  template <bool kAny, class Stays>
  __device__ __forceinline__ bool take_either(const Common<1, kAny>& common, bool exactly, bool& raised,
                                              const Stays& stays) {
    Shift shift;
    if (exactly) {
      raised = raise_maximum(shift, common);
      if (raised) sum[0][0] *= factor[0], sum[0][1] *= factor[1];
    } else {
      shift = shift_by_maxima();
      add_common(shift, common);
      raised = false;
    }
    float block_sum[2];
    exponentiate(shift, block_sum, stays);
    if constexpr (kRescale == Rescale::lazy) {
      const bool too_low = !exactly && !is_within(block_sum);
      if (ptx::vote_any(too_low)) return leave(block_sum);
    }
    add(block_sum);
    return true;
  }

 private:
  // False for NaN, too.
  __device__ __forceinline__ bool is_within(const float (&block_sum)[2]) const {
    return block_sum[0] <= limit && block_sum[1] <= limit;
  }
  // To take_outgrown_block().
  __device__ __forceinline__ bool leave(const float (&block_sum)[2]) {
    if constexpr (kHasLittleRoom) outgrown[0] = block_sum[0], outgrown[1] = block_sum[1];
    return false;
  }

  // True when a row of the warp is far from 0.
  template <bool kAny>
  __device__ __forceinline__ bool subtract_far(Shift& shift, const Common<1, kAny>& common) const {
    if (!any_far()) return false;
    Scores::subtract({take_out_of_shift(shift, 0, 0, common), take_out_of_shift(shift, 0, 1, common)});
    return true;
  }
};
