// SPDX-License-Identifier: Apache-2.0
// Measures candidates of a pass and chooses one. Knows no CUDA: what it needs from the world is a bench.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "flashjit/tuning.h"

namespace flashjit::runtime {

struct CompiledCandidate {
  bool ok = false;
  std::string why;  // when it is not; empty: it was not tried
  int spill_bytes = 0;
  std::string identity;  // equal for equal machine code
};

// Called from one thread.
template <class OfPass>
class TuningBenchOf {
 public:
  virtual ~TuningBenchOf() = default;
  using Compiled = CompiledCandidate;
  // Compiles all of them, in parallel, the first one first; results in their order. Asks stop() between kernels: when
  // it says so, the rest are not tried. Tells done(n) after each. Both are called from the thread of the caller and no
  // other.
  virtual std::vector<Compiled> compile(const std::vector<OfPass>& variants, const std::function<bool()>& stop,
                                        const std::function<void(int)>& done) = 0;
  // Empty when the output is right; else one line. Never throws for what the kernel does.
  virtual std::string check(const OfPass& variant) = 0;
  // Device microseconds of each of so many launches with a cold L2, after what a variant's very first launch needs to
  // warm up. Error(driver) means that this variant cannot be launched.
  virtual std::vector<double> time(const OfPass& variant, int launches) = 0;
  virtual double seconds() = 0;  // a clock
};

using TuningBench = TuningBenchOf<Variant>;

template <class OfPass>
struct TuneTaskOf {
  OfPass default_variant;
  std::vector<OfPass> candidates;  // without the default
  double budget_seconds = 20;
  std::function<bool()> cancelled;                              // may be empty
  std::function<void(const TuneProgressOf<OfPass>&)> progress;  // may be empty
};
using TuneTask = TuneTaskOf<Variant>;

template <class OfPass>
struct TuneOutcomeOf {
  OfPass chosen;
  double chosen_us = 0, default_us = 0, noise = 0;
  std::vector<TunedCandidateOf<OfPass>> candidates;  // the default first
  std::string complete = "yes";                      // or "budget", "cancelled", "default failed"
};
using TuneOutcome = TuneOutcomeOf<Variant>;

// 1. Compiles; drops what fails, spills, or equals another's machine code. 2. Checks each survivor before it is timed.
// 3. Rounds, the survivors interleaved and in an order that alternates; before each further round those are stopped
// that are slower than the best by more than a margin that shrinks with the rounds. 4. The fastest challenger and the
// default are measured afresh, in turn, launch by launch; it replaces the default only when the median of the pairs'
// ratios says that it is faster by more than the noise: 1 % and three standard errors of that median, added as
// independent errors are, so that the noise is never less than either. The default may spill. Whatever fails, it is a
// valid answer: when all others fail it is chosen, and when it fails itself nothing is left to compare with, so the
// tuning ends ("default failed") and chooses it too. When cancelled, the default is chosen. Takes the budget and at
// most one step more: a kernel to compile, a check, 50 ms of launches.
template <class OfPass>
TuneOutcomeOf<OfPass> tune(TuningBenchOf<OfPass>& bench, const TuneTaskOf<OfPass>& task);

}  // namespace flashjit::runtime
