// SPDX-License-Identifier: Apache-2.0
// The comparisons of flashjit verify, all of them, and what they came to.
#pragma once

#include <flashjit/engine.h>

#include <optional>
#include <string>
#include <vector>

#include "cli/io/interrupt.h"
#include "cli/io/text_options.h"
#include "cli/verify/pass.h"
#include "cli/verify/schedules.h"

namespace flashjit::cli {

// A problem and the variants that have to be right for it; none: what the library chooses.
struct ProblemKernels {
  ProblemCalls calls;
  std::vector<std::optional<Variant>> variants;
};
// "default" in place of none.
std::string spelling(const std::optional<Variant>& variant);

struct Failure {
  std::string problem, variant, shape, what;
};

struct Tally {
  int kernels = 0, comparisons = 0, wrong_kernels = 0;
  std::vector<Failure> failures;
  // In the emulator:
  int runs = 0;
  std::uint64_t warp_instructions = 0, thread_instructions = 0;
  double emulator_seconds = 0;
};

struct VerificationOptions {
  const Pass& pass = passes().front();
  int jobs = 1;  // cases that are emulated at once
  Schedules schedules;
};

// Runs all cases on the engine's device, which must be this one. texts: those of all problems. Tells its progress on
// stderr.
Tally verify_all(Engine& engine, const DeviceInfo& device, const std::vector<ProblemKernels>& kernels,
                 const Texts& texts, const VerificationOptions& options, const InterruptGuard& interrupt);

}  // namespace flashjit::cli
