// SPDX-License-Identifier: Apache-2.0
#include "cli/tune/run.h"

#include <flashjit/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "cli/commands/compile_jobs.h"
#include "cli/io/forward_grid.h"
#include "cli/io/progress.h"

namespace flashjit::cli {
namespace {

using State = TuneState;

template <class OfProblem>
std::string progress_text(const TuneResultOf<OfProblem>& result, const typename PassOf<OfProblem>::Progress& progress) {
  std::string text = fmt::format("{} {}/{}", progress.what, progress.done, progress.total);
  if (progress.best_us > 0 && progress.default_us > 0) {
    text += fmt::format(", best {:+.1f} %", 100 * (progress.default_us / progress.best_us - 1));
  }
  return text + fmt::format(", {:.0f} s left, {} {}", progress.seconds_left, to_string(result.problem),
                            to_string(result.bucket));
}

// Shares what is left of the budget among the tunings that are left, so that what one saves is the others'.
class Budget {
 public:
  explicit Budget(std::optional<double> seconds) : seconds_(seconds) {}

  bool spent() const { return seconds_ && left() <= 0; }
  double share(std::size_t tunings) const {
    return seconds_ ? left() / static_cast<double>(tunings) : TuneOptions().budget_seconds;
  }

 private:
  using Clock = std::chrono::steady_clock;
  double left() const { return *seconds_ - std::chrono::duration<double>(Clock::now() - start_).count(); }

  const std::optional<double> seconds_;
  const Clock::time_point start_ = Clock::now();
};

bool meets_all(const Error& error) {
  return error.code() != ErrorCode::driver && error.code() != ErrorCode::compile_failed &&
         error.code() != ErrorCode::cache_miss;
}

template <class OfProblem>
void fail(TuneResultOf<OfProblem>& result, const std::string& why) {
  result.state = State::failed;
  result.why = why;
}

// Nothing is kept of a tuning that was cancelled, or whose default failed.
template <class OfProblem>
void take(TuneResultOf<OfProblem>& result, RecordFor<OfProblem> record) {
  const std::string complete = environment_of(record, "complete");
  if (complete == "cancelled") return;
  if (complete == "default failed") return fail(result, "the default variant: " + record.candidates.front().why);
  result.state = State::tuned;
  result.record = std::move(record);
}

template <class OfProblem>
void try_to_tune(Engine& engine, int device, const typename PassOf<OfProblem>::Options& options,
                 TuneResultOf<OfProblem>& result) {
  try {
    take(result, tune(engine, result.problem, result.shape, options, device));
  } catch (const Error& error) {
    if (meets_all(error)) throw;
    fail(result, error.what());
  }
}

}  // namespace

const char* to_string(TuneState state) noexcept {
  switch (state) {
    case State::pending:
      return "pending";
    case State::recorded:
      return "recorded";
    case State::tuned:
      return "tuned";
    case State::failed:
      return "failed";
  }
  return "unknown";
}

std::string environment_of(const std::vector<std::pair<std::string, std::string>>& environment,
                           const std::string& name) {
  for (const auto& [key, value] : environment) {
    if (key == name) return value;
  }
  return {};
}

template <class OfProblem>
std::vector<TuneResultOf<OfProblem>> plan_tunings(const std::vector<TuneCaseOf<OfProblem>>& cases,
                                                  const std::vector<RecordFor<OfProblem>>& records, int sm_count,
                                                  bool again) {
  std::vector<TuneResultOf<OfProblem>> results;
  for (const auto& [of_calls, shape] : cases) {
    const OfProblem problem = tuning_class(of_calls);
    const ShapeBucket bucket = shape_bucket(shape, sm_count);
    const bool planned = std::any_of(results.begin(), results.end(), [&](const auto& result) {
      return result.problem == problem && result.bucket == bucket;
    });
    if (planned) continue;
    const auto* const record = find_record(records, problem, bucket);
    TuneResultOf<OfProblem> result{problem, of_calls, bucket, shape, State::pending, record != nullptr, {}, {}};
    if (record && !again && is_complete(*record)) {
      result.state = State::recorded;
      result.record = *record;
    }
    results.push_back(std::move(result));
  }
  return results;
}

template <class OfProblem>
void run_tunings(Engine& engine, int device, const TuneRunOptions& options,
                 std::vector<TuneResultOf<OfProblem>>& results) {
  auto left = static_cast<std::size_t>(
      std::count_if(results.begin(), results.end(), [](const auto& result) { return result.state == State::pending; }));
  const Budget budget(options.budget_seconds);
  ProgressLine progress("tuning", static_cast<int>(left));
  for (auto& result : results) {
    if (result.state != State::pending) continue;
    if (budget.spent() || InterruptGuard::pending()) return;
    typename PassOf<OfProblem>::Options tune_options;
    tune_options.budget_seconds = budget.share(left--);
    tune_options.jobs = options.jobs;
    tune_options.again = result.again;
    tune_options.cancelled = [] { return InterruptGuard::pending(); };
    tune_options.progress = [&](const auto& now) { progress.show(progress_text(result, now)); };
    try_to_tune(engine, device, tune_options, result);
    progress.advance();
  }
}

template <class OfProblem>
void compile_chosen(Engine& engine, const std::string& architecture, int jobs, const InterruptGuard& interrupt,
                    std::vector<TuneResultOf<OfProblem>>& results) {
  std::vector<CompileJob> kernels;
  std::vector<TuneResultOf<OfProblem>*> chosen;
  for (auto& result : results) {
    const bool is_made = result.state == State::tuned && result.of_calls == result.problem;
    if (!result.record || is_made) continue;
    kernels.emplace_back(result.of_calls, result.record->chosen, architecture);
    chosen.push_back(&result);
  }
  if (kernels.empty()) return;
  const std::vector<CompileOutcome> outcomes =
      compile_all(engine, kernels, jobs == 0 ? default_compile_threads() : jobs, interrupt);
  for (std::size_t i = 0; i < outcomes.size(); ++i)
    if (!outcomes[i].kernel) fail(*chosen[i], outcomes[i].problem);
}

template std::vector<TuneResult> plan_tunings(const std::vector<TuneCase>&, const std::vector<TuningRecord>&, int,
                                              bool);
template std::vector<TuneResultOf<BackwardProblem>> plan_tunings(const std::vector<TuneCaseOf<BackwardProblem>>&,
                                                                 const std::vector<BackwardTuningRecord>&, int, bool);
template void run_tunings(Engine&, int, const TuneRunOptions&, std::vector<TuneResult>&);
template void run_tunings(Engine&, int, const TuneRunOptions&, std::vector<TuneResultOf<BackwardProblem>>&);
template void compile_chosen(Engine&, const std::string&, int, const InterruptGuard&, std::vector<TuneResult>&);
template void compile_chosen(Engine&, const std::string&, int, const InterruptGuard&,
                             std::vector<TuneResultOf<BackwardProblem>>&);

}  // namespace flashjit::cli
