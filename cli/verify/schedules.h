// SPDX-License-Identifier: Apache-2.0
// One case of flashjit verify run in the emulator under many schedules.
#pragma once

#include <flashjit/engine.h>

#include <optional>
#include <string>
#include <vector>

#include "cli/verify/compared_case.h"

namespace flashjit::cli {

struct Schedules {
  int count = 4;
  std::uint64_t first_seed = 0;  // the others follow it
};

struct ScheduleOutcome {
  std::vector<std::string> problems;  // those of the first schedule that has any; each one line
  int runs = 0;
  std::uint64_t warp_instructions = 0, thread_instructions = 0;
  double seconds = 0;  // in the emulator
};

// Runs the case once for each seed, on an engine that emulates. There must be no findings, its outputs must be right,
// and but for sums in any order bitwise the same under every seed. The first schedule with a problem is the last that
// runs.
ScheduleOutcome run_schedules(Engine& engine, const ComparedCase& expected, const std::optional<Variant>& variant,
                              const Schedules& schedules);

}  // namespace flashjit::cli
