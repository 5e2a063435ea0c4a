// SPDX-License-Identifier: Apache-2.0
// One warp's arithmetic: its 16 or 32 query rows against keys and values in shared memory, with mma.sync.
#pragma once

#include "attention/probability.cuh"
#include "attention/stored.cuh"
#include "mma/fragments.cuh"
#include "mma/online_softmax.cuh"
#include "mma/shape.cuh"
#include "ptx/mma.cuh"
#include "tile/shared_tile.cuh"

// Shape: of its tiles, and what of them stays in registers. Softmax_: of its rows. Fragments_: how operands come out of
// shared memory.
template <class Config, class Shape = ForwardShape<Config>,
          class Softmax_ = OnlineSoftmax<Shape::kM, Config::kRareRescale>,
          class Fragments_ = ElementFragments<Config, Shape>>
struct WarpAttention {
  using Fragments = Fragments_;
  using Element = typename Config::Element;
  using Value = typename Fragments::Value;

  static constexpr int kM = Shape::kM;
  static constexpr int kOutColumns = Shape::kPaddedHeadDimV / 8;  // mma tiles of the output
  static constexpr int kQSteps = Shape::kPaddedHeadDim / 16;      // k16 steps of Q K^T
  static constexpr int kKeptSteps = Shape::kQueryInRegisters ? kQSteps : 1;

  template <int kKeys>
  using Scores = Accumulator<kM, kKeys / 8>;
  using Softmax = Softmax_;
  using Shift = typename Softmax::Shift;

  Softmax softmax;
  Accumulator<kM, kOutColumns> o;
  SmemAddress q_rows;  // this warp's rows of Q
  int lane;
  uint32 kept_query[kKeptSteps][kM][4];

  __device__ __forceinline__ WarpAttention(float scale_log2, SmemAddress q_rows, int lane)
      : softmax(scale_log2), q_rows(q_rows), lane(lane) {
    o.clear();
  }

  __device__ __forceinline__ void keep_query() {
#pragma unroll
    for (int k = 0; k < kQSteps; ++k) Fragments::load_query(kept_query[k % kKeptSteps], q_rows, lane, k);
  }

  // S = Q K^T for kKeys keys that begin at a row which is a multiple of 16.
  template <int kKeys>
  __device__ __forceinline__ void compute_scores(Scores<kKeys>& s, SmemAddress keys) const {
    s.clear();
#pragma unroll
    for (int k = 0; k < kQSteps; ++k) {
      uint32 loaded[kM][4];
      if constexpr (!Shape::kQueryInRegisters) Fragments::load_query(loaded, q_rows, lane, k);
      const auto& q = Shape::kQueryInRegisters ? kept_query[k % kKeptSteps] : loaded;
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32 b[4];
        Fragments::load_keys(b, keys, lane, n, k);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          ptx::mma_m16n8k16(Element{}, s.x[m][2 * n], q[m], b[0], b[1]);
          ptx::mma_m16n8k16(Element{}, s.x[m][2 * n + 1], q[m], b[2], b[3]);
        }
      }
    }
  }

  // O += exp(S - max) V, with what raise_maximum() made of S. The exponentials of 16 keys are computed between the
  // products of the 16 before. kept(m, h, column): what of a row stays of the lane's columns among kKeptKeys from
  // there, once XORed with flips. scales: what V is stored with, see attention/stored.cuh.
  template <int kKeys, class Kept, class Scales = StoredAs<>::Scales<Config>>
  __device__ __forceinline__ void accumulate_output(const Scores<kKeys>& s, const Shift& shift, SmemAddress values,
                                                    Kept kept, uint32 flips, const Scales& scales = {}) {
    constexpr int kKeySteps = kKeys / 16;
    constexpr int kPairs = 4 * kM;  // pairs of probabilities per lane and key step
    constexpr int kDimSteps = kOutColumns / 2;
    uint32 p[2][kM][4];
    KeptPairs kept_pairs[kM][2];
    const auto make_pair = [&](int j, int pair) {
      const int m = pair / 4, r = pair % 4;
      exponentiate_pair(p[j % 2], s, shift, scales, j, pair);
      if constexpr (Config::Dropouts::kAny) {
        if (j % 2 == 0 && r < 2) kept_pairs[m][r] = kept(m, r, 16 * j);
        p[j % 2][m][r] &= kept_pairs[m][r % 2].x[j % 2 * 2 + r / 2] ^ flips;
      }
    };
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) make_pair(0, pair);
#pragma unroll
    for (int j = 0; j < kKeySteps; ++j)
#pragma unroll
      for (int n = 0; n < kDimSteps; ++n) {
        uint32 b[4];
        Fragments::load_values(b, values, lane, j, n);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          ptx::mma_m16n8k16(Value{}, o.x[m][2 * n], p[j % 2][m], b[0], b[1]);
          ptx::mma_m16n8k16(Value{}, o.x[m][2 * n + 1], p[j % 2][m], b[2], b[3]);
        }
        if (j + 1 < kKeySteps)
#pragma unroll
          for (int pair = 0; pair < kPairs; ++pair)
            if (pair * kDimSteps / kPairs == n) make_pair(j + 1, pair);
      }
  }

 private:
  // Register r of the A operand holds the rows of half r % 2 and the keys of mma tile r / 2: the layout of S.
  template <class S, class Scales>
  __device__ __forceinline__ void exponentiate_pair(uint32 (&p)[kM][4], const S& s, const Shift& shift,
                                                    const Scales& scales, int j, int pair) {
    const int m = pair / 4, r = pair % 4, n = 2 * j + r / 2;
    p[m][r] = softmax.template exponentiate<Value>(s.x[m][n], shift, m, r % 2,
                                                   [&](float& p0, float& p1) { scales.apply_to_values(p0, p1, n); });
  }
};
