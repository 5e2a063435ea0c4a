// SPDX-License-Identifier: Apache-2.0
// Tunes one case after the other on one device.
#pragma once

#include <flashjit/engine.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/io/interrupt.h"
#include "cli/io/of_pass.h"
#include "cli/tune/shapes.h"

namespace flashjit::cli {

enum class TuneState {
  pending,   // to be tuned, or not reached
  recorded,  // there was a record
  tuned,
  failed,
};
const char* to_string(TuneState state) noexcept;

template <class OfProblem>
struct TuneResultOf {
  using State = TuneState;
  OfProblem problem;   // a class: that of the calls'
  OfProblem of_calls;  // with their own functions
  ShapeBucket bucket;
  CallShape shape;
  State state = State::pending;
  bool again = false;                          // a record that there is, is to be replaced
  std::optional<RecordFor<OfProblem>> record;  // the old one, or what came out
  std::string why;                             // one line, when it failed
};
using TuneResult = TuneResultOf<Problem>;

// What a record says of where it was made; "" when it does not.
std::string environment_of(const std::vector<std::pair<std::string, std::string>>& environment,
                           const std::string& name);
template <class Record>
std::string environment_of(const Record& record, const std::string& name) {
  return environment_of(record.environment, name);
}
// Whether the tuning went to its end: its budget was not over before.
template <class Record>
bool is_complete(const Record& record) {
  const std::string complete = environment_of(record, "complete");
  return complete.empty() || complete == "yes";  // records that ship inside the library need not say it
}

// Each class of problems and bucket once, with the first shape that falls into it. Those that have a complete record
// are recorded, unless they are to be tuned again.
template <class OfProblem>
std::vector<TuneResultOf<OfProblem>> plan_tunings(const std::vector<TuneCaseOf<OfProblem>>& cases,
                                                  const std::vector<RecordFor<OfProblem>>& records, int sm_count,
                                                  bool again);

struct TuneRunOptions {
  std::optional<double> budget_seconds;  // of all together; default: TuneOptions' own for each
  int jobs = 0;
};

// Tunes what is pending, in order, and tells its progress on stderr. When the budget is spent or Ctrl-C is pressed, the
// rest stays pending. A tuning that fails is a result, unless what it met would meet all of them: then it is thrown.
template <class OfProblem>
void run_tunings(Engine& engine, int device, const TuneRunOptions& options,
                 std::vector<TuneResultOf<OfProblem>>& results);

// Makes the kernels of calls that tuning has not made, so that the cache has them, too: where nothing had to be
// measured, as a record may have come inside the library or in a bundle, and where calls have functions of their own.
// One that the compiler refuses becomes a failed result; every other Error is thrown. jobs: 0 is as many as the machine
// has cores.
template <class OfProblem>
void compile_chosen(Engine& engine, const std::string& architecture, int jobs, const InterruptGuard& interrupt,
                    std::vector<TuneResultOf<OfProblem>>& results);

}  // namespace flashjit::cli
