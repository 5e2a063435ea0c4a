// SPDX-License-Identifier: Apache-2.0
#include "cli/verify/random_verification.h"

#include <flashjit/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <optional>

#include "cli/io/device.h"
#include "cli/io/parallel.h"
#include "cli/io/progress.h"
#include "cli/verify/schedules.h"

namespace flashjit::cli {
namespace {

// Whether the combination is to blame: what is missing, or a device that a kernel has broken, meets all that follow.
bool is_of_combination(const Error& error) {
  return error.code() == ErrorCode::compile_failed || error.code() == ErrorCode::kernel_fault ||
         error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::unsupported;
}

// Empty when the case is right.
std::string compare(Engine& engine, const DeviceInfo& device, const RandomComparison& random,
                    const Schedules& schedules) {
  const std::unique_ptr<ComparedCase> expected = random.make_case();
  if (!is_emulated(device)) return expected->problem_with(engine, random.variant);
  return fmt::format("{}", fmt::join(run_schedules(engine, *expected, random.variant, schedules).problems, "; "));
}

std::optional<RandomFailure> try_seed(Engine& engine, const DeviceInfo& device, const Pass& pass, const Draw& draw,
                                      int schedules) {
  RandomComparison random;
  std::string what;
  try {
    random = pass.draw(engine, device, draw);
    what = compare(engine, device, random, {schedules, draw.seed});
  } catch (const Error& error) {
    if (!is_of_combination(error)) throw Error(error.code(), fmt::format("--seed {}: {}", draw.seed, error.what()));
    what = error.what();
  }
  if (what.empty()) return {};
  return RandomFailure{draw.seed, {random.problem, spelling(random.variant), random.call, what}};
}

}  // namespace

std::vector<RandomFailure> verify_random(Engine& engine, const DeviceInfo& device, const Combinations& combinations,
                                         const VerificationOptions& options, const InterruptGuard& interrupt) {
  ProgressLine progress("verifying", combinations.count);
  std::vector<std::optional<RandomFailure>> outcomes(static_cast<std::size_t>(combinations.count));
  // Side by side on a GPU, too: most of the time goes into compiling, and each combination has a kernel of its own.
  run_parallel(outcomes.size(), options.jobs, interrupt, [&](std::size_t i) {
    outcomes[i] = try_seed(engine, device, options.pass, {combinations.first_seed + i, combinations.large_heads},
                           options.schedules.count);
    progress.advance();
  });
  std::vector<RandomFailure> failures;
  for (const std::optional<RandomFailure>& outcome : outcomes)
    if (outcome) failures.push_back(*outcome);
  return failures;
}

}  // namespace flashjit::cli
