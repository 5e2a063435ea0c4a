// SPDX-License-Identifier: Apache-2.0
// Applies users' functions to scores, one thread a score: what references take their scores from. It has nothing in
// common with the kernels of attention but the texts.
#pragma once

#include "abi.cuh"
#include "attention/row_place.cuh"
#include "attention/softmax.cuh"
#include "function/text.cuh"
#include "ptx/special_registers.cuh"
#include "types.cuh"

constexpr int kFunctionScoresThreads = 128;

// What a score becomes, and the derivative of that by the score.
struct ChangedScore {
  double score, slope;
};

// The numbers that texts compute in; kernels/function_slopes.cuh has others.
struct RealNumbers {
  static constexpr bool kHaveSlopes = false;

  template <class Real>
  __device__ __forceinline__ static Real of(Real score) {
    return score;
  }
  __device__ __forceinline__ static ChangedScore read(double made) { return {made, 0.0}; }
};

template <class Arguments, class Numbers = RealNumbers>
struct FunctionScoresThread {
  const Arguments& args;

  __device__ __forceinline__ void run() const {
    const FunctionScores& core = args.core;
    const int64 index = static_cast<int64>(ptx::ctaid_x()) * kFunctionScoresThreads + ptx::tid_x();
    const int query = static_cast<int>(index / core.seqlen_kv), key = static_cast<int>(index % core.seqlen_kv);
    if (query >= core.queries) return;
    const Sequence sequence{core.seqlen_kv, core.seqlen_q};
    const RowPlace place{core.batch, core.head, core.first_query + query + sequence.keys - sequence.queries, sequence};
    const ChangedScore made = transform(core.scores[index], place, key);
    core.scores[index] = made.score;
    if constexpr (Numbers::kHaveSlopes) core.slopes[index] = made.slope;
  }

 private:
  __device__ __forceinline__ ChangedScore transform(double score, const RowPlace& place, int key) const {
    const double hidden = -static_cast<double>(infinity());
    const ChangedScore made = apply(args, score, place, key, 0);
    return made.score != hidden && sees(args, place, key, 0) ? made : ChangedScore{hidden, 0.0};
  }

  // The launch has a member for each function that there is.
  template <class Launch>
  __device__ __forceinline__ static auto apply(const Launch& args, double score, const RowPlace& place, int key, int)
      -> decltype(args.score, ChangedScore{}) {
    const auto row = text_row(args.score, place);
    if (args.core.in_f32 != 0) return Numbers::read(row.score(Numbers::of(static_cast<float>(score)), key, 0));
    return Numbers::read(row.score(Numbers::of(score), key, 0));
  }
  template <class Launch>
  __device__ __forceinline__ static ChangedScore apply(const Launch&, double score, const RowPlace&, int, long) {
    return {score, 1.0};
  }
  template <class Launch>
  __device__ __forceinline__ static auto sees(const Launch& args, const RowPlace& place, int key, int)
      -> decltype(args.mask, bool{}) {
    return text_row(args.mask, place).sees(key, 0);
  }
  template <class Launch>
  __device__ __forceinline__ static bool sees(const Launch&, const RowPlace&, int, long) {
    return true;
  }
};
