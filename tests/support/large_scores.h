// SPDX-License-Identifier: Apache-2.0
// Problems whose scores are far from 0 and known exactly: what is large cancels in the result, and f32 holds each
// score, so a kernel has no excuse. The kernels visit the last keys first.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "flashjit/attention.h"
#include "flashjit/tensor.h"

namespace flashjit::tests {

struct LargeScores {
  std::string name;
  HostTensor q, k, v;
  AttentionOptions options;
};

// [1, rows, heads, head_dim] with value(row, column).
template <class Value>
HostTensor filled(DType dtype, const Dims& shape, Value value) {
  HostTensor tensor(dtype, shape);
  std::int64_t at = 0;
  for (std::int64_t row = 0; row < shape[1]; ++row)
    for (std::int64_t head = 0; head < shape[2]; ++head)
      for (std::int64_t column = 0; column < shape[3]; ++column)
        store_element(tensor.data(), dtype, at++, value(row, column));
  return tensor;
}

// Scores around 2^exponent or its negative, some small multiples of an f32's last place apart, whose maximum grows and
// shrinks from block to block; odd rows have the negative.
inline LargeScores around_power_of_two(int exponent, DType dtype) {
  constexpr std::int64_t kQueries = 70, kKeys = 300, kHeadDim = 64;
  constexpr float kScale = 0.125f;
  const double step = std::fmax(4, std::ldexp(1, exponent - 22)), half = std::ldexp(1, exponent / 2);
  LargeScores problem{"scores around 2^" + std::to_string(exponent),
                      filled(dtype, {1, kQueries, 1, kHeadDim},
                             [&](std::int64_t row, std::int64_t column) {
                               const double size = column == 0 ? half : column == 1 ? step : 0;
                               return row % 2 == 0 ? size : -size;
                             }),
                      filled(dtype, {1, kKeys, 1, kHeadDim},
                             [&](std::int64_t key, std::int64_t column) {
                               const double offset = static_cast<double>(key * 7 % 5 + key / 64 % 3);
                               return column == 0 ? std::ldexp(half, exponent % 2) : column == 1 ? offset : 0;
                             }),
                      HostTensor::random_normal(dtype, {1, kKeys, 1, kHeadDim}, 3),
                      {}};
  problem.options.softmax_scale = kScale;
  return problem;
}

// Every score the same, but for one key's.
inline LargeScores one_key_above(double query, double key, double other, float scale, DType dtype) {
  constexpr std::int64_t kQueries = 20, kKeys = 200, kHeadDim = 64, kAbove = 100;
  LargeScores problem{
      "one key above, query " + std::to_string(query),
      filled(dtype, {1, kQueries, 1, kHeadDim}, [&](std::int64_t, std::int64_t) { return query; }),
      filled(dtype, {1, kKeys, 1, kHeadDim}, [&](std::int64_t at, std::int64_t) { return at == kAbove ? key : other; }),
      filled(dtype, {1, kKeys, 1, kHeadDim}, [&](std::int64_t at, std::int64_t) { return at == kAbove ? 1 : 5; }),
      {}};
  problem.options.softmax_scale = scale;
  return problem;
}

// Keys that are visited first have scores around -2^27 in base 2, which rise by 16 from block to block; the last 64
// have a score of 0 and decide alone. An f32 near -2^27 cannot tell a step of 16 from one of 8 and less.
inline LargeScores rise_from_far_below(DType dtype) {
  constexpr std::int64_t kQueries = 16, kKeys = 192, kHeadDim = 64, kBlock = 64;
  LargeScores problem{
      "rise from far below",
      filled(dtype, {1, kQueries, 1, kHeadDim},
             [](std::int64_t, std::int64_t column) { return column == 0   ? 8192.0
                                                            : column == 1 ? 16.0
                                                                          : 0.0; }),
      filled(dtype, {1, kKeys, 1, kHeadDim},
             [](std::int64_t key, std::int64_t column) {
               if (key < kBlock || column > 1) return 0.0;
               return column == 0 ? -16384.0 : key < 2 * kBlock ? -2.0 : -3.0;
             }),
      filled(dtype, {1, kKeys, 1, kHeadDim}, [](std::int64_t key, std::int64_t) { return 1.0 + key / kBlock; }),
      {}};
  problem.options.softmax_scale = std::log(2.0f);
  return problem;
}

inline std::vector<LargeScores> problems_with_large_scores(DType dtype) {
  std::vector<LargeScores> problems;
  for (const int exponent : {10, 14, 18, 20, 22, 24, 26, 27, 28, 29, 30})
    problems.push_back(around_power_of_two(exponent, dtype));
  problems.push_back(one_key_above(60000, 60000, 1, 0.125f, dtype));
  problems.push_back(one_key_above(-60000, -60000, 60000, 0.125f, dtype));
  problems.push_back(one_key_above(60000, 60000, 1, -0.125f, dtype));
  problems.push_back(one_key_above(-60000, 1, 60000, 0.125f, dtype));
  problems.push_back(one_key_above(60000, 60000, 1, 0.0f, dtype));
  problems.push_back(one_key_above(60000, 60000, -60000, 1e-30f, dtype));
  problems.push_back(rise_from_far_below(dtype));
  if (dtype == DType::bf16) {
    for (const float scale : {0.0f, 1e-40f, -1e-38f})
      problems.push_back(one_key_above(std::ldexp(1, 60), std::ldexp(1, 60), -std::ldexp(1, 60), scale, dtype));
    problems.push_back(one_key_above(1e18, 1e18, 1, 0.125f, dtype));
    problems.push_back(one_key_above(1e18, 2e18, -2e18, 2.0f, dtype));
    problems.push_back(one_key_above(-1e18, 1e18, 2e18, 2.0f, dtype));
    problems.push_back(one_key_above(-1e18, 2e18, 2e18, 2.0f, dtype));
  }
  return problems;
}

}  // namespace flashjit::tests
