// SPDX-License-Identifier: Apache-2.0
// One warp's arithmetic: its 16 or 32 query rows against keys and values in shared memory, with mma.sync.
#pragma once

#include "attention/probability.cuh"
#include "attention/stored.cuh"
#include "mma/fragments.cuh"
#include "mma/online_softmax.cuh"
#include "mma/shape.cuh"
#include "ptx/mma.cuh"
#include "ptx/special_registers.cuh"
#include "tile/shared_tile.cuh"

// Shape: of its tiles, and what of them stays in registers. Softmax_: of its rows. Fragments_: how operands come out of
// shared memory.
template <class Config, class Shape = ForwardShape<Config>,
          class Softmax_ = OnlineSoftmax<Shape::kM, Config::kRareRescale,
                                         typename Config::Products::template Probabilities<Rescale::rare, 0>>,
          class Fragments_ = typename Config::Products::template Fragments<Config, Shape>>
struct WarpAttention {
  using Fragments = Fragments_;
  using Key = typename Fragments::Key;
  using Value = typename Fragments::Value;

  static constexpr int kM = Shape::kM;
  static constexpr int kOutColumns = Shape::kPaddedHeadDimV / 8;  // mma tiles of the output
  static constexpr int kQSteps = Shape::kPaddedColumns / 16;      // of Q K^T
  static constexpr int kKeptSteps = Shape::kQueryInRegisters ? kQSteps : 1;
  static constexpr int kElementsOfWord = Config::Products::kElementsOfWord;
  static constexpr int kKeysOfStep = 16 * kElementsOfWord;  // of P V

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
          ptx::mma(Key{}, s.x[m][2 * n], q[m], b[0], b[1]);
          ptx::mma(Key{}, s.x[m][2 * n + 1], q[m], b[2], b[3]);
        }
      }
    }
  }

  // O += exp(S - max) V, with what raise_maximum() made of S. The exponentials of a step are computed between the
  // products of the one before. kept(m, h, column): what of a row stays of the lane's columns among kKeptKeys from
  // there, once XORed with flips. scales: what V is stored with, see attention/stored.cuh. factor: of products, where
  // they have scales of blocks. first_step: of those that values hold, the one with the first of these keys.
  template <int kKeys, class Kept, class Scales = StoredAs<>::Scales<Config>>
  __device__ __forceinline__ void accumulate_output(const Scores<kKeys>& s, const Shift& shift, SmemAddress values,
                                                    Kept kept, uint32 flips, const Scales& scales = {},
                                                    float factor = 1.0f, int first_step = 0) {
    constexpr int kKeySteps = kKeys / kKeysOfStep;
    constexpr int kWords = 4 * kM;  // of probabilities per lane and step
    constexpr int kDimSteps = kOutColumns / 2;
    uint32 p[2][kM][4];
    KeptPairs kept_pairs[kM][2];
    const auto make_word = [&](int j, int word) {
      const int m = word / 4, r = word % 4;
      exponentiate_word(p[j % 2], s, shift, scales, j, word);
      if constexpr (Config::Dropouts::kAny) {
        if (j % 2 == 0 && r < 2) kept_pairs[m][r] = kept(m, r, 16 * j);
        p[j % 2][m][r] &= kept_pairs[m][r % 2].x[j % 2 * 2 + r / 2] ^ flips;
      }
      if constexpr (Config::Values::kTransposed)
        if (r % 2 == 1) typename Config::Values::Order(lane).exchange(p[j % 2][m][r - 1], p[j % 2][m][r]);
    };
#pragma unroll
    for (int word = 0; word < kWords; ++word) make_word(0, word);
#pragma unroll
    for (int j = 0; j < kKeySteps; ++j)
#pragma unroll
      for (int n = 0; n < kDimSteps; ++n) {
        uint32 b[4];
        Fragments::load_values(b, behind_sums(values, j * kDimSteps + n - kInFlight), lane, first_step + j, n);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          add_product(o.x[m][2 * n], p[j % 2][m], b[0], b[1], factor);
          add_product(o.x[m][2 * n + 1], p[j % 2][m], b[2], b[3], factor);
        }
        if (j + 1 < kKeySteps)
#pragma unroll
          for (int word = 0; word < kWords; ++word)
            if (word * kDimSteps / kWords == n) make_word(j + 1, word);
      }
  }

 private:
  // Register r of the A operand holds the rows of half r % 2 and the keys of mma tile r / 2, or of the two tiles from
  // r / 2 * 2 on: the layout of S.
  template <class S, class Scales>
  __device__ __forceinline__ void exponentiate_word(uint32 (&p)[kM][4], const S& s, const Shift& shift,
                                                    const Scales& scales, int j, int word) {
    const int m = word / 4, r = word % 4, n = (2 * j + r / 2) * kElementsOfWord;
    if constexpr (kElementsOfWord == 2)
      p[m][r] = softmax.exponentiate(s.x[m][n], s.x[m][n + 1], shift, m, r % 2);
    else
      p[m][r] = softmax.template exponentiate<Value>(s.x[m][n], shift, m, r % 2,
                                                     [&](float& p0, float& p1) { scales.apply_to_values(p0, p1, n); });
  }

  // Products of a step with so many pairs of the output's tiles may be on their way to sums in f32. ptxas would have
  // them all at once, and no registers for them.
  static constexpr int kInFlight = 4;

  // The same address, but not before the sums of a pair of tiles are there; a negative one: at once.
  __device__ __forceinline__ SmemAddress behind_sums(SmemAddress values, int pair) const {
    if constexpr (!Config::Products::kSumsApart) return values;
    if (pair < 0) return values;
    return ptx::lop3_or_and(values, __float_as_uint(o.x[0][pair * 2 % kOutColumns][0]), ptx::ctaid_z());
  }

  // Of one step, to a tile of the output.
  __device__ __forceinline__ static void add_product(float (&o)[4], const uint32 (&p)[4], uint32 b0, uint32 b1,
                                                     float factor) {
    if constexpr (Config::Products::kSumsApart) {
      float apart[4] = {};
      ptx::mma(Value{}, apart, p, b0, b1);
#pragma unroll
      for (int e = 0; e < 4; ++e) o[e] += Config::Products::kScalesBlocks ? apart[e] * factor : apart[e];
    } else {
      ptx::mma(Value{}, o, p, b0, b1);
    }
  }
};
