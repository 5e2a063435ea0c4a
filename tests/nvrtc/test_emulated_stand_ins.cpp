// SPDX-License-Identifier: Apache-2.0
// What the tuner calls kernels with in the place of users' functions: each text is the function in C++ that stands
// beside it, and kernels of both families give what is expected of them, with block masks and without.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "flashjit/engine.h"
#include "generator/stand_ins.h"
#include "runtime/tuning/tuning_inputs.h"
#include "tests/support/kept_kernels.h"

namespace {

using namespace flashjit;
using namespace flashjit::runtime;
using generator::FunctionKind;

Engine engine_for(const char* architecture) {
  EngineOptions options = tests::options_with_kept_kernels();
  options.emulate = architecture;
  return Engine(options);
}

Problem problem_with(std::initializer_list<const generator::StandIn*> functions, bool block_mask = false) {
  Problem problem{DType::f16, 32, 32};
  for (const generator::StandIn* each : functions)
    (each->kind == FunctionKind::score ? problem.score : problem.mask) = &generator::function_of(*each);
  problem.block_mask = block_mask;
  return problem;
}

// Each function alone; masks with a block mask, too; and functions of both kinds together, under masks of the library.
std::vector<Problem> problems() {
  std::vector<Problem> problems;
  for (const generator::StandIn& each : generator::stand_ins()) {
    problems.push_back(problem_with({&each}));
    if (each.kind == FunctionKind::mask) problems.push_back(problem_with({&each}, true));
  }
  const auto all = generator::stand_ins();
  problems.push_back(problem_with({&all[0], &all[3]}, true));
  problems.push_back(problem_with({&all[1], &all[2]}, true));
  problems.back().causal = problems.back().softcap = problems.back().alibi = true;
  problems.back().boolean_mask = &generator::library_function(FunctionKind::boolean_mask, DType::boolean);
  return problems;
}

void check_kernel(Engine& engine, const char* variant, const CheckCase& small) {
  HostTensor out(small.problem.dtype, TensorShapes(small.problem, small.shape).out);
  HostTensor lse(DType::f32, TensorShapes(small.problem, small.shape).lse);
  AttentionOptions options = small.options_on_host();
  options.variant = parse_variant(variant);
  HostTensor blocks(DType::i32, block_mask_dims(small.block_mask_shape()));
  if (small.problem.block_mask) {
    engine.block_mask(options, small.block_mask_shape(), blocks.view());
    options.block_mask = blocks.view();
  }
  options.lse = lse.view();
  engine.attention(small.q.view(), small.k.view(), small.v.view(), out.view(), options);
  const Expected expected = small.expected();
  CHECK(reference::compare(out, expected.exact, expected.low).passed);
  CHECK(reference::compare_lse(lse, expected.exact, expected.low).passed);
}

}  // namespace

TEST_CASE("each text is the function that stands beside it, in both precisions and to the last bit") {
  Engine engine = engine_for("sm_80");
  for (const Problem& problem : problems()) {
    CAPTURE(to_string(problem));
    for (const CallShape& shape : {CallShape{2, 37, 300, 6, 2}, CallShape{1, 300, 43, 1, 1}}) {
      const CheckCase small(problem, shape);
      const Expected expected = small.expected();
      const AttentionOptions options = small.options_on_host();
      const auto exact = engine.reference(small.q.view(), small.k.view(), small.v.view(), options);
      const auto low = engine.reference_in_low_precision(small.q.view(), small.k.view(), small.v.view(), options);
      CHECK(exact.out == expected.exact.out);
      CHECK(exact.lse == expected.exact.lse);
      CHECK(low.out == expected.low.out);
      CHECK(low.lse == expected.low.lse);
    }
  }
}

TEST_CASE("kernels of both families give what is expected of the tuner's small calls") {
  struct Way {
    const char *architecture, *variant;
  };
  for (const Way& way :
       {Way{"sm_80", "mma-q64-kv32-k2-v2"}, Way{"sm_90a", "hopper-q64-kv32-qs2-whole-lazy-ppoff-dynamic"}}) {
    CAPTURE(way.architecture);
    Engine engine = engine_for(way.architecture);
    for (const Problem& problem : problems()) {
      CAPTURE(to_string(problem));
      for (const CheckCase& small : make_check_cases(problem)) check_kernel(engine, way.variant, small);
    }
  }
}
