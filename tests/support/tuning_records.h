// SPDX-License-Identifier: Apache-2.0
// Tuning records for tests, as if they had been measured.
#pragma once

#include <string>

#include "flashjit/tuning.h"

namespace flashjit::tests {

inline DeviceIdentity make_h200() { return {"NVIDIA H200", "sm_90a", 132, 140, 50, 1980, 3201, 6144}; }

// One that chooses another variant than the default.
inline TuningRecord make_record(const DeviceIdentity& device = make_h200(), double chosen_us = 412.5) {
  TuningRecord record;
  record.device = device;
  record.bucket = {QueryRange::more, KeyRange::below_8k, WorkRange::up_to_2};
  record.shape = {4, 4096, 4096, 16, 4};
  record.default_variant = MmaVariant{};
  record.chosen = device.architecture == "sm_90a" ? Variant(HopperVariant{}) : parse_variant("mma-k2");
  record.chosen_us = chosen_us;
  record.default_us = 430.25;
  record.noise = 0.01;
  record.environment = {{"version", "0.1.0"}, {"date", "2026-11-21"}, {"complete", "yes"}};
  record.candidates = {{record.default_variant, TunedCandidate::Outcome::measured, "", 430.25, 0.002, 30},
                       {record.chosen, TunedCandidate::Outcome::measured, "", chosen_us, 0.001, 30},
                       {parse_variant("mma-q128-w8"), TunedCandidate::Outcome::spills, "spills 24 bytes", 0, 0, 0}};
  return record;
}

inline std::string path_of(const TuningRecord& record) {
  return record_path(record.device, record.problem, record.bucket);
}

inline DeviceIdentity sample_device() { return {"Sample <GPU> & Co", "sm_90a", 132, 140, 50, 1980, 3201, 6144}; }

// Of two families, several tiles and schemes, with a candidate of every outcome; the fastest is not the default.
inline TuningRecord sample_record(const Problem& problem = {}, const ShapeBucket& bucket = {}) {
  const auto candidate = [](const char* spelling, TunedCandidate::Outcome outcome, double microseconds,
                            const char* why = "") {
    const bool timed = outcome == TunedCandidate::Outcome::measured || outcome == TunedCandidate::Outcome::stopped;
    return TunedCandidate{parse_variant(spelling), outcome, why, microseconds, 0.004, timed ? 14 : 0};
  };
  TuningRecord record;
  record.device = sample_device();
  record.problem = problem;
  record.bucket = bucket;
  record.shape = {4, 4096, 4096, 16, 4};
  record.candidates = {
      candidate("hopper-q128-kv128-s2", TunedCandidate::Outcome::measured, 800),
      candidate("hopper-q192-kv80-s2", TunedCandidate::Outcome::measured, 750),
      candidate("hopper-q128-kv128-s2-lazy", TunedCandidate::Outcome::measured, 790),
      candidate("hopper-q128-kv96-s2-3stage", TunedCandidate::Outcome::stopped, 990),
      candidate("hopper-q128-kv64-s2-serial-ppsoftmax", TunedCandidate::Outcome::stopped, 1000),
      candidate("mma-q128-kv64-w4", TunedCandidate::Outcome::stopped, 1600),
      candidate("hopper-q128-kv176-s2", TunedCandidate::Outcome::spills, 0, "spills 24 bytes"),
      candidate("hopper-q128-kv80-s2", TunedCandidate::Outcome::wrong, 0, "row 3: 1 > 0.5 & <more>"),
      candidate("hopper-q256-kv64-s2", TunedCandidate::Outcome::failed, 0, "the compiler refused it"),
      candidate("hopper-q128-kv128-s2-fixed", TunedCandidate::Outcome::duplicate, 0, "its code is that of another"),
      candidate("mma-q64-kv64-w4", TunedCandidate::Outcome::untried, 0, "the budget was spent"),
  };
  record.default_variant = record.candidates[0].variant;
  record.chosen = record.candidates[1].variant;
  record.default_us = 801;
  record.chosen_us = 749;
  record.noise = 0.012;
  record.environment = {{"version", "0.1.0"}, {"seconds", "6.5"}, {"complete", "yes"}};
  return record;
}

}  // namespace flashjit::tests
