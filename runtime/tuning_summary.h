// SPDX-License-Identifier: Apache-2.0
// Many records of one device in one small text, without their candidates: what the library has inside.
#pragma once

#include <string_view>
#include <vector>

#include "flashjit/tuning.h"

namespace flashjit::runtime {

// What summarize() was given, as far as it kept it. Throws Error(invalid_argument, unsupported) as parse_tuning_record
// does, and also when the text is not as it was written: it holds a digest of itself.
std::vector<TuningRecord> parse_summary(std::string_view text);

}  // namespace flashjit::runtime
