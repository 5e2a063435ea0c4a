// SPDX-License-Identifier: Apache-2.0
// The page of flashjit autotune --report: one file that needs no network, scripts or fonts.
#pragma once

#include <flashjit/tuning.h>

#include <string>
#include <vector>

namespace flashjit::cli {

// What rates are compared with.
struct Ceiling {
  double tflops = 0;  // 0: not known
  std::string name;   // "the tensor cores' peak: 132 SMs at 1980 MHz"
};

struct ReportDevice {
  std::string name;  // of a device without records
  Ceiling ceiling;
  std::vector<TuningRecord> records;  // all of one device
};

std::string tuning_report(const std::vector<ReportDevice>& devices, const std::string& subtitle);

}  // namespace flashjit::cli
