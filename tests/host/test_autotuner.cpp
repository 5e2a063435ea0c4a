// SPDX-License-Identifier: Apache-2.0
// What each tuning policy chooses and measures, what is kept, and who waits for whom. The GPU is a table of times.
#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flashjit/error.h"
#include "generator/variant_space.h"
#include "runtime/tuning/autotuner.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tuning_records.h"

namespace {

using namespace flashjit;
using namespace flashjit::runtime;
using tests::TemporaryDirectory;

const CallShape kShape{4, 4096, 4096, 16, 4};
const CallShape kOtherShape{1, 32, 4096, 16, 4};

ShapeBucket bucket_of_shape() { return shape_bucket(kShape, tests::make_h200().sm_count); }
Variant default_variant() { return generator::default_variant({}, find_architecture("sm_90a"), bucket_of_shape()); }

// Two variants that are not the default.
std::vector<Variant> challengers() {
  std::vector<Variant> variants = generator::legal_variants({}, find_architecture("sm_90a"));
  std::erase(variants, default_variant());
  variants.resize(2);
  return variants;
}

// The world as a test wants it. Its clock moves with the work alone.
struct World {
  Variant fastest = challengers().front();  // takes half as long as all others
  std::string compile_error;                // of the compiler, for all variants
  std::string bench_error;                  // of the device
  std::function<void()> while_compiling;    // once
  std::atomic<int> benches{0};
  std::atomic<int> launches{0};
  Problem measured;  // the last one
};

class WorldBench : public TuningBench {
 public:
  explicit WorldBench(World& world) : world_(world) {}

  std::vector<Compiled> compile(const std::vector<Variant>& variants, const std::function<bool()>& stop,
                                const std::function<void(int)>&) override {
    if (const auto work = std::exchange(world_.while_compiling, nullptr)) work();
    std::vector<Compiled> results;
    for (const Variant& variant : variants) {
      const bool tried = !stop();
      results.push_back({tried && world_.compile_error.empty(), world_.compile_error, 0, to_string(variant)});
    }
    return results;
  }
  std::string check(const Variant&) override { return {}; }
  std::vector<double> time(const Variant& variant, int launches) override {
    world_.launches += launches;
    seconds_ += 1e-3 * launches;
    return std::vector<double>(static_cast<std::size_t>(launches), variant == world_.fastest ? 50.0 : 100.0);
  }
  double seconds() override { return seconds_; }

 private:
  World& world_;
  double seconds_ = 0;
};

// What an engine has for tuning.
class Shop {
 public:
  Shop(World& world, TuningPolicy policy, const std::filesystem::path& directory = {})
      : log_([this](LogLevel level, const std::string& line) { note(level, line); }),
        records_(options_in(directory), log_),
        tuner_(options_of(world, policy), records_, tally_, log_) {}

  Autotuner* operator->() { return &tuner_; }
  Choice choose() { return tuner_.choose({}, bucket_of_shape(), device()); }
  Choice choose_for_call(const CallShape& shape = kShape) {
    return tuner_.choose_for_call({}, shape, device(), [this] { ++settled_; });
  }
  int settled() const { return settled_; }  // how often what is in flight was waited for
  TuningRecord tune(TuneOptions options = {}) {
    if (options.candidates.empty()) options.candidates = challengers();
    return tuner_.tune({}, kShape, options, device());
  }
  TuningRecords& records() { return records_; }
  Counters counters() const { return tally_.counters(); }
  bool has_said(LogLevel level, const std::string& text) {
    const std::lock_guard lock(mutex_);
    for (const auto& [said_level, line] : lines_) {
      if (said_level == level && line.find(text) != line.npos) return true;
    }
    return false;
  }
  static TuningDevice device() { return {0, tests::make_h200()}; }

 private:
  static TuningRecordsOptions options_in(const std::filesystem::path& directory) {
    EngineOptions options;
    options.cache_directory = directory.string();
    const CacheLayers layers = make_cache_layers(options);
    return {layers.user, layers.all, {}};
  }
  static AutotunerOptions options_of(World& world, TuningPolicy policy) {
    const auto make_bench = [&world](const Problem& problem, const CallShape&, int, int) {
      ++world.benches;
      world.measured = problem;
      if (!world.bench_error.empty()) throw Error(ErrorCode::driver, world.bench_error);
      return std::make_unique<WorldBench>(world);
    };
    return {policy, make_bench, [] { return std::vector<std::pair<std::string, std::string>>{{"driver", "13.0"}}; }};
  }
  void note(LogLevel level, const std::string& line) {
    const std::lock_guard lock(mutex_);
    lines_.emplace_back(level, line);
  }

  int settled_ = 0;
  std::mutex mutex_;
  std::vector<std::pair<LogLevel, std::string>> lines_;
  const Logger log_;
  Tally tally_;
  TuningRecords records_;
  Autotuner tuner_;
};

// What a record in the cache says that the default rules do not.
Variant keep_a_record(Shop& shop) {
  TuningRecord record = tests::make_record();
  record.bucket = bucket_of_shape();
  record.chosen = challengers().back();
  shop.records().keep(record);
  return record.chosen;
}

std::string refusal(const std::function<void()>& work, ErrorCode code) {
  try {
    work();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "";
}

std::map<std::string, std::string> facts_of(const TuningRecord& record) {
  return {record.environment.begin(), record.environment.end()};
}

}  // namespace

TEST_CASE("without records the default rules choose, and no policy but on_first_use measures") {
  for (const TuningPolicy policy : {TuningPolicy::off, TuningPolicy::recorded, TuningPolicy::frozen}) {
    World world;
    Shop shop(world, policy);
    for (const Choice& choice : {shop.choose(), shop.choose_for_call()}) {
      CHECK(choice.variant == default_variant());
      CHECK(choice.default_variant == default_variant());
      CHECK_FALSE(choice.tuned);
    }
    CHECK(world.benches == 0);
    CHECK(shop.counters().tunings == 0);
    CHECK(shop.counters().timed_launches == 0);
    CHECK(shop.counters().records_used == 0);
  }
}

TEST_CASE("a record chooses under every policy but off, and then nothing is measured") {
  for (const TuningPolicy policy : {TuningPolicy::recorded, TuningPolicy::on_first_use, TuningPolicy::frozen}) {
    World world;
    Shop shop(world, policy);
    const Variant recorded = keep_a_record(shop);
    for (const Choice& choice : {shop.choose(), shop.choose_for_call()}) {
      CHECK(choice.variant == recorded);
      CHECK(choice.default_variant == default_variant());
      CHECK(choice.tuned);
    }
    CHECK(world.benches == 0);
    CHECK(shop.counters().records_used == 2);
  }
  World world;
  Shop shop(world, TuningPolicy::off);
  keep_a_record(shop);
  CHECK(shop.choose().variant == default_variant());
  CHECK(shop.counters().records_used == 0);
}

TEST_CASE("under frozen nothing is measured, whatever is asked") {
  World world;
  Shop shop(world, TuningPolicy::frozen);
  keep_a_record(shop);
  TuneOptions options;
  for (const bool again : {false, true}) {
    options.again = again;
    CHECK(refusal([&] { shop.tune(options); }, ErrorCode::unsupported) ==
          "tune: measures nothing when the tuning policy is frozen");
  }
  CHECK(world.benches == 0);
  CHECK(shop.counters().tunings == 0);
  CHECK(shop.counters().timed_launches == 0);
}

TEST_CASE("on first use a call measures once for its bucket; preparing measures nothing") {
  World world;
  Shop shop(world, TuningPolicy::on_first_use);
  CHECK(shop.choose().variant == default_variant());
  CHECK(world.benches == 0);
  CHECK(shop.settled() == 0);
  const Choice choice = shop.choose_for_call();
  CHECK(choice.variant == world.fastest);
  CHECK(choice.tuned);
  CHECK(shop.settled() == 1);
  CHECK(shop.choose_for_call().variant == world.fastest);
  CHECK(shop.settled() == 1);
  CHECK(shop.choose().variant == world.fastest);
  CHECK(world.benches == 1);
  CHECK(shop.counters().tunings == 1);
  CHECK(shop.counters().timed_launches == static_cast<std::uint64_t>(world.launches));
  shop.choose_for_call(kOtherShape);
  CHECK(shop.counters().tunings == 2);
}

TEST_CASE("where records are given nothing is measured under any policy, and they choose") {
  for (const TuningPolicy policy : {TuningPolicy::recorded, TuningPolicy::on_first_use}) {
    World world;
    Shop shop(world, policy);
    shop.records().use_only(Shop::device().identity, {});
    CHECK(shop.choose_for_call().variant == default_variant());
    TuningRecord record = tests::make_record();
    record.bucket = bucket_of_shape();
    record.chosen = challengers().back();
    shop.records().use_only(Shop::device().identity, {record});
    CHECK(shop.choose_for_call().variant == record.chosen);
    CHECK(refusal([&] { shop.tune(); }, ErrorCode::unsupported) ==
          "tune: measures nothing on a device whose records were given");
    CHECK(world.benches == 0);
  }
}

TEST_CASE("on first use no call fails for its tuning: it gets the default and a warning") {
  World world;
  world.bench_error = "out of memory";
  Shop shop(world, TuningPolicy::on_first_use);
  const Choice choice = shop.choose_for_call();
  CHECK(choice.variant == default_variant());
  CHECK_FALSE(choice.tuned);
  CHECK(world.benches == 1);
  CHECK(shop.has_said(LogLevel::warning, "the default variant is used: out of memory"));
}

TEST_CASE("a call without keys measures nothing") {
  World world;
  Shop shop(world, TuningPolicy::on_first_use);
  shop.choose_for_call({1, 128, 0, 4, 4});
  CHECK(world.benches == 0);
}

TEST_CASE("a record says what was measured, where and when") {
  const TemporaryDirectory directory;
  World world;
  Shop shop(world, TuningPolicy::recorded, directory.path());
  const TuningRecord record = shop.tune();
  CHECK(record.device == tests::make_h200());
  CHECK(record.problem == Problem{});
  CHECK(record.bucket == bucket_of_shape());
  CHECK(record.shape == kShape);
  CHECK(record.default_variant == default_variant());
  CHECK(record.chosen == world.fastest);
  CHECK(record.chosen_us == 50);
  CHECK(record.default_us == 100);
  CHECK(record.candidates.size() == 1 + challengers().size());
  CHECK(record.candidates.front().variant == default_variant());
  const auto facts = facts_of(record);
  CHECK(facts.at("driver") == "13.0");
  CHECK(facts.at("complete") == "yes");
  CHECK(facts.at("date").size() == std::string("2026-01-01T00:00:00Z").size());
  CHECK(std::stod(facts.at("seconds")) > 0);
  CHECK(std::filesystem::exists(directory / tests::path_of(record)));

  Shop next(world, TuningPolicy::recorded, directory.path());
  CHECK(next.choose().variant == world.fastest);
  CHECK(to_json(next.tune()) == to_json(record));
  CHECK(next.counters().tunings == 0);
}

TEST_CASE("what has a record is measured again only when that is asked for") {
  World world;
  Shop shop(world, TuningPolicy::recorded);
  shop.tune();
  world.fastest = challengers().back();
  CHECK(shop.tune().chosen == challengers().front());
  CHECK(shop.counters().tunings == 1);
  TuneOptions again;
  again.again = true;
  CHECK(shop.tune(again).chosen == challengers().back());
  CHECK(shop.counters().tunings == 2);
  CHECK(shop.choose().variant == challengers().back());
}

TEST_CASE("what is not to be kept, what was cancelled and what failed at the default leave no record") {
  const TemporaryDirectory directory;
  World world;
  Shop shop(world, TuningPolicy::recorded, directory.path());
  TuneOptions unkept;
  unkept.keep = false;
  CHECK(shop.tune(unkept).chosen == world.fastest);
  TuneOptions cancelled;
  cancelled.cancelled = [] { return true; };
  const TuningRecord record = shop.tune(cancelled);
  CHECK(record.chosen == default_variant());
  CHECK(facts_of(record).at("complete") == "cancelled");
  world.compile_error = "refused";
  CHECK(facts_of(shop.tune()).at("complete") == "default failed");
  CHECK(shop.choose().variant == default_variant());
  CHECK_FALSE(shop.choose().tuned);
  CHECK_FALSE(std::filesystem::exists(directory / tests::path_of(record)));
  CHECK(shop.counters().tunings == 3);
}

TEST_CASE("a tuning that is cancelled leaves the record that was there") {
  World world;
  Shop shop(world, TuningPolicy::recorded);
  shop.tune();
  TuneOptions cancelled;
  cancelled.again = true;
  cancelled.cancelled = [] { return true; };
  CHECK(shop.tune(cancelled).chosen == default_variant());
  CHECK(shop.choose().variant == world.fastest);
}

TEST_CASE("candidates are those that are given, each once and the default beside them") {
  World world;
  Shop shop(world, TuningPolicy::recorded);
  TuneOptions options;
  const Variant challenger = challengers().front();
  options.candidates = {challenger, default_variant(), challenger};
  CHECK(shop.tune(options).candidates.size() == 2);
  options.again = true;
  options.candidates = {parse_variant("hopper-q128-kv128-s9")};
  CHECK_FALSE(refusal([&] { shop.tune(options); }, ErrorCode::invalid_argument).empty());
}

TEST_CASE("a shape that cannot be is refused with the name of its field") {
  World world;
  Shop shop(world, TuningPolicy::recorded);
  const auto said_of = [&](auto field, std::int64_t value) {
    CallShape shape = kShape;
    shape.*field = value;
    return refusal([&] { shop->tune({}, shape, {}, Shop::device()); }, ErrorCode::invalid_argument);
  };
  CHECK(said_of(&CallShape::batch, 0) == "shape: batch must be at least 1, was 0");
  CHECK(said_of(&CallShape::seqlen_q, 0) == "shape: seqlen_q must be at least 1, was 0");
  CHECK(said_of(&CallShape::seqlen_kv, -1) == "shape: seqlen_kv must be at least 1, was -1");
  CHECK(said_of(&CallShape::num_heads_q, 0) == "shape: num_heads_q must be at least 1, was 0");
  CHECK(said_of(&CallShape::num_heads_kv, 0) == "shape: num_heads_kv must be at least 1, was 0");
  CHECK(said_of(&CallShape::num_heads_q, 6) == "shape: num_heads_q must be a multiple of num_heads_kv = 4, was 6");
  CHECK(world.benches == 0);
}

namespace {

// Of users' texts, two of one class and one of another.
struct TextProblems {
  Problem first = with_score(Score("score * 2")), second = with_score(Score("score * a", {{"a", 0.5}}));
  Problem of_tensors = with_score(Score("score + a(key)", {{"a", Tensor(nullptr, DType::f16, {9})}}));

 private:
  static Problem with_score(const Score& score) {
    Problem problem;
    problem.score = score.source();
    return problem;
  }
};

Variant other_than_default(const Problem& problem) {
  std::vector<Variant> variants = generator::legal_variants(problem, find_architecture("sm_90a"));
  std::erase(variants, generator::default_variant(problem, find_architecture("sm_90a"), bucket_of_shape()));
  return variants.front();
}

}  // namespace

TEST_CASE("what is measured for one text serves all of its class, and no other") {
  const TemporaryDirectory directory;
  const TextProblems texts;
  World world;
  world.fastest = other_than_default(texts.first);
  TuneOptions options;
  options.candidates = {world.fastest};
  Shop shop(world, TuningPolicy::recorded, directory.path());
  const TuningRecord record = shop->tune(texts.first, kShape, options, Shop::device());
  CHECK(record.chosen == world.fastest);
  CHECK(record.problem == tuning_class(texts.first));
  CHECK(world.measured == tuning_class(texts.first));
  CHECK(std::filesystem::exists(directory / record_path(record.device, texts.second, record.bucket)));

  Shop next(world, TuningPolicy::recorded, directory.path());
  for (Shop* each : {&shop, &next}) {
    for (const Problem& problem : {texts.first, texts.second, tuning_class(texts.second)})
      CHECK((*each)->choose(problem, bucket_of_shape(), Shop::device()).variant == world.fastest);
    CHECK_FALSE((*each)->choose(texts.of_tensors, bucket_of_shape(), Shop::device()).tuned);
  }
  CHECK(to_json(next->tune(texts.second, kShape, options, Shop::device())) == to_json(record));
  CHECK(next.counters().tunings == 0);
  CHECK(next.records().chosen(texts.second, find_architecture("sm_90a")) == std::vector{world.fastest});
  CHECK(next.records().chosen(texts.of_tensors, find_architecture("sm_90a")).empty());
  REQUIRE(next.records().all(tests::make_h200()).size() == 1);
  CHECK(next.records().all(tests::make_h200()).front()->problem == tuning_class(texts.first));
}

TEST_CASE("on first use the first text of a class measures for all of them") {
  const TextProblems texts;
  World world;
  Shop shop(world, TuningPolicy::on_first_use);
  const auto choose = [&](const Problem& problem) {
    return shop->choose_for_call(problem, kShape, Shop::device(), [] {});
  };
  world.fastest = other_than_default(texts.first);
  CHECK(choose(texts.first).variant == world.fastest);
  CHECK(choose(texts.second).variant == world.fastest);
  CHECK(world.benches == 1);
  choose(texts.of_tensors);
  CHECK(world.benches == 2);
  CHECK(world.measured == tuning_class(texts.of_tensors));
}

TEST_CASE("threads that tune the same measure it once") {
  World world;
  Shop shop(world, TuningPolicy::on_first_use);
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { right += shop.tune().chosen == world.fastest; });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(right == 4);
  CHECK(world.benches == 1);
}

TEST_CASE("two engines on one directory measure it once: the second waits and takes the record") {
  const TemporaryDirectory directory;
  World world;
  Shop first(world, TuningPolicy::recorded, directory.path()), second(world, TuningPolicy::recorded, directory.path());
  std::thread other;
  world.while_compiling = [&] {
    other = std::thread([&] { CHECK(second.tune().chosen == world.fastest); });
    while (!second.has_said(LogLevel::info, "waiting for another process that is tuning it")) std::this_thread::yield();
  };
  CHECK(first.tune().chosen == world.fastest);
  other.join();
  CHECK(world.benches == 1);
  CHECK(second.counters().tunings == 0);
}

TEST_CASE("a record that another engine has kept since is found before anything is measured") {
  const TemporaryDirectory directory;
  World world;
  Shop here(world, TuningPolicy::recorded, directory.path()),
      elsewhere(world, TuningPolicy::recorded, directory.path());
  CHECK(here.choose().variant == default_variant());
  elsewhere.tune();
  CHECK(here.choose().variant == default_variant());  // a running engine keeps its choices
  CHECK(here.tune().chosen == world.fastest);
  CHECK(here.choose().variant == world.fastest);
  CHECK(world.benches == 1);
}

TEST_CASE("waiting for another engine ends when it is cancelled") {
  const TemporaryDirectory directory;
  World world;
  Shop first(world, TuningPolicy::recorded, directory.path()), second(world, TuningPolicy::recorded, directory.path());
  std::atomic<int> asked{0};
  world.while_compiling = [&] {
    TuneOptions options;
    options.cancelled = [&] { return ++asked > 3; };
    CHECK(second.tune(options).chosen == default_variant());
  };
  CHECK(first.tune().chosen == world.fastest);
  CHECK(asked > 3);
}
