// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "flashjit/error.h"
#include "flashjit/reference.h"
#include "runtime/reference/reference_scores.h"

using namespace flashjit;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

HostTensor f32(const Dims& shape, const std::vector<double>& values) {
  return HostTensor::from_doubles(DType::f32, shape, values.data(), values.size());
}

HostTensor random(const Dims& shape, std::uint64_t seed, DType dtype = DType::f32) {
  return HostTensor::random_normal(dtype, shape, seed);
}

reference::Result attend(const HostTensor& q, const HostTensor& k, const HostTensor& v,
                         const AttentionOptions& opts = {}) {
  return reference::attention(q.view(), k.view(), v.view(), opts);
}

AttentionOptions causal() {
  AttentionOptions opts;
  opts.causal = true;
  return opts;
}

AttentionOptions scaled(float scale) {
  AttentionOptions opts;
  opts.softmax_scale = scale;
  return opts;
}

void check_near(const std::vector<double>& actual, const std::vector<double>& expected, double tolerance = 1e-12) {
  REQUIRE(actual.size() == expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    INFO("element ", i);
    if (std::isinf(expected[i]))
      CHECK(actual[i] == expected[i]);
    else
      CHECK(std::abs(actual[i] - expected[i]) <= tolerance);
  }
}

// Packed [batch, seqlen, heads, dim] values in the order [batch, heads, seqlen, dim].
std::vector<double> heads_first(const HostTensor& tensor) {
  const Dims& s = tensor.shape();
  const std::vector<double> values = tensor.to_doubles();
  std::vector<double> permuted;
  for (std::int64_t b = 0; b < s[0]; ++b)
    for (std::int64_t h = 0; h < s[2]; ++h)
      for (std::int64_t i = 0; i < s[1]; ++i)
        for (std::int64_t d = 0; d < s[3]; ++d) permuted.push_back(values[((b * s[1] + i) * s[2] + h) * s[3] + d]);
  return permuted;
}

// Of f32 [heads] or [batch, heads]; `none` where the options have none.
double value_of(const std::optional<Tensor>& of_heads, double none, std::int64_t batch, std::int64_t head) {
  if (!of_heads) return none;
  const auto* const values = static_cast<const float*>(of_heads->data);
  return of_heads->shape.size() == 1 ? values[head * of_heads->strides[0]]
                                     : values[batch * of_heads->strides[0] + head * of_heads->strides[1]];
}

// Rounded down, for a divisor above 0.
std::int64_t floor_div(std::int64_t dividend, std::int64_t divisor) {
  return dividend / divisor - (dividend % divisor < 0);
}

// A tensor of options, in which a size of 1 stands for all.
template <typename Value>
Value at(const Tensor& tensor, const std::vector<std::int64_t>& indices) {
  const auto* place = static_cast<const Value*>(tensor.data);
  for (int i = 0; i < tensor.shape.size(); ++i)
    place += tensor.shape[i] == 1 ? 0 : indices[static_cast<std::size_t>(i)] * tensor.strides[i];
  return *place;
}

// Attention of one head dim by head dim, with a look at every key.
reference::Result attend_plainly(const HostTensor& q, const HostTensor& k, const HostTensor& v,
                                 const AttentionOptions& opts) {
  const std::int64_t batches = q.shape()[0], queries = q.shape()[1], heads = q.shape()[2], dim = q.shape()[3],
                     keys = k.shape()[1], heads_kv = k.shape()[2], dim_v = v.shape()[3];
  const std::vector<double> qs = q.to_doubles(), ks = k.to_doubles(), vs = v.to_doubles();
  const auto sees = [&](std::int64_t b, std::int64_t h, std::int64_t query, std::int64_t key) {
    const std::int64_t behind = key - (query + keys - queries);  // of the query's own key
    if (opts.prefix ? behind > 0 && key >= at<std::int32_t>(*opts.prefix, {b}) : opts.causal && behind > 0)
      return false;
    if (opts.boolean_mask && !at<bool>(*opts.boolean_mask, {b, h, query, key})) return false;
    if (opts.documents && (key - behind < 0 || at<std::int32_t>(*opts.documents, {b, key}) !=
                                                   at<std::int32_t>(*opts.documents, {b, key - behind})))
      return false;
    const std::int64_t token = key - (keys - queries);
    if (opts.tree && token >= 0 && (at<std::int64_t>(*opts.tree, {b, query, token / 64}) >> token % 64 & 1) == 0)
      return false;
    if (opts.chunk > 0 && floor_div(key, opts.chunk) != floor_div(key - behind, opts.chunk)) return false;
    if (opts.window.left != -1 && -behind > opts.window.left) return false;
    return opts.window.right == -1 || behind <= opts.window.right;
  };
  const double scale = opts.softmax_scale ? *opts.softmax_scale : 1 / std::sqrt(static_cast<double>(dim));
  const auto changed = [&](double score, std::int64_t b, std::int64_t h, std::int64_t distance) {
    if (opts.softcap > 0) score = opts.softcap * std::tanh(score / opts.softcap);
    return score - value_of(opts.alibi_slopes, 0, b, h) * std::fabs(static_cast<double>(distance));
  };
  const auto stays = [&](std::int64_t b, std::int64_t h, std::int64_t query, std::int64_t key) {
    if (opts.dropout_mask) return at<bool>(*opts.dropout_mask, {b, h, query, key});
    Dropout dropout = opts.dropout;
    if (opts.dropout_state) dropout.seed = at<std::uint64_t>(*opts.dropout_state, {0});
    if (opts.dropout_state) dropout.offset = at<std::uint64_t>(*opts.dropout_state, {1});
    return keeps(dropout, heads, b, h, query, key);
  };
  const double share = opts.dropout_mask ? 1 - opts.dropout.probability : kept_share(opts.dropout.probability);
  reference::Result result;
  result.shape = {batches, queries, heads, dim_v};
  result.out.resize(static_cast<std::size_t>(batches * queries * heads * dim_v));
  result.lse.resize(static_cast<std::size_t>(batches * heads * queries));
  for (std::int64_t b = 0; b < batches; ++b)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t i = 0; i < queries; ++i) {
        const std::int64_t row = (b * queries + i) * heads + h;
        double total = std::exp(value_of(opts.sinks, -kInfinity, b, h));
        std::vector<double> sum(static_cast<std::size_t>(dim_v));
        for (std::int64_t j = 0; j < keys; ++j) {
          if (!sees(b, h, i, j)) continue;
          const std::int64_t kv_row = (b * keys + j) * heads_kv + h * heads_kv / heads;
          double score = 0;
          for (std::int64_t d = 0; d < dim; ++d) score += qs[row * dim + d] * ks[kv_row * dim + d];
          score = changed(score * scale, b, h, i + keys - queries - j);
          if (opts.bias) score += at<float>(*opts.bias, {b, h, i, j});
          const double weight = std::exp(score);
          total += weight;
          if (!stays(b, h, i, j)) continue;
          for (std::int64_t d = 0; d < dim_v; ++d) sum[d] += weight * vs[kv_row * dim_v + d];
        }
        for (std::int64_t d = 0; d < dim_v; ++d) result.out[row * dim_v + d] = total > 0 ? sum[d] / total / share : 0;
        result.lse[(b * heads + h) * queries + i] = std::log(total);
      }
  return result;
}

AttentionOptions with_window(std::int64_t left, std::int64_t right, bool causal = false) {
  AttentionOptions opts;
  opts.causal = causal;
  opts.window = {left, right};
  return opts;
}

AttentionOptions with_chunk(std::int64_t chunk) {
  AttentionOptions opts;
  opts.chunk = chunk;
  return opts;
}

AttentionOptions with_sinks(const Tensor& sinks) {
  AttentionOptions opts;
  opts.sinks = sinks;
  return opts;
}

AttentionOptions with_softcap(float softcap) {
  AttentionOptions opts;
  opts.softmax_scale = 1.0f;
  opts.softcap = softcap;
  return opts;
}

AttentionOptions with_slopes(const Tensor& slopes) {
  AttentionOptions opts;
  opts.alibi_slopes = slopes;
  return opts;
}

reference::Result result_of(const Dims& shape, const std::vector<double>& out, const std::vector<double>& lse = {}) {
  reference::Result result;
  result.shape = shape;
  result.out = out;
  result.lse = lse;
  return result;
}

}  // namespace

TEST_CASE("queries, keys and values of e4m3 are worth their numbers times the scales of their heads") {
  const HostTensor q = random({2, 9, 4, 16}, 1, DType::e4m3), k = random({2, 12, 2, 16}, 2, DType::e4m3),
                   v = random({2, 12, 2, 16}, 3, DType::e4m3);
  const HostTensor q_scale = f32({2, 4}, {1, 2, 0.5, 3, 0.25, 1.5, 1, 2}), k_scale = f32({2}, {0.5, 2}),
                   v_scale = f32({1}, {3});
  const auto worth = [](const HostTensor& rows, auto scale) {
    const Dims& shape = rows.shape();
    std::vector<double> values = rows.to_doubles();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / shape[3];
      values[i] *= scale(row / shape[2] / shape[1], row % shape[2]);
    }
    return HostTensor::from_doubles(DType::f64, shape, values.data(), values.size());
  };
  AttentionOptions opts = causal(), plain = causal();
  opts.q_scale = q_scale.view(), opts.k_scale = k_scale.view(), opts.v_scale = v_scale.view();
  const auto of_q = [&](std::int64_t batch, std::int64_t head) {
    return load_element(q_scale.data(), DType::f32, batch * 4 + head);
  };
  const auto of_k = [](std::int64_t, std::int64_t head) { return head == 0 ? 0.5 : 2.0; };
  const auto of_v = [](std::int64_t, std::int64_t) { return 3.0; };
  const reference::Result is = attend(q, k, v, opts),
                          should = attend(worth(q, of_q), worth(k, of_k), worth(v, of_v), plain);
  check_near(is.out, should.out);
  check_near(is.lse, should.lse);
  // What rounding probabilities to e4m3 may do is seen, and what the bits of sums do, and no more than that.
  const reference::Result low = reference::attention_in_low_precision(q.view(), k.view(), v.view(), opts);
  const auto largest_difference = [](const std::vector<double>& a, const std::vector<double>& b) {
    double largest = 0;
    for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
    return largest;
  };
  CHECK(largest_difference(low.lse, should.lse) > 1e-4);  // sums of f32 give 1e-6
  CHECK(largest_difference(low.lse, should.lse) < 1e-3);
  CHECK(largest_difference(low.out, should.out) > 1e-3);  // of bf16: half of this at most
  CHECK(largest_difference(low.out, should.out) < 0.05);
  CHECK(*std::max_element(low.spread.begin(), low.spread.end()) > 0.01);
  CHECK(*std::max_element(low.spread.begin(), low.spread.end()) < 0.5);
  CHECK(is.spread.empty());
}

TEST_CASE("two keys whose scores differ by log 3 are weighed 1 to 3") {
  const HostTensor q = f32({1, 1, 1, 1}, {1});
  const HostTensor k = f32({1, 2, 1, 1}, {0, std::log(3.0)});
  const HostTensor v = f32({1, 2, 1, 2}, {4, 0, 8, 100});
  const reference::Result result = attend(q, k, v, scaled(1.0f));
  CHECK(result.shape == Dims{1, 1, 1, 2});
  check_near(result.out, {7, 75}, 1e-5);
  check_near(result.lse, {std::log(4.0)}, 1e-6);
}

TEST_CASE("the default scale is one over the root of head_dim") {
  const HostTensor q = f32({1, 1, 1, 4}, {1, 1, 1, 1});
  const HostTensor k = f32({1, 2, 1, 4}, {0, 0, 0, 0, 1, 2, 3, 4});
  const HostTensor v = f32({1, 2, 1, 1}, {0, 1});
  const double odds = std::exp(10.0 / 2);
  check_near(attend(q, k, v).out, {odds / (1 + odds)});
  check_near(attend(q, k, v).lse, {std::log(1 + odds)});
}

TEST_CASE("equal keys give the mean of v and the logarithm of their number") {
  const std::vector<double> key = {0.5, -2, 1};
  std::vector<double> keys;
  for (int i = 0; i < 7; ++i) keys.insert(keys.end(), key.begin(), key.end());
  const HostTensor q = f32({1, 1, 1, 3}, {1, 1, 2});
  const HostTensor v = random({1, 7, 1, 5}, 1);
  std::vector<double> mean(5);
  for (int i = 0; i < 35; ++i) mean[i % 5] += v.to_doubles()[i] / 7;
  const reference::Result result = attend(q, f32({1, 7, 1, 3}, keys), v);
  check_near(result.out, mean);
  check_near(result.lse, {0.5 / std::sqrt(3.0) + std::log(7.0)});
}

TEST_CASE("with one key every row is v, whatever the scores") {
  const HostTensor v = random({1, 1, 1, 3}, 2);
  const reference::Result result = attend(random({1, 4, 1, 8}, 3), random({1, 1, 1, 8}, 4), v);
  std::vector<double> expected;
  for (int row = 0; row < 4; ++row) {
    for (const double value : v.to_doubles()) expected.push_back(value);
  }
  check_near(result.out, expected);
}

TEST_CASE("huge scores neither overflow nor vanish") {
  const HostTensor q = f32({1, 1, 1, 1}, {1e4});
  const reference::Result result = attend(q, f32({1, 2, 1, 1}, {-1e4, 1e4}), f32({1, 2, 1, 1}, {1, 2}), scaled(1.0f));
  check_near(result.out, {2});
  check_near(result.lse, {1e8});
}

TEST_CASE("the result is linear in v") {
  const HostTensor q = random({2, 5, 2, 8}, 1), k = random({2, 6, 2, 8}, 2);
  const HostTensor a = random({2, 6, 2, 3}, 3, DType::bf16), b = random({2, 6, 2, 3}, 4, DType::bf16);
  std::vector<double> mixed = a.to_doubles();
  for (std::size_t i = 0; i < mixed.size(); ++i) mixed[i] = 2 * mixed[i] - 0.5 * b.to_doubles()[i];
  const auto out_a = attend(q, k, a.converted_to(DType::f32)).out;
  const auto out_b = attend(q, k, b.converted_to(DType::f32)).out;
  std::vector<double> expected;
  for (std::size_t i = 0; i < out_a.size(); ++i) expected.push_back(2 * out_a[i] - 0.5 * out_b[i]);
  check_near(attend(q, k, f32({2, 6, 2, 3}, mixed)).out, expected, 1e-5);
}

TEST_CASE("scale 0 gives the mean, and a negative scale is that of negated queries") {
  const HostTensor q = random({1, 3, 1, 4}, 1), k = random({1, 5, 1, 4}, 2), v = random({1, 5, 1, 1}, 3);
  double mean = 0;
  for (const double value : v.to_doubles()) mean += value / 5;
  check_near(attend(q, k, v, scaled(0.0f)).out, {mean, mean, mean});
  check_near(attend(q, k, v, scaled(0.0f)).lse, std::vector<double>(3, std::log(5.0)));
  std::vector<double> negated = q.to_doubles();
  for (double& value : negated) value = -value;
  const HostTensor minus_q = f32(q.shape(), negated);
  CHECK(attend(q, k, v, scaled(-0.75f)).out == attend(minus_q, k, v, scaled(0.75f)).out);
  CHECK(attend(q, k, v, scaled(-0.75f)).out != attend(q, k, v, scaled(0.75f)).out);
}

TEST_CASE("a causal row sees the keys up to its own, counted from the bottom right") {
  const std::int64_t seqlen_q = 3, seqlen_kv = 5;
  const HostTensor q = random({1, seqlen_q, 1, 4}, 1), k = random({1, seqlen_kv, 1, 4}, 2);
  const HostTensor v = random({1, seqlen_kv, 1, 2}, 3);
  const reference::Result result = attend(q, k, v, causal());
  for (std::int64_t row = 0; row < seqlen_q; ++row) {
    const std::int64_t visible = row + 1 + seqlen_kv - seqlen_q;
    const Tensor one_row(static_cast<float*>(q.view().data) + row * 4, DType::f32, {1, 1, 1, 4});
    const Tensor keys(k.view().data, DType::f32, {1, visible, 1, 4});
    const Tensor values(v.view().data, DType::f32, {1, visible, 1, 2});
    const reference::Result alone = reference::attention(one_row, keys, values);
    check_near({result.out[row * 2], result.out[row * 2 + 1]}, alone.out);
    check_near({result.lse[row]}, alone.lse);
  }
}

TEST_CASE("a row that sees no key gives 0 and LSE -infinity") {
  const HostTensor q = random({1, 4, 1, 4}, 1), k = random({1, 2, 1, 4}, 2), v = f32({1, 2, 1, 1}, {3, 3});
  const reference::Result result = attend(q, k, v, causal());
  check_near(result.out, {0, 0, 3, 3});
  CHECK(result.lse[0] == -kInfinity);
  CHECK(result.lse[1] == -kInfinity);
  CHECK(std::isfinite(result.lse[2]));
}

TEST_CASE("a window of one key gives that key's value, and a window without an end all there are on that side") {
  const HostTensor q = random({1, 3, 1, 4}, 1), k = random({1, 5, 1, 4}, 2), v = f32({1, 5, 1, 1}, {1, 2, 3, 4, 5});
  check_near(attend(q, k, v, with_window(0, 0)).out, {3, 4, 5});
  CHECK(attend(q, k, v, with_window(-1, 0)).out == attend(q, k, v, causal()).out);
  CHECK(attend(q, k, v, with_window(-1, -1)).out == attend(q, k, v).out);
  CHECK(attend(q, k, v, with_window(-1, -1)).lse == attend(q, k, v).lse);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  CHECK(attend(q, k, v, with_window(kMost, kMost)).out == attend(q, k, v).out);
  CHECK(attend(q, k, v, with_window(kMost, 0)).out == attend(q, k, v, causal()).out);
}

TEST_CASE("rows that a window leaves no key give 0 and LSE -infinity") {
  const HostTensor q = random({1, 6, 1, 4}, 1), k = random({1, 3, 1, 4}, 2), v = f32({1, 3, 1, 1}, {3, 3, 3});
  const reference::Result result = attend(q, k, v, with_window(1, 1));
  check_near(result.out, {0, 0, 3, 3, 3, 3});
  CHECK(result.lse[1] == -kInfinity);
  CHECK(result.lse[2] > -kInfinity);
}

TEST_CASE("under random windows the result is that of a look at every key") {
  std::mt19937 generator(11);
  const auto up_to = [&](int most) { return std::uniform_int_distribution<std::int64_t>(0, most)(generator); };
  const auto side = [&](std::int64_t keys) {
    const std::int64_t sides[] = {-1, 0, std::numeric_limits<std::int64_t>::max(), up_to(8),
                                  up_to(static_cast<int>(keys) + 5)};
    return sides[up_to(4)];
  };
  int less = 0, more = 0, equal = 0;
  for (int i = 0; i < 300; ++i) {
    const std::int64_t queries = 1 + up_to(20), keys = i % 3 == 0 ? queries : up_to(30), batches = 1 + up_to(1);
    (queries < keys ? less : queries > keys ? more : equal) += 1;
    const HostTensor q = random({batches, queries, 4, 8}, 3 * i), k = random({batches, keys, 2, 8}, 3 * i + 1),
                     v = random({batches, keys, 2, 3}, 3 * i + 2);
    const AttentionOptions opts = with_window(side(keys), side(keys), up_to(2) == 0);
    CAPTURE(queries);
    CAPTURE(keys);
    CAPTURE(opts.window.left);
    CAPTURE(opts.window.right);
    CAPTURE(opts.causal);
    const reference::Result expected = attend_plainly(q, k, v, opts), result = attend(q, k, v, opts);
    CHECK(result.shape == expected.shape);
    check_near(result.out, expected.out);
    check_near(result.lse, expected.lse);
  }
  CHECK(less > 20);
  CHECK(more > 20);
  CHECK(equal > 20);
}

TEST_CASE("a softcap bends scores, and keeps them below itself") {
  const HostTensor k = f32({1, 1, 1, 1}, {1}), v = f32({1, 1, 1, 1}, {7});
  for (const double score : {-1e30, -50.0, -3.0, 0.0, 0.25, 3.0, 1e30, kInfinity}) {
    CAPTURE(score);
    // Of a row with one key the LSE is its score.
    const reference::Result result = attend(f32({1, 1, 1, 1}, {score}), k, v, with_softcap(2.5f));
    check_near(result.lse, {2.5 * std::tanh(score / 2.5)});
    check_near(result.out, {7});
  }
}

TEST_CASE("a chunk of one key gives that key's value, and one of all keys hides none") {
  const HostTensor q = random({1, 3, 1, 4}, 1), k = random({1, 5, 1, 4}, 2), v = f32({1, 5, 1, 1}, {1, 2, 3, 4, 5});
  check_near(attend(q, k, v, with_chunk(1)).out, {3, 4, 5});
  // Keys 0 and 1, 2 and 3, 4 alone.
  const std::vector<double> pairs = attend(q, k, v, with_chunk(2)).out;
  CHECK(pairs[0] > 3);
  CHECK(pairs[0] < 4);
  CHECK(pairs[1] > 3);
  CHECK(pairs[1] < 4);
  CHECK(pairs[2] == doctest::Approx(5));
  for (const std::int64_t all : {std::int64_t{5}, std::int64_t{6}, std::numeric_limits<std::int64_t>::max()})
    CHECK(attend(q, k, v, with_chunk(all)).out == attend(q, k, v).out);
}

TEST_CASE("rows before the first key see none in chunks") {
  const HostTensor q = random({1, 6, 1, 4}, 1), k = random({1, 3, 1, 4}, 2), v = f32({1, 3, 1, 1}, {3, 3, 3});
  for (const std::int64_t chunk :
       {std::int64_t{1}, std::int64_t{2}, std::int64_t{100}, std::numeric_limits<std::int64_t>::max()}) {
    CAPTURE(chunk);
    const reference::Result result = attend(q, k, v, with_chunk(chunk));
    check_near(result.out, {0, 0, 0, 3, 3, 3});
    CHECK(result.lse[2] == -kInfinity);
    CHECK(std::isfinite(result.lse[3]));
  }
}

TEST_CASE("a sink takes its head's share of each row and gives nothing for it") {
  const HostTensor q(DType::f32, {1, 1, 3, 1}), k(DType::f32, {1, 2, 1, 1}), v = f32({1, 2, 1, 1}, {1, 5});
  const HostTensor sinks = f32({3}, {std::log(2.0), -kInfinity, std::log(6.0)});
  const reference::Result result = attend(q, k, v, with_sinks(sinks.view()));
  check_near(result.out, {6 / 4.0, 3, 6 / 8.0}, 1e-6);
  check_near(result.lse, {std::log(4.0), std::log(2.0), std::log(8.0)}, 1e-6);
}

TEST_CASE("a row that sees no key gives 0, and the sink as its LSE") {
  const HostTensor q = random({1, 2, 3, 4}, 1), k = random({1, 1, 1, 4}, 2), v = f32({1, 1, 1, 1}, {3});
  const HostTensor sinks = f32({3}, {-2.5, -kInfinity, 0x1p100});
  AttentionOptions opts = with_sinks(sinks.view());
  opts.causal = true;
  const reference::Result result = attend(q, k, v, opts);
  check_near({result.out[0], result.out[1], result.out[2]}, {0, 0, 0});
  check_near({result.lse[0], result.lse[2], result.lse[4]}, {-2.5, -kInfinity, 0x1p100});
  check_near({result.out[4], result.out[5], result.lse[5]}, {3, 0, 0x1p100});
}

TEST_CASE("under random sinks and chunks the result is that of a look at every key") {
  std::mt19937 generator(13);
  const auto up_to = [&](int most) { return std::uniform_int_distribution<std::int64_t>(0, most)(generator); };
  for (int i = 0; i < 200; ++i) {
    const std::int64_t queries = 1 + up_to(20), keys = up_to(30), batches = 1 + up_to(1);
    const HostTensor q = random({batches, queries, 4, 8}, 5 * i), k = random({batches, keys, 2, 8}, 5 * i + 1),
                     v = random({batches, keys, 2, 3}, 5 * i + 2), sinks = random({batches, 4}, 5 * i + 3),
                     slopes = random({4}, 5 * i + 4);
    AttentionOptions opts = with_window(up_to(2) == 0 ? up_to(9) : -1, up_to(2) == 0 ? up_to(9) : -1, up_to(1) == 0);
    const std::int64_t chunks[] = {0, 1, 1 + up_to(8), keys + up_to(5), std::numeric_limits<std::int64_t>::max()};
    opts.chunk = chunks[up_to(4)];
    const Tensor views[] = {Tensor(sinks.view().data, DType::f32, {4}), sinks.view(),
                            Tensor(sinks.view().data, DType::f32, {batches, 4}, {3, 1})};
    const std::int64_t kind = up_to(3);
    if (kind < 3) opts.sinks = views[kind];
    if (i % 4 == 0) opts.softcap = 0.5f, opts.alibi_slopes = slopes.view();
    CAPTURE(queries);
    CAPTURE(keys);
    CAPTURE(opts.chunk);
    CAPTURE(kind);
    CAPTURE(opts.causal);
    const reference::Result expected = attend_plainly(q, k, v, opts), result = attend(q, k, v, opts);
    check_near(result.out, expected.out);
    check_near(result.lse, expected.lse, 1e-11);
  }
}

TEST_CASE("ALiBi takes the head's slope for each key of distance, to both sides") {
  const HostTensor q(DType::f32, {1, 2, 2, 1}), k(DType::f32, {1, 4, 1, 1}), v = f32({1, 4, 1, 1}, {1, 10, 100, 1000});
  const HostTensor slopes = f32({2}, {std::log(2.0), -std::log(2.0)});
  // Rows stand beside keys 2 and 3; the second head prefers what is far.
  const std::vector<double> out = attend(q, k, v, with_slopes(slopes.view())).out;
  check_near(out,
             {(0.25 * 1 + 0.5 * 10 + 100 + 0.5 * 1000) / 2.25, (4 * 1 + 2 * 10 + 100 + 2 * 1000) / 9.0,
              (0.125 * 1 + 0.25 * 10 + 0.5 * 100 + 1000) / 1.875, (8 * 1 + 4 * 10 + 2 * 100 + 1000) / 15.0},
             1e-4);
  AttentionOptions masked = with_slopes(slopes.view());
  masked.causal = true;
  CHECK(attend(q, k, v, masked).out[0] == doctest::Approx((0.25 * 1 + 0.5 * 10 + 100) / 1.75));
}

TEST_CASE("under random caps and slopes the result is that of a look at every key") {
  std::mt19937 generator(12);
  const auto up_to = [&](int most) { return std::uniform_int_distribution<std::int64_t>(0, most)(generator); };
  constexpr float kScales[] = {0.25f, -0.25f, 1, -2};
  for (int i = 0; i < 200; ++i) {
    const std::int64_t queries = 1 + up_to(20), keys = up_to(30), batches = 1 + up_to(1);
    const HostTensor q = random({batches, queries, 4, 8}, 4 * i), k = random({batches, keys, 2, 8}, 4 * i + 1),
                     v = random({batches, keys, 2, 3}, 4 * i + 2), slopes = random({batches, 4}, 4 * i + 3);
    AttentionOptions opts = with_window(up_to(2) == 0 ? up_to(9) : -1, up_to(2) == 0 ? up_to(9) : -1, up_to(1) == 0);
    opts.softmax_scale = kScales[up_to(3)];
    if (i % 3 != 0) opts.softcap = i % 3 == 1 ? 0.5f : 20;
    // One of each kind: of all entries, of each, and of each with room between them.
    const Tensor views[] = {Tensor(slopes.view().data, DType::f32, {4}), slopes.view(),
                            Tensor(slopes.view().data, DType::f32, {batches, 4}, {3, 1})};
    const std::int64_t kind = up_to(3);
    if (kind < 3) opts.alibi_slopes = views[kind];
    CAPTURE(queries);
    CAPTURE(keys);
    CAPTURE(opts.softcap);
    CAPTURE(kind);
    CAPTURE(opts.causal);
    const reference::Result expected = attend_plainly(q, k, v, opts), result = attend(q, k, v, opts);
    check_near(result.out, expected.out);
    check_near(result.lse, expected.lse, 1e-11);
  }
}

TEST_CASE("a prefix is seen by all queries, and hides nothing that a causal mask shows") {
  const HostTensor q(DType::f32, {4, 2, 1, 1}), k(DType::f32, {4, 4, 1, 1});
  HostTensor v(DType::f32, {4, 4, 1, 1});
  for (int i = 0; i < 16; ++i) store_element(v.data(), DType::f32, i, i % 4 + 1);
  std::int32_t lengths[] = {-5, 3, 4, 1000};
  for (const bool is_causal : {false, true}) {
    AttentionOptions opts;
    opts.causal = is_causal;
    opts.prefix = Tensor(lengths, DType::i32, {4});
    check_near(attend(q, k, v, opts).out, {2, 2.5, 2, 2.5, 2.5, 2.5, 2.5, 2.5});
    opts.window = {1, -1};
    check_near(attend(q, k, v, opts).out, {2.5, 3.5, 2.5, 3.5, 3, 3.5, 3, 3.5});
  }
}

TEST_CASE("a query sees the keys of its document, and one before the first key none") {
  const HostTensor q(DType::f32, {1, 5, 1, 1}), k(DType::f32, {1, 4, 1, 1}), v = f32({1, 4, 1, 1}, {1, 2, 4, 8});
  std::int32_t documents[] = {7, -1, 7, 3};
  AttentionOptions opts;
  opts.documents = Tensor(documents, DType::i32, {1, 4});
  const reference::Result result = attend(q, k, v, opts);
  check_near(result.out, {0, 2.5, 2, 2.5, 8});
  check_near(result.lse, {-kInfinity, std::log(2.0), 0, std::log(2.0), 0});
  opts.causal = true;
  check_near(attend(q, k, v, opts).out, {0, 1, 2, 2.5, 8});
}

TEST_CASE("queries of a tree see what is before them all, and of themselves whose bit is set") {
  const HostTensor q(DType::f32, {1, 2, 1, 1}), k(DType::f32, {1, 3, 1, 1}), v = f32({1, 3, 1, 1}, {1, 3, 8});
  std::int64_t rows[] = {0b01, 0b10};
  AttentionOptions opts;
  opts.tree = Tensor(rows, DType::i64, {1, 2, 1});
  check_near(attend(q, k, v, opts).out, {2, 4.5});
  rows[0] = 0, rows[1] = -1;
  check_near(attend(q, k, v, opts).out, {1, 4});
}

TEST_CASE("bits of a tree that no double holds are read") {
  constexpr std::int64_t kTokens = 130;
  const HostTensor q(DType::f32, {1, kTokens, 1, 1}), k(DType::f32, {1, kTokens, 1, 1});
  HostTensor v(DType::f32, {1, kTokens, 1, 1});
  std::vector<std::int64_t> rows(kTokens * 3, 0);
  for (std::int64_t i = 0; i < kTokens; ++i) {
    store_element(v.data(), DType::f32, i, static_cast<double>(i));
    const std::int64_t parent = i / 2;
    for (const std::int64_t seen : {i, parent})
      rows[static_cast<std::size_t>(i * 3 + seen / 64)] |= static_cast<std::int64_t>(std::uint64_t{1} << seen % 64);
  }
  AttentionOptions opts;
  opts.tree = Tensor(rows.data(), DType::i64, {1, kTokens, 3});
  const std::vector<double> out = attend(q, k, v, opts).out;
  for (std::int64_t i = 0; i < kTokens; ++i)
    CHECK(out[static_cast<std::size_t>(i)] == static_cast<double>(i + i / 2) / 2);
}

TEST_CASE("a bias is added to the score, and one of -infinity hides its key") {
  const HostTensor q(DType::f32, {1, 1, 2, 1}), k(DType::f32, {1, 2, 1, 1}), v = f32({1, 2, 1, 1}, {1, 5});
  const HostTensor bias = f32({1, 2, 1, 2}, {std::log(3.0), 0, -kInfinity, 7});
  AttentionOptions opts;
  opts.bias = bias.view();
  check_near(attend(q, k, v, opts).out, {2, 5}, 1e-6);
  const HostTensor all(DType::f32, {1, 1, 1, 2});
  for (int i = 0; i < 2; ++i) store_element(all.view().data, DType::f32, i, -kInfinity);
  opts.bias = all.view();
  CHECK(attend(q, k, v, opts).out == std::vector<double>{0, 0});
  CHECK(attend(q, k, v, opts).lse == std::vector<double>(2, -kInfinity));
}

TEST_CASE("what is hidden reaches no row, whatever is in v") {
  const HostTensor q(DType::f32, {1, 1, 1, 1}), k(DType::f32, {1, 2, 1, 1}), v = f32({1, 2, 1, 1}, {kInfinity, 5});
  bool shown[] = {false, true};
  AttentionOptions opts;
  opts.boolean_mask = Tensor(shown, DType::boolean, {1, 1, 1, 2});
  CHECK(attend(q, k, v, opts).out == std::vector<double>{5});
}

TEST_CASE("under random tensors of scores and masks the result is that of a look at every key") {
  std::mt19937_64 generator(14);
  const auto up_to = [&](int most) { return std::uniform_int_distribution<std::int64_t>(0, most)(generator); };
  for (int i = 0; i < 400; ++i) {
    const std::int64_t keys = 1 + up_to(80), batches = 1 + up_to(1), has_tree = up_to(1);
    const std::int64_t queries = has_tree != 0 ? 1 + up_to(static_cast<int>(keys - 1)) : 1 + up_to(90);
    const HostTensor q = random({batches, queries, 4, 3}, 4 * i), k = random({batches, keys, 2, 3}, 4 * i + 1),
                     v = random({batches, keys, 2, 3}, 4 * i + 2);
    const auto or_one = [&](std::int64_t size) { return up_to(1) == 0 ? 1 : size; };
    AttentionOptions opts = with_window(up_to(2) == 0 ? up_to(9) : -1, -1, up_to(1) == 0);
    const HostTensor bias = random({or_one(batches), or_one(4), or_one(queries), keys}, 4 * i + 3);
    HostTensor shown(DType::boolean, {or_one(batches), or_one(4), or_one(queries), keys});
    for (std::size_t j = 0; j < shown.element_count(); ++j)
      store_element(shown.data(), DType::boolean, static_cast<std::int64_t>(j), up_to(3) != 0);
    HostTensor documents(DType::i32, {or_one(batches), keys}), prefix(DType::i32, {batches});
    for (std::size_t j = 0; j < documents.element_count(); ++j)
      store_element(documents.data(), DType::i32, static_cast<std::int64_t>(j), static_cast<double>(up_to(3) - 1));
    for (std::int64_t j = 0; j < batches; ++j)
      store_element(prefix.data(), DType::i32, j, static_cast<double>(up_to(100) - 10));
    const Dims tree_shape{or_one(batches), queries, (queries + 63) / 64 + up_to(1)};
    std::vector<std::uint64_t> tree(static_cast<std::size_t>(tree_shape[0] * tree_shape[1] * tree_shape[2]));
    std::generate(tree.begin(), tree.end(), std::ref(generator));
    if (up_to(2) == 0) opts.bias = bias.view();
    if (up_to(2) == 0) opts.boolean_mask = shown.view();
    if (up_to(2) == 0) opts.documents = documents.view();
    if (up_to(2) == 0) opts.prefix = prefix.view();
    if (has_tree != 0) opts.tree = Tensor(tree.data(), DType::i64, tree_shape);
    std::uint64_t state[] = {generator(), generator()};
    if (up_to(2) == 0) opts.dropout = {static_cast<double>(up_to(9)) / 10, generator(), generator()};
    if (up_to(2) == 0) opts.dropout_state = Tensor(state, DType::i64, {2});
    if (up_to(4) == 0) opts.dropout_mask = shown.view();
    CAPTURE(i);
    const reference::Result expected = attend_plainly(q, k, v, opts), result = attend(q, k, v, opts);
    check_near(result.out, expected.out);
    check_near(result.lse, expected.lse, 1e-11);
  }
}

TEST_CASE("a hook is given all scores before masks, by rows of a head, and what it leaves is masked") {
  const HostTensor q = random({2, 200, 2, 4}, 1), k = random({2, 150, 1, 4}, 2), v = random({2, 150, 1, 3}, 3);
  const HostTensor bias = random({1, 2, 200, 150}, 4);
  AttentionOptions opts = causal();
  const std::vector<double> added = bias.to_doubles();
  const reference::ScoreHook add_bias = [&](const reference::ScoreRows& rows) {
    REQUIRE(rows.scores.size() == static_cast<std::size_t>(rows.count * 150));
    for (std::size_t i = 0; i < rows.scores.size(); ++i)
      rows.scores[i] += added[static_cast<std::size_t>(rows.head * 200 + rows.first_row) * 150 + i];
  };
  const auto hooked = reference::attention(q.view(), k.view(), v.view(), opts, add_bias);
  const auto hooked_low = reference::attention_in_low_precision(q.view(), k.view(), v.view(), opts, add_bias);
  opts.bias = bias.view();
  const auto expected = attend(q, k, v, opts);
  CHECK(hooked.out == expected.out);
  CHECK(hooked.lse == expected.lse);
  check_near(hooked_low.out, expected.out, 1e-4);
}

TEST_CASE("a hook hides keys by -infinity, for each batch entry its own") {
  const HostTensor q(DType::f32, {2, 1, 1, 1}), k(DType::f32, {2, 3, 1, 1}), v = f32({2, 3, 1, 1}, {1, 2, 3, 4, 5, 6});
  const auto result = reference::attention(q.view(), k.view(), v.view(), {}, [](const reference::ScoreRows& rows) {
    rows.scores[rows.batch == 0 ? 0 : 2] = -kInfinity;
  });
  CHECK(result.out == std::vector<double>{2.5, 4.5});
}

TEST_CASE("lengths, batches and heads of 0") {
  const HostTensor q = random({2, 3, 1, 4}, 1), none = HostTensor(DType::f32, {2, 0, 1, 4});
  const reference::Result no_keys = attend(q, none, none);
  CHECK(no_keys.out == std::vector<double>(24, 0.0));
  CHECK(no_keys.lse == std::vector<double>(6, -kInfinity));
  const reference::Result no_queries = attend(none, q, q);
  CHECK(no_queries.shape == Dims{2, 0, 1, 4});
  CHECK(no_queries.out.empty());
  const HostTensor no_heads(DType::f32, {2, 3, 0, 4});
  CHECK(attend(no_heads, no_heads, no_heads).out.empty());
}

TEST_CASE("[batch, heads, seqlen, dim] memory is a view with other strides") {
  const HostTensor q = random({2, 5, 3, 4}, 1), k = random({2, 6, 3, 4}, 2), v = random({2, 6, 3, 2}, 3);
  const auto as_view = [](const HostTensor& original, HostTensor& permuted) {
    const Dims& s = original.shape();
    permuted = f32({s[0], s[2], s[1], s[3]}, heads_first(original));
    return Tensor(permuted.data(), DType::f32, s, {s[1] * s[2] * s[3], s[3], s[1] * s[3], 1});
  };
  HostTensor q_memory, k_memory, v_memory;
  const reference::Result packed = attend(q, k, v, causal());
  const reference::Result strided =
      reference::attention(as_view(q, q_memory), as_view(k, k_memory), as_view(v, v_memory), causal());
  CHECK(strided.out == packed.out);
  CHECK(strided.lse == packed.lse);
}

TEST_CASE("the last dimension may have any stride, and strides may be negative or 0") {
  const HostTensor k = random({1, 3, 1, 2}, 1), v = random({1, 3, 1, 2}, 2);
  const std::vector<double> keys = k.to_doubles();
  const HostTensor backwards = f32({1, 3, 1, 2}, {keys[5], keys[4], keys[3], keys[2], keys[1], keys[0]});
  const Tensor reversed(static_cast<float*>(backwards.view().data) + 5, DType::f32, {1, 3, 1, 2}, {6, -2, 2, -1});
  const HostTensor q = random({1, 1, 1, 2}, 3);
  CHECK(reference::attention(q.view(), reversed, v.view()).out == attend(q, k, v).out);
  const Tensor repeated(q.view().data, DType::f32, {1, 3, 1, 2}, {0, 0, 0, 1});
  const reference::Result rows = reference::attention(repeated, k.view(), v.view());
  CHECK(rows.out[0] == rows.out[4]);
  CHECK(rows.out[0] == attend(q, k, v).out[0]);
}

TEST_CASE("grouped heads read what repeated heads would") {
  const HostTensor q = random({2, 3, 6, 4}, 1);
  const HostTensor k = random({2, 5, 2, 4}, 2), v = random({2, 5, 2, 3}, 3);
  const auto repeated = [](const HostTensor& tensor) {  // each head three times
    const Dims& s = tensor.shape();
    std::vector<double> values;
    for (std::int64_t i = 0; i < s[0] * s[1] * 6; ++i) {
      for (std::int64_t d = 0; d < s[3]; ++d) values.push_back(tensor.to_doubles()[i / 3 * s[3] + d]);
    }
    return f32({s[0], s[1], 6, s[3]}, values);
  };
  const reference::Result grouped = attend(q, k, v);
  const reference::Result full = attend(q, repeated(k), repeated(v));
  CHECK(grouped.out == full.out);
  CHECK(grouped.lse == full.lse);
}

TEST_CASE("rows of many tasks land where they belong") {
  const HostTensor q = random({2, 300, 2, 4}, 1), k = random({2, 3, 1, 4}, 2), v = random({2, 3, 1, 2}, 3);
  const reference::Result all = attend(q, k, v);
  for (const std::int64_t row : {0, 127, 128, 299}) {
    for (const std::int64_t head : {0, 1}) {
      const std::int64_t index = (300 + row) * 2 + head;  // of batch 1
      const Tensor one_row(static_cast<float*>(q.view().data) + index * 4, DType::f32, {1, 1, 1, 4});
      const Tensor keys(static_cast<float*>(k.view().data) + 12, DType::f32, {1, 3, 1, 4});
      const Tensor values(static_cast<float*>(v.view().data) + 6, DType::f32, {1, 3, 1, 2});
      const reference::Result alone = reference::attention(one_row, keys, values);
      check_near({all.out[index * 2], all.out[index * 2 + 1]}, alone.out);
      check_near({all.lse[(2 + head) * 300 + row]}, alone.lse);
    }
  }
}

TEST_CASE("low precision is near the exact result and rounded to the dtype") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const HostTensor q = random({1, 9, 2, 16}, 1, dtype), k = random({1, 40, 2, 16}, 2, dtype);
    const HostTensor v = random({1, 40, 2, 8}, 3, dtype);
    const reference::Result exact = attend(q, k, v, causal());
    const reference::Result low = reference::attention_in_low_precision(q.view(), k.view(), v.view(), causal());
    const double unit = dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
    check_near(low.out, exact.out, 8 * unit);
    check_near(low.lse, exact.lse, 1e-5);
    CHECK(low.out != exact.out);
    const AttentionOptions window = with_window(5, 2);
    const reference::Result low_of_window = reference::attention_in_low_precision(q.view(), k.view(), v.view(), window);
    check_near(low_of_window.out, attend(q, k, v, window).out, 8 * unit);
    check_near(low_of_window.lse, attend(q, k, v, window).lse, 1e-5);
    const HostTensor rounded = HostTensor::from_doubles(dtype, low.shape, low.out.data(), low.out.size());
    CHECK(rounded.to_doubles() == low.out);
  }
}

TEST_CASE("low precision rounds the probabilities but not their sum") {
  // One key of probability 1 and 63 of 0.5021, which bf16 makes 0.50390625: where all of v is 255, the rounded
  // probabilities give 255.89, and bf16 makes that 256. Without rounding, or with a rounded sum, it would be 255.
  std::vector<double> keys(64, 1.0);
  keys[0] = 0;
  const std::vector<double> values(64, 255.0);
  const HostTensor q = f32({1, 1, 1, 1}, {1}).converted_to(DType::bf16);
  const HostTensor k = f32({1, 64, 1, 1}, keys).converted_to(DType::bf16);
  const HostTensor v = f32({1, 64, 1, 1}, values).converted_to(DType::bf16);
  const AttentionOptions opts = scaled(std::log(0.5021f));
  CHECK(reference::attention_in_low_precision(q.view(), k.view(), v.view(), opts).out == std::vector<double>{256});
  check_near(attend(q, k, v, opts).out, {255});
}

TEST_CASE("low precision bends a hyperbolic tangent by 2^-11 at most, and does bend it") {
  const HostTensor k = f32({1, 1, 1, 1}, {1}), v = f32({1, 1, 1, 1}, {1});
  double most = 0;
  for (int i = -400; i <= 400; ++i) {
    const HostTensor q = f32({1, 1, 1, 1}, {i / 64.0});
    const AttentionOptions opts = with_softcap(1);
    const double low = reference::attention_in_low_precision(q.view(), k.view(), v.view(), opts).lse[0];
    const double exact = attend(q, k, v, opts).lse[0];
    CHECK(std::abs(low) <= 1);
    most = std::max(most, std::abs(low - exact) / std::max(std::abs(exact), 1e-30));
  }
  CHECK(most <= 0x1p-11);
  CHECK(most > 0x1p-13);
}

TEST_CASE("low precision is near the exact result under a softcap and slopes") {
  const HostTensor q = random({1, 9, 2, 16}, 1, DType::f16), k = random({1, 40, 2, 16}, 2, DType::f16),
                   v = random({1, 40, 2, 8}, 3, DType::f16), slopes = f32({2}, {0.5, -0.125});
  AttentionOptions opts = with_slopes(slopes.view());
  const reference::Result of_slopes = reference::attention_in_low_precision(q.view(), k.view(), v.view(), opts);
  check_near(of_slopes.out, attend(q, k, v, opts).out, 0x1p-8);
  check_near(of_slopes.lse, attend(q, k, v, opts).lse, 1e-5);
  opts.softcap = 2;
  const reference::Result of_both = reference::attention_in_low_precision(q.view(), k.view(), v.view(), opts);
  check_near(of_both.out, attend(q, k, v, opts).out, 0x1p-7);
  check_near(of_both.lse, attend(q, k, v, opts).lse, 2 * 0x1p-11);
}

TEST_CASE("low precision is near the exact result under sinks and in chunks") {
  const HostTensor q = random({1, 45, 2, 16}, 1, DType::f16), k = random({1, 40, 2, 16}, 2, DType::f16),
                   v = random({1, 40, 2, 8}, 3, DType::f16), sinks = f32({2}, {4, -1});
  AttentionOptions opts = with_sinks(sinks.view());
  opts.chunk = 13;
  const reference::Result low = reference::attention_in_low_precision(q.view(), k.view(), v.view(), opts);
  check_near(low.out, attend(q, k, v, opts).out, 0x1p-8);
  check_near(low.lse, attend(q, k, v, opts).lse, 1e-5);
}

TEST_CASE("each sequence of a ragged batch gets what it gets alone, and rows of none nothing") {
  const HostTensor q = HostTensor::random_normal(DType::f32, {12, 2, 4}, 1);
  const HostTensor k = HostTensor::random_normal(DType::f32, {3, 9, 1, 4}, 2), v = k;
  const auto ints = [](std::initializer_list<std::int32_t> values) {
    HostTensor tensor(DType::i32, {static_cast<std::int64_t>(values.size())});
    std::copy(values.begin(), values.end(), static_cast<std::int32_t*>(tensor.data()));
    return tensor;
  };
  const HostTensor starts = ints({1, 6, 6, 11}), used_q = ints({4, 0, 5}), used_kv = ints({9, 5, 7});
  const HostTensor padding = ints({0, 0, 3}), entries = ints({2, 1, 0});
  AttentionOptions options;
  options.causal = true;
  options.cu_seqlens_q = starts.view(), options.seqused_q = used_q.view(), options.seqused_kv = used_kv.view();
  options.leftpad_kv = padding.view(), options.batch_indices_kv = entries.view();
  const reference::Result all = reference::attention(q.view(), k.view(), v.view(), options);
  REQUIRE(all.shape == Dims{12, 2, 4});
  std::vector<double> expected(all.out.size(), 0);
  struct Sequence {
    std::int64_t first_query, queries, entry, first_key, keys;
  };
  for (const Sequence& of : {Sequence{1, 4, 2, 0, 9}, Sequence{6, 5, 0, 3, 4}}) {
    const auto rows = [](const HostTensor& tensor, std::int64_t first, std::int64_t count, std::int64_t heads) {
      return Tensor(static_cast<float*>(const_cast<void*>(tensor.data())) + first * heads * 4, DType::f32,
                    {1, count, heads, 4});
    };
    AttentionOptions alone;
    alone.causal = true;
    const Tensor of_k = rows(k, of.entry * 9 + of.first_key, of.keys, 1);
    const reference::Result one = reference::attention(rows(q, of.first_query, of.queries, 2), of_k, of_k, alone);
    std::copy(one.out.begin(), one.out.end(), expected.begin() + of.first_query * 2 * 4);
    for (std::int64_t head = 0; head < 2; ++head)
      for (std::int64_t row = 0; row < of.queries; ++row)
        CHECK(all.lse[static_cast<std::size_t>(head * 12 + of.first_query + row)] ==
              one.lse[static_cast<std::size_t>(head * of.queries + row)]);
  }
  CHECK(all.out == expected);
}

TEST_CASE("results of packed queries have a batch as the queries do, and are compared and merged so") {
  const HostTensor q = HostTensor::random_normal(DType::f16, {7, 2, 4}, 1),
                   k = HostTensor::random_normal(DType::f16, {7, 1, 4}, 2);
  HostTensor starts(DType::i32, {3});
  constexpr std::int32_t kStarts[] = {0, 4, 7};
  std::copy(std::begin(kStarts), std::end(kStarts), static_cast<std::int32_t*>(starts.data()));
  AttentionOptions options;
  options.cu_seqlens_q = options.cu_seqlens_kv = starts.view();
  const auto with_batch = [](Tensor tensor) { return Tensor(tensor.data, tensor.dtype, {1, 7, tensor.shape[1], 4}); };
  for (const bool packed : {true, false}) {
    CAPTURE(packed);
    const Tensor queries = packed ? q.view() : with_batch(q.view()), keys = packed ? k.view() : with_batch(k.view());
    const reference::Result exact = reference::attention(queries, keys, keys, options);
    const reference::Result low = reference::attention_in_low_precision(queries, keys, keys, options);
    const Dims lse_shape = packed ? Dims{2, 7} : Dims{1, 2, 7};
    HostTensor out = HostTensor::from_doubles(DType::f16, queries.shape, low.out.data(), low.out.size());
    HostTensor lse = HostTensor::from_doubles(DType::f32, lse_shape, low.lse.data(), low.lse.size());
    CHECK(reference::compare(out, exact, low).passed);
    CHECK(reference::compare_lse(lse, exact, low).passed);
    store_element(out.data(), DType::f16, 30, 9);
    store_element(lse.data(), DType::f32, 12, 9);
    CHECK(!reference::compare(out, exact, low).passed);
    CHECK(!reference::compare_lse(lse, exact, low).passed);
    const reference::Result merged = reference::merge({exact, exact});  // twice the keys
    CHECK(merged.shape == queries.shape);
    check_near(merged.out, exact.out, 1e-12);
    for (std::size_t row = 0; row < exact.lse.size(); ++row)
      CHECK(merged.lse[row] == doctest::Approx(exact.lse[row] + std::log(2)));
  }
}

TEST_CASE("keys in pages are those that the table names, as far as they count") {
  const HostTensor q = HostTensor::random_normal(DType::f32, {2, 3, 2, 4}, 1);
  const HostTensor k = HostTensor::random_normal(DType::f32, {2, 8, 1, 4}, 2), v = k;
  HostTensor pages(DType::f32, {5, 3, 1, 4}), table(DType::i32, {2, 3}), used(DType::i32, {2});
  constexpr std::int32_t kEntries[] = {4, 0, 2, 1, 3, -9}, kUsed[] = {8, 5};
  std::copy(std::begin(kEntries), std::end(kEntries), static_cast<std::int32_t*>(table.data()));
  std::copy(std::begin(kUsed), std::end(kUsed), static_cast<std::int32_t*>(used.data()));
  for (int sequence = 0; sequence < 2; ++sequence)
    for (int key = 0; key < kUsed[sequence]; ++key)
      std::copy_n(static_cast<const float*>(k.data()) + (sequence * 8 + key) * 4, 4,
                  static_cast<float*>(pages.data()) + (kEntries[sequence * 3 + key / 3] * 3 + key % 3) * 4);
  AttentionOptions options;
  options.causal = true, options.seqused_kv = used.view();
  const reference::Result expected = reference::attention(q.view(), k.view(), v.view(), options);
  options.page_table = table.view();
  const reference::Result got = reference::attention(q.view(), pages.view(), pages.view(), options);
  CHECK(got.out == expected.out);
  CHECK(got.lse == expected.lse);
  // What no sequence can have is refused before it is looked at.
  const HostTensor none(DType::f32, {0, 3, 1, 4}), no_rows(DType::i32, {0, 3});
  CHECK_THROWS_WITH_AS(reference::attention(q.view(), none.view(), none.view(), options),
                       "k: pages must be at least 1 beside page_table, was 0", Error);
  options.page_table = no_rows.view(), options.batch_indices_kv = used.view();
  CHECK_THROWS_WITH_AS(reference::attention(q.view(), pages.view(), pages.view(), options),
                       "page_table: batch must be at least 1 beside batch_indices_kv, was 0", Error);
  options.page_table = {};
  CHECK_THROWS_WITH_AS(reference::attention(q.view(), none.view(), none.view(), options),
                       "k: batch must be at least 1 beside batch_indices_kv, was 0", Error);
}

TEST_CASE("bad inputs are refused with a line that names the argument") {
  const HostTensor good = random({2, 3, 4, 8}, 1);
  const auto refuses = [&](const char* message, const Tensor& q, const Tensor& k, const Tensor& v,
                           const AttentionOptions& opts = {}) {
    CHECK_THROWS_WITH_AS(reference::attention(q, k, v, opts), message, Error);
    CHECK_THROWS_WITH_AS(reference::attention_in_low_precision(q, k, v, opts), message, Error);
  };
  const Tensor t = good.view();
  void* data = t.data;
  refuses("q: rank must be 4, was 3 with shape [2, 3, 8]", Tensor(data, DType::f32, {2, 3, 8}), t, t);
  refuses("k: must have 4 strides like its shape, had 1", t, Tensor(data, DType::f32, {2, 3, 4, 8}, {1}), t);
  refuses("v: sizes must not be negative, were [2, -3, 4, 8]", t, t, Tensor(data, DType::f32, {2, -3, 4, 8}));
  refuses("q: head_dim must be at least 1, was 0", Tensor(data, DType::f32, {2, 3, 4, 0}), t, t);
  refuses("k: must point to host memory, was null", t, Tensor(nullptr, DType::f32, {2, 3, 4, 8}), t);
  refuses("k: dtype must be f32 like that of q, was bf16", t, Tensor(data, DType::bf16, {2, 3, 4, 8}), t);
  refuses("v: dtype must be f32 like that of q, was f16", t, t, Tensor(data, DType::f16, {2, 3, 4, 8}));
  refuses("k: batch must be 2 like that of q, was 1", t, Tensor(data, DType::f32, {1, 3, 4, 8}), t);
  refuses("k: head_dim must be 8 like that of q, was 4", t, Tensor(data, DType::f32, {2, 3, 4, 4}), t);
  refuses("v: batch must be 2 like that of q, was 1", t, t, Tensor(data, DType::f32, {1, 3, 4, 8}));
  refuses("v: seqlen must be 3 like that of k, was 2", t, t, Tensor(data, DType::f32, {2, 2, 4, 8}));
  refuses("v: num_heads must be 4 like that of k, was 2", t, t, Tensor(data, DType::f32, {2, 3, 2, 8}));
  const Tensor three(data, DType::f32, {2, 3, 3, 8}), no_heads(data, DType::f32, {2, 3, 0, 8});
  refuses("k: num_heads must divide the 4 of q, was 3", t, three, three);
  refuses("k: num_heads must divide the 4 of q, was 0", t, no_heads, no_heads);
  refuses("softmax_scale: must be finite, was nan", t, t, t, scaled(std::nanf("")));
  refuses("softmax_scale: must be finite, was -inf", t, t, t, scaled(-std::numeric_limits<float>::infinity()));
  refuses("window: left must be at least 0, or -1 for all keys, was -2", t, t, t, with_window(-2, 0));
  refuses("window: right must be at least 0, or -1 for all keys, was -9223372036854775808", t, t, t,
          with_window(3, std::numeric_limits<std::int64_t>::min()));
  refuses("softcap: must be from 1e-06 to 1000000, or 0 for none, was -2", t, t, t, with_softcap(-2));
  refuses("softcap: must be from 1e-06 to 1000000, or 0 for none, was nan", t, t, t, with_softcap(std::nanf("")));
  const auto refuses_slopes = [&](const char* message, const Tensor& slopes) {
    refuses(message, t, t, t, with_slopes(slopes));
  };
  refuses_slopes("alibi_slopes: dtype must be f32, was f16", Tensor(data, DType::f16, {4}));
  refuses_slopes("alibi_slopes: must be [4] or [2, 4], the heads of q and its batch, had shape [3] and strides [1]",
                 Tensor(data, DType::f32, {3}));
  refuses_slopes(
      "alibi_slopes: must be [4] or [2, 4], the heads of q and its batch, had shape [1, 4] and strides [4, 1]",
      Tensor(data, DType::f32, {1, 4}));
  refuses_slopes("alibi_slopes: must be [4] or [2, 4], the heads of q and its batch, had shape [4] and strides [4, 1]",
                 Tensor(data, DType::f32, {4}, {4, 1}));
  refuses_slopes("alibi_slopes: must point to host memory, was null", Tensor(nullptr, DType::f32, {4}));
  refuses("chunk: must be at least 1, or 0 for none, was -3", t, t, t, with_chunk(-3));
  refuses("sinks: dtype must be f32, was bf16", t, t, t, with_sinks(Tensor(data, DType::bf16, {4})));
  refuses("sinks: must be [4] or [2, 4], the heads of q and its batch, had shape [1, 4] and strides [4, 1]", t, t, t,
          with_sinks(Tensor(data, DType::f32, {1, 4})));
  refuses("sinks: must point to host memory, was null", t, t, t, with_sinks(Tensor(nullptr, DType::f32, {4})));
  AttentionOptions both = with_slopes(Tensor(data, DType::f32, {4}));
  both.softmax_scale = 0.0f;
  refuses("softmax_scale: must be at least 2^-64 in magnitude with alibi_slopes, was 0", t, t, t, both);
  CHECK_NOTHROW(reference::attention(t, t, t));
  const Tensor whole(data, DType::i32, {2, 3, 4, 8});
  refuses("q: dtype must be f16, bf16, f32, f64, e4m3 or e5m2, was i32", whole, whole, whole);
}

TEST_CASE("bad tensors of scores and masks are refused with a line that names the argument") {
  const HostTensor good = random({2, 3, 4, 8}, 1);
  void* data = good.view().data;
  const Tensor five_keys(data, DType::f32, {2, 5, 4, 1}), t(data, DType::f32, {2, 3, 4, 1});
  const auto refuses = [&](const char* message, std::optional<Tensor> AttentionOptions::*option, const Tensor& tensor) {
    AttentionOptions opts;
    opts.*option = tensor;
    CHECK_THROWS_WITH_AS(reference::attention(t, five_keys, five_keys, opts), message, Error);
    CHECK_THROWS_WITH_AS(reference::attention_in_low_precision(t, five_keys, five_keys, opts), message, Error);
  };
  using Options = AttentionOptions;
  refuses("bias: dtype must be f16, bf16 or f32, was i32", &Options::bias, Tensor(data, DType::i32, {2, 4, 3, 5}));
  refuses("bias: rank must be 4, was 2 with shape [3, 5]", &Options::bias, Tensor(data, DType::f32, {3, 5}));
  refuses("bias: must have 4 strides like its shape, had 1", &Options::bias,
          Tensor(data, DType::f32, {2, 4, 3, 5}, {1}));
  refuses("bias: num_heads must be 4, or 1 for all, was 2 with shape [2, 2, 3, 5]", &Options::bias,
          Tensor(data, DType::f32, {2, 2, 3, 5}));
  refuses("bias: seqlen_kv must be 5, was 1 with shape [2, 4, 3, 1]", &Options::bias,
          Tensor(data, DType::f32, {2, 4, 3, 1}));
  refuses("bias: must point to host memory, was null", &Options::bias, Tensor(nullptr, DType::f32, {1, 1, 1, 5}));
  refuses("boolean_mask: dtype must be boolean, was i32", &Options::boolean_mask,
          Tensor(data, DType::i32, {2, 4, 3, 5}));
  refuses("boolean_mask: seqlen_q must be 3, or 1 for all, was 2 with shape [1, 1, 2, 5]", &Options::boolean_mask,
          Tensor(data, DType::boolean, {1, 1, 2, 5}));
  refuses("documents: dtype must be i32, was i64", &Options::documents, Tensor(data, DType::i64, {2, 5}));
  refuses("documents: batch must be 2, or 1 for all, was 3 with shape [3, 5]", &Options::documents,
          Tensor(data, DType::i32, {3, 5}));
  refuses("prefix: dtype must be i32, was i64", &Options::prefix, Tensor(data, DType::i64, {2}));
  refuses("prefix: batch must be 2, was 1 with shape [1]", &Options::prefix, Tensor(data, DType::i32, {1}));
  refuses("tree: dtype must be i64, was i32", &Options::tree, Tensor(data, DType::i32, {2, 3, 1}));
  refuses("tree: words must be 1 or more, was 0 with shape [2, 3, 0]", &Options::tree,
          Tensor(data, DType::i64, {2, 3, 0}));
  refuses("query_offsets: must not be given without score or mask, which see them", &Options::query_offsets,
          Tensor(data, DType::i32, {2}));
  refuses("key_offsets: must not be given without score or mask, which see them", &Options::key_offsets,
          Tensor(data, DType::i32, {2}));
  Options opts;
  opts.tree = Tensor(data, DType::i64, {2, 5, 1});
  CHECK_THROWS_WITH_AS(reference::attention(five_keys, t, t, opts),
                       "tree: seqlen_q must be at most seqlen_kv, as its queries have the last keys, was 5 with 3 keys",
                       Error);
  opts = with_window(-1, 4);
  opts.prefix = Tensor(data, DType::i32, {2});
  CHECK_THROWS_WITH_AS(reference::attention(t, t, t, opts),
                       "window: right must be -1 with prefix, which shows keys behind the query, was 4", Error);
}

TEST_CASE("users' functions are refused where there is no compiler") {
  const HostTensor t = random({1, 2, 1, 4}, 1);
  AttentionOptions opts;
  opts.mask = Mask("key < 1");
  const auto code_of = [&] {
    try {
      attend(t, t, t, opts);
    } catch (const Error& error) {
      return std::pair(error.code(), std::string(error.what()));
    }
    return std::pair(ErrorCode::io, std::string());
  };
  CHECK(code_of() == std::pair(ErrorCode::unsupported,
                               std::string("mask: must not be given to reference::attention, which has no compiler; "
                                           "Engine::reference takes it")));
  opts.score = Score("score");
  CHECK(code_of().second.starts_with("score: must not be given to reference::attention"));
}

TEST_CASE("a kernel may be twice as far off as low precision, and two roundings more") {
  const Dims shape = {1, 2, 1, 1};
  const reference::Result exact = result_of(shape, {1.0, 4.0}), low = result_of(shape, {1.5, 4.0});
  const double bound = 2 * 0.5 + 2 * 0x1p-24 * 4;
  const reference::Comparison good = reference::compare(f32(shape, {2.0, 3.5}), exact, low);
  CHECK(good.passed);
  CHECK(good.max_error == 1.0);
  CHECK(good.bound == bound);
  const reference::Comparison bad = reference::compare(f32(shape, {1.0, 5.0625}), exact, low);
  CHECK_FALSE(bad.passed);
  CHECK(bad.max_error == 1.0625);
}

TEST_CASE("the rounding allowance is that of the output's dtype") {
  const Dims shape = {1, 1, 1, 1};
  const reference::Result exact = result_of(shape, {1.0});
  const auto bound = [&](DType dtype) { return reference::compare(HostTensor(dtype, shape), exact, exact).bound; };
  CHECK(bound(DType::f16) == 0x1p-10);
  CHECK(bound(DType::bf16) == 0x1p-7);
  CHECK(bound(DType::f32) == 0x1p-23);
}

TEST_CASE("NaN fails wherever it stands, and infinity where it should not be") {
  const Dims shape = {1, 3, 1, 1};
  const reference::Result exact = result_of(shape, {1, 2, 3});
  for (int i = 0; i < 3; ++i) {
    for (const double poison : {std::nan(""), kInfinity, -kInfinity}) {
      std::vector<double> values = {1, 2, 3};
      values[i] = poison;
      CHECK_FALSE(reference::compare(f32(shape, values), exact, exact).passed);
      // Nor does a yardstick that went wrong excuse it.
      CHECK_FALSE(reference::compare(f32(shape, values), exact, result_of(shape, values)).passed);
    }
  }
  const reference::Result infinite = result_of(shape, {1, kInfinity, 3});
  CHECK(reference::compare(f32(shape, {1, kInfinity, 3}), infinite, infinite).passed);
  CHECK_FALSE(reference::compare(f32(shape, {1, -kInfinity, 3}), infinite, infinite).passed);
  CHECK_FALSE(reference::compare(f32(shape, {1, 65504, 3}), infinite, infinite).passed);
}

TEST_CASE("NaN agrees with NaN of the reference, and with nothing else") {
  const Dims shape = {1, 3, 1, 1};
  const double nan = std::nan("");
  const reference::Result exact = result_of(shape, {1, nan, 3}, {1, nan, 3});
  const auto passes = [&](const std::vector<double>& values) {
    return reference::compare(f32(shape, values), exact, exact).passed;
  };
  CHECK(passes({1, nan, 3}));
  CHECK_FALSE(passes({1, 2, 3}));
  CHECK_FALSE(passes({nan, nan, 3}));
  CHECK_FALSE(passes({1, nan, 4}));
  CHECK(reference::compare_lse(f32({1, 1, 3}, {1, nan, 3}), exact, exact).passed);
  CHECK_FALSE(reference::compare_lse(f32({1, 1, 3}, {1, 2, 3}), exact, exact).passed);
}

TEST_CASE("LSE must be near, and -infinity exactly where the reference has it") {
  const reference::Result exact = result_of({1, 2, 2, 8}, {}, {-kInfinity, 1, 2, 100});
  const auto passes = [&](const std::vector<double>& lse) {
    return reference::compare_lse(f32({1, 2, 2}, lse), exact, exact).passed;
  };
  CHECK(passes({-kInfinity, 1, 2, 100}));
  CHECK(passes({-kInfinity, 1.002, 2, 100}));
  CHECK_FALSE(passes({-kInfinity, 1.004, 2, 100}));
  CHECK_FALSE(passes({-1e30, 1, 2, 100}));
  CHECK_FALSE(passes({kInfinity, 1, 2, 100}));
  CHECK_FALSE(passes({-kInfinity, -kInfinity, 2, 100}));
  CHECK_FALSE(passes({-kInfinity, std::nan(""), 2, 100}));
}

TEST_CASE("LSE may be twice as far off as low precision's, as far as that is finite") {
  const Dims shape = {1, 2, 1, 1};
  const reference::Result exact = result_of(shape, {}, {1, 4});
  const auto compare = [&](const std::vector<double>& lse, const std::vector<double>& low) {
    return reference::compare_lse(f32({1, 1, 2}, lse), exact, result_of(shape, {}, low));
  };
  const double least = compare({1, 4}, {1, 4}).bound;
  CHECK(compare({1, 4}, {1.5, 4}).bound == 2 * 0.5 + least);
  CHECK(compare({1, 4}, {1, 3.75}).bound == 2 * 0.25 + least);
  CHECK(compare({1, 5}, {1.5, 4}).passed);
  CHECK_FALSE(compare({1, 5}, {1, 4}).passed);
  CHECK_FALSE(compare({1, 5.01}, {1.5, 4}).passed);
  // A yardstick that went wrong excuses nothing.
  for (const double wrong : {std::nan(""), kInfinity, -kInfinity}) CHECK(compare({1, 4}, {wrong, 4}).bound == least);
}

TEST_CASE("a spread of low precision counts as its error, in the direction where it is one") {
  const Dims shape = {1, 1, 1, 2};
  const reference::Result exact = result_of(shape, {2, -3});
  reference::Result low = result_of(shape, {2.25, -3});
  const auto compare = [&] { return reference::compare(f32(shape, {2.0, -3.625}), exact, low); };
  const double least = compare().bound - 2 * 0.25;
  CHECK_FALSE(compare().passed);
  low.spread = {0, 0.375};
  CHECK(compare().bound == 2 * 0.375 + least);
  low.spread = {0.5, 0};
  CHECK(compare().bound == 2 * (0.25 + 0.5) + least);
  CHECK(compare().passed);
  low.spread = {0.5, kInfinity};
  CHECK(compare().bound == 2 * (0.25 + 0.5) + least);  // what went wrong excuses nothing
  low.spread = {1};
  CHECK_THROWS_WITH_AS(compare(), "low: spread must have 2 elements like exact or none, had 1", Error);
}

TEST_CASE("with a spread every 16 queries have their own bound") {
  constexpr std::int64_t kQueries = 20, kHeads = 2, kSecond = 16 * kHeads;  // the second band's first row
  const Dims shape = {1, kQueries, kHeads, 1};
  const reference::Result exact = result_of(shape, std::vector<double>(kQueries * kHeads, 1));
  reference::Result low = exact;
  low.spread.resize(low.out.size());
  low.spread[kSecond - 1] = 0.5, low.spread[kSecond + 2] = 0.0625;
  const auto compare = [&](double first, double second) {
    std::vector<double> out = exact.out;
    out[0] += first, out.back() += second;
    return reference::compare(f32(shape, out), exact, low);
  };
  const double atol = compare(0.25, 0).bound - 2 * 0.5;
  CHECK(compare(1, 0.125).passed);
  CHECK_FALSE(compare(0, 0.25).passed);
  // What is told is of the band that fails, or else is the nearest to its bound.
  for (const auto& [first, second, error, spread] :
       {std::tuple{0.75, 0.25, 0.25, 0.0625}, {0.75, 0.0625, 0.75, 0.5}, {0.25, 0.125, 0.125, 0.0625}}) {
    CHECK(compare(first, second).max_error == error);
    CHECK(compare(first, second).bound == 2 * spread + atol);
  }
  CHECK_FALSE(compare(std::nan(""), 0).passed);
  CHECK_FALSE(compare(0, std::nan("")).passed);
}

TEST_CASE("behind a causal mask late queries of e4m3 may not lose keys") {
  constexpr std::int64_t kRows = 512, kDim = 64, kLost = 64;
  HostTensor seen(DType::boolean, {1, 1, kRows, kRows});
  const auto lose = [&](std::int64_t first_row) {
    for (std::int64_t i = 0; i < kRows * kRows; ++i) {
      const std::int64_t row = i / kRows, key = i % kRows;
      const bool lost = row >= first_row && key >= kLost && key < 2 * kLost;
      store_element(seen.data(), DType::boolean, i, key <= row && !lost ? 1 : 0);
    }
  };
  const auto random = [&](std::uint64_t seed) {
    return HostTensor::random_normal(DType::e4m3, {1, kRows, 1, kDim}, seed);
  };
  const HostTensor q = random(1), k = random(2), v = random(3);
  AttentionOptions opts;
  opts.boolean_mask = seen.view();
  lose(kRows);
  const reference::Result exact = attend(q, k, v, opts);
  const reference::Result low = reference::attention_in_low_precision(q.view(), k.view(), v.view(), opts);
  const auto compare_with_lost = [&](std::int64_t first_row) {
    lose(first_row);
    const reference::Result got = reference::attention_in_low_precision(q.view(), k.view(), v.view(), opts);
    return reference::compare(HostTensor::from_doubles(DType::bf16, exact.shape, got.out.data(), got.out.size()), exact,
                              low);
  };
  CHECK(compare_with_lost(kRows).passed);
  const reference::Comparison lost = compare_with_lost(kRows - 64);
  CHECK_FALSE(lost.passed);
  // One bound for all would have let them.
  CHECK(lost.max_error < 2 * *std::max_element(low.spread.begin(), low.spread.end()));
}

TEST_CASE("spreads are merged as results are") {
  const Dims shape = {1, 2, 1, 1};
  reference::Result first = result_of(shape, {2, -3}, {1, 1}), second = result_of(shape, {4, -3}, {1, -kInfinity});
  first.spread = {0.5, 0.25}, second.spread = {0.25, 7};
  CHECK(reference::merge({first, second}).spread == std::vector<double>{0.375, 0.25});
  second.spread.clear();
  CHECK_THROWS_WITH_AS(reference::merge({first, second}), "parts: all or none must have a spread, of 2 elements, had 0",
                       Error);
}

TEST_CASE("results of another shape are not compared") {
  const reference::Result exact = result_of({1, 2, 3, 1}, std::vector<double>(6), std::vector<double>(6));
  CHECK_THROWS_WITH_AS(reference::compare(HostTensor(DType::f32, {1, 3, 2, 1}), exact, exact),
                       "out: shape must be [1, 2, 3, 1] like that of exact, was [1, 3, 2, 1]", Error);
  CHECK_THROWS_WITH_AS(reference::compare_lse(HostTensor(DType::f32, {1, 2, 3}), exact, exact),
                       "lse: shape must be [1, 3, 2] like that of exact, was [1, 2, 3]", Error);
}
