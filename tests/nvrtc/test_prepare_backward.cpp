// SPDX-License-Identifier: Apache-2.0
// Kernels of calls for gradients, made ahead of them: the calls compile nothing.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "flashjit/flashjit.h"
#include "tests/support/backward_case.h"
#include "tests/support/emulating_engine.h"
#include "tests/support/error_code.h"
#include "tests/support/kept_kernels.h"
#include "tests/support/ragged_backward_case.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;
using tests::code_of;

using Case = tests::BackwardCase;
using O = AttentionOptions;

// Of calls like this one.
BackwardProblem problem_of(const Case& c, bool in_f32 = false) {
  return {problem_of(c.q.dtype(), c.sizes.head_dim, c.sizes.head_dim_v, c.options),
          in_f32,
          c.of_options && c.options.alibi_slopes,
          c.of_options && c.options.bias,
          c.of_options && c.options.sinks,
          c.deterministic};
}

// Compiles once for each kernel that calls launch, and no more when they are made. Forward's kernels are there before.
void check_prepared(const std::string& architecture, const Case& c, bool in_f32 = false) {
  Engine engine(tests::emulating(architecture));
  const BackwardProblem problem = problem_of(c, in_f32);
  CAPTURE(to_string(problem));
  engine.prepare(problem.attention);
  const std::uint64_t before = tests::kernels_of(engine);
  const std::vector<BackwardKernelInfo> infos = engine.prepare_backward(problem, -1, c.variant);
  const std::uint64_t prepared = tests::kernels_of(engine);
  CHECK(prepared > before);
  for (const BackwardKernelInfo& info : infos) {
    CHECK(info.problem == problem);
    CHECK(info.architecture == architecture);
    CHECK(info.origin != KernelFacts::Origin::memory);
    CHECK(info.name.find(to_string(info.variant)) != info.name.npos);
    CHECK(info.cubin_bytes > 0);
    CHECK(info.shared_memory_bytes > 0);
  }
  c.make(engine, in_f32);
  CHECK(tests::kernels_of(engine) == prepared);
  for (const BackwardKernelInfo& info : engine.prepare_backward(problem, -1, c.variant))
    CHECK(info.origin == KernelFacts::Origin::memory);
  CHECK(tests::kernels_of(engine) == prepared);
}

}  // namespace

TEST_CASE("a prepared call for gradients, emulated, compiles nothing: of each family, in any order and deterministic") {
  for (const char* architecture : {"sm_80", "sm_90a"})
    for (const bool deterministic : {false, true})
      for (const std::int64_t queries : {20, 70}) {
        Case c({.batch = 1, .seqlen_q = queries, .num_heads_q = 2, .num_heads_kv = 1});
        c.options.causal = true;
        c.deterministic = deterministic;
        check_prepared(architecture, c, deterministic);
      }
}

TEST_CASE("a prepared call for gradients of options, emulated, compiles nothing") {
  for (const bool in_f32 : {false, true}) {
    Case c({.batch = 1, .num_heads_q = 2, .num_heads_kv = 1});
    c.of_options = true;
    c.values(&O::bias, DType::bf16, {1, 2, 70, 100}, [](std::int64_t i) { return (i * 7 % 13) * .2; });
    c.values(&O::alibi_slopes, DType::f32, {2}, [](std::int64_t i) { return 0.1 * (i + 1); });
    c.values(&O::sinks, DType::f32, {2}, [](std::int64_t i) { return 2. - i; });
    check_prepared("sm_80", c, in_f32);
  }
  Case of_sinks({.batch = 1, .num_heads_q = 2, .num_heads_kv = 1});
  of_sinks.of_options = true;
  of_sinks.values(&O::sinks, DType::f32, {2}, [](std::int64_t i) { return 2. - i; });
  check_prepared("sm_90a", of_sinks);
}

TEST_CASE("a prepared call for gradients of packed sequences, emulated, compiles nothing") {
  for (const char* architecture : {"sm_80", "sm_90a"})  // on both by the mma family
    for (const bool in_f32 : {false, true}) check_prepared(architecture, tests::packed_case(64, 64), in_f32);
}

TEST_CASE(
    "one call for gradients, a merge and a sum that are prepared, emulated, write nothing and then compile nothing") {
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    Engine engine(tests::emulating(architecture));
    const auto made_of = [](DType dtype, const Dims& shape) { return HostTensor::random_normal(dtype, shape, 1); };
    const HostTensor q = made_of(DType::bf16, {1, 70, 2, 64}), lse = made_of(DType::f32, {1, 2, 70});
    HostTensor out = made_of(DType::bf16, {1, 70, 2, 64}), f32 = made_of(DType::f32, {1, 70, 2, 64});
    const std::vector<double> before = out.to_doubles(), before_f32 = f32.to_doubles();
    HostTensor dk = f32, dv = f32;
    const GradientTensors into{out.view(), dk.view(), dv.view()};
    const Tensor of = q.view();
    const HostTensor dout = q;
    engine.prepare_backward(dout.view(), of, of, of, dout.view(), lse.view(), into);
    engine.prepare_merge({{of, lse.view()}, {of, lse.view()}}, f32.view());
    engine.prepare_sum({f32.view(), f32.view()}, out.view());
    CHECK(out.to_doubles() == before);
    CHECK(dk.to_doubles() == before_f32);
    CHECK(f32.to_doubles() == before_f32);
    const std::uint64_t prepared = tests::kernels_of(engine);
    CHECK(prepared > 0);
    engine.attention_backward(dout.view(), of, of, of, dout.view(), lse.view(), into);
    engine.merge({{of, lse.view()}, {of, lse.view()}}, f32.view());
    engine.sum({f32.view(), f32.view()}, out.view());
    CHECK(tests::kernels_of(engine) == prepared);
    std::string message;
    CHECK(code_of([&] { engine.prepare_sum({of}, f32.view(), reinterpret_cast<Stream>(0x1000)); }, &message) ==
          ErrorCode::invalid_argument);
    CHECK(message == "stream: must be null for an engine that emulates, was 0x1000");
  }
}

TEST_CASE("a variant of gradients that is named is prepared alone, emulated") {
  Case c({.batch = 1, .num_heads_q = 2, .num_heads_kv = 1});
  c.variant = parse_backward_variant("q32-kv64-w4-r1-s1");
  check_prepared("sm_90a", c);
  Engine engine(tests::emulating("sm_90a"));
  const BackwardProblem problem = problem_of(c);
  CHECK(engine.prepare_backward(problem, -1, c.variant).size() == 1);
  CHECK(engine.default_backward_variants(problem, "sm_90a") ==
        std::vector{parse_backward_variant("hopper-q128-kv128"), parse_backward_variant("mma-q128-kv128-w8-r1-s1")});
  CHECK(engine.default_backward_variants(problem, "sm_80") ==
        std::vector{parse_backward_variant("mma-q128-kv128-w8-r1-s1")});
}

TEST_CASE("kernels of gradients compile into a cache without a GPU, and other engines find them there") {
  const tests::TemporaryDirectory directory;
  EngineOptions options = EngineOptions::from_environment();
  options.cache_directory = directory.path().string();
  BackwardProblem problem;
  problem.attention.head_dim = problem.attention.head_dim_v = 64;
  problem.deterministic = true;
  const BackwardVariant variant = parse_backward_variant("q64-kv64-w4-r1-s1");
  Engine first(options);
  const BackwardKernelInfo compiled = first.compile_backward(problem, variant, "sm_80");
  CHECK(compiled.name == "bwd-bf16-d64-deterministic.mma-q64-kv64-w4-r1-s1.sm_80");
  CHECK(compiled.origin == KernelFacts::Origin::compiled);
  CHECK(compiled.registers > 0);
  CHECK(compiled.spill_bytes == 0);
  CHECK(compiled.threads == 128);
  CHECK(compiled.cache_file.find(directory.path().string()) == 0);
  CHECK(first.counters().compiles == 4);  // with what clears, prepares and finishes
  Engine second(options);
  CHECK(second.compile_backward(problem, variant, "sm_80").origin == KernelFacts::Origin::disk);
  CHECK(second.counters().compiles == 0);
  CHECK(first.bundle() == second.bundle());
}

TEST_CASE("what has no backward kernels is not prepared") {
  Engine engine(tests::emulating("sm_90a"));
  const auto code = [&](const BackwardProblem& problem, const char* variant = nullptr) {
    return code_of([&] {
      engine.prepare_backward(problem, -1, variant ? std::optional(parse_backward_variant(variant)) : std::nullopt);
    });
  };
  BackwardProblem problem;
  problem.attention.ragged = problem.attention.paged = true;
  CHECK(code(problem) == ErrorCode::unsupported);
  problem = {};
  problem.slopes = true;
  CHECK(code(problem) == ErrorCode::invalid_argument);
  problem = {};
  problem.attention.head_dim = 12;
  CHECK(code(problem) == ErrorCode::invalid_argument);
  CHECK(code({}, "hopper-q128-kv128") == ErrorCode::invalid_argument);
  CHECK(code({}, "q16-kv16-w8") == ErrorCode::invalid_argument);
  CHECK(code_of([&] { engine.prepare_backward({}, 0); }) == ErrorCode::invalid_argument);
}
