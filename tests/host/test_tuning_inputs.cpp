// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "flashjit/attention.h"
#include "flashjit/error.h"
#include "runtime/tuning/tuning_inputs.h"

using namespace flashjit;
using namespace flashjit::runtime;

namespace {

Problem make_problem(bool causal, DType dtype = DType::bf16, int head_dim = 32, int head_dim_v = 16) {
  return {dtype, head_dim, head_dim_v, causal};
}

// Without a window and with one, causal and not.
std::vector<Problem> problems_of_masks(DType dtype = DType::bf16) {
  std::vector<Problem> problems;
  for (const bool window : {false, true}) {
    for (const bool causal : {false, true}) {
      problems.push_back(make_problem(causal, dtype));
      problems.back().window = window;
    }
  }
  return problems;
}

// What calls with these options get.
Problem problem_of_calls(const Problem& problem, const AttentionOptions& options) {
  return problem_of(problem.dtype, problem.head_dim, problem.head_dim_v, options);
}

// As a device's tensor is filled.
HostTensor filled(DType dtype, const Dims& shape, const HostTensor& block) {
  HostTensor tensor(dtype, shape);
  for (std::size_t i = 0; i < tensor.element_count(); ++i) {
    const std::size_t source = i % block.element_count();
    store_element(tensor.data(), dtype, static_cast<std::int64_t>(i),
                  load_element(block.data(), dtype, static_cast<std::int64_t>(source)));
  }
  return tensor;
}

// Row i of the last head of the last batch entry, counted from the last row on.
const double* row_from_end(const reference::Result& result, std::int64_t i) {
  const std::int64_t heads = result.shape[2], columns = result.shape[3];
  return result.out.data() + static_cast<std::int64_t>(result.out.size()) - (i * heads + 1) * columns;
}

}  // namespace

TEST_CASE("rows of a repeated block are those of the tensor that it fills") {
  const Dims shape{2, 6000, 3, 32};  // of several blocks
  const RepeatedNormal numbers(DType::f16, shape, 5);
  const HostTensor whole = filled(DType::f16, shape, numbers.block());
  REQUIRE(numbers.block().element_count() < whole.element_count());
  REQUIRE(numbers.block().element_count() % 2 == 1);
  const HostTensor rows = numbers.rows(1, 2, 5000, 1000);
  CHECK(rows.shape() == Dims{1, 1000, 1, 32});
  int different = 0;
  for (std::int64_t row = 0; row < 1000; ++row) {
    for (std::int64_t column = 0; column < 32; ++column) {
      const std::int64_t at = ((6000 + 5000 + row) * 3 + 2) * 32 + column;
      different +=
          load_element(rows.data(), DType::f16, row * 32 + column) != load_element(whole.data(), DType::f16, at);
    }
  }
  CHECK(different == 0);
}

TEST_CASE("a small tensor takes a block of its own size") {
  CHECK(RepeatedNormal(DType::bf16, {1, 3, 2, 8}, 1).block().element_count() == 48);
}

TEST_CASE("what is expected of the timed call's last rows is what the whole call gives there") {
  const CallShape shapes[] = {{2, 37, 53, 4, 2}, {1, 5, 40, 2, 1}, {1, 1, 9, 1, 1}, {2, 40, 23, 2, 2}};
  for (const CallShape& shape : shapes) {
    for (const Problem& problem : problems_of_masks()) {
      CAPTURE(shape.seqlen_q);
      CAPTURE(to_string(problem));
      const TimedCase timed(problem, shape);
      const TensorShapes dims(problem, timed.shape);
      const reference::Result whole = reference::attention(
          filled(problem.dtype, dims.q, timed.q.block()).view(), filled(problem.dtype, dims.k, timed.k.block()).view(),
          filled(problem.dtype, dims.v, timed.v.block()).view(), timed.options);
      const Expected expected = timed.expected();
      REQUIRE(timed.checked_rows() == std::min<std::int64_t>(16, shape.seqlen_q));
      REQUIRE(expected.exact.shape == Dims{1, timed.checked_rows(), 1, 16});
      REQUIRE(expected.low.shape == expected.exact.shape);
      for (std::int64_t i = 0; i < timed.checked_rows(); ++i)
        CHECK(std::equal(row_from_end(whole, i), row_from_end(whole, i) + 16, row_from_end(expected.exact, i)));
    }
  }
}

TEST_CASE("the calls of tuning are of the problem that is tuned") {
  for (const Problem& problem : problems_of_masks()) {
    CAPTURE(to_string(problem));
    for (const std::int64_t keys : {1, 2, 3, 40, 4096}) {
      CAPTURE(keys);
      const TimedCase timed(problem, {1, 5, keys, 1, 1});
      CHECK(problem_of_calls(problem, timed.options) == problem);
    }
    for (const CheckCase& small : make_check_cases(problem)) CHECK(problem_of_calls(problem, small.options) == problem);
  }
}

TEST_CASE("under a window a query of the timed call sees the keys of the shape, and there are as many as queries") {
  for (const Problem& problem : problems_of_masks()) {
    CAPTURE(to_string(problem));
    for (const std::int64_t keys : {3, 8, 1024, 4096}) {
      CAPTURE(keys);
      const TimedCase prompt(problem, {1, 4096, keys, 2, 1}), decoding(problem, {1, 1, keys, 2, 1});
      CHECK(prompt.shape.seqlen_q == 4096);
      CHECK(prompt.shape.seqlen_kv == (problem.window ? 4096 : keys));
      CHECK(decoding.shape.seqlen_kv == keys);
      for (const TimedCase* timed : {&prompt, &decoding})
        CHECK(keys_of_query(timed->options, timed->shape.seqlen_kv) == keys);
    }
  }
}

TEST_CASE("windows of the small calls end within a block, and leave some row fewer keys than there are") {
  for (const bool causal : {false, true}) {
    Problem problem = make_problem(causal);
    problem.window = true;
    bool hides = false;
    for (const CheckCase& small : make_check_cases(problem)) {
      AttentionOptions without = small.options;
      without.window = {};
      const reference::Result all = reference::attention(small.q.view(), small.k.view(), small.v.view(), without);
      hides = hides || all.lse != small.expected().exact.lse;
      CHECK(small.options.window.left % 16 != 0);
    }
    CHECK(hides);
  }
}

TEST_CASE("of a call with very many keys no row is checked") {
  const auto timed = [](std::int64_t seqlen_kv) {
    return TimedCase(make_problem(false, DType::bf16, 8, 8), {1, 512, seqlen_kv, 1, 1});
  };
  CHECK(timed(1 << 17).checked_rows() == 16);
  const TimedCase long_one = timed((1 << 17) + 1);
  REQUIRE(long_one.checked_rows() == 0);
  const Expected nothing = long_one.expected();
  CHECK(reference::compare(HostTensor(DType::bf16, {1, 0, 1, 8}), nothing.exact, nothing.low).passed);
}

TEST_CASE("a shape that no memory holds is refused by name") {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  CHECK_THROWS_WITH_AS(TimedCase(make_problem(false), {kHuge, kHuge, 1, 1, 1}), doctest::Contains("shape"), Error);
}

TEST_CASE("the small calls have what kernels get wrong") {
  const std::vector<CheckCase> cases = make_check_cases(make_problem(true));
  const auto some = [&](auto property) { return std::any_of(cases.begin(), cases.end(), property); };
  CHECK(some([](const CheckCase& c) {  // two tiles of any height, the last with a rest
    return c.shape.seqlen_q > 256 && c.shape.seqlen_q % 64 != 0 && c.shape.seqlen_q < 512;
  }));
  CHECK(some([](const CheckCase& c) { return c.shape.seqlen_kv > 4 * 128 && c.shape.seqlen_kv % 16 != 0; }));
  CHECK(some([](const CheckCase& c) { return c.shape.num_heads_q > c.shape.num_heads_kv && c.shape.seqlen_q <= 16; }));
  CHECK(some([](const CheckCase& c) { return c.shape.seqlen_kv < c.shape.seqlen_q; }));
  CHECK(some([](const CheckCase& c) { return c.shape.batch > 1; }));
}

TEST_CASE("in one small call maxima jump, from whichever end its keys are visited") {
  // Log2 of how far the largest score of a row grows from the first third of its keys, or the last, to the middle.
  const auto least_jump = [](const CheckCase& c) {
    const std::int64_t keys = c.shape.seqlen_kv, dim = c.k.shape()[3], third = keys / 3;
    double least = std::numeric_limits<double>::infinity();
    for (std::int64_t row = 0; row < 8; ++row) {
      double most[3] = {-1e9, -1e9, -1e9};
      for (std::int64_t key = 0; key < 3 * third; ++key) {
        double score = 0;
        for (std::int64_t i = 0; i < dim; ++i)
          score += load_element(c.q.data(), DType::bf16, row * c.shape.num_heads_q * dim + i) *
                   load_element(c.k.data(), DType::bf16, key * c.shape.num_heads_kv * dim + i);
        most[key / third] = std::max(most[key / third], score * std::log2(std::exp(1)) / std::sqrt(dim));
      }
      least = std::min(least, most[1] - std::max(most[0], most[2]));
    }
    return least;
  };
  constexpr double kLazyLimit = 14;  // log2 of what the sum of a block may come to: deferred_softmax.cuh
  const std::vector<CheckCase> cases = make_check_cases(make_problem(false));
  CHECK(std::any_of(cases.begin(), cases.end(), [&](const CheckCase& c) { return least_jump(c) > kLazyLimit; }));
}

TEST_CASE("small calls expect the reference's result, and no head that was forgotten passes") {
  for (const Problem& problem : problems_of_masks(DType::f16)) {
    CAPTURE(to_string(problem));
    for (const CheckCase& small : make_check_cases(problem)) {
      const Expected expected = small.expected();
      const Dims shape = TensorShapes(problem, small.shape).out;
      REQUIRE(expected.exact.shape == shape);
      HostTensor out =
          HostTensor::from_doubles(DType::f16, shape, expected.exact.out.data(), expected.exact.out.size());
      CHECK(reference::compare(out, expected.exact, expected.low).passed);
      // The last head as NaN: as it was before the kernel ran.
      std::memset(static_cast<unsigned char*>(out.data()) + out.element_count() * 2 - 32, 0xff, 32);
      CHECK_FALSE(reference::compare(out, expected.exact, expected.low).passed);
      const bool blind_rows =
          std::any_of(expected.exact.lse.begin(), expected.exact.lse.end(), [](double lse) { return std::isinf(lse); });
      const std::int64_t keys_behind = problem.causal ? 0 : small.options.window.right;  // of a query; -1: all
      CHECK(blind_rows == (keys_behind >= 0 && small.shape.seqlen_kv + keys_behind < small.shape.seqlen_q));
    }
  }
}
