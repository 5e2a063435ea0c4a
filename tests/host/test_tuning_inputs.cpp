// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "flashjit/attention.h"
#include "flashjit/error.h"
#include "generator/functions.h"
#include "generator/stand_ins.h"
#include "runtime/tuning/stand_in_calls.h"
#include "runtime/tuning/tuning_inputs.h"

using namespace flashjit;
using namespace flashjit::runtime;

namespace {

Problem make_problem(bool causal, DType dtype = DType::bf16, int head_dim = 32, int head_dim_v = 16) {
  return {dtype, head_dim, head_dim_v, causal};
}

// With any of the features.
std::vector<Problem> problems_of_features(DType dtype = DType::bf16) {
  std::vector<Problem> problems = {make_problem(false, dtype)};
  for (bool Problem::*feature :
       {&Problem::causal, &Problem::window, &Problem::chunk, &Problem::softcap, &Problem::alibi, &Problem::sinks}) {
    const std::vector<Problem> without = problems;
    for (Problem problem : without) {
      problem.*feature = true;
      problems.push_back(problem);
    }
  }
  return problems;
}

// Those whose feature is a tensor of more than heads: each alone, all of them, and all beside the others that masks and
// scores may have.
std::vector<Problem> problems_of_tensors() {
  using generator::FunctionKind, generator::library_function;
  std::vector<Problem> problems(13, make_problem(false));
  const auto set_bias = [](Problem& problem, DType dtype) {
    problem.bias = &library_function(FunctionKind::bias, dtype);
  };
  const auto set_rest = [](Problem& problem, int first, int end) {
    if (first <= 0 && end > 0) problem.boolean_mask = &library_function(FunctionKind::boolean_mask, DType::boolean);
    if (first <= 1 && end > 1) problem.documents = &library_function(FunctionKind::documents, DType::i32);
    if (first <= 2 && end > 2) problem.tree = &library_function(FunctionKind::tree, DType::i64);
    if (first <= 3 && end > 3) problem.prefix = true;
  };
  set_bias(problems[0], DType::bf16);
  set_bias(problems[1], DType::f32);
  for (int i = 0; i < 4; ++i) set_rest(problems[static_cast<std::size_t>(2 + i)], i, i + 1);
  for (Problem& problem : {std::ref(problems[6]), std::ref(problems[7])}) {
    set_bias(problem, DType::f16);
    set_rest(problem, 0, 4);
  }
  problems[7].window = problems[7].chunk = problems[7].softcap = problems[7].alibi = problems[7].sinks = true;
  problems[7].dropout = true;
  problems[8].dropout_mask = &library_function(FunctionKind::dropout_mask, DType::boolean);
  problems[9].e4m3 = problems[10].e4m3 = problems[10].token_scales = true;
  problems[11].e4m3 = problems[11].e4m3_queries = problems[12].e4m3 = problems[12].e4m3_queries = true;
  problems[12].fast_sums = true, problems[12].dtype = DType::f16;
  return problems;
}

// Those with functions of users: each class alone, with a block mask or without, and all beside others that scores and
// masks may have.
std::vector<Problem> problems_of_functions(DType dtype = DType::bf16) {
  std::vector<Problem> problems;
  for (const generator::StandIn& each : generator::stand_ins()) {
    Problem problem = make_problem(false, dtype);
    (each.kind == generator::FunctionKind::score ? problem.score : problem.mask) = &generator::function_of(each);
    problem.block_mask = each.kind == generator::FunctionKind::mask && each.tensors.empty();
    problems.push_back(problem);
  }
  for (std::size_t i = 0; i < 2; ++i) {
    Problem all = problems_of_tensors()[7];
    all.score = problems[i].score;
    all.mask = problems[3 - i].mask;
    all.dtype = dtype;
    all.block_mask = true;
    problems.push_back(all);
  }
  return problems;
}

std::vector<Problem> with(std::vector<Problem> problems, const std::vector<Problem>& others) {
  problems.insert(problems.end(), others.begin(), others.end());
  return problems;
}

// What the options make of the product of a row of the first head and a key.
double score_under(const CheckCase& small, double product, std::int64_t row, std::int64_t key) {
  const AttentionOptions options = small.options_on_host();
  const double cap = options.softcap, scale = 1 / std::sqrt(static_cast<double>(small.q.shape()[3]));
  double score = cap > 0 ? cap * std::tanh(product * scale / cap) : product * scale;
  if (options.alibi_slopes)
    score -= load_element(options.alibi_slopes->data, DType::f32, 0) *
             std::abs(static_cast<double>(row + small.shape.seqlen_kv - small.shape.seqlen_q - key));
  if (!small.problem.score) return score;
  return generator::stand_in_of(*small.problem.score)
      .score(score, {0, 0, row, key, small.shape.seqlen_q, small.shape.seqlen_kv});
}

// What the call gets.
Problem problem_of_call(const TuningCall& call) {
  AttentionOptions options = call.options_on_host();
  if (call.problem.block_mask)
    options.block_mask = Tensor(nullptr, DType::i32, block_mask_dims(call.block_mask_shape()));
  return problem_of(q_dtype(call.problem), call.problem.head_dim, call.problem.head_dim_v, options,
                    kv_dtype(call.problem));
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
    for (const Problem& problem : with(with(problems_of_features(), problems_of_tensors()), problems_of_functions())) {
      CAPTURE(shape.seqlen_q);
      CAPTURE(to_string(problem));
      const TimedCase timed(problem, shape);
      const TensorShapes dims(problem, timed.shape);
      const reference::Result whole =
          reference::attention(filled(q_dtype(problem), dims.q, timed.q.block()).view(),
                               filled(kv_dtype(problem), dims.k, timed.k.block()).view(),
                               filled(kv_dtype(problem), dims.v, timed.v.block()).view(), timed.options_on_host(),
                               stand_in_hook(problem, {timed.shape}, false));
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
  for (const Problem& problem : with(with(problems_of_features(), problems_of_tensors()), problems_of_functions())) {
    CAPTURE(to_string(problem));
    for (const std::int64_t keys : {1, 2, 3, 40, 4096}) {
      CAPTURE(keys);
      const TimedCase timed(problem, {1, 5, keys, 1, 1});
      CHECK(problem_of_call(timed) == problem);
    }
    for (const CheckCase& small : make_check_cases(problem)) CHECK(problem_of_call(small) == problem);
  }
}

TEST_CASE("so are those of keys in two tensors, whose last rows are expected as the whole call gives them") {
  Problem problem{.dtype = DType::bf16, .head_dim = 264, .head_dim_v = 16, .k_rotary = true};
  for (const bool e4m3 : {false, true}) {
    problem.e4m3 = problem.token_scales = e4m3;
    for (const CheckCase& small : make_check_cases(problem)) CHECK(problem_of_call(small) == problem);
    const TimedCase timed(problem, {2, 5, 40, 4, 2});
    CHECK(problem_of_call(timed) == problem);
    const TensorShapes dims(problem, timed.shape);
    const reference::Result whole =
        reference::attention(filled(q_dtype(problem), dims.q, timed.q.block()).view(),
                             filled(kv_dtype(problem), dims.k, timed.k.block()).view(),
                             filled(kv_dtype(problem), dims.v, timed.v.block()).view(), timed.options_on_host());
    const Expected expected = timed.expected();
    for (std::int64_t i = 0; i < timed.checked_rows(); ++i)
      CHECK(std::equal(row_from_end(whole, i), row_from_end(whole, i) + 16, row_from_end(expected.exact, i)));
  }
}

TEST_CASE(
    "under a window or in chunks a query of the timed call sees the keys of the shape, and there are as many as "
    "queries") {
  for (const Problem& problem : problems_of_features()) {
    CAPTURE(to_string(problem));
    for (const std::int64_t keys : {3, 8, 1024, 4096}) {
      CAPTURE(keys);
      const TimedCase prompt(problem, {1, 4096, keys, 2, 1}), decoding(problem, {1, 1, keys, 2, 1});
      CHECK(prompt.shape.seqlen_q == 4096);
      CHECK(prompt.shape.seqlen_kv == (problem.window || problem.chunk ? 4096 : keys));
      CHECK(decoding.shape.seqlen_kv == keys);
      for (const TimedCase* timed : {&prompt, &decoding})
        CHECK(keys_of_query(timed->options, timed->shape.seqlen_kv) == keys);
    }
  }
}

TEST_CASE("windows and chunks of the small calls end within a block, and each hides keys that all other masks show") {
  for (const bool causal : {false, true})
    for (const bool window : {false, true})
      for (const bool chunk : {false, true}) {
        Problem problem = make_problem(causal);
        problem.window = window;
        problem.chunk = chunk;
        CAPTURE(to_string(problem));
        bool window_hides = false, chunk_hides = false;
        for (const CheckCase& small : make_check_cases(problem)) {
          const auto is_seen = [&](auto forget) {
            AttentionOptions without = small.options;
            forget(without);
            return reference::attention(small.q.view(), small.k.view(), small.v.view(), without).lse !=
                   small.expected().exact.lse;
          };
          window_hides = window_hides || is_seen([](AttentionOptions& options) { options.window = {}; });
          chunk_hides = chunk_hides || is_seen([](AttentionOptions& options) { options.chunk = 0; });
          CHECK((!window || small.options.window.left % 16 != 0));
          CHECK((!chunk || small.options.chunk % 16 != 0));
        }
        CHECK(window_hides == window);
        CHECK(chunk_hides == chunk);
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
        most[key / third] = std::max(most[key / third], score_under(c, score, row, key) * std::log2(std::exp(1)));
      }
      least = std::min(least, most[1] - std::max(most[0], most[2]));
    }
    return least;
  };
  constexpr double kLazyLimit = 14;  // log2 of what the sum of a block may come to: deferred_softmax.cuh
  std::vector<Problem> problems = with(problems_of_features(), problems_of_functions());
  std::erase_if(problems, [](const Problem& problem) { return problem.mask != nullptr; });
  for (const Problem& problem : problems) {
    CAPTURE(to_string(problem));
    const std::vector<CheckCase> cases = make_check_cases(problem);
    CHECK(std::any_of(cases.begin(), cases.end(), [&](const CheckCase& c) { return least_jump(c) > kLazyLimit; }));
  }
}

TEST_CASE("the slopes of small and timed calls are those of the paper") {
  Problem problem = make_problem(false);
  CHECK(TimedCase(problem, {1, 5, 40, 8, 2}).tensors.empty());
  problem.alibi = true;
  const TimedCase timed(problem, {1, 5, 40, 8, 2});
  REQUIRE(timed.tensors.size() == 1);
  CHECK(timed.tensors[0].memory.to_doubles() ==
        std::vector<double>{0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625});
  CHECK(CheckCase(problem, {3, 5, 40, 2, 2}).tensors.at(0).memory.to_doubles() ==
        std::vector<double>{0.0625, 0.00390625});
}

TEST_CASE("the sinks of small and timed calls are near 0, and neighbours have different ones") {
  Problem problem = make_problem(false);
  problem.sinks = true;
  for (const OptionTensor& sinks :
       {TimedCase(problem, {1, 5, 40, 8, 2}).tensors.at(0), CheckCase(problem, {3, 5, 40, 8, 2}).tensors.at(0)}) {
    CHECK(sinks.option == &AttentionOptions::sinks);
    CHECK(sinks.memory.to_doubles() == std::vector<double>{-1.5, -0.25, 1, -1, 0.25, 1.5, -0.5, 0.75});
  }
}

TEST_CASE("what a kernel gives that forgets the cap, chunks, slopes, sinks or dropout does not pass") {
  Problem problem = make_problem(false);
  problem.softcap = problem.chunk = problem.alibi = problem.sinks = problem.dropout = true;
  const std::vector<CheckCase> cases = make_check_cases(problem);
  const auto all_pass = [&](auto forget) {
    return std::all_of(cases.begin(), cases.end(), [&](const CheckCase& small) {
      const Expected expected = small.expected();
      AttentionOptions options = small.options_on_host();
      forget(options);
      const reference::Result given = reference::attention(small.q.view(), small.k.view(), small.v.view(), options);
      const HostTensor out = HostTensor::from_doubles(DType::bf16, given.shape, given.out.data(), given.out.size());
      return reference::compare(out, expected.exact, expected.low).passed;
    });
  };
  CHECK(all_pass([](AttentionOptions&) {}));
  CHECK_FALSE(all_pass([](AttentionOptions& options) { options.softcap = 0; }));
  CHECK_FALSE(all_pass([](AttentionOptions& options) { options.dropout.probability = 0; }));
  CHECK_FALSE(all_pass([](AttentionOptions& options) { options.dropout.seed ^= 1; }));
  CHECK_FALSE(all_pass([](AttentionOptions& options) { options.chunk = 0; }));
  CHECK_FALSE(all_pass([](AttentionOptions& options) { options.alibi_slopes.reset(); }));
  CHECK_FALSE(all_pass([](AttentionOptions& options) { options.sinks.reset(); }));
}

TEST_CASE("what a kernel gives that forgets a tensor of scores or masks does not pass") {
  using Option = std::optional<Tensor> AttentionOptions::*;
  const Option options[] = {&AttentionOptions::bias,      &AttentionOptions::bias, &AttentionOptions::boolean_mask,
                            &AttentionOptions::documents, &AttentionOptions::tree, &AttentionOptions::prefix};
  const std::vector<Problem> problems = problems_of_tensors();
  for (std::size_t i = 0; i < std::size(options); ++i) {
    CAPTURE(to_string(problems[i]));
    bool all_pass = true;
    for (const CheckCase& small : make_check_cases(problems[i])) {
      const Expected expected = small.expected();
      AttentionOptions forgotten = small.options_on_host();
      REQUIRE((forgotten.*options[i]).has_value());
      (forgotten.*options[i]).reset();
      const reference::Result given = reference::attention(small.q.view(), small.k.view(), small.v.view(), forgotten);
      const HostTensor out = HostTensor::from_doubles(DType::bf16, given.shape, given.out.data(), given.out.size());
      all_pass = all_pass && reference::compare(out, expected.exact, expected.low).passed;
    }
    CHECK_FALSE(all_pass);
  }
}

TEST_CASE("the bias of a large timed call takes little memory, and is another one for each row") {
  Problem problem = make_problem(false);
  problem.bias = &generator::library_function(generator::FunctionKind::bias, DType::bf16);
  problem.boolean_mask = &generator::library_function(generator::FunctionKind::boolean_mask, DType::boolean);
  const TimedCase timed(problem, {2, 8192, 16384, 8, 2});
  for (const OptionTensor& tensor : timed.tensors) {
    CHECK(tensor.memory.element_count() <= 1 << 23);
    CHECK(tensor.shape == Dims{1, 1, 8192, 16384});
    CHECK(8191 * tensor.strides[2] + 16384 == static_cast<std::int64_t>(tensor.memory.element_count()));
    CHECK(tensor.strides[2] > 0);
  }
}

TEST_CASE("what a kernel gives that forgets a function does not pass") {
  for (const Problem& problem : problems_of_functions(DType::f16)) {
    CAPTURE(to_string(problem));
    const Problem forgotten = [&] {
      Problem without = problem;
      (problem.score ? without.score : without.mask) = nullptr;
      return without;
    }();
    bool all_pass = true;
    for (const CheckCase& small : make_check_cases(problem)) {
      const Expected expected = small.expected();
      const reference::Result given =
          reference::attention(small.q.view(), small.k.view(), small.v.view(), small.options_on_host(),
                               stand_in_hook(forgotten, {small.shape}, false));
      const HostTensor out = HostTensor::from_doubles(DType::f16, given.shape, given.out.data(), given.out.size());
      all_pass = all_pass && reference::compare(out, expected.exact, expected.low).passed;
    }
    CHECK_FALSE(all_pass);
  }
}

TEST_CASE("the functions of a call capture what they are expected to") {
  Problem problem = make_problem(false);
  problem.score = Score("score + a(key)", {{"a", Tensor(nullptr, DType::f16, {1})}}).source();
  const TimedCase timed(tuning_class(problem), {2, 5, 40, 8, 2});
  const AttentionOptions options = timed.options_on_host();
  REQUIRE(options.score);
  REQUIRE(options.score->captures().size() == 2);
  const auto& factor = std::get<Tensor>(options.score->captures()[0].value);
  const auto& slope = std::get<Tensor>(options.score->captures()[1].value);
  CHECK(factor.shape == Dims{40});
  CHECK(slope.shape == Dims{8});
  const generator::StandIn& stand_in = generator::stand_in_of(*options.score->source());
  for (std::int64_t key = 0; key < 40; ++key)
    for (std::int64_t head = 0; head < 8; ++head) {
      const double by_text = 3 * load_element(factor.data, DType::f32, key) -
                             load_element(slope.data, DType::f32, head) * static_cast<double>(std::abs(4 - key));
      CHECK(stand_in.score(3, {1, head, 4, key, 5, 40}) == by_text);
    }
}

TEST_CASE("calls of users' own functions are not made up") {
  Problem problem = make_problem(false);
  problem.mask = Mask("key < query").source();
  CHECK_THROWS_WITH_AS(
      make_check_cases(problem),
      doctest::Contains("problem: must be the class fwd-bf16-d32-v16-mask.arithmetic to be tuned, was"), Error);
  CHECK_THROWS_AS(TimedCase(problem, {1, 5, 40, 1, 1}), Error);
}

TEST_CASE("a block mask is made of predicates, for all heads and batch entries where they are the same for all") {
  Problem problem = make_problem(false);
  problem.block_mask = true;
  CHECK_THROWS_WITH_AS(
      make_check_cases(problem),
      "problem: must have boolean_mask, documents, tree or mask beside blocks, which are made of them, "
      "was fwd-bf16-d32-v16-blocks",
      Error);
  problem.documents = &generator::library_function(generator::FunctionKind::documents, DType::i32);
  CHECK(TimedCase(problem, {2, 5, 40, 8, 2}).block_mask_shape() == CallShape{1, 5, 40, 1, 1});
  problem.boolean_mask = &generator::library_function(generator::FunctionKind::boolean_mask, DType::boolean);
  CHECK(TimedCase(problem, {2, 5, 40, 8, 2}).block_mask_shape() == CallShape{2, 5, 40, 8, 8});
  CHECK(TimedCase(problem, {2, 8192, 8192, 8, 2}).block_mask_shape() == CallShape{1, 8192, 8192, 1, 1});
}

TEST_CASE("small calls expect the reference's result, and no head that was forgotten passes") {
  for (const Problem& problem : problems_of_features(DType::f16)) {
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
      // Of a query; -1: all. A row without keys has its sink in place of -infinity.
      const std::int64_t keys_behind = problem.causal || problem.chunk ? 0 : small.options.window.right;
      CHECK(blind_rows ==
            (!problem.sinks && keys_behind >= 0 && small.shape.seqlen_kv + keys_behind < small.shape.seqlen_q));
    }
  }
}
