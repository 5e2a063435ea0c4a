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

}  // namespace flashjit::tests
