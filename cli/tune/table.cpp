// SPDX-License-Identifier: Apache-2.0
#include "cli/tune/table.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

#include "cli/io/table.h"

namespace flashjit::cli {
namespace {

using State = TuneState;
using Outcome = CandidateOutcome;

std::string percent(double ratio) { return fmt::format("{:.1f}", 100 * ratio); }

template <class Record>
double seconds_of(const Record& record) {
  return std::strtod(environment_of(record, "seconds").c_str(), nullptr);
}

template <class OfProblem>
std::string state_text(const TuneResultOf<OfProblem>& result) {
  std::string text = to_string(result.state);
  if (result.record && !is_complete(*result.record)) text += " (" + environment_of(*result.record, "complete") + ")";
  return text;
}

template <class OfProblem>
std::vector<std::string> row_of(const TuneResultOf<OfProblem>& result) {
  std::vector<std::string> row = {to_string(result.problem), to_string(result.bucket), shape_text(result.shape),
                                  state_text(result)};
  if (!result.record) return row;
  const auto& record = *result.record;
  const CandidateCounts counts = count_candidates(record);
  const bool by_default = record.chosen == record.default_variant;
  row.insert(row.end(), {percent(speedup(record) - 1), percent(record.noise),
                         fmt::format("{}/{}/{}", counts.measured, counts.stopped, counts.dropped),
                         fmt::format("{:.1f}", seconds_of(record)), by_default ? "default" : to_string(record.chosen)});
  return row;
}

Json describe(const CallShape& shape) {
  return {{"batch", shape.batch},
          {"seqlen_q", shape.seqlen_q},
          {"seqlen_kv", shape.seqlen_kv},
          {"heads_q", shape.num_heads_q},
          {"heads_kv", shape.num_heads_kv}};
}

}  // namespace

template <class Record>
CandidateCounts count_candidates(const Record& record) {
  CandidateCounts counts;
  for (const auto& candidate : record.candidates) {
    switch (candidate.outcome) {
      case Outcome::measured:
        ++counts.measured;
        break;
      case Outcome::stopped:
        ++counts.stopped;
        break;
      case Outcome::untried:
        ++counts.untried;
        break;
      default:
        ++counts.dropped;
        break;
    }
  }
  return counts;
}

template <class OfProblem>
TuneSummary summarize_results(const std::vector<TuneResultOf<OfProblem>>& results) {
  TuneSummary summary;
  double sum_of_logs = 0;
  int records = 0;
  for (const auto& result : results) {
    summary.tuned += result.state == State::tuned;
    summary.recorded += result.state == State::recorded;
    summary.failed += result.state == State::failed;
    summary.pending += result.state == State::pending;
    if (!result.record) continue;
    ++records;
    summary.default_stayed += result.record->chosen == result.record->default_variant;
    sum_of_logs += std::log(speedup(*result.record));
  }
  if (records != 0) summary.mean_speedup = std::exp(sum_of_logs / records);
  return summary;
}

template <class OfProblem>
std::string table_text(const std::vector<TuneResultOf<OfProblem>>& results) {
  Table table(
      {"<problem", "<bucket", "<shape", "<state", "gain %", "noise %", "measured/stopped/dropped", "s", "<chosen"});
  for (const auto& result : results) table.add_row(row_of(result));
  return table.empty() ? std::string() : table.text();
}

std::string summary_text(const TuneSummary& summary) {
  std::string text = fmt::format("{} tuned, {} had a record, {} failed, {} left\n", summary.tuned, summary.recorded,
                                 summary.failed, summary.pending);
  if (summary.tuned + summary.recorded == 0) return text;
  return text + fmt::format("{:.3f} times the rate of the defaults (geometric mean); in {} cells the default stays\n",
                            summary.mean_speedup, summary.default_stayed);
}

template <class OfProblem>
Json describe(const TuneResultOf<OfProblem>& result) {
  Json json = {{"problem", to_string(result.problem)},
               {"bucket", to_string(result.bucket)},
               {"shape", describe(result.shape)},
               {"state", to_string(result.state)}};
  if (!result.why.empty()) json["why"] = result.why;
  if (!result.record) return json;
  const auto& record = *result.record;
  const CandidateCounts counts = count_candidates(record);
  json.update({{"chosen", to_string(record.chosen)},
               {"default", to_string(record.default_variant)},
               {"chosen_us", record.chosen_us},
               {"default_us", record.default_us},
               {"speedup", speedup(record)},
               {"noise", record.noise},
               {"measured", counts.measured},
               {"stopped", counts.stopped},
               {"dropped", counts.dropped},
               {"untried", counts.untried},
               {"complete", is_complete(record)},
               {"seconds", seconds_of(record)}});
  return json;
}

Json describe(const TuneSummary& summary) {
  return {{"tuned", summary.tuned},  {"recorded", summary.recorded},    {"failed", summary.failed},
          {"left", summary.pending}, {"speedup", summary.mean_speedup}, {"default_stayed", summary.default_stayed}};
}

template CandidateCounts count_candidates(const TuningRecord&);
template CandidateCounts count_candidates(const BackwardTuningRecord&);
template TuneSummary summarize_results(const std::vector<TuneResult>&);
template TuneSummary summarize_results(const std::vector<TuneResultOf<BackwardProblem>>&);
template std::string table_text(const std::vector<TuneResult>&);
template std::string table_text(const std::vector<TuneResultOf<BackwardProblem>>&);
template Json describe(const TuneResult&);
template Json describe(const TuneResultOf<BackwardProblem>&);

}  // namespace flashjit::cli
