// SPDX-License-Identifier: Apache-2.0
#include "runtime/tuning/tuner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "flashjit/error.h"
#include "runtime/support/statistics.h"

namespace flashjit::runtime {
namespace {

using Outcome = CandidateOutcome;

// What is raced are numbers, 0 the default: of which pass they are makes no difference.
using Number = std::size_t;
using NumberedBench = TuningBenchOf<Number>;
using NumberedOutcome = TuneOutcomeOf<Number>;
struct NumberedTask : TuneTaskOf<Number> {
  std::vector<std::string> names;  // of all, the default's first
};

// Shares of the budget. After the first two no other kernel is compiled or checked, so that what is ready can be
// measured; a round of more than one visit takes at most the third; what the comparison needs is kept for it, up to the
// last.
constexpr double kCompileShare = 0.55;
constexpr double kCheckShare = 0.7;
constexpr double kRoundShare = 0.06;
constexpr double kComparisonShare = 0.25;

constexpr double kSigmas = 3;        // standard errors on each side of a median: its interval
constexpr double kLeastGain = 0.01;  // what one kernel differs by from run to run, however well it is measured
constexpr int kMostPairs = 60;
constexpr int kPairsPerLook = 20;         // the deviation of fewer is too uncertain
constexpr int kLaunchesPerVisit = 2;      // one alone cannot tell a slow kernel from a disturbed launch
constexpr double kSecondsUnasked = 0.05;  // of launches, at most, between two questions whether it is cancelled

// Who goes on into a round, and how often each is visited in it.
struct Round {
  double margin;     // median time, relative to the best, up to which a challenger goes on
  std::size_t most;  // challengers, the fastest
  int visits;
};
constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();
constexpr Round kRounds[] = {{1.25, kAll, 1}, {1.25, kAll, 2}, {1.12, 24, 3}, {1.06, 12, 6}, {1.03, 6, 8}};

struct Contender {
  TunedCandidateOf<Number> result;
  std::vector<double> times;      // microseconds of all launches
  double seconds_per_launch = 0;  // by the clock, with all that comes with a launch; 0 before the first

  double us() const { return result.median_us; }
};

// The challenger and the default in turn.
class Comparison {
 public:
  void add(double challenger_us, double default_us) {
    ratios_.push_back(challenger_us / default_us);
    challenger_us_.push_back(challenger_us);
    default_us_.push_back(default_us);
  }
  int pairs() const { return static_cast<int>(ratios_.size()); }
  double challenger_us() const { return median(challenger_us_); }
  double default_us() const { return median(default_us_); }
  double gain() const { return 1 - median(ratios_); }
  // Two independent errors.
  double noise() const { return std::hypot(kLeastGain, interval()); }
  bool faster() const { return pairs() >= kPairsPerLook && gain() > noise(); }
  // More pairs would hardly change the answer: the interval of the gain has the least one outside.
  bool clear() const {
    return pairs() > 0 && pairs() % kPairsPerLook == 0 && std::abs(gain() - kLeastGain) > interval();
  }

 private:
  double interval() const { return kSigmas * median_error(median_deviation(ratios_), ratios_.size()); }

  std::vector<double> ratios_, challenger_us_, default_us_;
};

class Tuning {
 public:
  Tuning(NumberedBench& bench, const NumberedTask& task);
  NumberedOutcome run();

 private:
  std::vector<Contender*> compile();
  std::vector<Contender*> check(const std::vector<Contender*>& compiled);
  void race();
  int visits(const Round& round) const;
  bool pass();
  void stop_slow(const Round& round);
  NumberedOutcome compare();
  bool add_pair(Contender& challenger, Comparison& comparison);

  bool time(Contender& contender, int launches, double until);
  bool may_go_on(double until);
  bool default_failed() const;
  std::vector<Contender*> challengers() const;
  void erase(Outcome outcome);
  double seconds_for_comparison() const;
  double elapsed() const { return bench_.seconds() - start_; }
  void report(const char* what, int done, int total) const;
  std::string incomplete() const;

  NumberedBench& bench_;
  const NumberedTask& task_;
  const double start_;
  std::vector<Contender> contenders_;  // the default first
  Contender& default_;
  std::vector<Contender*> racers_;  // checked, and neither stopped nor failed; the default first
  bool backwards_ = false;          // the next pass
  bool cancelled_ = false, out_of_time_ = false;
};

void drop(Contender& contender, Outcome outcome, std::string why) {
  contender.result.outcome = outcome;
  contender.result.why = std::move(why);
}

void add_times(Contender& contender, const std::vector<double>& times) {
  contender.times.insert(contender.times.end(), times.begin(), times.end());
  TunedCandidateOf<Number>& result = contender.result;
  result.outcome = Outcome::measured;
  result.launches = static_cast<int>(contender.times.size());
  result.median_us = median(contender.times);
  result.dispersion = median_deviation(contender.times) / result.median_us;
}

bool is_faster(const Contender* a, const Contender* b) { return a->us() < b->us(); }

// Null when none was measured. Of equals the first.
Contender* fastest(std::vector<Contender*> contenders) {
  std::erase_if(contenders, [](const Contender* each) { return each->result.outcome != Outcome::measured; });
  const auto found = std::min_element(contenders.begin(), contenders.end(), is_faster);
  return found == contenders.end() ? nullptr : *found;
}

double typical_dispersion(const std::vector<Contender*>& contenders) {
  std::vector<double> dispersions;
  for (const Contender* each : contenders) dispersions.push_back(each->result.dispersion);
  return median(std::move(dispersions));
}

// Microseconds on each side of the median. By chance the few launches of one can lie close together, so its dispersion
// is held to be no less than what is typical.
double interval(const Contender& contender, double typical_dispersion) {
  const double deviation = std::max(contender.result.dispersion, typical_dispersion) * contender.us();
  return kSigmas * median_error(deviation, contender.times.size());
}

std::vector<Contender> make_contenders(const NumberedTask& task) {
  std::vector<Contender> contenders(1 + task.candidates.size());
  contenders[0].result.variant = task.default_variant;
  for (std::size_t i = 0; i < task.candidates.size(); ++i) contenders[i + 1].result.variant = task.candidates[i];
  return contenders;
}

Tuning::Tuning(NumberedBench& bench, const NumberedTask& task)
    : bench_(bench),
      task_(task),
      start_(bench.seconds()),
      contenders_(make_contenders(task)),
      default_(contenders_[0]) {}

NumberedOutcome Tuning::run() {
  racers_ = check(compile());
  race();
  NumberedOutcome outcome = compare();
  const std::string why = incomplete();
  if (!why.empty()) outcome.complete = why;
  for (Contender& contender : contenders_) {
    if (contender.result.outcome == Outcome::untried) contender.result.why = why;
    outcome.candidates.push_back(std::move(contender.result));
  }
  return outcome;
}

std::vector<Contender*> Tuning::compile() {
  std::vector<Number> numbers;
  for (const Contender& contender : contenders_) numbers.push_back(contender.result.variant);
  const int total = static_cast<int>(numbers.size());
  const auto results = bench_.compile(
      numbers, [&] { return !may_go_on(kCompileShare * task_.budget_seconds); },
      [&](int done) { report("compiling", done, total); });

  std::vector<Contender*> compiled;
  std::map<std::string, const Contender*> by_identity;
  for (std::size_t i = 0; i < contenders_.size(); ++i) {
    Contender& contender = contenders_[i];
    const CompiledCandidate& result = results.at(i);
    if (!result.ok) {
      if (!result.why.empty()) drop(contender, Outcome::failed, result.why);
    } else if (result.spill_bytes > 0 && &contender != &default_) {
      drop(contender, Outcome::spills, fmt::format("spills {} bytes of registers", result.spill_bytes));
    } else if (const auto [twin, added] = by_identity.emplace(result.identity, &contender); !added) {
      drop(contender, Outcome::duplicate, "the machine code of " + task_.names[twin->second->result.variant]);
    } else {
      compiled.push_back(&contender);
    }
  }
  return compiled;
}

// Those that are right. When the default is not, nobody else is asked.
std::vector<Contender*> Tuning::check(const std::vector<Contender*>& compiled) {
  std::vector<Contender*> right;
  const int total = static_cast<int>(compiled.size());
  for (int i = 0; i < total && may_go_on(kCheckShare * task_.budget_seconds); ++i) {
    Contender& contender = *compiled[static_cast<std::size_t>(i)];
    const std::string why = bench_.check(contender.result.variant);
    if (why.empty())
      right.push_back(&contender);
    else
      drop(contender, Outcome::wrong, why);
    report("checking", i + 1, total);
  }
  return right;
}

void Tuning::race() {
  if (racers_.empty()) return;
  for (const Round& round : kRounds) {
    stop_slow(round);
    for (int left = visits(round); left > 0; --left)
      if (!pass()) return;
  }
}

// Fewer where launches take long: such kernels need fewer of them to be told apart.
int Tuning::visits(const Round& round) const {
  double seconds = 0;  // of one pass
  for (const Contender* racer : racers_) seconds += kLaunchesPerVisit * racer->seconds_per_launch;
  const double most = kRoundShare * task_.budget_seconds;
  return round.visits * seconds <= most ? round.visits : std::max(1, static_cast<int>(most / seconds));
}

// Each racer once, in an order that alternates, so that a drift of the clocks hits all alike.
bool Tuning::pass() {
  std::vector<Contender*> order = racers_;
  if (std::exchange(backwards_, !backwards_)) std::reverse(order.begin(), order.end());
  const int total = static_cast<int>(order.size());
  for (int i = 0; i < total; ++i) {
    const double until = task_.budget_seconds - seconds_for_comparison();
    if (!time(*order[static_cast<std::size_t>(i)], kLaunchesPerVisit, until)) return false;
    report("measuring", i + 1, total);
  }
  erase(Outcome::failed);
  return true;
}

// A challenger that is slower than the margin stays while its interval touches that of the fastest. Before the first
// round nothing was measured, and all stay.
void Tuning::stop_slow(const Round& round) {
  const Contender* const best = fastest(racers_);
  if (!best) return;
  const double dispersion = typical_dispersion(racers_);
  std::vector<Contender*> ranking = challengers();
  std::stable_sort(ranking.begin(), ranking.end(), is_faster);
  for (std::size_t rank = 0; rank < ranking.size(); ++rank) {
    Contender& racer = *ranking[rank];
    const bool slow = racer.us() > round.margin * best->us() &&
                      racer.us() - interval(racer, dispersion) > best->us() + interval(*best, dispersion);
    if (!slow && rank < round.most) continue;
    drop(racer, Outcome::stopped,
         fmt::format("{:.1f} % slower than the fastest after {} launches", 100 * (racer.us() / best->us() - 1),
                     racer.result.launches));
  }
  erase(Outcome::stopped);
}

NumberedOutcome Tuning::compare() {
  NumberedOutcome outcome;
  outcome.chosen = default_.result.variant;
  outcome.chosen_us = outcome.default_us = default_.us();
  outcome.noise = kLeastGain;
  Contender* const challenger = fastest(challengers());
  if (!challenger) return outcome;

  Comparison comparison;
  while (comparison.pairs() < kMostPairs && !comparison.clear() && add_pair(*challenger, comparison))
    report("confirming", comparison.pairs(), kMostPairs);
  if (comparison.pairs() == 0) return outcome;
  outcome.chosen_us = outcome.default_us = comparison.default_us();
  outcome.noise = comparison.noise();
  const bool undisturbed = !cancelled_ && !default_failed() && challenger->result.outcome == Outcome::measured;
  if (undisturbed && comparison.faster()) {
    outcome.chosen = challenger->result.variant;
    outcome.chosen_us = comparison.challenger_us();
  }
  return outcome;
}

bool Tuning::add_pair(Contender& challenger, Comparison& comparison) {
  Contender* order[] = {&default_, &challenger};
  if (comparison.pairs() % 2 == 1) std::swap(order[0], order[1]);
  for (Contender* contender : order)
    if (!time(*contender, 1, task_.budget_seconds) || contender->result.outcome == Outcome::failed) return false;
  comparison.add(challenger.times.back(), default_.times.back());
  return true;
}

// False: no step may follow. A contender that cannot be launched has failed, and the others go on.
bool Tuning::time(Contender& contender, int launches, double until) {
  for (int left = launches; left > 0;) {
    if (!may_go_on(until)) return false;
    const bool quick = contender.seconds_per_launch > 0 && contender.seconds_per_launch * left <= kSecondsUnasked;
    const int batch = quick ? left : 1;
    const double begin = elapsed();
    try {
      add_times(contender, bench_.time(contender.result.variant, batch));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::driver) throw;
      drop(contender, Outcome::failed, error.what());
      return true;
    }
    contender.seconds_per_launch = (elapsed() - begin) / batch;
    left -= batch;
  }
  return true;
}

// Whether a step may begin that belongs to the time until then.
bool Tuning::may_go_on(double until) {
  cancelled_ = cancelled_ || (task_.cancelled && task_.cancelled());
  if (cancelled_ || default_failed()) return false;
  if (elapsed() < until) return true;
  out_of_time_ = true;
  return false;
}

bool Tuning::default_failed() const {
  const Outcome outcome = default_.result.outcome;
  return outcome == Outcome::failed || outcome == Outcome::wrong;
}

std::vector<Contender*> Tuning::challengers() const {
  std::vector<Contender*> challengers = racers_;
  std::erase(challengers, &default_);
  return challengers;
}

double Tuning::seconds_for_comparison() const {
  return std::min(kComparisonShare * task_.budget_seconds, 2 * kMostPairs * default_.seconds_per_launch);
}

void Tuning::erase(Outcome outcome) {
  std::erase_if(racers_, [&](const Contender* racer) { return racer->result.outcome == outcome; });
}

void Tuning::report(const char* what, int done, int total) const try {
  if (!task_.progress) return;
  const Contender* best = fastest(racers_);
  if (!best) best = &default_;
  task_.progress({what, done, total, best->result.variant, best->us(), default_.us(),
                  std::max(0.0, task_.budget_seconds - elapsed())});
} catch (...) {  // a line that cannot be written is no error of the tuning
}

// Empty, or why something was left out.
std::string Tuning::incomplete() const {
  if (cancelled_) return "cancelled";
  if (default_failed()) return "default failed";
  return out_of_time_ ? "budget" : "";
}

// A pass' bench, by numbers.
template <class OfPass>
class ByNumber : public NumberedBench {
 public:
  ByNumber(TuningBenchOf<OfPass>& bench, const TuneTaskOf<OfPass>& task)
      : variants{task.default_variant}, bench_(bench) {
    variants.insert(variants.end(), task.candidates.begin(), task.candidates.end());
  }

  // All of them.
  std::vector<Compiled> compile(const std::vector<Number>&, const std::function<bool()>& stop,
                                const std::function<void(int)>& done) override {
    return bench_.compile(variants, stop, done);
  }
  std::string check(const Number& number) override { return bench_.check(variants[number]); }
  std::vector<double> time(const Number& number, int launches) override {
    return bench_.time(variants[number], launches);
  }
  double seconds() override { return bench_.seconds(); }

  std::vector<OfPass> variants;

 private:
  TuningBenchOf<OfPass>& bench_;
};

template <class OfPass>
NumberedTask number(const TuneTaskOf<OfPass>& task, const std::vector<OfPass>& variants) {
  NumberedTask numbered;
  numbered.default_variant = 0;
  for (Number i = 1; i < variants.size(); ++i) numbered.candidates.push_back(i);
  numbered.budget_seconds = task.budget_seconds;
  numbered.cancelled = task.cancelled;
  if (task.progress)
    numbered.progress = [&](const TuneProgressOf<Number>& now) {
      task.progress({now.what, now.done, now.total, variants[now.best], now.best_us, now.default_us, now.seconds_left});
    };
  for (const OfPass& variant : variants) numbered.names.push_back(to_string(variant));
  return numbered;
}

}  // namespace

template <class OfPass>
TuneOutcomeOf<OfPass> tune(TuningBenchOf<OfPass>& bench, const TuneTaskOf<OfPass>& task) {
  ByNumber<OfPass> by_number(bench, task);
  const std::vector<OfPass>& variants = by_number.variants;
  const NumberedTask numbered = number(task, variants);
  NumberedOutcome outcome = Tuning(by_number, numbered).run();
  TuneOutcomeOf<OfPass> of_pass{variants[outcome.chosen],   outcome.chosen_us, outcome.default_us, outcome.noise, {},
                                std::move(outcome.complete)};
  for (auto& [variant, became, why, median_us, dispersion, launches] : outcome.candidates)
    of_pass.candidates.push_back({variants[variant], became, std::move(why), median_us, dispersion, launches});
  return of_pass;
}

template TuneOutcome tune(TuningBench& bench, const TuneTask& task);
template TuneOutcomeOf<BackwardVariant> tune(TuningBenchOf<BackwardVariant>& bench,
                                             const TuneTaskOf<BackwardVariant>& task);

}  // namespace flashjit::runtime
