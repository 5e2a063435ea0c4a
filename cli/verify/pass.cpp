// SPDX-License-Identifier: Apache-2.0
#include "cli/verify/pass.h"

#include <algorithm>

#include "cli/io/device.h"
#include "cli/verify/backward_case.h"
#include "cli/verify/random_case.h"
#include "flashjit/error.h"

namespace flashjit::cli {
namespace {

std::vector<CaseShape> forward_shapes(const Problem& problem, bool emulated) {
  return shapes_for(problem, emulated ? emulated_shapes() : verify_shapes());
}

std::unique_ptr<ComparedCase> make_forward(Engine& engine, const DeviceInfo& device, const ProblemCalls& calls,
                                           const CaseShape& shape, const Texts& texts) {
  auto made =
      std::make_unique<VerifyCase>(calls.problem, shape, device.ordinal, calls.options, references_by(engine), texts);
  if (calls.problem.block_mask) made->make_block_mask(engine);
  return made;
}

bool has_kernels(const Engine& engine, Problem problem, std::string_view architecture) {
  if (!problem.k_rotary) problem.head_dim = problem.head_dim_v = 64;
  try {
    engine.default_variants(problem, architecture);
    return true;
  } catch (const Error&) {
    return false;
  }
}

RandomComparison draw_forward(Engine& engine, const DeviceInfo& device, const Draw& draw) {
  const std::uint64_t seed = draw.seed;
  RandomScope scope;
  scope.large_heads = draw.large_heads;
  scope.e4m3_keys = !draw.large_heads && has_kernels(engine, {.e4m3 = true}, device.architecture);
  scope.rotary_e4m3 =
      has_kernels(engine, {.head_dim = 272, .head_dim_v = 256, .e4m3 = true, .k_rotary = true}, device.architecture);
  scope.e4m3_products =
      !draw.large_heads && has_kernels(engine, {.e4m3 = true, .e4m3_queries = true}, device.architecture);
  const auto random = std::make_shared<RandomCase>(random_case(seed, scope));
  const auto make = [random, &engine, ordinal = device.ordinal]() -> std::unique_ptr<ComparedCase> {
    auto made =
        std::make_unique<VerifyCase>(random->shape, random->inputs, random->texts, ordinal, references_by(engine));
    if (random->block_mask) made->make_block_mask(engine, *random->block_mask);
    return made;
  };
  return {to_string(random->problem), describe(*random), random_variant(engine, *random, device.architecture, seed),
          make};
}

// An LSE of f32 does not give the probabilities of far scores again.
std::vector<CaseShape> backward_shapes(const Problem& problem, bool emulated) {
  std::vector<CaseShape> shapes = forward_shapes(problem, emulated);
  std::erase_if(shapes, [](const CaseShape& shape) { return is_far(shape.scores); });
  return shapes;
}

std::unique_ptr<ComparedCase> make_backward(Engine& engine, const DeviceInfo& device, const ProblemCalls& calls,
                                            const CaseShape& shape, const Texts& texts) {
  const CaseInputs inputs = case_inputs(calls.problem, shape, calls.options, kCaseSeed);
  return std::make_unique<BackwardCase>(engine, shape, inputs, texts, device.ordinal, GradientChoices{}, kCaseSeed);
}

RandomComparison draw_backward(Engine& engine, const DeviceInfo& device, const Draw& draw) {
  const std::uint64_t seed = draw.seed;
  // Of large heads half are such as either family has.
  const RandomScope& of_large = seed % 2 == 0 ? kLargeBackwardScope : kHopperLargeBackwardScope;
  const auto random = std::make_shared<RandomCase>(random_case(seed, draw.large_heads ? of_large : kBackwardScope));
  GradientChoices choices = random_gradients(seed);
  choices.variant = random_backward_variant(engine, *random, device.architecture, seed);
  const auto make = [random, choices, seed, &engine, ordinal = device.ordinal]() -> std::unique_ptr<ComparedCase> {
    return std::make_unique<BackwardCase>(engine, random->shape, random->inputs, random->texts, ordinal, choices, seed);
  };
  return {to_string(random->problem), describe(*random) + " " + to_string(choices), {}, make};
}

}  // namespace

const std::vector<Pass>& passes() {
  static const std::vector<Pass> all = {{"forward", true, forward_shapes, make_forward, draw_forward},
                                        {"backward", false, backward_shapes, make_backward, draw_backward}};
  return all;
}

const Pass& find_pass(std::string_view word) {
  return *std::find_if(passes().begin(), passes().end(), [&](const Pass& pass) { return pass.word == word; });
}

}  // namespace flashjit::cli
