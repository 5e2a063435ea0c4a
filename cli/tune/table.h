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
template <class Record>
CandidateCounts count_candidates(const Record& record);

// How many times as fast as the default the chosen variant is: 1 when it is the default, or was not timed.
template <class Record>
double speedup(const Record& record) {
  const bool timed = record.chosen_us > 0 && record.default_us > 0;
  return timed && record.chosen != record.default_variant ? record.default_us / record.chosen_us : 1;
}

struct TuneSummary {
  int tuned = 0, recorded = 0, failed = 0, pending = 0;
  int default_stayed = 0;   // of those with a record
  double mean_speedup = 1;  // geometric, of those with a record
};
template <class OfProblem>
TuneSummary summarize_results(const std::vector<TuneResultOf<OfProblem>>& results);

template <class OfProblem>
std::string table_text(const std::vector<TuneResultOf<OfProblem>>& results);
std::string summary_text(const TuneSummary& summary);  // one line or two
template <class OfProblem>
Json describe(const TuneResultOf<OfProblem>& result);
Json describe(const TuneSummary& summary);

}  // namespace flashjit::cli
