// SPDX-License-Identifier: Apache-2.0
// Users' texts and block masks in the emulator, in kernels of both families, against attention in double precision that
// knows nothing of texts: each is written once more here, in C++.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "flashjit/flashjit.h"
#include "runtime/reference/reference_scores.h"
#include "tests/support/error_code.h"
#include "tests/support/kept_kernels.h"

namespace {

using namespace flashjit;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kTolerance = 4e-3;  // f16 and tanh.approx on values of about 1

struct Way {
  const char *architecture, *variant;
};
// Small blocks, so that masks leave some whole and pass over others.
constexpr Way kWays[] = {{"sm_80", "mma-q64-kv32-k2-v2"}, {"sm_90a", "hopper-q64-kv32-qs2-whole-lazy-ppoff"}};

Engine engine_for(const Way& way) {
  EngineOptions options = tests::options_with_kept_kernels();
  options.emulate = way.architecture;
  return Engine(options);
}

// Where a score is.
struct Place {
  int batch, head, query, key;
};
// What becomes of a score: all that options say of it, and what their texts do. -infinity where the key is hidden.
using ScoreOnHost = std::function<double(double score, const Place&)>;

struct Sizes {
  int batch = 2, seqlen_q = 70, seqlen_kv = 110, num_heads_q = 4, num_heads_kv = 2, head_dim = 32;

  CallShape shape() const { return {batch, seqlen_q, seqlen_kv, num_heads_q, num_heads_kv}; }
  int diagonal() const { return seqlen_kv - seqlen_q; }
};

class Case {
 public:
  explicit Case(const Sizes& s = {})
      : sizes(s),
        q(HostTensor::random_normal(DType::f16, {s.batch, s.seqlen_q, s.num_heads_q, s.head_dim}, 1)),
        k(HostTensor::random_normal(DType::f16, {s.batch, s.seqlen_kv, s.num_heads_kv, s.head_dim}, 2)),
        v(HostTensor::random_normal(DType::f16, {s.batch, s.seqlen_kv, s.num_heads_kv, s.head_dim}, 3)),
        out(DType::f16, q.shape()),
        lse(DType::f32, {s.batch, s.num_heads_q, s.seqlen_q}) {}

  void run(Engine& engine, AttentionOptions options, const char* variant) {
    options.lse = lse.view();
    options.variant = parse_variant(variant);
    engine.attention(q.view(), k.view(), v.view(), out.view(), options);
  }

  // Of what run() left. sink: of a head, -infinity for none.
  void expect(const ScoreOnHost& score, const std::function<double(int head)>& sink = {}) const {
    const std::vector<double> queries = q.to_doubles(), keys = k.to_doubles(), values = v.to_doubles();
    const std::vector<double> outputs = out.to_doubles(), sums = lse.to_doubles();
    const int group = sizes.num_heads_q / sizes.num_heads_kv, dims = sizes.head_dim;
    double worst = 0, worst_lse = 0;
    for (int b = 0; b < sizes.batch; ++b) {
      for (int h = 0; h < sizes.num_heads_q; ++h) {
        const auto kv_row = [&](int j) { return ((b * sizes.seqlen_kv + j) * sizes.num_heads_kv + h / group) * dims; };
        for (int i = 0; i < sizes.seqlen_q; ++i) {
          const int q_row = ((b * sizes.seqlen_q + i) * sizes.num_heads_q + h) * dims;
          std::vector<double> scores(static_cast<std::size_t>(sizes.seqlen_kv));
          const double of_sink = sink ? sink(h) : -kInfinity;
          double largest = of_sink;
          for (int j = 0; j < sizes.seqlen_kv; ++j) {
            double product = 0;
            for (int d = 0; d < dims; ++d) product += queries[at(q_row + d)] * keys[at(kv_row(j) + d)];
            scores[at(j)] = score(product / std::sqrt(dims), {b, h, i, j});
            largest = std::max(largest, scores[at(j)]);
          }
          if (largest == -kInfinity) largest = 0;
          double sum = std::exp(of_sink - largest);
          for (double& each : scores) sum += each = std::exp(each - largest);
          for (int d = 0; d < dims; ++d) {
            double wanted = 0;
            for (int j = 0; j < sizes.seqlen_kv; ++j) wanted += scores[at(j)] * values[at(kv_row(j) + d)];
            worst = larger(worst, outputs[at(q_row + d)] - (sum > 0 ? wanted / sum : 0));
          }
          const double got = sums[at((b * sizes.num_heads_q + h) * sizes.seqlen_q + i)];
          const double wanted = sum > 0 ? largest + std::log(sum) : -kInfinity;
          if (got != wanted) worst_lse = larger(worst_lse, got - wanted);
        }
      }
    }
    CHECK(worst < kTolerance);
    CHECK(worst_lse < kTolerance);
  }

  Sizes sizes;
  HostTensor q, k, v, out, lse;

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  // Infinite for NaN.
  static double larger(double worst, double error) {
    return std::isnan(error) ? kInfinity : std::max(worst, std::fabs(error));
  }
};

// A call with these options in both families.
void expect_in_both_families(const AttentionOptions& options, const ScoreOnHost& score, const Sizes& sizes = {}) {
  for (const Way& way : kWays) {
    CAPTURE(std::string(way.architecture));
    Engine engine = engine_for(way);
    Case c(sizes);
    c.run(engine, options, way.variant);
    c.expect(score);
  }
}

// An element as a text gets it: 0 for an index outside.
double element(const Tensor& tensor, std::initializer_list<int> index) {
  std::int64_t offset = 0;
  int dim = 0;
  for (const int i : index) {
    if (i < 0 || i >= tensor.shape[dim]) return 0;
    offset += i * tensor.strides[dim++];
  }
  return load_element(tensor.data, tensor.dtype, offset);
}

HostTensor counting(DType dtype, const Dims& shape, const std::function<double(int)>& value) {
  HostTensor tensor(dtype, shape);
  for (std::size_t i = 0; i < tensor.element_count(); ++i)
    store_element(tensor.data(), dtype, static_cast<std::int64_t>(i), value(static_cast<int>(i)));
  return tensor;
}

// Of so many elements, apart from each other in every dimension, and between them NaN.
struct Strided {
  explicit Strided(const Dims& shape)
      : memory(counting(DType::f32, doubled(shape), [](int) { return std::numeric_limits<double>::quiet_NaN(); })) {
    const Dims outer = packed_strides(doubled(shape));
    view = Tensor(memory.data(), DType::f32, shape, outer);
    for (int i = 0; i < shape.size(); ++i) view.strides[i] *= 2;
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    for (std::int64_t n = 0; n < count; ++n) {
      std::int64_t rest = n, offset = 0;
      for (int i = shape.size(); i-- > 0; rest /= shape[i]) offset += rest % shape[i] * view.strides[i];
      store_element(memory.data(), DType::f32, offset, static_cast<double>(n % 17) / 8 - 1);
    }
  }

  HostTensor memory;
  Tensor view;

 private:
  static Dims doubled(Dims shape) {
    for (int i = 0; i < shape.size(); ++i) shape[i] *= 2;
    return shape;
  }
};

ScoreOnHost shown_by(const std::function<bool(const Place&)>& sees) {
  return [=](double score, const Place& p) { return sees(p) ? score : -kInfinity; };
}

}  // namespace

TEST_CASE("a text is an expression or a body") {
  const HostTensor slope = HostTensor::random_normal(DType::f32, {4}, 5);
  const auto slope_of = [&](int head) { return element(slope.view(), {head}); };
  AttentionOptions options;
  SUBCASE("score, expression") {
    options.score = Score("score - slope(head) * abs(query - key)  // as of ALiBi", {{"slope", slope.view()}});
    expect_in_both_families(
        options, [&](double score, const Place& p) { return score - slope_of(p.head) * std::abs(p.query - p.key); });
  }
  SUBCASE("score, body") {
    options.score =
        Score("const auto x = tanh(score / cap);\nif (key % 5 == 0) return score;\nreturn cap * x;", {{"cap", 1.5}});
    expect_in_both_families(
        options, [](double score, const Place& p) { return p.key % 5 == 0 ? score : 1.5 * std::tanh(score / 1.5); });
  }
  SUBCASE("mask, expression") {
    options.mask = Mask("/* bands */ (key + query) / 16 % 2 == batch");
    expect_in_both_families(options, shown_by([](const Place& p) { return (p.key + p.query) / 16 % 2 == p.batch; }));
  }
  SUBCASE("mask, body") {
    options.mask = Mask("const int own = query + seqlen_kv - seqlen_q;\nreturn own - key < 20 || key < head;");
    expect_in_both_families(options,
                            shown_by([](const Place& p) { return p.query + 40 - p.key < 20 || p.key < p.head; }));
  }
  SUBCASE("both") {
    options.mask = Mask("query % 3 != 0 && (key + query) % 2 == 0");
    options.score = Score("key == 7 ? -infinity : score * float(key) / 40.0f");
    expect_in_both_families(options, [](double score, const Place& p) {
      const bool sees = p.query % 3 != 0 && (p.key + p.query) % 2 == 0 && p.key != 7;
      return sees ? score * p.key / 40 : -kInfinity;
    });
  }
}

TEST_CASE("captures are of every dtype, rank and kind") {
  const Sizes sizes;
  const auto small = [](int i) { return static_cast<double>(i % 13) / 8 - 0.75; };
  const auto whole = [](int i) { return i % 5 - 2.0; };
  const auto beyond_32_bits = [](int i) { return static_cast<double>(std::int64_t{i % 4} << 40) + 1; };
  AttentionOptions options;
  SUBCASE("from rank 0 on") {
    const HostTensor a = counting(DType::f16, {}, [](int) { return 0.625; });
    const HostTensor b = counting(DType::bf16, {110}, small);
    const HostTensor c = counting(DType::f32, {70, 110}, small);
    const HostTensor d = counting(DType::i32, {4, 70, 110}, whole);
    const HostTensor e = counting(DType::i64, {2, 4, 70, 110}, beyond_32_bits);
    options.score = Score(
        "score * a() + b(key) + c(query, key) + 0.25f * d(head, query, key) + f * float(e(batch, head, query, key) >> "
        "40)"
        " + n",
        {{"a", a.view()}, {"n", -3}, {"b", b.view()}, {"c", c.view()}, {"d", d.view()}, {"f", 0.5}, {"e", e.view()}});
    expect_in_both_families(options, [&](double score, const Place& p) {
      const double of_e = std::floor(std::ldexp(element(e.view(), {p.batch, p.head, p.query, p.key}), -40));
      return score * 0.625 + element(b.view(), {p.key}) + element(c.view(), {p.query, p.key}) +
             0.25 * element(d.view(), {p.head, p.query, p.key}) + 0.5 * of_e - 3;
    });
  }
  SUBCASE("down to rank 0") {
    const HostTensor a = counting(DType::f16, {2, 4, 70, 110}, small);
    const HostTensor b = counting(DType::bf16, {4, 70, 110}, small);
    const HostTensor c = counting(DType::boolean, {70, 110}, [](int i) { return i % 3 == 0; });
    const HostTensor d = counting(DType::i64, {110}, beyond_32_bits);
    const HostTensor e = counting(DType::i32, {}, [](int) { return -70000; });
    options.score = Score(
        "score + a(batch, head, query, key) - b(head, query, key) + (c(query, key) ? 0.5f : 0.0f)"
        " + float(d(key) >> 41) + e() / 70000",
        {{"e", e.view()}, {"d", d.view()}, {"c", c.view()}, {"b", b.view()}, {"a", a.view()}});
    expect_in_both_families(options, [&](double score, const Place& p) {
      return score + element(a.view(), {p.batch, p.head, p.query, p.key}) -
             element(b.view(), {p.head, p.query, p.key}) + 0.5 * element(c.view(), {p.query, p.key}) + p.key % 4 / 2 -
             1;
    });
  }
  SUBCASE("of a mask") {
    const HostTensor a = counting(DType::boolean, {2, 1, 70, 110}, [](int i) { return i % 7 != 0; });
    const HostTensor b = counting(DType::i64, {2}, [](int i) { return std::ldexp(1, 33) * i; });
    options.mask = Mask("a(batch, 0, query, key) && (b(batch) > limit || key % 2 == 0)",
                        {{"a", a.view()}, {"b", b.view()}, {"limit", 2147483647}});
    expect_in_both_families(
        options, shown_by([&](const Place& p) {
          return element(a.view(), {p.batch, 0, p.query, p.key}) != 0 && (p.batch == 1 || p.key % 2 == 0);
        }));
  }
}

TEST_CASE("tensors with any strides are captured where they are") {
  const Strided one({110}), four({2, 4, 70, 110}), repeated({4, 110});
  Tensor for_all = repeated.view;  // all queries
  for_all.shape = {4, 70, 110};
  for_all.strides = {repeated.view.strides[0], 0, repeated.view.strides[1]};
  AttentionOptions options;
  options.score = Score("score + one(key) + four(batch, head, query, key) + for_all(head, query, key)",
                        {{"one", one.view}, {"four", four.view}, {"for_all", for_all}});
  expect_in_both_families(options, [&](double score, const Place& p) {
    return score + element(one.view, {p.key}) + element(four.view, {p.batch, p.head, p.query, p.key}) +
           element(repeated.view, {p.head, p.key});
  });
}

TEST_CASE("an index outside of a tensor gives 0, and what stands there is not read") {
  // Between its rows and around them the memory is NaN.
  HostTensor memory = counting(DType::f32, {14, 20}, [](int) { return std::numeric_limits<double>::quiet_NaN(); });
  Tensor table(static_cast<float*>(memory.data()) + 2 * 20 + 5, DType::f32, {10, 10}, {20, 1});
  for (int i = 0; i < 10; ++i)
    for (int j = 0; j < 10; ++j) store_element(table.data, DType::f32, i * 20 + j, 0.125 * (i - j) + 2);
  const HostTensor nothing(DType::i32, {0}), none_of_many(DType::f16, {4, 0});
  AttentionOptions options;
  options.score = Score(
      "score + table(query - 30, key - 50) + table(key, 10 - query) + table(-1, key) + table(0x7fffffff, -2147483647)"
      " + nothing(key) + none_of_many(0, 0)",
      {{"table", table}, {"nothing", nothing.view()}, {"none_of_many", none_of_many.view()}});
  expect_in_both_families(options, [&](double score, const Place& p) {
    return score + element(table, {p.query - 30, p.key - 50}) + element(table, {p.key, 10 - p.query});
  });
}

TEST_CASE("-infinity from a score hides the key") {
  AttentionOptions options;
  SUBCASE("some keys") {
    options.score = Score("key % 3 == 0 || key / 32 == 1 ? -infinity : score");
    expect_in_both_families(options, shown_by([](const Place& p) { return p.key % 3 != 0 && p.key / 32 != 1; }));
  }
  SUBCASE("all keys of some rows, and of whole tiles") {
    options.score = Score("query % 5 == 2 || query >= 64 ? -infinity : score");
    expect_in_both_families(options, shown_by([](const Place& p) { return p.query % 5 != 2 && p.query < 64; }));
  }
}

TEST_CASE("NaN reaches its own row, and no other") {
  AttentionOptions options;
  options.score = Score("query == 5 && key == 77 && head == 1 ? sqrt(-1.0f) : score");
  for (const Way& way : kWays) {
    CAPTURE(std::string(way.architecture));
    Engine engine = engine_for(way);
    Case with_nan, without;
    with_nan.run(engine, options, way.variant);
    without.run(engine, {}, way.variant);
    const std::vector<double> values = with_nan.out.to_doubles();
    int wrong = 0;
    const Sizes sizes;
    for (int row = 0; row < sizes.batch * sizes.seqlen_q * sizes.num_heads_q; ++row) {
      const bool hit = row % sizes.num_heads_q == 1 && row / sizes.num_heads_q % sizes.seqlen_q == 5;
      for (int d = 0; d < sizes.head_dim; ++d)
        wrong += hit != std::isnan(values[static_cast<std::size_t>(row * sizes.head_dim + d)]);
    }
    CHECK(wrong == 0);
    // But for that row all is as without the text.
    for (int b = 0; b < sizes.batch; ++b)
      for (HostTensor* out : {&with_nan.out, &without.out})
        for (int d = 0; d < sizes.head_dim; ++d)
          store_element(out->data(), DType::f16,
                        ((b * sizes.seqlen_q + 5) * sizes.num_heads_q + 1) * sizes.head_dim + d, 0);
    const std::vector<double> others = with_nan.out.to_doubles(), wanted = without.out.to_doubles();
    double worst = 0;
    for (std::size_t i = 0; i < others.size(); ++i) worst = std::max(worst, std::fabs(others[i] - wanted[i]));
    CHECK(worst < kTolerance);
  }
}

TEST_CASE("a row that a mask leaves no key gives 0, and -infinity or its sink as LSE") {
  AttentionOptions options;
  SUBCASE("some rows, and a tile of rows") {
    options.mask = Mask("query % 4 != 1 && query < 64");
    expect_in_both_families(options, shown_by([](const Place& p) { return p.query % 4 != 1 && p.query < 64; }));
  }
  SUBCASE("all rows") {
    options.mask = Mask("false");
    expect_in_both_families(options, shown_by([](const Place&) { return false; }));
  }
  SUBCASE("with sinks") {
    options.mask = Mask("query % 4 != 1");
    const HostTensor sinks = counting(DType::f32, {4}, [](int head) { return 0.5 * head - 1; });
    options.sinks = sinks.view();
    for (const Way& way : kWays) {
      CAPTURE(std::string(way.architecture));
      Engine engine = engine_for(way);
      Case c;
      c.run(engine, options, way.variant);
      c.expect(shown_by([](const Place& p) { return p.query % 4 != 1; }), [](int head) { return 0.5 * head - 1; });
    }
  }
}

TEST_CASE("offsets shift what texts call queries and keys, and nothing else") {
  const int of_queries[] = {100, 7}, of_keys[] = {90, -20};
  const HostTensor query_offsets = counting(DType::i32, {2}, [&](int b) { return of_queries[b]; });
  const HostTensor key_offsets = counting(DType::i32, {2}, [&](int b) { return of_keys[b]; });
  AttentionOptions options;
  options.causal = true;
  options.score = Score("score - 0.125f * abs(query - key)");
  options.mask = Mask("(2 * query + key) % 3 != 0");
  bool with_queries = false, with_keys = false;
  SUBCASE("both") { with_queries = with_keys = true; }
  SUBCASE("of queries") { with_queries = true; }
  SUBCASE("of keys") { with_keys = true; }
  if (with_queries) options.query_offsets = query_offsets.view();
  if (with_keys) options.key_offsets = key_offsets.view();
  expect_in_both_families(options, [&](double score, const Place& p) {
    const int query = p.query + (with_queries ? of_queries[p.batch] : 0);
    const int key = p.key + (with_keys ? of_keys[p.batch] : 0);
    const bool sees = p.key <= p.query + 40 && (2 * query + key) % 3 != 0;
    return sees ? score - 0.125 * std::abs(query - key) : -kInfinity;
  });
}

TEST_CASE("texts that are formulas have a shorter way, and the values of the text") {
  const HostTensor slope =
      counting(DType::f32, {4, 70}, [](int i) { return 0.0625 * (i / 70 + 1) - 0.002 * (i % 70); });
  const auto slope_of = [&](int head, int query) { return element(slope.view(), {head, query}); };
  const HostTensor slope_of_heads = counting(DType::f32, {4}, [](int head) { return 0.0625 * head; });
  const HostTensor key_offsets = counting(DType::i32, {2}, [](int b) { return 50 * b - 20; });
  AttentionOptions options;
  ScoreOnHost score;
  SUBCASE("slopes of heads") {
    options.score = Score("score - slope(head, 0) * (query + 40 - key)", {{"slope", slope.view()}});
    score = [&](double s, const Place& p) { return s - slope_of(p.head, 0) * (p.query + 40 - p.key); };
  }
  SUBCASE("slopes of queries, and a rest") {
    options.score = Score("(key - query) * slope(head, query) / 2 + score - 0.25f * n * query",
                          {{"slope", slope.view()}, {"n", 2}});
    score = [&](double s, const Place& p) {
      return (p.key - p.query) * slope_of(p.head, p.query) / 2 + s - 0.5 * p.query;
    };
  }
  SUBCASE("a rest alone, which hides rows") {
    options.score = Score("score + log2(a * query)", {{"a", 0.5f}});
    score = [&](double s, const Place& p) { return s + std::log2(0.5 * p.query); };
  }
  SUBCASE("keys that count from their offset") {
    options.key_offsets = key_offsets.view();
    options.score = Score("score + exp2(-0.5f * (head + 4)) * key");
    score = [&](double s, const Place& p) { return s + std::exp2(-0.5 * (p.head + 4)) * (p.key + 50 * p.batch - 20); };
  }
  SUBCASE("slopes behind slopes") {
    options.alibi_slopes = slope_of_heads.view();
    options.score = Score("score + a * (key - query)", {{"a", 0.01f}});
    score = [&](double s, const Place& p) {
      return s - 0.0625 * p.head * std::abs(p.query + 40 - p.key) + 0.01f * (p.key - p.query);
    };
  }
  SUBCASE("a cap") {
    options.score = Score("cap * tanh(score / cap)", {{"cap", 1.5f}});
    score = [](double s, const Place&) { return 1.5 * std::tanh(s / 1.5); };
  }
  SUBCASE("a cap that turns scores round") {
    options.score = Score("tanh(0.5f * score) * -scale", {{"scale", 3}});
    score = [](double s, const Place&) { return -3 * std::tanh(0.5 * s); };
  }
  SUBCASE("a cap behind slopes") {
    options.alibi_slopes = slope_of_heads.view();
    options.score = Score("-cap * tanh(-score / cap)", {{"cap", 2}});
    score = [](double s, const Place& p) {
      return 2 * std::tanh((s - 0.0625 * p.head * std::abs(p.query + 40 - p.key)) / 2);
    };
  }
  SUBCASE("a cap of 0") {
    options.score = Score("cap * tanh(score)", {{"cap", 0.f}});
    score = [](double, const Place&) { return 0.0; };
  }
  REQUIRE(options.score.has_value());
  expect_in_both_families(options, score);
  options.causal = true;
  options.softmax_scale = -1 / std::sqrt(32.f);
  expect_in_both_families(options,
                          [&](double s, const Place& p) { return p.key <= p.query + 40 ? score(-s, p) : -kInfinity; });
}

TEST_CASE("texts come behind the cap, slopes and a bias, and beside masks and sinks") {
  const Sizes sizes{.batch = 2, .seqlen_q = 70, .seqlen_kv = 150, .num_heads_q = 6, .num_heads_kv = 2};
  const HostTensor slopes = counting(DType::f32, {6}, [](int head) { return 0.0625 * head; });
  const HostTensor sinks = counting(DType::f32, {6}, [](int head) { return head - 2.0; });
  const HostTensor bias = HostTensor::random_normal(DType::bf16, {1, 6, 1, 150}, 7);
  AttentionOptions options;
  options.causal = true;
  options.window = {60, -1};
  options.softcap = 2;
  options.alibi_slopes = slopes.view();
  options.sinks = sinks.view();
  options.bias = bias.view();
  options.score = Score("2 * score - float(head) / 4");
  options.mask = Mask("key % 5 != 0");
  for (const Way& way : kWays) {
    CAPTURE(std::string(way.architecture));
    Engine engine = engine_for(way);
    Case c(sizes);
    c.run(engine, options, way.variant);
    c.expect(
        [&](double score, const Place& p) {
          const int own = p.query + sizes.diagonal();
          if (p.key > own || p.key < own - 60 || p.key % 5 == 0) return -kInfinity;
          const double so_far =
              2 * std::tanh(score / 2) - 0.0625 * p.head * (own - p.key) + element(bias.view(), {0, p.head, 0, p.key});
          return 2 * so_far - p.head / 4.0;
        },
        [](int head) { return head - 2.0; });
  }
}

TEST_CASE("a bias may lie in memory in any way") {
  const Sizes sizes{.batch = 2, .seqlen_q = 37, .seqlen_kv = 110, .num_heads_q = 6, .num_heads_kv = 2};
  struct Layout {
    const char* name;
    std::int64_t first;  // element
    Dims shape, strides;
  };
  const Layout layouts[] = {
      {"packed, and no row but the first begins at a chunk", 0, {2, 6, 37, 110}, packed_strides({2, 6, 37, 110})},
      {"every row begins at a chunk", 0, {2, 6, 37, 110}, {6 * 37 * 112, 37 * 112, 112, 1}},
      {"every row begins one element behind a chunk", 1, {2, 6, 37, 110}, {6 * 37 * 112, 37 * 112, 112, 1}},
      {"heads that do not begin at chunks", 0, {1, 6, 37, 110}, {0, 37 * 112 + 4, 112, 1}},
      {"rows in columns' order of heads", 8, {2, 6, 37, 110}, {6 * 37 * 112, 112, 6 * 112, 1}},
      {"rows that overlap", 0, {1, 1, 37, 110}, {0, 0, 8, 1}},
      {"one row for each batch entry", 0, {2, 1, 1, 110}, {112, 0, 0, 1}},
      {"one row for all", 3, {1, 1, 1, 110}, {0, 0, 0, 1}},
  };
  const Way ways[] = {kWays[0], kWays[1], {"sm_90a", "hopper-q128-kv48-qs1-whole-lazy-ppgemm-fused"}};
  for (const Way& way : ways) {
    CAPTURE(std::string(way.variant));
    Engine engine = engine_for(way);
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
      CAPTURE(std::string(to_string(dtype)));
      HostTensor memory = HostTensor::random_normal(dtype, {2 * 6 * 37 * 112 + 64}, 7);
      for (const Layout& layout : layouts) {
        CAPTURE(std::string(layout.name));
        char* const first =
            static_cast<char*>(memory.data()) + layout.first * static_cast<std::int64_t>(size_of(dtype));
        const Tensor bias(first, dtype, layout.shape, layout.strides);
        AttentionOptions options;
        options.bias = bias;
        Case c(sizes);
        c.run(engine, options, way.variant);
        const auto at_dim = [&](int dim, int index) { return bias.shape[dim] == 1 ? 0 : index; };
        c.expect([&](double score, const Place& p) {
          return score + element(bias, {at_dim(0, p.batch), at_dim(1, p.head), at_dim(2, p.query), p.key});
        });
      }
    }
  }
}

TEST_CASE("a block mask has the bits of its predicates, and calls with and without it agree") {
  // Two words of keys, and neither length a multiple of a granule.
  const Sizes sizes{.batch = 2, .seqlen_q = 150, .seqlen_kv = 540, .num_heads_q = 2, .num_heads_kv = 1};
  const HostTensor documents = counting(DType::i32, {2, 540}, [](int i) { return i % 540 / (i < 540 ? 170 : 77); });
  const HostTensor shown =
      counting(DType::boolean, {1, 2, 150, 540}, [](int i) { return i % 540 / 64 % 2 == 0 || i % 1621 == 5; });
  CallShape shape = sizes.shape();
  AttentionOptions options;
  std::function<bool(const Place&)> sees;
  const auto of_one_document = [&](const Place& p) {
    return element(documents.view(), {p.batch, p.query + sizes.diagonal()}) ==
           element(documents.view(), {p.batch, p.key});
  };
  SUBCASE("documents, for all heads") {
    options.documents = documents.view();
    shape.num_heads_q = 1;
    sees = of_one_document;
  }
  SUBCASE("text, for all batch entries") {
    options.mask = Mask("(key / 50 + head) % 3 == 0 || abs(query - key) < 90");
    shape.batch = 1;
    sees = [](const Place& p) { return (p.key / 50 + p.head) % 3 == 0 || std::abs(p.query - p.key) < 90; };
  }
  SUBCASE("a corner, for all") {
    options.mask = Mask("key < 64 && query > 100");
    shape.batch = shape.num_heads_q = 1;
    sees = [](const Place& p) { return p.key < 64 && p.query > 100; };
  }
  SUBCASE("nothing") {
    options.mask = Mask("false");
    sees = [](const Place&) { return false; };
  }
  SUBCASE("all") {
    options.mask = Mask("true");
    sees = [](const Place&) { return true; };
  }
  SUBCASE("several together") {
    options.documents = documents.view();
    options.boolean_mask = shown.view();
    options.mask = Mask("key < 512 || query % 2 == 0");
    sees = [&](const Place& p) {
      return of_one_document(p) && element(shown.view(), {0, p.head, p.query, p.key}) != 0 &&
             (p.key < 512 || p.query % 2 == 0);
    };
  }
  for (const Way& way : kWays) {
    CAPTURE(std::string(way.architecture));
    Engine engine = engine_for(way);
    HostTensor blocks(DType::i32, block_mask_dims(shape));
    engine.block_mask(options, shape, blocks.view());
    int wrong = 0;
    const auto bit = [&](int b, int h, int granule, int which, int key) {
      const auto word = static_cast<std::uint32_t>(
          static_cast<std::int64_t>(element(blocks.view(), {b, h, granule, which, key / 512})));
      return (word >> key / 16 % 32 & 1) != 0;
    };
    for (int b = 0; b < shape.batch; ++b)
      for (int h = 0; h < shape.num_heads_q; ++h)
        for (int first_query = 0; first_query < sizes.seqlen_q; first_query += 64)
          for (int first_key = 0; first_key < sizes.seqlen_kv; first_key += 16) {
            bool some = false, every = true;
            for (int i = first_query; i < std::min(first_query + 64, sizes.seqlen_q); ++i)
              for (int j = first_key; j < std::min(first_key + 16, sizes.seqlen_kv); ++j) {
                some |= sees({b, h, i, j});
                every &= sees({b, h, i, j});
              }
            wrong += bit(b, h, first_query / 64, 0, first_key) != some;
            wrong += bit(b, h, first_query / 64, 1, first_key) != every;
          }
    CHECK(wrong == 0);
    for (const bool causal : {false, true}) {
      CAPTURE(causal);
      options.causal = causal;
      const ScoreOnHost score =
          shown_by([&](const Place& p) { return sees(p) && (!causal || p.key <= p.query + sizes.diagonal()); });
      Case c(sizes);
      options.block_mask.reset();
      c.run(engine, options, way.variant);
      c.expect(score);
      options.block_mask = blocks.view();
      c.run(engine, options, way.variant);
      c.expect(score);
    }
    options.block_mask.reset();
    options.causal = false;
  }
}

TEST_CASE("values, shapes and strides of captures compile nothing; another type or text does") {
  const HostTensor one = HostTensor::random_normal(DType::f32, {4}, 1),
                   half = HostTensor::random_normal(DType::f16, {4}, 1);
  HostTensor others = HostTensor::random_normal(DType::f32, {300}, 2);
  for (const Way& way : kWays) {
    CAPTURE(std::string(way.architecture));
    Engine engine = engine_for(way);
    Case c;
    const auto compiles_of = [&](const Score& score) {
      const std::uint64_t before = tests::kernels_of(engine);
      AttentionOptions options;
      options.score = score;
      c.run(engine, options, way.variant);
      return tests::kernels_of(engine) - before;
    };
    Score score("score * factor + values(head)", {{"values", one.view()}, {"factor", 2.0}});
    CHECK(compiles_of(score) == 1);
    CHECK(compiles_of(score) == 0);
    score.set({"factor", 0.25});
    CHECK(compiles_of(score) == 0);
    score.set({"values", others.view()});
    CHECK(compiles_of(score) == 0);
    c.expect([&](double s, const Place& p) { return s * 0.25 + element(others.view(), {p.head}); });
    const Tensor apart(others.data(), DType::f32, {4}, {70});
    score.set({"values", apart});  // its elements are no neighbours
    CHECK(compiles_of(score) == 1);
    const Tensor further(others.data(), DType::f32, {5}, {61});
    score.set({"values", further});
    CHECK(compiles_of(score) == 0);
    c.expect([&](double s, const Place& p) { return s * 0.25 + element(further, {p.head}); });
    score.set({"values", half.view()});
    CHECK(compiles_of(score) == 1);
    score.set({"factor", 3});
    CHECK(compiles_of(score) == 1);
    CHECK(compiles_of(Score("score * factor + values(head) ", score.captures())) == 1);
    CHECK(compiles_of(Score(score.text(), score.captures())) == 0);
  }
}

TEST_CASE("a problem that was prepared with a block mask compiles nothing later, neither for the mask nor for calls") {
  const HostTensor ids(DType::i32, {110});
  for (const Way& way : kWays) {
    CAPTURE(std::string(way.architecture));
    Engine engine = engine_for(way);
    Case c;
    AttentionOptions options;
    options.mask = Mask("document(key) == document(query)", {{"document", ids.view()}});
    Problem problem = problem_of(DType::f16, c.sizes.head_dim, c.sizes.head_dim, options);
    problem.block_mask = true;
    engine.prepare(problem, -1, parse_variant(way.variant));
    CHECK(tests::kernels_of(engine) == 2);
    const DeviceTensor blocks = engine.block_mask(options, c.sizes.shape());
    options.block_mask = blocks.view();
    c.run(engine, options, way.variant);
    CHECK(tests::kernels_of(engine) == 2);
  }
}

TEST_CASE("indices of any type are outside of a tensor where no int holds them, as NaN is") {
  const HostTensor ids = [] {
    HostTensor far(DType::i64, {4});
    for (int i = 0; i < 4; ++i) store_element(far.data(), DType::i64, i, 4294967296.0 * (i - 1));
    return far;
  }();
  const HostTensor values = HostTensor::random_normal(DType::f32, {4}, 1);
  for (const Way& way : kWays) {
    CAPTURE(std::string(way.architecture));
    Engine engine = engine_for(way);
    Case c;
    AttentionOptions options;
    // Of the four only the second is 0.
    options.score =
        Score("score + values(ids(key % 4)) + values(sqrt(-1.0f)) + values(4294967296ull + head) + values(1e10f)",
              {{"values", values.view()}, {"ids", ids.view()}});
    c.run(engine, options, way.variant);
    c.expect([&](double s, const Place& p) { return s + (p.key % 4 == 1 ? element(values.view(), {0}) : 0); });
  }
}

TEST_CASE("functions take whole and real numbers together, in attention and in the reference") {
  Engine engine = engine_for(kWays[0]);
  Case c;
  for (const char* text :
       {"min(score, 1)", "max(0.25, score)", "score * pow(0.5f, head)", "fmax(score, 0.25f)", "fmin(score, 2)",
        "fmod(score, 2.0f)", "atan2(score, 1)", "fdim(score, 1)", "fma(score, 2, 1.0f)", "score + log(2)",
        "score + sqrt(query + 1)", "score + cos(query)", "score + 0.1f * exp(-head)", "score + sigmoid(1)",
        "score + abs(-3LL)", "score + min(query, key)", "score - max(key, 3)", "score + log(abs(query - key) + 1)"}) {
    CAPTURE(std::string(text));
    AttentionOptions options;
    options.score = Score(text);
    c.run(engine, options, kWays[0].variant);
    const auto exact = engine.reference(c.q.view(), c.k.view(), c.v.view(), options),
               low = engine.reference_in_low_precision(c.q.view(), c.k.view(), c.v.view(), options);
    CHECK(reference::compare(c.out, exact, low).passed);
  }
}

TEST_CASE("the reference differentiates a text that the device applies") {
  Engine engine = engine_for(kWays[0]);
  const Case c({.batch = 1, .seqlen_q = 5, .seqlen_kv = 9, .num_heads_q = 2, .num_heads_kv = 1, .head_dim = 8});
  AttentionOptions options;
  options.softcap = 3;
  options.score = Score("sin(score) + score * score / 8");
  options.mask = Mask("key % 3 != query % 3");
  const HostTensor dout = HostTensor::random_normal(DType::f16, c.q.shape(), 9);
  const auto by_text = engine.reference_backward(dout.view(), c.q.view(), c.k.view(), c.v.view(), options);
  const reference::ScoreHook hook = [](const reference::ScoreRows& rows) {
    for (std::int64_t i = 0; i < rows.count; ++i)
      for (std::int64_t key = 0; key < rows.seqlen_kv; ++key) {
        const auto at = static_cast<std::size_t>(i * rows.seqlen_kv + key);
        const bool hides = key % 3 == (rows.first_row + i) % 3;
        const double score = rows.scores[at];
        rows.scores[at] = hides ? -kInfinity : std::sin(score) + score * score / 8;
        if (rows.slopes) (*rows.slopes)[at] = hides ? 0 : std::cos(score) + score / 4;
      }
  };
  AttentionOptions plain;
  plain.softcap = 3;
  const auto by_hook =
      reference::attention_backward({dout.view(), c.q.view(), c.k.view(), c.v.view(), plain, std::nullopt}, hook);
  for (const auto& [text, wanted] :
       {std::pair{&by_text.dq, &by_hook.dq}, {&by_text.dk, &by_hook.dk}, {&by_text.dv, &by_hook.dv}})
    for (std::size_t i = 0; i < wanted->size(); ++i) CHECK(std::abs((*text)[i] - (*wanted)[i]) < 1e-8);
  CHECK(std::abs(by_hook.dq.front()) > 1e-3);
}

TEST_CASE("a text of a wrong type is told as an error of the text") {
  Engine engine = engine_for(kWays[0]);
  Case c;
  const HostTensor slopes(DType::f32, {4});
  AttentionOptions options;
  options.score = Score("slope", {{"slope", slopes.view()}});
  std::string message;
  CHECK(tests::code_of([&] { c.run(engine, options, kWays[0].variant); }, &message) == ErrorCode::compile_failed);
  CHECK(message.starts_with("score: no suitable"));
}

TEST_CASE("positions compute as whole numbers do, and beside real ones as those") {
  // Of position and the int that it stands for: both must be the same, whatever stands beside them.
  std::string body = "const int i = query, j = key;\nbool same = true;\n";
  const auto expect_same = [&](const std::string& of_positions, const std::string& of_ints) {
    body += "same &= float(" + of_positions + ") == float(" + of_ints + ");\n";
  };
  for (const char* number : {"2", "2u", "2LL", "2ULL", "short(2)", "true", "whole", "wide()", "2.0f", "2.0", "real"}) {
    const bool is_real = std::string(number) == "2.0f" || std::string(number) == "2.0" || std::string(number) == "real";
    for (const char* op : {"+", "-", "*", "/", "%", "<", "<=", "==", "!=", ">", ">=", "&", "|", "^", "<<"}) {
      if (is_real && std::string("%&|^<<").find(op) != std::string::npos && std::string(op) != "<") continue;
      const auto expect_beside = [&](const std::string& position, const std::string& whole) {
        expect_same("(" + position + ") " + op + " " + number, "(" + whole + ") " + op + " " + number);
        const bool shifts = std::string(op) == "<<", divides = std::string(op) == "/" || std::string(op) == "%";
        if (!shifts && !divides)
          expect_same(number + (" " + std::string(op)) + " (" + position + ")",
                      number + (" " + std::string(op)) + " (" + whole + ")");
      };
      expect_beside("query", "i");
      expect_beside("key", "j");
      expect_beside("abs(query - key)", "abs(i - j)");
    }
    expect_same(number + std::string(" / (key + 1)"), number + std::string(" / (j + 1)"));
    if (std::string(number) != "true")  // beside which a position is a truth value
      expect_same("batch == 0 ? query : " + std::string(number), "batch == 0 ? i : " + std::string(number));
  }
  const std::pair<const char*, const char*> alone[] = {{"query * key", "i * j"},
                                                       {"query % (key + 1)", "i % (j + 1)"},
                                                       {"-2 * (query - key)", "-2 * (i - j)"},
                                                       {"-query", "-i"},
                                                       {"+query", "+i"},
                                                       {"~query", "~i"},
                                                       {"!query", "!i"},
                                                       {"min(query, key)", "min(i, j)"},
                                                       {"max(query, 3)", "max(i, 3)"},
                                                       {"max(abs(query - key), 1)", "max(abs(i - j), 1)"},
                                                       {"abs(2 * query)", "abs(2 * i)"},
                                                       {"abs(query - key) * key", "abs(i - j) * j"},
                                                       {"key - abs(query - key)", "j - abs(i - j)"},
                                                       {"-abs(query - key)", "-abs(i - j)"},
                                                       {"key - query < 4", "j - i < 4"},
                                                       {"query & key", "i & j"},
                                                       {"query == key", "i == j"},
                                                       {"batch == 0 ? query : key", "batch == 0 ? i : j"},
                                                       {"seqlen_kv - key", "seqlen_kv - j"},
                                                       {"(query - key) / 2.0f", "(i - j) / 2.0f"},
                                                       {"sqrt(float(query))", "sqrt(float(i))"}};
  for (const auto& [position, whole] : alone) expect_same(position, whole);
  const HostTensor wide = counting(DType::i64, {}, [](int) { return 2; });
  AttentionOptions options;
  options.mask = Mask(body + "return same;", {{"whole", 2}, {"real", 2.0}, {"wide", wide.view()}});
  const Sizes small{.batch = 1, .seqlen_q = 9, .seqlen_kv = 40, .num_heads_q = 1, .num_heads_kv = 1};
  expect_in_both_families(options, shown_by([](const Place&) { return true; }), small);
}

TEST_CASE("a text that ends too early, or without a value, is told as an error of the text") {
  Engine engine = engine_for(kWays[0]);
  Case c;
  for (const char* text : {"key <", "return key < 3", "key < // query", "if (key < 3) return true; return",
                           "if (key < 3) return true;", "if (key < 3) return; return true;"}) {
    CAPTURE(std::string(text));
    AttentionOptions options;
    options.mask = Mask(text);
    Error error(ErrorCode::io, "none");
    try {
      c.run(engine, options, kWays[0].variant);
    } catch (const Error& caught) {
      error = caught;
    }
    CHECK(error.code() == ErrorCode::compile_failed);
    const std::string message = error.what();
    CAPTURE(message);
    CHECK((message.starts_with("mask: at its end: ") || message.starts_with("mask: line 1, column ")));
    CHECK(error.log().find("generated") == std::string::npos);
  }
}

TEST_CASE("what the compiler finds in a text is told by the text's lines and columns, and by no others") {
  for (const Way& way : kWays) {
    CAPTURE(std::string(way.architecture));
    Engine engine = engine_for(way);
    Case c;
    const auto error_of = [&](const AttentionOptions& options) {
      try {
        c.run(engine, options, way.variant);
      } catch (const Error& error) {
        return error;
      }
      FAIL("an Error was expected");
      return Error(ErrorCode::io, "");
    };
    AttentionOptions options;
    options.score = Score("const auto twice = 2 * score;\n  foo(key);\nreturn twice;");
    for (int times = 0; times < 2; ++times) {
      const Error error = error_of(options);
      CHECK(error.code() == ErrorCode::compile_failed);
      CAPTURE(std::string(error.what()));
      CHECK(std::string(error.what()).find("score: line 2, column 3: identifier \"foo\" is undefined") !=
            std::string::npos);
      CHECK(error.log() == "score: line 2, column 3: identifier \"foo\" is undefined\n    foo(key);\n    ^\n");
    }
    options.score = Score("score + nothing");
    options.mask = Mask("key <\n    there");
    const Error both = error_of(options);
    CAPTURE(both.log());
    CHECK(both.code() == ErrorCode::compile_failed);
    CHECK(both.log().find("score: line 1, column 9: identifier \"nothing\" is undefined") != std::string::npos);
    CHECK(both.log().find("mask: line 2, column 5: identifier \"there\" is undefined") != std::string::npos);
    CHECK(both.log().find(".cuh") == std::string::npos);
    CHECK(both.log().find("generated") == std::string::npos);
    // A block mask is made of the mask alone.
    options.mask = Mask("here(key)");
    std::string message;
    CHECK(tests::code_of([&] { engine.block_mask(options, c.sizes.shape()); }, &message) == ErrorCode::compile_failed);
    CHECK(message.find("mask: line 1, column 1: identifier \"here\" is undefined") != std::string::npos);
    // The engine goes on.
    options.mask.reset();
    options.score = Score("score / 2");
    c.run(engine, options, way.variant);
    c.expect([](double score, const Place&) { return score / 2; });
  }
}
