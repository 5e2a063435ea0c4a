// SPDX-License-Identifier: Apache-2.0
// The inputs of verify do to the scores what they say.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cli/verify/case_inputs.h"

namespace {

using namespace flashjit;
using cli::Scores;

constexpr std::int64_t kQueries = 6, kKeys = 420, kHeadDim = 256;

struct Case {
  explicit Case(Scores scores, DType dtype = DType::f16, std::int64_t head_dim = kHeadDim)
      : q(HostTensor::random_normal(dtype, {1, kQueries, 2, head_dim}, 1)),
        k(HostTensor::random_normal(dtype, {1, kKeys, 1, head_dim}, 2)) {
    cli::shape_scores(scores, q, k);
  }
  // Of a row of head 0, under the default scale.
  std::vector<double> scores(std::int64_t row) const {
    std::vector<double> result(kKeys);
    const std::int64_t head_dim = k.shape()[3];
    for (std::int64_t key = 0; key < kKeys; ++key)
      for (std::int64_t i = 0; i < head_dim; ++i)
        result[static_cast<std::size_t>(key)] += load_element(q.data(), q.dtype(), row * 2 * head_dim + i) *
                                                 load_element(k.data(), k.dtype(), key * head_dim + i) /
                                                 std::sqrt(1.0 * head_dim);
    return result;
  }
  HostTensor q, k;
};

std::int64_t highest(const std::vector<double>& scores) {
  return std::max_element(scores.begin(), scores.end()) - scores.begin();
}

}  // namespace

TEST_CASE("jumps are too high for exp in f32, block after block, in even rows upwards and in odd rows downwards") {
  const Case c(Scores::jumps);
  for (const std::int64_t row : {0, 1}) {
    const std::vector<double> scores = c.scores(row);
    for (std::size_t key = 64; key < kKeys; ++key) {
      const double jump = row == 0 ? scores[key - 64] - scores[key] : scores[key] - scores[key - 64];
      CHECK(jump > 127 * std::log(2.0));
    }
  }
}

TEST_CASE("huge scores are further apart than neighbouring f32, and each parity of rows has its own highest one") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Case c(Scores::huge, dtype);
    CHECK(highest(c.scores(0)) == kKeys / 3);
    CHECK(highest(c.scores(1)) == 2 * kKeys / 3);
    for (const std::int64_t row : {0, 1}) {
      const double score = c.scores(row)[kKeys / 3];
      CHECK(std::abs(score) == doctest::Approx(1.8e9).epsilon(0.01));
      CHECK(std::nextafter(static_cast<float>(std::abs(score)), 0.0f) < std::abs(score) - 100);
    }
  }
}

TEST_CASE("ramps and spikes have their maximum where they say") {
  CHECK(highest(Case(Scores::ramp).scores(0)) > kKeys - 20);
  CHECK(highest(Case(Scores::ramp).scores(1)) < 20);
  CHECK(highest(Case(Scores::spike_first).scores(2)) == 0);
  CHECK(highest(Case(Scores::spike_middle).scores(2)) == kKeys / 2);
  CHECK(highest(Case(Scores::spike_last).scores(2)) == kKeys - 1);
}

TEST_CASE("equal scores are equal, and very low ones far below the others") {
  const std::vector<double> equal = Case(Scores::equal).scores(0);
  CHECK(std::all_of(equal.begin(), equal.end(), [&](double score) { return score == equal[0]; }));
  const std::vector<double> low = Case(Scores::very_low).scores(0);
  CHECK(*std::max_element(low.begin() + kKeys / 2, low.end()) < -2900);
  CHECK(*std::min_element(low.begin(), low.begin() + kKeys / 2) > -100);
}

TEST_CASE("of the largest head dim, too, all keys are finite but an infinite one, and scores as low and as huge") {
  for (const Scores scores : cli::kHardScores) {
    if (scores == Scores::infinite) continue;
    CAPTURE(cli::to_string(scores));
    const std::vector<double> keys = Case(scores, DType::f16, kLargestHeadDim).k.to_doubles();
    CHECK(std::all_of(keys.begin(), keys.end(), [](double value) { return std::isfinite(value); }));
  }
  for (const std::int64_t row : {0, 1}) {
    const int sign = row == 0 ? 1 : -1;
    const std::vector<double> low = Case(Scores::very_low, DType::f16, kLargestHeadDim).scores(row);
    CHECK(std::abs(low[0]) < 100);
    CHECK(sign * low[kKeys - 1] == doctest::Approx(-3000).epsilon(0.01));
    const std::vector<double> huge = Case(Scores::huge, DType::f16, kLargestHeadDim).scores(row);
    CHECK(sign * huge[kKeys / 3] == doctest::Approx(1.8e9).epsilon(0.01));
  }
}

TEST_CASE("with an infinite key the even rows are NaN in the reference, and the odd ones are not") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Case c(Scores::infinite, dtype);
    const HostTensor v = HostTensor::random_normal(dtype, {1, kKeys, 1, 8}, 3);
    reference::Result exact = reference::attention(c.q.view(), c.k.view(), v.view());
    for (std::int64_t row = 0; row < kQueries; ++row) {
      CHECK(std::isnan(exact.out[static_cast<std::size_t>(row * 2 * 8)]) == (row % 2 == 0));
      CHECK(std::isnan(exact.lse[static_cast<std::size_t>(row)]) == (row % 2 == 0));
    }
  }
}

TEST_CASE("under a cap an infinite key is one like others, and no row is NaN") {
  const Case c(Scores::infinite);
  const HostTensor v = HostTensor::random_normal(DType::f16, {1, kKeys, 1, 8}, 3);
  AttentionOptions options;
  options.softcap = 10;
  for (const reference::Result& result :
       {reference::attention(c.q.view(), c.k.view(), v.view(), options),
        reference::attention_in_low_precision(c.q.view(), c.k.view(), v.view(), options)}) {
    const auto is_finite = [](double value) { return std::isfinite(value); };
    CHECK(std::all_of(result.out.begin(), result.out.end(), is_finite));
    CHECK(std::all_of(result.lse.begin(), result.lse.end(), is_finite));
  }
}

TEST_CASE("only a NaN that is expected is cleared") {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const auto tensor = [](std::vector<double> values, const Dims& shape) {
    return HostTensor::from_doubles(DType::f32, shape, values.data(), values.size());
  };
  reference::Result exact{{1, 2, 1, 2}, {kNan, kNan, 3, 4}, {kNan, 6}};
  HostTensor out = tensor({kNan, 2, kNan, 4}, {1, 2, 1, 2}), lse = tensor({kNan, kNan}, {1, 1, 2});
  cli::clear_expected_nan(out, lse, exact);
  const std::vector<double> values = out.to_doubles(), sums = lse.to_doubles();
  CHECK(values[0] == 0);
  CHECK(exact.out[0] == 0);
  CHECK(values[1] == 2);
  CHECK(std::isnan(exact.out[1]));
  CHECK(std::isnan(values[2]));
  CHECK(exact.out[2] == 3);
  CHECK(sums[0] == 0);
  CHECK(exact.lse[0] == 0);
  CHECK(std::isnan(sums[1]));
}

TEST_CASE("memory with heads first is seen in the order of the call") {
  const HostTensor packed = HostTensor::random_normal(DType::f32, {2, 3, 4, 8}, 1);
  const HostTensor memory = cli::swap_seqlen_and_heads(packed);
  const Tensor view = cli::view_with_heads_first(memory.view());
  CHECK(view.shape == packed.shape());
  for (std::int64_t batch = 0; batch < 2; ++batch)
    for (std::int64_t row = 0; row < 3; ++row)
      for (std::int64_t head = 0; head < 4; ++head) {
        const Dims& strides = view.strides;
        const std::int64_t at = batch * strides[0] + row * strides[1] + head * strides[2];
        CHECK(load_element(view.data, DType::f32, at) ==
              load_element(packed.data(), DType::f32, ((batch * 3 + row) * 4 + head) * 8));
      }
  CHECK(cli::swap_seqlen_and_heads(memory).to_doubles() == packed.to_doubles());
}
