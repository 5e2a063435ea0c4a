// SPDX-License-Identifier: Apache-2.0
// What the page of flashjit autotune --report shows of one record.
#pragma once

#include <string>

#include "cli/tune/report.h"

namespace flashjit::cli {

double chosen_tflops(const TuningRecord& record);               // 0 when it was not timed
std::string share_text(double tflops, const Ceiling& ceiling);  // "68 %"; empty when the ceiling is not known
std::string anchor_of(const TuningRecord& record);
std::string record_article(const TuningRecord& record, const Ceiling& ceiling);

}  // namespace flashjit::cli
