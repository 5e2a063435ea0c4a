// SPDX-License-Identifier: Apache-2.0
#include "cli/verify/pass.h"

#include "cli/io/device.h"
#include "cli/verify/random_case.h"

namespace flashjit::cli {
namespace {

constexpr std::string_view kArchitectureOfE4m3 = "sm_90a";

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

RandomComparison draw_forward(Engine& engine, const DeviceInfo& device, std::uint64_t seed) {
  const auto random = std::make_shared<RandomCase>(random_case(seed, device.architecture == kArchitectureOfE4m3));
  const auto make = [random, &engine, ordinal = device.ordinal]() -> std::unique_ptr<ComparedCase> {
    auto made =
        std::make_unique<VerifyCase>(random->shape, random->inputs, random->texts, ordinal, references_by(engine));
    if (random->block_mask) made->make_block_mask(engine, *random->block_mask);
    return made;
  };
  return {to_string(random->problem), describe(*random), random_variant(engine, *random, device.architecture, seed),
          make};
}

}  // namespace

const std::vector<Pass>& passes() {
  static const std::vector<Pass> all = {{"forward", forward_shapes, make_forward, draw_forward}};
  return all;
}

}  // namespace flashjit::cli
