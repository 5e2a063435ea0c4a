// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numbers>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "flashjit/error.h"
#include "runtime/tuning/tuner.h"

namespace {

using flashjit::Error;
using flashjit::ErrorCode;
using flashjit::MmaVariant;
using flashjit::TunedCandidate;
using flashjit::TuneProgress;
using flashjit::Variant;
using flashjit::runtime::tune;
using flashjit::runtime::TuneOutcome;
using flashjit::runtime::TuneTask;
using flashjit::runtime::TuningBench;
using Outcome = TunedCandidate::Outcome;

// Kernel i, 0 being the default, by a tunable that counts them: nothing is compiled here.
Variant kernel(int i) {
  MmaVariant variant;
  variant.block_q = 16 * (i + 1);
  return variant;
}
int index_of(const Variant& variant) { return flashjit::block_q(variant) / 16 - 1; }

struct FakeKernel {
  double us = 100;
  std::string compile_error, check_error;
  int spill_bytes = 0;
  std::vector<double> first_us;                         // of its first launches
  int good_launches = std::numeric_limits<int>::max();  // then launching it is an error
  std::string identity;                                 // empty: one of its own
};

// What disturbs the launches.
struct Disturbance {
  double noise = 0;  // standard deviation, relative
  double tail = 0;   // share of launches that take up to three times as long
  double drift_per_second = 0;
};

constexpr double kStart = 1000;  // what the clock shows at first

// A device of which everything is known, and a clock that only the bench's own work moves.
class FakeBench : public TuningBench {
 public:
  explicit FakeBench(std::vector<FakeKernel> all, const Disturbance& disturbance = {}, std::uint64_t seed = 1)
      : kernels(std::move(all)), launches(kernels.size()), disturbance_(disturbance), random_(seed) {}

  std::vector<Compiled> compile(const std::vector<Variant>& variants, const std::function<bool()>& stop,
                                const std::function<void(int)>& done) override {
    std::vector<Compiled> results(variants.size());
    for (std::size_t i = 0; i < variants.size() && !stop(); ++i) {
      step(compile_seconds);
      const FakeKernel& kernel = find(variants[i]);
      results[i] = {kernel.compile_error.empty(), kernel.compile_error, kernel.spill_bytes,
                    kernel.identity.empty() ? std::to_string(index_of(variants[i])) : kernel.identity};
      done(static_cast<int>(i) + 1);
    }
    return results;
  }
  std::string check(const Variant& variant) override {
    step(check_seconds);
    checked.insert(index_of(variant));
    return find(variant).check_error;
  }
  std::vector<double> time(const Variant& variant, int count) override {
    const FakeKernel& kernel = find(variant);
    int& launched = launches[static_cast<std::size_t>(index_of(variant))];
    if (checked.count(index_of(variant)) == 0) ++launches_unchecked;
    if (launched + count > kernel.good_launches) {
      ++refused;
      throw Error(launch_error, "cuLaunchKernelEx failed");
    }
    std::vector<double> times;
    double seconds = 0;
    for (int i = 0; i < count; ++i, ++launched) {
      const auto launch = static_cast<std::size_t>(launched);
      times.push_back((launch < kernel.first_us.size() ? kernel.first_us[launch] : kernel.us) * disturbance());
      order.push_back(index_of(variant));
      if (order.size() % 2 == 0) times.back() *= second;
      seconds += times.back() * 1e-6 + launch_seconds;
    }
    step(seconds);
    return times;
  }
  double seconds() override { return now; }

  int total_launches() const { return std::accumulate(launches.begin(), launches.end(), 0); }

  std::vector<FakeKernel> kernels;
  std::vector<int> launches;
  std::set<int> checked;
  std::vector<int> order;  // who was launched, one after the other
  int launches_unchecked = 0, refused = 0;
  ErrorCode launch_error = ErrorCode::driver;
  double second = 1;  // every second launch takes so many times as long
  double compile_seconds = 0.05, check_seconds = 0.01, launch_seconds = 100e-6;
  double now = kStart, longest_step = 0;
  int steps = 0;

 private:
  const FakeKernel& find(const Variant& variant) const {
    return kernels.at(static_cast<std::size_t>(index_of(variant)));
  }
  void step(double seconds) {
    now += seconds;
    longest_step = std::max(longest_step, seconds);
    ++steps;
  }
  double uniform() { return (static_cast<double>(random_() >> 11) + 0.5) * 0x1p-53; }
  // The standard's distributions differ between libraries; this one (Box-Muller) does not.
  double normal() { return std::sqrt(-2 * std::log(uniform())) * std::cos(2 * std::numbers::pi * uniform()); }
  double disturbance() {
    const double slowed = uniform() < disturbance_.tail ? 1 + 2 * uniform() : 1;
    return slowed * (1 + disturbance_.noise * normal()) * (1 + disturbance_.drift_per_second * (now - kStart));
  }

  Disturbance disturbance_;
  std::mt19937_64 random_;
};

TuneTask task_of(const FakeBench& bench, double budget_seconds = 20) {
  TuneTask task;
  task.default_variant = kernel(0);
  for (std::size_t i = 1; i < bench.kernels.size(); ++i) task.candidates.push_back(kernel(static_cast<int>(i)));
  task.budget_seconds = budget_seconds;
  return task;
}

// The default takes 100 us, and the others what is given.
std::vector<FakeKernel> field(std::initializer_list<double> us) {
  std::vector<FakeKernel> kernels(1);
  for (const double each : us) kernels.emplace_back().us = each;
  return kernels;
}

// So many others, uniformly between two times.
std::vector<FakeKernel> random_field(int others, double least_us, double most_us, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<FakeKernel> kernels(1);
  for (int i = 0; i < others; ++i)
    kernels.emplace_back().us = least_us + (most_us - least_us) * static_cast<double>(random() >> 11) * 0x1p-53;
  return kernels;
}

TuneOutcome tune_all(FakeBench& bench, double budget_seconds = 20) {
  const TuneOutcome outcome = tune(bench, task_of(bench, budget_seconds));
  REQUIRE(outcome.candidates.size() == bench.kernels.size());
  CHECK(bench.launches_unchecked == 0);
  return outcome;
}

int count(const TuneOutcome& outcome, Outcome what) {
  return static_cast<int>(std::count_if(outcome.candidates.begin(), outcome.candidates.end(),
                                        [&](const TunedCandidate& each) { return each.outcome == what; }));
}

constexpr Disturbance kNoisy = {0.02, 0, 0};
constexpr Disturbance kHeavyTails = {0.02, 0.05, 0};
constexpr Disturbance kUsual = {0.005, 0.01, 0.005};
constexpr int kLaunchesToTheEnd = 40;  // of one that no round stops, before the comparison
constexpr int kMostInTheEnd = 6;

// Its ratios differ so much between the turns that the better one is clearly faster only after 50 pairs.
FakeBench long_comparison() {
  FakeBench bench(field({92}));
  bench.second = 1.1;
  return bench;
}

}  // namespace

// --- What is chosen --------------------------------------------------------------------------------------------------

TEST_CASE("noise does not win over the default") {
  const std::pair<Disturbance, int> series[] = {{kNoisy, 1000}, {kHeavyTails, 300}};
  for (const auto& [disturbance, runs] : series) {
    int replaced = 0, slower = 0;
    for (int run = 0; run < runs; ++run) {
      const auto seed = static_cast<std::uint64_t>(run);
      FakeBench bench(random_field(60, 99.5, 100.5, seed), disturbance, seed);
      const int chosen = index_of(tune_all(bench).chosen);
      replaced += chosen != 0;
      slower += bench.kernels[static_cast<std::size_t>(chosen)].us > 100;
    }
    // The challenger is truly up to 0.5 % faster. To be chosen it must look 1.7 % faster: 1 % and three standard errors
    // of 0.46 % in quadrature. That takes 2.6 standard errors of luck, 4 of 1000 runs; where it is not faster, 1 of
    // 10000.
    CHECK(replaced * 100 < runs);
    CHECK(slower == 0);
  }
}

TEST_CASE("what is 5 % faster is found among 60, whatever the noise") {
  constexpr int kRuns = 300;
  for (const Disturbance& disturbance : {kNoisy, kHeavyTails}) {
    int found = 0;
    for (int run = 0; run < kRuns; ++run) {
      const auto seed = static_cast<std::uint64_t>(run);
      std::vector<FakeKernel> kernels = random_field(60, 100, 160, seed);
      const int best = 1 + run % 60;
      kernels[static_cast<std::size_t>(best)].us = 95;
      FakeBench bench(std::move(kernels), disturbance, seed);
      found += index_of(tune_all(bench).chosen) == best;
    }
    CHECK(found * 100 >= 99 * kRuns);
  }
}

TEST_CASE("tuning twice chooses the same, or what is as fast within 1 %") {
  constexpr int kRuns = 200;
  int agree = 0;
  for (std::uint64_t run = 0; run < kRuns; ++run) {
    const std::vector<FakeKernel> kernels = random_field(80, 90 + static_cast<double>(run % 13), 150, run);
    double us[2];
    for (std::uint64_t i = 0; i < 2; ++i) {
      FakeBench bench(kernels, {0.01, 0.02, 0}, 2 * run + i);
      us[i] = kernels[static_cast<std::size_t>(index_of(tune_all(bench).chosen))].us;
      CHECK(us[i] <= 100);
    }
    agree += std::abs(us[0] / us[1] - 1) <= 0.01;
  }
  CHECK(agree * 100 >= 95 * kRuns);
}

TEST_CASE("a drift of the clocks by a tenth fools nobody") {
  for (const double faster : {100.0, 97.0}) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      std::vector<FakeKernel> kernels = random_field(60, 100, 104, seed);
      kernels[60].us = faster;  // the last of the list, so that the drift is all against it
      FakeBench still(kernels, {0.005, 0, 0}, seed);
      still.compile_seconds = still.check_seconds = 0;
      tune_all(still);
      for (const double drift : {0.1, -0.1}) {
        FakeBench bench(kernels, {0.005, 0, drift / (still.now - kStart)}, seed);
        bench.compile_seconds = bench.check_seconds = 0;
        CHECK(index_of(tune_all(bench).chosen) == (faster < 100 ? 60 : 0));
      }
    }
  }
}

TEST_CASE("whoever goes second may be slower: they take turns in it") {
  FakeBench bench = long_comparison();
  const TuneOutcome outcome = tune_all(bench);
  CHECK(outcome.chosen == kernel(1));
  CHECK(outcome.default_us / outcome.chosen_us == doctest::Approx(100.0 / 92));
}

TEST_CASE("without noise the bar is 1 %") {
  FakeBench close(field({99.1}));
  TuneOutcome outcome = tune_all(close);
  CHECK(outcome.chosen == kernel(0));
  CHECK(outcome.noise == doctest::Approx(0.01));
  CHECK(outcome.chosen_us == 100);
  CHECK(outcome.default_us == 100);

  FakeBench beyond(field({98.9}));
  outcome = tune_all(beyond);
  CHECK(outcome.chosen == kernel(1));
  CHECK(outcome.noise == doctest::Approx(0.01));
  CHECK(outcome.chosen_us == 98.9);
  CHECK(outcome.default_us == 100);
  CHECK(outcome.complete == "yes");
}

TEST_CASE("the bar rises with the noise of the comparison") {
  FakeBench bench(field({99}), {0.05, 0, 0});
  const TuneOutcome outcome = tune_all(bench);
  CHECK(outcome.noise > 0.02);
  CHECK(outcome.chosen == kernel(0));
}

TEST_CASE("equal candidates: the first of the list is chosen, and the default before all") {
  FakeBench bench(field({120, 80, 80, 80}));
  CHECK(tune_all(bench).chosen == kernel(2));
  FakeBench like_default(field({100, 100}));
  CHECK(tune_all(like_default).chosen == kernel(0));
}

TEST_CASE("equal answers of the bench give equal outcomes") {
  const auto run = [] {
    FakeBench bench(random_field(40, 90, 130, 5), kHeavyTails, 6);
    return tune_all(bench);
  };
  const TuneOutcome a = run(), b = run();
  CHECK(a.chosen == b.chosen);
  CHECK(a.chosen_us == b.chosen_us);
  CHECK(a.noise == b.noise);
  for (std::size_t i = 0; i < a.candidates.size(); ++i) {
    CHECK(a.candidates[i].outcome == b.candidates[i].outcome);
    CHECK(a.candidates[i].launches == b.candidates[i].launches);
    CHECK(a.candidates[i].median_us == b.candidates[i].median_us);
  }
}

TEST_CASE("the gain that is told is not that of the lucky launches that chose the winner") {
  constexpr int kRuns = 100;
  double gains = 0;
  for (std::uint64_t seed = 0; seed < kRuns; ++seed) {
    FakeBench bench(random_field(60, 96, 96, seed), kNoisy, seed);
    const TuneOutcome outcome = tune_all(bench);
    gains += outcome.default_us / outcome.chosen_us / kRuns;
  }
  CHECK(gains == doctest::Approx(100.0 / 96).epsilon(0.003));
}

// --- Who is left out -------------------------------------------------------------------------------------------------

TEST_CASE("wrong, spilling, refused and equal kernels are told apart, and none of them is timed") {
  std::vector<FakeKernel> kernels = field({10, 20, 30, 40, 50, 90});
  kernels[1].check_error = "out differs by 3.5";
  kernels[2].spill_bytes = 16;
  kernels[3].compile_error = "too many registers";
  kernels[4].identity = "0";  // of the default
  kernels[5].identity = kernels[6].identity = "same";
  FakeBench bench(std::move(kernels));
  const TuneOutcome outcome = tune_all(bench);
  const auto check = [&](int i, Outcome what, const std::string& why) {
    const TunedCandidate& candidate = outcome.candidates[static_cast<std::size_t>(i)];
    CHECK(candidate.variant == kernel(i));
    CHECK(candidate.outcome == what);
    CHECK(candidate.why == why);
    CHECK(candidate.launches == bench.launches[static_cast<std::size_t>(i)]);
    CHECK((candidate.launches > 0) == (what == Outcome::measured));
    CHECK((candidate.median_us > 0) == (what == Outcome::measured));
  };
  check(0, Outcome::measured, "");
  check(1, Outcome::wrong, "out differs by 3.5");
  check(2, Outcome::spills, "spills 16 bytes of registers");
  check(3, Outcome::failed, "too many registers");
  check(4, Outcome::duplicate, "the machine code of " + to_string(kernel(0)));
  check(5, Outcome::measured, "");
  check(6, Outcome::duplicate, "the machine code of " + to_string(kernel(5)));
  CHECK(outcome.chosen == kernel(5));
  CHECK(outcome.complete == "yes");
  CHECK(bench.checked == std::set<int>{0, 1, 5});
}

TEST_CASE("one that cannot be launched fails, at whichever launch, and the others go on") {
  constexpr int kPairs = 20;
  for (int good = 0; good <= kLaunchesToTheEnd + kPairs + 1; ++good) {
    CAPTURE(good);
    std::vector<FakeKernel> kernels = field({80, 81});
    kernels[1].good_launches = good;
    FakeBench bench(std::move(kernels));
    const TuneOutcome outcome = tune_all(bench);
    const bool failed = good < kLaunchesToTheEnd + kPairs;
    CHECK(outcome.complete == "yes");
    CHECK(outcome.candidates[1].outcome == (failed ? Outcome::failed : Outcome::measured));
    CHECK(outcome.candidates[1].why == (failed ? "cuLaunchKernelEx failed" : ""));
    CHECK(bench.refused == failed);
    // One that fails in the comparison is not followed by another challenger.
    CHECK(outcome.chosen == kernel(good < kLaunchesToTheEnd ? 2 : failed ? 0 : 1));
  }
}

TEST_CASE("what fails in the comparison does not win, however far ahead it was") {
  FakeBench bench = long_comparison();
  bench.kernels[1].good_launches = kLaunchesToTheEnd + 55;
  const TuneOutcome outcome = tune_all(bench);
  CHECK(outcome.candidates[1].launches == kLaunchesToTheEnd + 55);
  CHECK(outcome.chosen == kernel(0));
}

TEST_CASE("an error that is not the kernel's ends the tuning") {
  std::vector<FakeKernel> kernels = field({80});
  kernels[1].good_launches = 3;
  FakeBench bench(std::move(kernels));
  bench.launch_error = ErrorCode::no_device;
  CHECK_THROWS_AS(tune(bench, task_of(bench)), const Error&);
}

TEST_CASE("when all others fail the default is chosen") {
  const std::function<void(FakeKernel&)> failures[] = {
      [](FakeKernel& each) { each.compile_error = "no"; }, [](FakeKernel& each) { each.check_error = "no"; },
      [](FakeKernel& each) { each.spill_bytes = 8; }, [](FakeKernel& each) { each.good_launches = 0; }};
  for (const auto& fail : failures) {
    std::vector<FakeKernel> kernels = field({50, 60, 70});
    std::for_each(kernels.begin() + 1, kernels.end(), fail);
    FakeBench bench(std::move(kernels));
    const TuneOutcome outcome = tune_all(bench);
    CHECK(outcome.chosen == kernel(0));
    CHECK(outcome.chosen_us == 100);
    CHECK(outcome.complete == "yes");
  }
}

TEST_CASE("without candidates the default is chosen and timed") {
  FakeBench bench(field({}));
  const TuneOutcome outcome = tune_all(bench);
  CHECK(outcome.chosen == kernel(0));
  CHECK(outcome.default_us == 100);
  CHECK(bench.total_launches() == kLaunchesToTheEnd);
}

TEST_CASE("a default that fails ends the tuning, and is chosen") {
  const std::pair<Outcome, std::function<void(FakeKernel&)>> failures[] = {
      {Outcome::failed, [](FakeKernel& kernel) { kernel.compile_error = "no"; }},
      {Outcome::wrong, [](FakeKernel& kernel) { kernel.check_error = "no"; }},
      {Outcome::failed, [](FakeKernel& kernel) { kernel.good_launches = 0; }},
      {Outcome::failed, [](FakeKernel& kernel) { kernel.good_launches = 20; }},
      {Outcome::failed, [](FakeKernel& kernel) { kernel.good_launches = kLaunchesToTheEnd + 8; }}};
  for (const auto& [what, fail] : failures) {
    std::vector<FakeKernel> kernels = field({80, 90});
    fail(kernels[0]);
    FakeBench bench(std::move(kernels));
    const TuneOutcome outcome = tune_all(bench);
    CHECK(outcome.chosen == kernel(0));
    CHECK(outcome.complete == "default failed");
    CHECK(outcome.candidates[0].outcome == what);
    CHECK(outcome.candidates[0].launches <= bench.kernels[0].good_launches);
    if (bench.kernels[0].good_launches == 0) CHECK(bench.total_launches() == 0);
  }
}

TEST_CASE("a default that spills is compared with") {
  std::vector<FakeKernel> kernels = field({98, 99.5});
  kernels[0].spill_bytes = 8;
  FakeBench bench(std::move(kernels));
  const TuneOutcome outcome = tune_all(bench);
  CHECK(outcome.candidates[0].outcome == Outcome::measured);
  CHECK(outcome.chosen == kernel(1));
}

// --- What it costs ---------------------------------------------------------------------------------------------------

TEST_CASE("few launches are spent on losers") {
  FakeBench bench(random_field(100, 95, 200, 3), kUsual);
  const TuneOutcome outcome = tune_all(bench);
  CHECK(bench.total_launches() * 6 < 101 * kLaunchesToTheEnd);
  for (const TunedCandidate& candidate : outcome.candidates) {
    const double us = bench.kernels[static_cast<std::size_t>(index_of(candidate.variant))].us;
    if (us > 130) CHECK(candidate.launches == 2);
    if (candidate.outcome == Outcome::stopped) {
      CHECK(candidate.launches < kLaunchesToTheEnd);
      CHECK(candidate.why.find(" % slower than the fastest after " + std::to_string(candidate.launches) +
                               " launches") != std::string::npos);
    }
  }
}

TEST_CASE("of many equals six are measured to the end, and the slowest default is") {
  std::vector<FakeKernel> kernels = random_field(60, 50, 50, 1);
  FakeBench bench(std::move(kernels), kUsual);
  const TuneOutcome outcome = tune_all(bench);
  CHECK(count(outcome, Outcome::measured) == 1 + kMostInTheEnd);
  CHECK(count(outcome, Outcome::stopped) == 60 - kMostInTheEnd);
  CHECK(outcome.candidates[0].outcome == Outcome::measured);
  CHECK(outcome.candidates[0].launches > kLaunchesToTheEnd);
}

TEST_CASE("a disturbed launch does not stop the fastest: its interval touches that of the best") {
  std::vector<FakeKernel> kernels = field({100, 100, 90, 100, 200});
  kernels[3].first_us = {270};
  FakeBench bench(std::move(kernels), {0.005, 0, 0});
  const TuneOutcome outcome = tune_all(bench);
  CHECK(outcome.chosen == kernel(3));
  CHECK(outcome.candidates[3].dispersion < 0.01);
  CHECK(outcome.candidates[5].launches == 2);
}

TEST_CASE("launches that lie close together by chance are not trusted more than others") {
  std::vector<FakeKernel> kernels = field({100, 90, 100, 100});
  kernels[0].first_us = kernels[3].first_us = kernels[4].first_us = {85, 115};
  kernels[1].first_us = {95, 95};
  kernels[2].first_us = {130, 130};
  FakeBench bench(std::move(kernels));
  CHECK(tune_all(bench).chosen == kernel(2));
}

TEST_CASE("passes go forwards and backwards") {
  FakeBench bench(field({100, 100}));
  tune_all(bench);
  const std::vector<int> order = {0, 0, 1, 1, 2, 2, 2, 2, 1, 1, 0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 1, 1, 0, 0};
  REQUIRE(bench.order.size() > order.size());
  CHECK(std::equal(order.begin(), order.end(), bench.order.begin()));
}

TEST_CASE("a clear comparison ends early, one that is not takes all its pairs") {
  FakeBench clear(field({80}), {0.003, 0, 0});
  tune_all(clear);
  CHECK(clear.launches[0] == kLaunchesToTheEnd + 20);
  FakeBench open(field({98.9}), kNoisy);
  tune_all(open);
  CHECK(open.launches[0] == kLaunchesToTheEnd + 60);
}

TEST_CASE("the budget is kept, but for the step under way") {
  for (const double kernel_us : {20.0, 2000.0, 17000.0, 120000.0}) {
    for (const double budget : {0.0, 0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 60.0, 600.0}) {
      CAPTURE(kernel_us);
      CAPTURE(budget);
      std::vector<FakeKernel> kernels = random_field(100, 0.9 * kernel_us, 1.5 * kernel_us, 4);
      kernels[0].us = kernel_us;
      FakeBench bench(std::move(kernels), kUsual);
      const TuneOutcome outcome = tune_all(bench, budget);
      CHECK(bench.now - kStart <= budget + bench.longest_step);
      if (outcome.complete == "yes")
        CHECK(count(outcome, Outcome::untried) == 0);
      else
        CHECK(outcome.complete == "budget");
      if (budget > 500 || (budget >= 12 && kernel_us < 5000)) CHECK(outcome.complete == "yes");
      if (budget <= 5) CHECK(outcome.complete == "budget");
      if (budget < 0.1) CHECK(outcome.chosen == kernel(0));
      for (const TunedCandidate& each : outcome.candidates)
        if (each.outcome == Outcome::untried) CHECK(each.why == "budget");
    }
  }
}

TEST_CASE("130 kernels of 17 ms are tuned in the 20 seconds that they have") {
  std::vector<FakeKernel> kernels = random_field(130, 16000, 30000, 2);
  kernels[0].us = 17000;
  kernels[77].us = 15500;
  FakeBench bench(std::move(kernels), {0.002, 0.01, 0.001});
  const TuneOutcome outcome = tune_all(bench);
  CHECK(outcome.complete == "yes");
  CHECK(outcome.chosen == kernel(77));
}

TEST_CASE("kernels too slow for the budget leave the comparison its time") {
  FakeBench bench(random_field(100, 90e3, 100e3, 1), kUsual);
  bench.kernels[0].us = 110e3;
  const TuneOutcome outcome = tune_all(bench);
  CHECK(outcome.complete == "budget");
  CHECK(outcome.chosen != kernel(0));
}

TEST_CASE("a comparison that the budget cuts to a few pairs decides nothing") {
  FakeBench bench(field({800e3}));
  bench.kernels[0].us = 1e6;
  const TuneOutcome outcome = tune_all(bench);
  CHECK(outcome.complete == "budget");
  CHECK(outcome.candidates[1].outcome == Outcome::measured);
  CHECK(outcome.chosen == kernel(0));
}

TEST_CASE("half of the kernels compiled within the budget are better than none") {
  FakeBench bench(field({97, 96, 95, 94, 93, 92, 91, 90}));
  bench.compile_seconds = 2.5;
  const TuneOutcome outcome = tune_all(bench);
  CHECK(outcome.complete == "budget");
  CHECK(count(outcome, Outcome::untried) == 4);
  CHECK(outcome.chosen == kernel(4));
}

// --- Cancelling and progress -----------------------------------------------------------------------------------------

TEST_CASE("cancelled at whichever step, it takes no other step and keeps the default") {
  for (const FakeBench& fresh : {FakeBench(field({80, 90, 95, 130, 200}), kUsual), long_comparison()}) {
    const auto run = [](FakeBench& bench, int allowed_steps) {
      TuneTask task = task_of(bench);
      bool told = false;  // once is enough
      task.cancelled = [&] { return bench.steps >= allowed_steps && !std::exchange(told, true); };
      return tune(bench, task);
    };
    FakeBench whole = fresh;
    CHECK(run(whole, std::numeric_limits<int>::max()).chosen == kernel(1));
    for (int allowed = 0; allowed < whole.steps; ++allowed) {
      CAPTURE(allowed);
      FakeBench bench = fresh;
      const TuneOutcome outcome = run(bench, allowed);
      CHECK(bench.steps == allowed);
      CHECK(outcome.complete == "cancelled");
      CHECK(outcome.chosen == kernel(0));
      CHECK(outcome.chosen_us == outcome.default_us);
      for (const TunedCandidate& each : outcome.candidates)
        if (each.outcome == Outcome::untried) CHECK(each.why == "cancelled");
    }
    FakeBench decided = fresh;
    const TuneOutcome outcome = run(decided, whole.steps);
    CHECK(outcome.complete == "yes");
    CHECK(outcome.chosen == kernel(1));
  }
}

TEST_CASE("cancelled() is asked again after 50 ms of launches, or one launch") {
  for (const double us : {20.0, 5000.0, 40000.0, 90000.0}) {
    CAPTURE(us);
    std::vector<FakeKernel> kernels(6);
    for (FakeKernel& each : kernels) each.us = us;
    FakeBench bench(std::move(kernels));
    TuneTask task = task_of(bench, 60);
    double asked = bench.now, longest = 0;
    task.cancelled = [&] {
      longest = std::max(longest, bench.now - asked);
      asked = bench.now;
      return false;
    };
    tune(bench, task);
    CHECK(longest <=
          std::max({0.05, us * 1e-6 + bench.launch_seconds, bench.compile_seconds, bench.check_seconds}) + 1e-9);
  }
}

TEST_CASE("progress goes through the steps, and the time left falls") {
  FakeBench bench(random_field(20, 90, 140, 1), kUsual);
  TuneTask task = task_of(bench);
  std::vector<TuneProgress> all;
  task.progress = [&](const TuneProgress& progress) { all.push_back(progress); };
  const TuneOutcome outcome = tune(bench, task);
  std::vector<std::string> steps;
  double left = task.budget_seconds;
  for (const TuneProgress& each : all) {
    if (steps.empty() || steps.back() != each.what) steps.push_back(each.what);
    CHECK(each.done >= 1);
    CHECK(each.done <= each.total);
    CHECK(each.seconds_left <= left);
    CHECK(each.seconds_left >= 0);
    left = each.seconds_left;
    CHECK(each.best_us <= each.default_us);
  }
  CHECK(steps == std::vector<std::string>{"compiling", "checking", "measuring", "confirming"});
  CHECK(all.front().best == kernel(0));
  CHECK(all.front().total == 21);
  CHECK(all.back().best == outcome.chosen);
}

TEST_CASE("what the progress callback throws is no error of the tuning") {
  FakeBench quiet(random_field(20, 90, 140, 1), kUsual), loud(random_field(20, 90, 140, 1), kUsual);
  TuneTask task = task_of(loud);
  task.progress = [](const TuneProgress&) { throw std::runtime_error("no space left"); };
  const TuneOutcome expected = tune(quiet, task_of(quiet));
  const TuneOutcome outcome = tune(loud, task);
  CHECK(outcome.chosen == expected.chosen);
  CHECK(outcome.complete == "yes");
}
