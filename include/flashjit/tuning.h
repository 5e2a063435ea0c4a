// SPDX-License-Identifier: Apache-2.0
// Choosing variants by measurement: what is measured for, what came out, and the records that keep it. docs/tuning.md
// explains how; Engine::tune does it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flashjit/backward.h"
#include "flashjit/problem.h"
#include "flashjit/variant.h"

namespace flashjit {

// When an engine uses records, and when it makes them.
enum class TuningPolicy {
  off,           // the default rules alone
  recorded,      // records where there are some, else the default rules; a call never measures
  on_first_use,  // a call whose bucket has no record measures first, but never while its stream is captured
  frozen,        // recorded, and Engine::tune refuses: nothing is measured whatever is asked
};
const char* to_string(TuningPolicy policy) noexcept;
TuningPolicy parse_tuning_policy(std::string_view text);  // throws Error(invalid_argument)

// What tells two products of one architecture apart, and a slice (MIG) of a GPU from the whole.
struct DeviceIdentity {
  std::string name;          // "NVIDIA H200"; of a slice "NVIDIA H200 MIG 1g.18gb"
  std::string architecture;  // "sm_90a"
  int sm_count = 0;
  int memory_gib = 0;  // rounded
  int l2_mib = 0;
  int sm_clock_mhz = 0;  // the highest
  int memory_clock_mhz = 0;
  int memory_bus_bits = 0;

  friend bool operator==(const DeviceIdentity&, const DeviceIdentity&) noexcept;
};
// "nvidia-h200-sm_90a-132sm-140g-50m-1980mhz-3201mhz-6144b": a directory name, [a-z0-9_.-].
std::string slug(const DeviceIdentity& device);

enum class CandidateOutcome {
  measured,  // to the end
  stopped,   // measured until it was clearly slower than the best
  failed,    // was refused by the compiler or could not be loaded
  spills,
  duplicate,  // its machine code equals that of an earlier candidate
  wrong,      // its output differs from the reference by more than the bound
  untried,    // the budget was spent, or it was cancelled
};
const char* to_string(CandidateOutcome outcome) noexcept;
// What became of one candidate. What tuning has is of a pass: forward, or backward by its own variants.
template <class OfPass>
struct TunedCandidateOf {
  using Outcome = CandidateOutcome;
  OfPass variant;
  Outcome outcome = Outcome::untried;
  std::string why;        // one line for what is not measured
  double median_us = 0;   // of all launches; 0 when there was none
  double dispersion = 0;  // median absolute deviation divided by the median
  int launches = 0;
};
using TunedCandidate = TunedCandidateOf<Variant>;
using BackwardTunedCandidate = TunedCandidateOf<BackwardVariant>;

// One class of problems and shape bucket on one device.
template <class ProblemOfPass, class OfPass>
struct TuningRecordOf {
  DeviceIdentity device;
  ProblemOfPass problem;  // a class: tuning_class
  ShapeBucket bucket;
  CallShape shape;                                   // that was measured
  OfPass chosen;                                     // the default, unless another was faster beyond the noise
  OfPass default_variant;                            // of the rules when it was measured
  double chosen_us = 0, default_us = 0;              // medians of the last comparison, interleaved
  double noise = 0;                                  // relative: what the chosen one had to be faster by
  std::vector<TunedCandidateOf<OfPass>> candidates;  // the default first, then as they were listed
  // Where and when: version (of flashjit), kernels (digest of the device code), driver, nvrtc, date (UTC), seconds,
  // complete ("yes", or why not: "budget", "cancelled", "default failed").
  std::vector<std::pair<std::string, std::string>> environment;
};
using TuningRecord = TuningRecordOf<Problem, Variant>;
using BackwardTuningRecord = TuningRecordOf<BackwardProblem, BackwardVariant>;
// The class of gradients: of the class of their problem, without what their kernels do not know of it. dk and dv in f32
// and gradients of sinks make no other one: they choose among the same kernels.
BackwardProblem tuning_class(const BackwardProblem& problem);
// The file that keeps it, below a cache's directory or in a bundle: tuning/<slug>/<class of the problem>.<bucket>.json
std::string record_path(const DeviceIdentity& device, const Problem& problem, const ShapeBucket& bucket);
std::string record_path(const DeviceIdentity& device, const BackwardProblem& problem, const ShapeBucket& bucket);
// JSON for people and programs; the first is a function of the record alone. The second throws Error(invalid_argument)
// which says what is wrong with the text, and Error(unsupported) when it is of a newer format or of variants that this
// release does not know.
std::string to_json(const TuningRecord& record);
TuningRecord parse_tuning_record(std::string_view json);
std::string to_json(const BackwardTuningRecord& record);
BackwardTuningRecord parse_backward_tuning_record(std::string_view json);
// The choices of many records of one device, without their candidates: what the library has inside. Throws
// Error(invalid_argument) when there is no record, or when they are of several devices.
std::string summarize(const std::vector<TuningRecord>& records);

template <class OfPass>
struct TuneProgressOf {
  std::string what;         // "compiling", "checking", "measuring", "confirming"
  int done = 0, total = 0;  // of this step: candidates; pairs of launches when confirming
  OfPass best;              // so far
  double best_us = 0, default_us = 0;
  double seconds_left = 0;  // at most
};
using TuneProgress = TuneProgressOf<Variant>;
using BackwardTuneProgress = TuneProgressOf<BackwardVariant>;

template <class OfPass>
struct TuneOptionsOf {
  double budget_seconds = 20;  // of measuring and compiling together; what is best by then is compared and kept
  int jobs = 0;                // kernels compiled at once; 0: as many as cores and free memory allow
  bool again = false;          // measure although there is a record
  bool keep = true;            // write the record to the user's cache
  // Calls of this engine that have used another variant take the new one, with whatever text of the problem's class.
  bool adopt = false;
  std::vector<OfPass> candidates;                               // empty: Engine::variants
  std::function<void(const TuneProgressOf<OfPass>&)> progress;  // what it throws is dropped
  // Asked often, from the calling thread. True: stop, choose the default and keep nothing.
  std::function<bool()> cancelled;
};
using TuneOptions = TuneOptionsOf<Variant>;
using BackwardTuneOptions = TuneOptionsOf<BackwardVariant>;

}  // namespace flashjit
