// SPDX-License-Identifier: Apache-2.0
// The cases of verify: that they ask for what the problem has, and take no result that lacks it. In place of a kernel,
// the reference computes their calls in host memory.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#include "cli/verify/backward_case.h"
#include "cli/verify/cases.h"
#include "flashjit/engine.h"

namespace {

using namespace flashjit;
using cli::CaseCall;
using cli::CaseShape;
using cli::Scores;
using cli::VerifyCase;

constexpr CaseShape kShape{2, 9, 40, 4, 2};

// The options of a problem's calls that have a size.
AttentionOptions with_sizes(const Problem& problem, float softcap, std::int64_t chunk) {
  AttentionOptions options;
  if (problem.softcap) options.softcap = softcap;
  if (problem.chunk) options.chunk = chunk;
  return options;
}

// What a case says of a kernel that forgets something of what it is asked.
std::string problem_of_kernel(const VerifyCase& c, const std::function<void(AttentionOptions&)>& forget) {
  return c.problem_with(c.run({}, [&](const CaseCall& call) {
    AttentionOptions options = call.options;
    forget(options);
    const reference::Result result = reference::attention(call.q, call.k, call.v, options);
    const auto write = [](const std::vector<double>& values, const Tensor& to) {
      for (std::size_t i = 0; i < values.size(); ++i)
        store_element(to.data, to.dtype, static_cast<std::int64_t>(i), values[i]);
    };
    write(result.out, call.out);
    write(result.lse, *call.options.lse);
  }));
}
void forget_nothing(AttentionOptions&) {}

// Likewise of one that computes gradients in double precision. spoil: what becomes of them.
std::string problem_of_backward(const cli::BackwardCase& c, const std::function<void(cli::BackwardCaseCall&)>& forget,
                                const std::function<void(reference::Gradients&)>& spoil = {}) {
  return c.problem_with(c.run([&](const cli::BackwardCaseCall& given) {
    cli::BackwardCaseCall call = given;
    forget(call);
    reference::Gradients gradients =
        reference::attention_backward(call.dout, call.q, call.k, call.v, call.options, call.dlse);
    if (spoil) spoil(gradients);
    const auto write = [](const std::vector<double>& values, const std::optional<Tensor>& to) {
      for (std::size_t i = 0; to && i < values.size(); ++i)
        store_element(to->data, to->dtype, static_cast<std::int64_t>(i), values[i]);
    };
    write(gradients.dq, call.into.dq);
    write(gradients.dk, call.into.dk);
    write(gradients.dv, call.into.dv);
    write(gradients.dbias, call.into.dbias);
    write(gradients.dslopes, call.into.dslopes);
    write(gradients.dsinks, call.into.dsinks);
  }));
}

cli::BackwardCase backward_case(Engine& engine, const Problem& problem, const CaseShape& shape,
                                const AttentionOptions& options, const cli::GradientChoices& choices = {},
                                std::uint64_t seed = 1) {
  return {engine, shape, cli::case_inputs(problem, shape, options, seed), cli::Texts(), kHostMemory, choices, seed};
}

// Row sums as kernels have them, of the output that they are given, through the gradient of the LSE; added in f32.
HostTensor dlse_by_given_output(const cli::BackwardCaseCall& call) {
  const reference::Result exact = reference::attention(call.q, call.k, call.v, call.options);
  HostTensor dlse(DType::f64, call.lse.shape);
  const std::int64_t rows = exact.shape[1], heads = exact.shape[2], width = exact.shape[3];
  for (std::int64_t at = 0; at < static_cast<std::int64_t>(exact.lse.size()); ++at) {
    const std::int64_t row = (at / (rows * heads) * rows + at % rows) * heads + at / rows % heads;
    double error = 0;
    for (std::int64_t j = row * width; j < (row + 1) * width; ++j)
      error += load_element(call.dout.data, call.dout.dtype, j) *
               (load_element(call.out.data, call.out.dtype, j) - exact.out[static_cast<std::size_t>(j)]);
    store_element(dlse.data(), DType::f64, at, load_element(call.dlse->data, DType::f32, at) - error);
  }
  return dlse;
}

// Of which nothing but the reference is used.
Engine& engine() {
  static Engine engine([] {
    EngineOptions options;
    options.policy = Policy::off;
    options.emulate = "sm_80";
    return options;
  }());
  return engine;
}

// dQ of one head as kernels have it: of scores that are sums in f32, and of a given LSE.
void write_dq_by_given_lse(const cli::BackwardCaseCall& call) {
  const std::int64_t rows = call.q.shape[1], keys = call.k.shape[1], width = call.q.shape[3];
  const auto at = [width](const Tensor& tensor, std::int64_t row, std::int64_t column) {
    return load_element(tensor.data, tensor.dtype, row * width + column);
  };
  const auto product = [&](const Tensor& a, std::int64_t row, const Tensor& b, std::int64_t key) {
    float sum = 0;
    for (std::int64_t i = 0; i < width; ++i) sum += static_cast<float>(at(a, row, i) * at(b, key, i));
    return sum;
  };
  const double scale = 1 / std::sqrt(static_cast<double>(width));
  std::uint16_t rounded = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const double lse = load_element(call.lse.data, DType::f32, row),
                 sum = product(call.dout, row, call.out, row) - load_element(call.dlse->data, DType::f32, row);
    std::vector<double> dq(static_cast<std::size_t>(width));
    for (std::int64_t key = 0; key < keys; ++key) {
      const double p = std::exp(product(call.q, row, call.k, key) * scale - lse);
      store_element(&rounded, DType::f16, 0, p * (product(call.dout, row, call.v, key) - sum));
      for (std::int64_t i = 0; i < width; ++i)
        dq[static_cast<std::size_t>(i)] += load_element(&rounded, DType::f16, 0) * at(call.k, key, i) * scale;
    }
    for (std::int64_t i = 0; i < width; ++i)
      store_element(call.into.dq->data, DType::f16, row * width + i, dq[static_cast<std::size_t>(i)]);
  }
}

}  // namespace

TEST_CASE("a case asks for all that its problem has, and for nothing else") {
  std::vector<Problem> problems = {{.dtype = DType::f16, .head_dim = 16, .head_dim_v = 8}};
  for (bool Problem::*feature :
       {&Problem::causal, &Problem::chunk, &Problem::softcap, &Problem::alibi, &Problem::sinks}) {
    const std::vector<Problem> without = problems;
    for (Problem problem : without) {
      problem.*feature = true;
      problems.push_back(problem);
    }
  }
  for (const Problem& problem : problems) {
    CAPTURE(to_string(problem));
    const VerifyCase c(problem, kShape, kHostMemory, with_sizes(problem, 10, 16));
    c.run({}, [&](const CaseCall& call) { CHECK(problem_of(DType::f16, 16, 8, call.options) == problem); });
    CHECK(problem_of_kernel(c, forget_nothing) == "");
  }
}

TEST_CASE("a kernel that forgets the cap, chunks, slopes, sinks, or whose they are, is wrong") {
  const Problem problem{.dtype = DType::bf16,
                        .head_dim = 64,
                        .head_dim_v = 64,
                        .chunk = true,
                        .softcap = true,
                        .alibi = true,
                        .sinks = true};
  const VerifyCase c(problem, kShape, kHostMemory, with_sizes(problem, 2, 35));
  CHECK(problem_of_kernel(c, forget_nothing) == "");
  CHECK(problem_of_kernel(c, [](AttentionOptions& options) { options.softcap = 0; }) != "");
  CHECK(problem_of_kernel(c, [](AttentionOptions& options) { options.chunk = 0; }) != "");
  for (std::optional<Tensor> AttentionOptions::*of_heads :
       {&AttentionOptions::alibi_slopes, &AttentionOptions::sinks}) {
    CHECK(problem_of_kernel(c, [&](AttentionOptions& options) { (options.*of_heads).reset(); }) != "");
    // Those of the first batch entry for all, and those of the first head.
    CHECK(problem_of_kernel(c, [&](AttentionOptions& options) { (options.*of_heads)->strides[0] = 0; }) != "");
    CHECK(problem_of_kernel(c, [&](AttentionOptions& options) { (options.*of_heads)->strides[1] = 0; }) != "");
  }
}

// Problems with a feature that is a tensor, and its option.
struct TensorProblem {
  std::optional<Tensor> AttentionOptions::*option;
  Problem problem;
};

std::vector<TensorProblem> tensor_problems() {
  const auto problem_with = [](std::optional<Tensor> AttentionOptions::*option, DType dtype) {
    AttentionOptions options;
    options.*option = Tensor(nullptr, dtype, {});
    return TensorProblem{option, problem_of(DType::f16, 16, 8, options)};
  };
  return {problem_with(&AttentionOptions::bias, DType::f16),
          problem_with(&AttentionOptions::bias, DType::bf16),
          problem_with(&AttentionOptions::bias, DType::f32),
          problem_with(&AttentionOptions::boolean_mask, DType::boolean),
          problem_with(&AttentionOptions::documents, DType::i32),
          problem_with(&AttentionOptions::prefix, DType::i32),
          problem_with(&AttentionOptions::dropout_mask, DType::boolean),
          problem_with(&AttentionOptions::tree, DType::i64)};
}

TEST_CASE("a case makes the tensors of its problem, and a kernel that forgets them is wrong") {
  for (const auto& [option, problem] : tensor_problems()) {
    CAPTURE(to_string(problem));
    for (const CaseShape& shape : {kShape, CaseShape{1, 70, 130, 2, 1}, CaseShape{5, 4, 40, 2, 1}}) {
      const VerifyCase c(problem, shape, kHostMemory);
      c.run({}, [&](const CaseCall& call) { CHECK(problem_of(DType::f16, 16, 8, call.options) == problem); });
      CHECK(problem_of_kernel(c, forget_nothing) == "");
      CHECK(problem_of_kernel(c, [&](AttentionOptions& options) { (options.*option).reset(); }) != "");
    }
  }
}

TEST_CASE("cases of a tree have a key for each query, those of other problems any lengths") {
  const Problem tree = tensor_problems().back().problem, plain{DType::f16, 16, 8};
  CHECK(cli::shapes_for(plain, cli::verify_shapes()).size() == cli::verify_shapes().size());
  const std::vector<CaseShape> shapes = cli::shapes_for(tree, cli::verify_shapes());
  CHECK(shapes.size() < cli::verify_shapes().size());
  for (const CaseShape& shape : shapes) CHECK(shape.seqlen_q <= shape.seqlen_kv);
}

TEST_CASE("hard scores stay within their bounds under a cap, in chunks, with slopes and with sinks") {
  for (const Scores scores : cli::kHardScores)
    for (const bool softcap : {false, true})
      for (const bool chunk : {false, true}) {
        CAPTURE(cli::to_string(scores));
        const Problem problem{.dtype = DType::bf16,
                              .head_dim = 64,
                              .head_dim_v = 64,
                              .causal = true,
                              .chunk = chunk,
                              .softcap = softcap,
                              .alibi = true,
                              .sinks = true};
        const VerifyCase c(problem, {1, 70, 200, 2, 1, scores}, kHostMemory, with_sizes(problem, 10, 100));
        CHECK(problem_of_kernel(c, forget_nothing) == "");
      }
}

TEST_CASE("right gradients are right, and those that forget something are wrong") {
  const Problem problem{.dtype = DType::bf16,
                        .head_dim = 32,
                        .head_dim_v = 16,
                        .causal = true,
                        .softcap = true,
                        .alibi = true,
                        .sinks = true};
  const AttentionOptions sizes = with_sizes(problem, 2, 0);
  const cli::BackwardCase c = backward_case(engine(), problem, kShape, sizes);
  using Call = cli::BackwardCaseCall;
  CHECK(problem_of_backward(c, [](Call&) {}) == "");
  CHECK(problem_of_backward(c, [](Call& call) { call.options.causal = false; }) != "");
  CHECK(problem_of_backward(c, [](Call& call) { call.options.softcap = 0; }) != "");
  CHECK(problem_of_backward(c, [](Call& call) { call.options.alibi_slopes.reset(); }) != "");
  CHECK(problem_of_backward(c, [](Call& call) { call.options.sinks.reset(); }) != "");
  CHECK(problem_of_backward(c, [](Call& call) { call.dlse.reset(); }) != "");
  CHECK(problem_of_backward(c, [](Call& call) { call.options.softmax_scale = 0.17f; }) != "");
  for (const auto gradient : {&GradientTensors::dq, &GradientTensors::dk, &GradientTensors::dv,
                              &GradientTensors::dslopes, &GradientTensors::dsinks})
    CHECK(problem_of_backward(c, [&](Call& call) { (call.into.*gradient).reset(); }) != "");  // NaN stays
}

TEST_CASE("a case asks for the gradients that were chosen, and in f32 where that was") {
  const Problem problem{.dtype = DType::f16, .head_dim = 16, .head_dim_v = 8, .sinks = true};
  const cli::GradientChoices choices{
      .dq = false, .dk = true, .dv = false, .has_dlse = false, .in_f32 = true, .of_options = false};
  const cli::BackwardCase c = backward_case(engine(), problem, kShape, {}, choices);
  const std::string what = problem_of_backward(c, [](cli::BackwardCaseCall& call) {
    CHECK_FALSE(call.into.dq);
    CHECK_FALSE(call.into.dv);
    CHECK_FALSE(call.into.dsinks);
    CHECK_FALSE(call.dlse);
    REQUIRE(call.into.dk);
    CHECK(call.into.dk->dtype == DType::f32);
  });
  CHECK(what == "");
  CHECK(cli::to_string(choices) == "gradients of k in f32");
}

TEST_CASE("gradients of one key, of one query and of none have a bound that rounding in f32 meets") {
  const Problem problem{.dtype = DType::f16, .head_dim = 64, .head_dim_v = 64};
  for (const CaseShape& shape : {CaseShape{1, 1, 1, 1, 1}, CaseShape{2, 9, 1, 4, 2}, CaseShape{1, 1, 40, 2, 1},
                                 CaseShape{1, 0, 5, 2, 1}, CaseShape{1, 5, 0, 2, 1}}) {
    CAPTURE(cli::to_string(shape));
    const cli::BackwardCase c = backward_case(engine(), problem, shape, {}, {.has_dlse = false});
    CHECK(problem_of_backward(c, [](cli::BackwardCaseCall&) {}) == "");
    const bool has_scores = shape.seqlen_q > 0 && shape.seqlen_kv > 1;
    const auto halve = [](cli::BackwardCaseCall& call) { call.options.softmax_scale = 1.f / 16; };
    CHECK((problem_of_backward(c, halve) != "") == has_scores);
    HostTensor changed(DType::f32, {shape.batch, shape.heads_q, shape.seqlen_q});
    for (std::size_t i = 0; i < changed.element_count(); ++i)
      store_element(changed.data(), DType::f32, static_cast<std::int64_t>(i), 0.01);
    const auto add_dlse = [&](cli::BackwardCaseCall& call) { call.dlse = changed.view(); };
    CHECK((problem_of_backward(c, add_dlse) != "") == (shape.seqlen_q > 0 && shape.seqlen_kv == 1));
  }
}

TEST_CASE("a probability is that of a score of which tensor cores cut off the last bits, where that is far from 0") {
  const Problem problem{.dtype = DType::f16, .head_dim = 512, .head_dim_v = 512};
  const auto times = [](double factor) {
    return [factor](reference::Gradients& gradients) {
      for (double& value : gradients.dv) value *= factor;
    };
  };
  constexpr double kBit = 1.0 / 2048;  // of f16, below 1
  for (const Scores scores : {Scores::spike_first, Scores::random}) {
    CAPTURE(cli::to_string(scores));
    const CaseShape shape{1, 1, 1, 1, 1, scores};  // so that dv is that of the output, which f16 has
    const cli::BackwardCase c = backward_case(engine(), problem, shape, {}, {.in_f32 = true});
    const auto forget = [](cli::BackwardCaseCall&) {};
    CHECK((problem_of_backward(c, forget, times(1 - kBit)) == "") == (scores == Scores::spike_first));
    CHECK(problem_of_backward(c, forget, times(1 - 16 * kBit)) != "");
  }
}

TEST_CASE("gradients of sinks have a bound that row sums of the given output meet, whatever their number") {
  const Problem problem{.dtype = DType::bf16, .head_dim = 16, .head_dim_v = 16, .sinks = true};
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    const cli::BackwardCase c =
        backward_case(engine(), problem, {1, 201, 203, 1, 1}, {}, {.in_f32 = true, .deterministic = true}, seed);
    HostTensor dlse;
    CHECK(problem_of_backward(c, [&](cli::BackwardCaseCall& call) {
            dlse = dlse_by_given_output(call);
            call.dlse = dlse.view();
          }) == "");
  }
}

TEST_CASE(
    "gradients of sinks of rows without keys have a bound that additions in f32 meet, and not one that lacks a row") {
  const Problem problem{.dtype = DType::f16, .head_dim = 16, .head_dim_v = 16, .sinks = true};
  constexpr std::int64_t kRows = 300;
  const cli::BackwardCase c = backward_case(engine(), problem, {1, kRows, 0, 2, 1}, {}, {.in_f32 = true});
  std::vector<double> dlse;
  const auto see = [&](cli::BackwardCaseCall& call) {
    const auto* const values = static_cast<const float*>(call.dlse->data);
    dlse.assign(values, values + 2 * kRows);
  };
  // From the last row on, each term to the sum of all before it.
  const auto add_in_f32 = [&](reference::Gradients& gradients) {
    for (std::int64_t head = 0; head < 2; ++head) {
      float sum = 0;
      for (std::int64_t row = kRows - 1; row >= 0; --row) sum += static_cast<float>(dlse[head * kRows + row]);
      gradients.dsinks[static_cast<std::size_t>(head)] = sum;
    }
  };
  CHECK(problem_of_backward(c, see, add_in_f32) == "");
  CHECK(problem_of_backward(c, see, [&](reference::Gradients& gradients) { gradients.dsinks[0] -= dlse[7]; }) != "");
}

TEST_CASE("gradients of queries have a bound that scores rounded by themselves meet, where keys share a large column") {
  const Problem problem{.dtype = DType::f16, .head_dim = 512, .head_dim_v = 512};
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    const cli::BackwardCase c = backward_case(engine(), problem, {1, 32, 10, 1, 1, Scores::very_low}, {},
                                              {.dk = false, .dv = false, .deterministic = true}, seed);
    CHECK(c.problem_with(c.run(write_dq_by_given_lse)) == "");
  }
}
