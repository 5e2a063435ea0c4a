// SPDX-License-Identifier: Apache-2.0
// Tunes one case after the other on one device.
#pragma once

#include <flashjit/engine.h>

#include <optional>
#include <string>
#include <vector>

#include "cli/io/interrupt.h"
#include "cli/tune/shapes.h"

namespace flashjit::cli {

struct TuneResult {
  enum class State {
    pending,   // to be tuned, or not reached
    recorded,  // there was a record
    tuned,
    failed,
  };
  Problem problem;   // a class: that of the calls'
  Problem of_calls;  // with their own functions
  ShapeBucket bucket;
  CallShape shape;
  State state = State::pending;
  bool again = false;                  // a record that there is, is to be replaced
  std::optional<TuningRecord> record;  // the old one, or what came out
  std::string why;                     // one line, when it failed
};
const char* to_string(TuneResult::State state) noexcept;

// Whether the tuning went to its end: its budget was not over before.
bool is_complete(const TuningRecord& record);
std::string environment_of(const TuningRecord& record, const std::string& name);  // "" when it does not say

// Each class of problems and bucket once, with the first shape that falls into it. Those that have a complete record
// are recorded, unless they are to be tuned again.
std::vector<TuneResult> plan_tunings(const std::vector<TuneCase>& cases, const std::vector<TuningRecord>& records,
                                     int sm_count, bool again);

struct TuneRunOptions {
  std::optional<double> budget_seconds;  // of all together; default: TuneOptions' own for each
  int jobs = 0;
};

// Tunes what is pending, in order, and tells its progress on stderr. When the budget is spent or Ctrl-C is pressed, the
// rest stays pending. A tuning that fails is a result, unless what it met would meet all of them: then it is thrown.
void run_tunings(Engine& engine, int device, const TuneRunOptions& options, std::vector<TuneResult>& results);

// Makes the kernels of calls that tuning has not made, so that the cache has them, too: where nothing had to be
// measured, as a record may have come inside the library or in a bundle, and where calls have functions of their own.
// One that the compiler refuses becomes a failed result; every other Error is thrown. jobs: 0 is as many as the machine
// has cores.
void compile_chosen(Engine& engine, const std::string& architecture, int jobs, const InterruptGuard& interrupt,
                    std::vector<TuneResult>& results);

}  // namespace flashjit::cli
