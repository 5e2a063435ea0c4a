// SPDX-License-Identifier: Apache-2.0
// Measures candidates and chooses one. Knows no CUDA: what it needs from the world is a TuningBench.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "flashjit/tuning.h"

namespace flashjit::runtime {

class TuningBench {
 public:
  virtual ~TuningBench() = default;
  struct Compiled {
    bool ok = false;
    std::string why;       // when it is not
    int spill_bytes = 0;
    std::string identity;  // equal for equal machine code
  };
  // Compiles all of them, in parallel; results in their order. Asks stop() between kernels: when it says so, the rest are
  // not ok. Tells done(n) after each.
  virtual std::vector<Compiled> compile(const std::vector<Variant>& variants, const std::function<bool()>& stop,
                                        const std::function<void(int)>& done) = 0;
  // Empty when the output is right; else one line. Never throws for what the kernel does.
  virtual std::string check(const Variant& variant) = 0;
  // Device microseconds of each of so many launches with a cold L2.
  virtual std::vector<double> time(const Variant& variant, int launches) = 0;
  virtual double seconds() = 0;  // a clock
};

struct TuneTask {
  Variant default_variant;
  std::vector<Variant> candidates;  // without the default
  double budget_seconds = 20;
  std::function<bool()> cancelled;                    // may be empty
  std::function<void(const TuneProgress&)> progress;  // may be empty
};

struct TuneOutcome {
  Variant chosen;
  double chosen_us = 0, default_us = 0, noise = 0;
  std::vector<TunedCandidate> candidates;  // the default first
  std::string complete = "yes";            // or "budget", "cancelled"
};

// 1. Compiles; drops what fails, spills, or equals another's machine code. 2. Checks each survivor before it is timed.
// 3. Rounds, the survivors interleaved and in an order that alternates; after each round those are stopped that are
// slower than the best by more than a margin that shrinks with the rounds. 4. The best challenger and the default are
// measured afresh, in turn, launch by launch pair; it replaces the default only when the median of the pairs' ratios
// says that it is faster by more than the noise: the larger of 1 % and three standard errors of that median. Whatever
// fails, the default is a valid answer: when everything fails it is chosen.
TuneOutcome tune(TuningBench& bench, const TuneTask& task);

}  // namespace flashjit::runtime
