// SPDX-License-Identifier: Apache-2.0
#include "runtime/tuning/autotuner.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <ctime>
#include <optional>
#include <thread>

#include "flashjit/error.h"
#include "generator/variant_space.h"
#include "runtime/support/turn.h"

namespace flashjit::runtime {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// What somebody else's tuning may take beyond the budget that ours has, before it is done here as well.
constexpr milliseconds kSlack{10'000};
constexpr milliseconds kPause{10};

// Counts the launches.
template <class OfPass>
class CountingBench : public TuningBenchOf<OfPass> {
 public:
  using Compiled = CompiledCandidate;
  CountingBench(TuningBenchOf<OfPass>& bench, Tally& tally) : bench_(bench), tally_(tally) {}

  std::vector<Compiled> compile(const std::vector<OfPass>& variants, const std::function<bool()>& stop,
                                const std::function<void(int)>& done) override {
    return bench_.compile(variants, stop, done);
  }
  std::string check(const OfPass& variant) override { return bench_.check(variant); }
  std::vector<double> time(const OfPass& variant, int launches) override {
    tally_.add(&Counters::timed_launches, static_cast<std::uint64_t>(launches));
    return bench_.time(variant, launches);
  }
  double seconds() override { return bench_.seconds(); }

 private:
  TuningBenchOf<OfPass>& bench_;
  Tally& tally_;
};

void validate(const CallShape& shape) {
  const auto check = [](const char* name, std::int64_t value) {
    if (value < 1)
      throw Error(ErrorCode::invalid_argument, fmt::format("shape: {} must be at least 1, was {}", name, value));
  };
  check("batch", shape.batch);
  check("seqlen_q", shape.seqlen_q);
  check("seqlen_kv", shape.seqlen_kv);
  check("num_heads_q", shape.num_heads_q);
  check("num_heads_kv", shape.num_heads_kv);
  if (shape.num_heads_q % shape.num_heads_kv != 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("shape: num_heads_q must be a multiple of num_heads_kv = {}, was {}", shape.num_heads_kv,
                            shape.num_heads_q));
  }
}

template <class Options>
bool is_cancelled(const Options& options) {
  return options.cancelled && options.cancelled();
}

// Without the default, and each once.
template <class Pass>
std::vector<typename Pass::Variant> challengers_of(const typename Pass::Problem& problem,
                                                   const typename Pass::Options& options,
                                                   const typename Pass::Variant& default_variant,
                                                   const Architecture& architecture) {
  const auto wanted = options.candidates.empty() ? Pass::candidates(problem, architecture) : options.candidates;
  std::vector<typename Pass::Variant> challengers;
  for (const auto& variant : wanted) {
    const std::string why = Pass::why_illegal(problem, variant, architecture);
    if (!why.empty()) throw Error(ErrorCode::invalid_argument, why);
    const bool is_new = std::find(challengers.begin(), challengers.end(), variant) == challengers.end();
    if (is_new && variant != default_variant) challengers.push_back(variant);
  }
  return challengers;
}

// A tuning that was cancelled, or that failed at the default, says nothing about the next time.
bool is_worth_keeping(const std::string& complete) { return complete == "yes" || complete == "budget"; }

// The mutex, or none when it does not get free in time or there is no need to wait any more.
std::unique_lock<std::mutex> wait_for(std::mutex& mutex, milliseconds limit, const std::function<bool()>& is_over) {
  std::unique_lock lock(mutex, std::defer_lock);
  const Clock::time_point until = Clock::now() + limit;
  while (!lock.try_lock() && Clock::now() < until && !is_over()) std::this_thread::sleep_for(kPause);
  return lock;
}

}  // namespace

template <class Pass>
AutotunerOf<Pass>::AutotunerOf(AutotunerOptionsOf<Pass> options, TuningRecordsOf<Pass>& records, Tally& tally,
                               const Logger& log)
    : options_(std::move(options)), records_(records), tally_(tally), log_(log) {}

template <class Pass>
auto AutotunerOf<Pass>::choose(const Problem& problem, const ShapeBucket& bucket, const TuningDevice& device)
    -> Choice {
  const Variant default_variant = Pass::default_of(problem, bucket, find_architecture(device.identity.architecture));
  if (options_.policy == TuningPolicy::off) return {default_variant, default_variant};
  const auto record = records_.find(device.identity, problem, bucket);
  if (!record) return {default_variant, default_variant};
  tally_.add(&Counters::records_used);
  return {record->chosen, default_variant, true};
}

template <class Pass>
auto AutotunerOf<Pass>::choose_for_call(const Problem& problem, const CallShape& shape, const TuningDevice& device,
                                        const std::function<void()>& settle) -> Choice {
  const ShapeBucket bucket = shape_bucket(shape, device.identity.sm_count);
  // Calls without keys, or without queries, only write zeros.
  const bool measurable = std::min({shape.batch, shape.seqlen_q, shape.seqlen_kv, shape.num_heads_q}) > 0;
  const bool may_measure = options_.policy == TuningPolicy::on_first_use && !records_.uses_only_given(device.identity);
  if (may_measure && measurable && !records_.find(device.identity, problem, bucket)) {
    try {
      settle();
      tune(problem, shape, {}, device);
    } catch (const std::exception& error) {
      log_(LogLevel::warning, "{}: could not be tuned, the default variant is used: {}", to_string(problem),
           error.what());
    }
  }
  return choose(problem, bucket, device);
}

template <class Pass>
auto AutotunerOf<Pass>::tune(const Problem& problem, const CallShape& shape, const Options& options,
                             const TuningDevice& device) -> Record {
  if (options_.policy == TuningPolicy::frozen)
    throw Error(ErrorCode::unsupported, "tune: measures nothing when the tuning policy is frozen");
  if (records_.uses_only_given(device.identity))
    throw Error(ErrorCode::unsupported, "tune: measures nothing on a device whose records were given");
  flashjit::validate(problem);
  validate(shape);
  const Problem of_class = tuning_class(problem);
  const ShapeBucket bucket = shape_bucket(shape, device.identity.sm_count);
  typename TuningRecordsOf<Pass>::Shared known =
      options.again ? nullptr : records_.find(device.identity, of_class, bucket);
  if (known) return *known;

  // While somebody else measures, we would disturb each other; and what they measure for the same bucket holds here.
  const auto is_over = [&] {
    if (!options.again) known = records_.find_again(device.identity, of_class, bucket);
    return known || is_cancelled(options);
  };
  const milliseconds patience = milliseconds(static_cast<std::int64_t>(1e3 * options.budget_seconds)) + kSlack;
  const std::unique_lock<std::mutex> among_threads = wait_for(mutex_of(device.ordinal), patience, is_over);
  std::optional<Turn> among_processes;
  if (auto lock = records_.lock(device.identity, of_class, bucket)) {
    among_processes.emplace(std::move(*lock), "tuning", to_string(of_class) + "." + to_string(bucket), log_);
    among_processes->take(patience, is_over);
  } else {
    is_over();
  }
  return known ? *known : measure(of_class, shape, options, device);
}

template <class Pass>
auto AutotunerOf<Pass>::measure(const Problem& problem, const CallShape& shape, const Options& options,
                                const TuningDevice& device) -> Record {
  const Architecture& architecture = find_architecture(device.identity.architecture);
  Record record;
  record.device = device.identity;
  record.problem = problem;
  record.bucket = shape_bucket(shape, device.identity.sm_count);
  record.shape = shape;
  record.default_variant = Pass::default_at(problem, shape, record.bucket, architecture);

  TuneTaskOf<Variant> task;
  task.default_variant = record.default_variant;
  task.candidates = challengers_of<Pass>(problem, options, record.default_variant, architecture);
  task.budget_seconds = options.budget_seconds;
  task.cancelled = options.cancelled;
  task.progress = options.progress;
  const auto bench = options_.make_bench(problem, shape, device.ordinal, options.jobs);
  CountingBench<Variant> counting(*bench, tally_);
  tally_.add(&Counters::tunings);
  const double start = counting.seconds();
  TuneOutcomeOf<Variant> outcome = runtime::tune<Variant>(counting, task);

  record.chosen = outcome.chosen;
  record.chosen_us = outcome.chosen_us;
  record.default_us = outcome.default_us;
  record.noise = outcome.noise;
  record.environment = options_.environment();
  record.environment.emplace_back("date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))));
  record.environment.emplace_back("seconds", fmt::format("{:.1f}", counting.seconds() - start));
  record.environment.emplace_back("complete", outcome.complete);
  record.candidates = std::move(outcome.candidates);
  if (options.keep && is_worth_keeping(outcome.complete)) records_.keep(record);
  return record;
}

template <class Pass>
std::mutex& AutotunerOf<Pass>::mutex_of(int ordinal) {
  const std::lock_guard lock(mutex_);
  return one_at_a_time_[ordinal];
}

template class AutotunerOf<ForwardPass>;
template class AutotunerOf<BackwardPass>;

}  // namespace flashjit::runtime
