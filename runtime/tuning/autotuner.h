// SPDX-License-Identifier: Apache-2.0
// Chooses the variants of calls, as the policy says: by records, by the default rules, and by measuring. Needs no
// driver: what measures is made by a function that it is given.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "flashjit/tuning.h"
#include "runtime/kernels/counters.h"
#include "runtime/support/logger.h"
#include "runtime/tuning/device_identity.h"
#include "runtime/tuning/tuner.h"
#include "runtime/tuning/tuning_records.h"

namespace flashjit::runtime {

// Where a choice holds.
struct TuningDevice {
  int ordinal = 0;
  DeviceIdentity identity;
};
inline TuningDevice tuning_device(const DeviceInfo& info) { return {info.ordinal, identify(info)}; }

template <class OfPass>
struct ChoiceOf {
  OfPass variant;
  OfPass default_variant;  // that the rules would have chosen
  bool tuned = false;      // by a record
};
using Choice = ChoiceOf<Variant>;

template <class Pass>
struct AutotunerOptionsOf {
  TuningPolicy policy = TuningPolicy::recorded;
  // Measures the class of problems at this shape on the device with this ordinal, and compiles so many kernels at once.
  using MakeBench = std::function<std::unique_ptr<TuningBenchOf<typename Pass::Variant>>(
      const typename Pass::Problem&, const CallShape&, int ordinal, int jobs)>;
  MakeBench make_bench;
  // What else records tell of where they were made: versions.
  std::function<std::vector<std::pair<std::string, std::string>>()> environment;
};

using AutotunerOptions = AutotunerOptionsOf<ForwardPass>;

// Of one pass. Thread-safe.
template <class Pass>
class AutotunerOf {
 public:
  using Problem = typename Pass::Problem;
  using Variant = typename Pass::Variant;
  using Record = typename Pass::Record;
  using Options = typename Pass::Options;
  using Choice = ChoiceOf<Variant>;

  AutotunerOf(AutotunerOptionsOf<Pass> options, TuningRecordsOf<Pass>& records, Tally& tally, const Logger& log);

  // Measures nothing.
  Choice choose(const Problem& problem, const ShapeBucket& bucket, const TuningDevice& device);
  // For the first call with this bucket: under on_first_use it is tuned first when it has no record, after settle(),
  // which waits for what the caller has enqueued: it would disturb. What goes wrong with that is a warning, and the
  // default is chosen. Not where records of the device were given.
  Choice choose_for_call(const Problem& problem, const CallShape& shape, const TuningDevice& device,
                         const std::function<void()>& settle);

  // See Engine::tune. Throws Error(unsupported) when the policy is frozen, or records of the device were given.
  Record tune(const Problem& problem, const CallShape& shape, const Options& options, const TuningDevice& device);

 private:
  Record measure(const Problem& problem, const CallShape& shape, const Options& options, const TuningDevice& device);
  std::mutex& mutex_of(int ordinal);

  const AutotunerOptionsOf<Pass> options_;
  TuningRecordsOf<Pass>& records_;
  Tally& tally_;
  const Logger& log_;
  std::mutex mutex_;                         // of the map
  std::map<int, std::mutex> one_at_a_time_;  // by device: measurements side by side would disturb each other
};
using Autotuner = AutotunerOf<ForwardPass>;

}  // namespace flashjit::runtime
