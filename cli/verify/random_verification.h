// SPDX-License-Identifier: Apache-2.0
// Random combinations of features compared with the reference: flashjit verify --random.
#pragma once

#include <flashjit/engine.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cli/io/interrupt.h"
#include "cli/verify/verification.h"

namespace flashjit::cli {

struct Combinations {
  int count = 0;
  std::uint64_t first_seed = 0;  // the others follow it
  bool large_heads = false;      // of all
};

struct RandomFailure {
  std::uint64_t seed;
  Failure failure;
};

// Runs each combination once on the engine's device, which must be this one; in the emulator under as many schedules as
// the options say, from the combination's seed on. The failures stand in the order of the seeds. An Error that would
// meet all of them is thrown. Tells its progress on stderr.
std::vector<RandomFailure> verify_random(Engine& engine, const DeviceInfo& device, const Combinations& combinations,
                                         const VerificationOptions& options, const InterruptGuard& interrupt);

}  // namespace flashjit::cli
