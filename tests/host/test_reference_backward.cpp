// SPDX-License-Identifier: Apache-2.0
// Gradients of the reference against finite differences of the reference, for each option.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "flashjit/error.h"
#include "flashjit/reference.h"
#include "runtime/reference/reference_scores.h"
#include "tests/support/error_code.h"

namespace {

using namespace flashjit;
using tests::code_of;

// Of a number that depends on all of the output and on all of the LSE. Values are multiples of 2^-6, so that a step of
// 2^-9 from them is exact in f32.
HostTensor random(const Dims& shape, std::uint64_t seed, double size = 1) {
  const HostTensor normal = HostTensor::random_normal(DType::f32, shape, seed);
  std::vector<double> values = normal.to_doubles();
  for (double& value : values) value = std::nearbyint(value * size * 64) / 64;
  return HostTensor::from_doubles(DType::f32, shape, values.data(), values.size());
}

struct Case {
  Case() : Case({2, 4, 4, 6}, {2, 7, 2, 6}, {2, 7, 2, 3}) {}
  Case(const Dims& q_shape, const Dims& k_shape, const Dims& v_shape)
      : q(random(q_shape, 1)), k(random(k_shape, 2)), v(random(v_shape, 3)) {
    Dims out = q_shape;
    out[out.size() - 1] = v_shape[v_shape.size() - 1];
    dout = random(out, 4);
    dlse = random(out.size() == 4 ? Dims{out[0], out[2], out[1]} : Dims{out[1], out[0]}, 5);
  }

  HostTensor& keep(HostTensor tensor) { return kept.emplace_back(std::move(tensor)); }
  HostTensor& floats(std::optional<Tensor> AttentionOptions::*option, const Dims& shape, double size = 1) {
    HostTensor& tensor = keep(random(shape, 6 + kept.size(), size));
    options.*option = tensor.view();
    return tensor;
  }
  void values(std::optional<Tensor> AttentionOptions::*option, DType dtype, const Dims& shape,
              const std::vector<double>& of) {
    options.*option = keep(HostTensor::from_doubles(dtype, shape, of.data(), of.size())).view();
  }
  // Three of four, and of one row none.
  void shown(std::optional<Tensor> AttentionOptions::*option, const Dims& shape) {
    HostTensor tensor(DType::boolean, shape);
    const std::int64_t keys = shape[3];
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(tensor.element_count()); ++i)
      store_element(tensor.data(), DType::boolean, i, i / keys != 1 && (i * 5 + i / keys) % 4 != 0);
    options.*option = keep(std::move(tensor)).view();
  }

  reference::GivenBackward backward() const { return {dout_view, q_view, k_view, v_view, options, of_lse}; }
  void view() {
    dout_view = dout.view(), q_view = q.view(), k_view = k.view(), v_view = v.view();
    of_lse = dlse.view();
  }

  double loss() const {
    const reference::Result result = reference::attention(q.view(), k.view(), v.view(), options, hook);
    double sum = 0;
    const std::vector<double> of_out = dout.to_doubles(), of_log = dlse.to_doubles();
    for (std::size_t i = 0; i < of_out.size(); ++i) sum += of_out[i] * result.out[i];
    for (std::size_t i = 0; i < of_log.size(); ++i)
      if (std::isfinite(result.lse[i])) sum += of_log[i] * result.lse[i];
    return sum;
  }

  void check(const char* name, HostTensor& of, const std::vector<double>& gradient) const {
    constexpr double kStep = 1.0 / 512;
    CAPTURE(name);
    REQUIRE(gradient.size() == of.element_count());
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(gradient.size()); ++i) {
      const double value = load_element(of.data(), of.dtype(), i);
      store_element(of.data(), of.dtype(), i, value + kStep);
      const double above = loss();
      store_element(of.data(), of.dtype(), i, value - kStep);
      const double wanted = (above - loss()) / (2 * kStep);
      store_element(of.data(), of.dtype(), i, value);
      CAPTURE(i);
      const double got = gradient[static_cast<std::size_t>(i)];
      CHECK(std::abs(got - wanted) <= 2e-4 * (1 + std::abs(wanted)));
    }
  }

  reference::Gradients check() {
    view();
    const reference::Gradients gradients = reference::attention_backward(backward(), hook);
    check("q", q, gradients.dq);
    check("k", k, gradients.dk);
    check("v", v, gradients.dv);
    return gradients;
  }

  HostTensor q, k, v, dout, dlse;
  AttentionOptions options;
  reference::ScoreHook hook;

 private:
  std::list<HostTensor> kept;
  Tensor dout_view, q_view, k_view, v_view;
  std::optional<Tensor> of_lse;
};

using O = AttentionOptions;

}  // namespace

TEST_CASE("gradients of plain attention, with more heads of queries than of keys") { Case().check(); }

TEST_CASE("gradients with a negative scale, and with scores far from 0") {
  for (const float scale : {-0.5f, 4.f}) {
    Case c;
    c.options.softmax_scale = scale;
    c.check();
  }
}

TEST_CASE("gradients below masks, in rows that see nothing too") {
  const std::vector<std::function<void(Case&)>> masks{
      [](Case& c) { c.options.causal = true; },
      [](Case& c) { c.options.causal = true, c.options.window.left = 1; },
      [](Case& c) {
        c.options.window = {2, 1};
      },
      [](Case& c) { c.options.chunk = 3; },
      [](Case& c) {
        c.values(&O::prefix, DType::i32, {2}, {5, 0});
      },
      [](Case& c) {
        c.values(&O::documents, DType::i32, {1, 7}, {3, 3, 3, 5, 5, 3, 3});
      },
      [](Case& c) {
        c.values(&O::tree, DType::i64, {1, 4, 1}, {1, 3, 5, 8});
      },
      [](Case& c) {
        c.shown(&O::boolean_mask, {2, 4, 4, 7});
      },
      [](Case& c) {
        c.shown(&O::boolean_mask, {1, 1, 4, 7});
      }};
  for (std::size_t i = 0; i < masks.size(); ++i) {
    CAPTURE(i);
    Case c;
    masks[i](c);
    c.check();
  }
  Case more_queries({1, 9, 2, 4}, {1, 4, 2, 4}, {1, 4, 2, 4});
  more_queries.options.causal = true;
  more_queries.check();
}

TEST_CASE("gradients through a softcap") {
  Case c;
  c.options.softcap = 1.5;
  c.check();
}

TEST_CASE("gradients of ALiBi's slopes, for all batch entries and for each") {
  for (const Dims& shape : {Dims{4}, Dims{2, 4}}) {
    Case c;
    c.options.softcap = 2;
    HostTensor& slopes = c.floats(&O::alibi_slopes, shape, 0.5);
    c.check("slopes", slopes, c.check().dslopes);
  }
}

TEST_CASE("gradients of sinks, where rows see nothing too") {
  for (const Dims& shape : {Dims{4}, Dims{2, 4}}) {
    Case c;
    c.shown(&O::boolean_mask, {2, 4, 4, 7});
    HostTensor& sinks = c.floats(&O::sinks, shape);
    c.check("sinks", sinks, c.check().dsinks);
  }
}

TEST_CASE("gradients of a bias are sums over what it stands for") {
  for (const Dims& shape : {Dims{2, 4, 4, 7}, Dims{1, 4, 4, 7}, Dims{2, 1, 4, 7}, Dims{2, 4, 1, 7}, Dims{1, 1, 1, 7}}) {
    Case c;
    c.options.causal = true;
    c.options.softcap = 3;
    HostTensor& bias = c.floats(&O::bias, shape);
    c.check("bias", bias, c.check().dbias);
  }
}

TEST_CASE("sums over heads and sequences have the same bits at every run") {
  Case c({2, 4, 8, 6}, {2, 7, 1, 6}, {2, 7, 1, 3});
  c.floats(&O::sinks, {8});
  c.floats(&O::alibi_slopes, {8});
  c.floats(&O::bias, {1, 1, 1, 7});
  c.view();
  const auto all = [&c] {
    const reference::Gradients got = reference::attention_backward(c.backward(), nullptr);
    return std::vector{got.dk, got.dv, got.dslopes, got.dsinks, got.dbias};
  };
  const auto first = all();
  for (int i = 0; i < 50; ++i) CHECK(all() == first);
}

TEST_CASE("a bias without keys or queries has a gradient without elements") {
  for (const auto& [queries, keys] : {std::pair{4, 0}, {0, 7}, {0, 0}}) {
    Case c({1, queries, 2, 4}, {1, keys, 2, 4}, {1, keys, 2, 4});
    HostTensor& bias = c.floats(&O::bias, {1, 2, queries, keys});
    c.check("bias", bias, c.check().dbias);
  }
}

TEST_CASE("gradients below dropout, by its bits and by a mask") {
  Case random_bits;
  random_bits.options.dropout = {0.4, 77, 3};
  random_bits.check();
  Case by_mask;
  by_mask.options.dropout.probability = 0.25;
  by_mask.shown(&O::dropout_mask, {2, 1, 4, 7});
  by_mask.floats(&O::sinks, {4});
  by_mask.check();
}

TEST_CASE("gradients of packed sequences, with padding and empty ones") {
  Case c({9, 4, 4}, {12, 2, 4}, {12, 2, 4});
  c.values(&O::cu_seqlens_q, DType::i32, {4}, {0, 4, 4, 8});
  c.values(&O::cu_seqlens_kv, DType::i32, {4}, {0, 3, 6, 12});
  c.values(&O::seqused_kv, DType::i32, {3}, {3, 3, 5});
  c.options.causal = true;
  const reference::Gradients gradients = c.check();
  for (std::size_t i = 8 * 4 * 4; i < gradients.dq.size(); ++i) CHECK(gradients.dq[i] == 0);
}

TEST_CASE("keys that several sequences share get the sum of their gradients") {
  Case rows({3, 4, 2, 4}, {2, 6, 2, 4}, {2, 6, 2, 4});
  rows.values(&O::batch_indices_kv, DType::i32, {3}, {1, 0, 1});
  rows.values(&O::leftpad_kv, DType::i32, {3}, {2, 0, 1});
  rows.check();
  Case pages({2, 3, 2, 4}, {4, 2, 2, 4}, {4, 2, 2, 4});
  pages.values(&O::page_table, DType::i32, {2, 3}, {3, 0, 2, 3, 1, 0});
  pages.values(&O::seqused_kv, DType::i32, {2}, {5, 3});
  pages.check();
}

TEST_CASE("gradients through a function of scores, and below its bias and a mask of the caller's") {
  Case c;
  c.options.softcap = 2;
  HostTensor& bias = c.floats(&O::bias, {1, 4, 1, 7}, 0.5);
  c.hook = [](const reference::ScoreRows& rows) {
    for (std::size_t i = 0; i < rows.scores.size(); ++i) {
      const double score = rows.scores[i];
      const bool hides = i % 5 == 2;
      rows.scores[i] = hides ? -std::numeric_limits<double>::infinity() : score * score / 4 - std::sin(score);
      if (rows.slopes) (*rows.slopes)[i] = hides ? 0 : score / 2 - std::cos(score);
    }
  };
  c.check("bias", bias, c.check().dbias);
}

TEST_CASE("low precision is near, and rounds gradients to the dtype") {
  const auto rounded = [](const HostTensor& tensor) { return tensor.converted_to(DType::bf16); };
  const Case c;
  const HostTensor q = rounded(c.q), k = rounded(c.k), v = rounded(c.v), dout = rounded(c.dout);
  const auto exact = reference::attention_backward(dout.view(), q.view(), k.view(), v.view());
  const auto low = reference::attention_backward_in_low_precision(dout.view(), q.view(), k.view(), v.view());
  for (const auto& [a, b] : {std::pair{&exact.dq, &low.dq}, {&exact.dk, &low.dk}, {&exact.dv, &low.dv}})
    for (std::size_t i = 0; i < a->size(); ++i) {
      CHECK(std::abs((*a)[i] - (*b)[i]) <= 0.05);
      double rounded_value = 0;
      store_element(&rounded_value, DType::bf16, 0, (*b)[i]);
      CHECK(load_element(&rounded_value, DType::bf16, 0) == (*b)[i]);
    }
  HostTensor gradient = HostTensor::from_doubles(DType::bf16, q.shape(), exact.dq.data(), exact.dq.size());
  CHECK(reference::compare(gradient, exact.dq, low.dq).passed);
  store_element(gradient.data(), DType::bf16, 5, load_element(gradient.data(), DType::bf16, 5) + 1);
  CHECK(!reference::compare(gradient, exact.dq, low.dq).passed);
}

TEST_CASE("what has no gradient, or does not fit, is refused by its name") {
  Case c;
  std::string message;
  const auto refused = [&](const Tensor& dout, const std::optional<Tensor>& dlse = {}) {
    message.clear();
    CHECK(code_of([&] { reference::attention_backward(dout, c.q.view(), c.k.view(), c.v.view(), c.options, dlse); },
                  &message) == ErrorCode::invalid_argument);
    return message.substr(0, message.find(':'));
  };
  const HostTensor wrong = random({2, 4, 4, 6}, 1);
  CHECK(refused(wrong.view()) == "dout");
  CHECK(refused(c.dout.view(), c.dout.view()) == "dlse");
  CHECK(refused(Tensor(nullptr, DType::f32, c.dout.shape())) == "dout");
  c.k = c.k.converted_to(DType::e4m3), c.v = c.v.converted_to(DType::e4m3);
  CHECK(refused(c.dout.view()) == "k");
}
