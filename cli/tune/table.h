// SPDX-License-Identifier: Apache-2.0
// How flashjit autotune shows what came out.
#pragma once

#include <string>
#include <vector>

#include "cli/io/command.h"
#include "cli/tune/run.h"

namespace flashjit::cli {

// What became of a record's candidates.
struct CandidateCounts {
  int measured = 0, stopped = 0, dropped = 0, untried = 0;
};
CandidateCounts count_candidates(const TuningRecord& record);

// How many times as fast as the default the chosen variant is: 1 when it is the default, or was not timed.
double speedup(const TuningRecord& record);

struct TuneSummary {
  int tuned = 0, recorded = 0, failed = 0, pending = 0;
  int default_stayed = 0;   // of those with a record
  double mean_speedup = 1;  // geometric, of those with a record
};
TuneSummary summarize_results(const std::vector<TuneResult>& results);

std::string table_text(const std::vector<TuneResult>& results);
std::string summary_text(const TuneSummary& summary);  // one line or two
Json describe(const TuneResult& result);
Json describe(const TuneSummary& summary);

}  // namespace flashjit::cli
