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

struct Choice {
  Variant variant;
  Variant default_variant;  // that the rules would have chosen
  bool tuned = false;       // by a record
};

struct AutotunerOptions {
  TuningPolicy policy = TuningPolicy::recorded;
  // Measures the class of problems at this shape on the device with this ordinal, and compiles so many kernels at once.
  using MakeBench =
      std::function<std::unique_ptr<TuningBench>(const Problem&, const CallShape&, int ordinal, int jobs)>;
  MakeBench make_bench;
  // What else records tell of where they were made: versions.
  std::function<std::vector<std::pair<std::string, std::string>>()> environment;
};

// Thread-safe.
class Autotuner {
 public:
  Autotuner(AutotunerOptions options, TuningRecords& records, Tally& tally, const Logger& log);

  // Measures nothing.
  Choice choose(const Problem& problem, const ShapeBucket& bucket, const TuningDevice& device);
  // For the first call with this bucket: under on_first_use it is tuned first when it has no record, after settle(),
  // which waits for what the caller has enqueued: it would disturb. What goes wrong with that is a warning, and the
  // default is chosen.
  Choice choose_for_call(const Problem& problem, const CallShape& shape, const TuningDevice& device,
                         const std::function<void()>& settle);

  // See Engine::tune. Throws Error(unsupported) when the policy is frozen.
  TuningRecord tune(const Problem& problem, const CallShape& shape, const TuneOptions& options,
                    const TuningDevice& device);

 private:
  TuningRecord measure(const Problem& problem, const CallShape& shape, const TuneOptions& options,
                       const TuningDevice& device);
  std::mutex& mutex_of(int ordinal);

  const AutotunerOptions options_;
  TuningRecords& records_;
  Tally& tally_;
  const Logger& log_;
  std::mutex mutex_;                         // of the map
  std::map<int, std::mutex> one_at_a_time_;  // by device: measurements side by side would disturb each other
};

}  // namespace flashjit::runtime
