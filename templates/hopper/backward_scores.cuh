// SPDX-License-Identifier: Apache-2.0
// From S^T and dP^T to P^T and dS^T, in registers that only PTX names: of 64 keys and of some queries, of which a lane
// has the keys of two rows, and of every eight queries two.
#pragma once

#include "attention/mask.cuh"
#include "attention/softmax.cuh"
#include "ptx/convert.cuh"
#include "ptx/memory.cuh"
#include "ptx/special_registers.cuh"
#include "types.cuh"

template <class Config>
struct HopperBackwardScores {
  using Matrix = typename Config::Scores;
  using Element = typename Config::Element;

  const float unit;  // what products are multiplied by

  __device__ __forceinline__ explicit HopperBackwardScores(const ForwardSizes& sizes) : unit(sizes.scale_log2) {}

  // To P. Whether masks hide any of it. lse: of the first query.
  __device__ __forceinline__ bool exponentiate(const Mask<Config>& mask, int first_key, int first_query,
                                               SmemAddress lse) const {
    const bool hides = hides_any(mask, first_key, first_query);
    if (hides) hide(mask, first_key, first_query);
    exponentiate(lse);
    return hides;
  }

  // To P and dS in 16 bits. sums: of the first query.
  __device__ __forceinline__ void differentiate(bool hides, SmemAddress sums) const {
    if (hides)
      differentiate<true>(sums);
    else
      differentiate<false>(sums);
  }

  // Where a lane's row of eight keys goes, of a tile of rows that are queries.
  template <class Tile>
  __device__ __forceinline__ static SmemAddress place_in(SmemAddress tile, int first_query) {
    return tile + Tile::offset(first_query + lane() % 8 + lane() / 16 * 8, 2 * warp() + lane() / 8 % 2);
  }

 private:
  __device__ __forceinline__ static bool hides_any(const Mask<Config>& mask, int first_key, int first_query) {
    bool hides = mask.last_key(first_query) < first_key + kWarpgroupRows - 1;
    if constexpr (Mask<Config>::kBegins) hides |= mask.first_key(first_query + Matrix::kQueries - 1) > first_key;
    return hides;
  }
  __device__ __forceinline__ void hide(const Mask<Config>& mask, int first_key, int first_query) const {
    const int key = first_key + warp() * 16 + lane() / 4, query = first_query + lane() % 4 * 2;
    const float hidden = unit < 0.0f ? infinity() : -infinity();
    const auto of_key = [&](int key) {
      return [&mask, hidden, key, query](float x, int offset) {
        bool sees = key <= mask.last_key(query + offset);
        if constexpr (Mask<Config>::kBegins) sees &= key >= mask.first_key(query + offset);
        return sees ? x : hidden;
      };
    };
    Matrix::transform(of_key(key), of_key(key + 8));
  }
  __device__ __forceinline__ void exponentiate(SmemAddress lse) const {
    const SmemAddress of_lane = lse + lane() % 4 * 8;
    float of[2] = {};
    const auto lower = [&](float x, int offset) { return ptx::ex2(__fmaf_rn(x, unit, -of[offset % 2])); };
    const auto upper = [&](float x, int offset) {
      if (offset % 2 == 0) ptx::ld_shared(of_lane + offset * 4, of[0], of[1]);
      return lower(x, offset);
    };
    Matrix::transform(upper, lower);
  }
  // kHides: what is hidden is 0 whatever its value is.
  template <bool kHides>
  __device__ __forceinline__ void differentiate(SmemAddress sums) const {
    const SmemAddress of_lane = sums + lane() % 4 * 8;
    float of[2];
    const auto lower = [&](const float(&p)[2], const float(&dp)[2], int, uint32& probabilities, uint32& derivatives) {
      float ds[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        ds[e] = p[e] * (dp[e] - of[e]);
        if (kHides && p[e] == 0.0f) ds[e] = 0.0f;
      }
      probabilities = ptx::cvt_rn_x2(Element{}, p[0], p[1]);
      derivatives = ptx::cvt_rn_x2(Element{}, ds[0], ds[1]);
    };
    const auto upper = [&](const float(&p)[2], const float(&dp)[2], int offset, uint32& probabilities,
                           uint32& derivatives) {
      ptx::ld_shared(of_lane + offset * 4, of[0], of[1]);
      lower(p, dp, offset, probabilities, derivatives);
    };
    Matrix::differentiate(upper, lower);
  }

  __device__ __forceinline__ static int lane() { return ptx::tid_x() % kWarpSize; }
  __device__ __forceinline__ static int warp() { return ptx::tid_x() % kWarpgroupSize / kWarpSize; }
};
