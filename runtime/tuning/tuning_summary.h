// SPDX-License-Identifier: Apache-2.0
// Many records of one device in one small text, without their candidates: what the library has inside.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "flashjit/tuning.h"

namespace flashjit::runtime {

// What summarize() was given, as far as it kept it. Throws Error(invalid_argument, unsupported) as parse_tuning_record
// does, and also when the text is not as it was written: it holds a digest of itself.
std::vector<TuningRecord> parse_summary(std::string_view text);

// One of them at a time, for the first call of a program: the text has a line for each, and the others are not read.
// Nor is the digest looked at.
class TuningSummary {
 public:
  // The text must outlive it. Throws as parse_summary does.
  explicit TuningSummary(std::string_view text);

  const DeviceIdentity& device() const noexcept { return device_; }
  std::optional<TuningRecord> find(const Problem& problem, const ShapeBucket& bucket) const;

 private:
  std::string_view text_;
  DeviceIdentity device_;
};

}  // namespace flashjit::runtime
