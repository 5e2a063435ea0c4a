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

template <class Arguments>
struct FunctionScoresThread {
  const Arguments& args;

  __device__ __forceinline__ void run() const {
    const FunctionScores& core = args.core;
    const int64 index = static_cast<int64>(ptx::ctaid_x()) * kFunctionScoresThreads + ptx::tid_x();
    const int query = static_cast<int>(index / core.seqlen_kv), key = static_cast<int>(index % core.seqlen_kv);
    if (query >= core.queries) return;
    double& score = core.scores[index];
    const Sequence sequence{core.seqlen_kv, core.seqlen_q};
    const RowPlace place{core.batch, core.head, core.first_query + query + sequence.keys - sequence.queries, sequence};
    score = transform(score, place, key);
  }

 private:
  __device__ __forceinline__ double transform(double score, const RowPlace& place, int key) const {
    score = apply(args, score, place, key, 0);
    return sees(args, place, key, 0) ? score : -static_cast<double>(infinity());
  }

  // The launch has a member for each function that there is.
  template <class Launch>
  __device__ __forceinline__ static auto apply(const Launch& args, double score, const RowPlace& place, int key, int)
      -> decltype(args.score, double{}) {
    const auto row = text_row(args.score, place);
    return args.core.in_f32 != 0 ? row.score(static_cast<float>(score), key, 0) : row.score(score, key, 0);
  }
  template <class Launch>
  __device__ __forceinline__ static double apply(const Launch&, double score, const RowPlace&, int, long) {
    return score;
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
