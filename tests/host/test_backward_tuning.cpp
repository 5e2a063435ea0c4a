// SPDX-License-Identifier: Apache-2.0
// Tuning of gradients: what is measured and chosen, what a record of it is, and what calls make of it. The GPU is a
// table of times.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "flashjit/cache.h"
#include "flashjit/error.h"
#include "generator/backward.h"
#include "generator/backward_space.h"
#include "runtime/call/backward.h"
#include "runtime/tuning/autotuner.h"
#include "runtime/tuning/gradient_check.h"
#include "tests/support/cache_entries.h"
#include "tests/support/error_code.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tuning_records.h"

namespace {

using namespace flashjit;
using namespace flashjit::runtime;
using tests::code_of;
using tests::TemporaryDirectory;

const CallShape kShape{4, 4096, 4096, 16, 4}, kFewQueries{4, 32, 4096, 16, 4};
const BackwardVariant kDefault = parse_backward_variant("hopper-q80-kv128"),
                      kHopper = parse_backward_variant("hopper-q64-kv128"),
                      kMma = parse_backward_variant("mma-q64-kv128-w8-r1-s1"),
                      kFast = parse_backward_variant("mma-q32-kv128-w8-r1-s1"),
                      kWrong = parse_backward_variant("mma-q32-kv64-w4-r1-s1");

// The fast one takes half of the time, the wrong one a quarter.
class TableBench : public TuningBenchOf<BackwardVariant> {
 public:
  std::vector<Compiled> compile(const std::vector<BackwardVariant>& variants, const std::function<bool()>&,
                                const std::function<void(int)>&) override {
    std::vector<Compiled> results;
    for (const BackwardVariant& variant : variants) results.push_back({true, "", 0, to_string(variant)});
    return results;
  }
  std::string check(const BackwardVariant& variant) override { return variant == kWrong ? "dq is off" : ""; }
  std::vector<double> time(const BackwardVariant& variant, int launches) override {
    seconds_ += 1e-3 * launches;
    return std::vector<double>(static_cast<std::size_t>(launches), variant == kWrong  ? 25.
                                                                   : variant == kFast ? 50.
                                                                                      : 100.);
  }
  double seconds() override { return seconds_; }

 private:
  double seconds_ = 0;
};

CacheLayers layers_in(const std::filesystem::path& directory) {
  EngineOptions options;
  options.cache_directory = directory.string();
  return make_cache_layers(options);
}

// What an engine has for tuning of gradients.
struct Shop {
  explicit Shop(const std::filesystem::path& directory = {}, TuningPolicy policy = TuningPolicy::recorded)
      : layers(layers_in(directory)),
        records({layers.user, layers.all, {}}, log),
        tuner(options(policy), records, tally, log) {}

  AutotunerOptionsOf<BackwardPass> options(TuningPolicy policy) {
    const auto make = [this](const BackwardProblem& problem, const CallShape&, int, int) {
      ++benches;
      measured = problem;
      return std::make_unique<TableBench>();
    };
    return {policy, make, [] { return std::vector<std::pair<std::string, std::string>>{{"driver", "13.0"}}; }};
  }

  const Logger log{nullptr};
  const CacheLayers layers;
  Tally tally;
  int benches = 0;
  BackwardProblem measured;
  TuningRecordsOf<BackwardPass> records;
  AutotunerOf<BackwardPass> tuner;
  const TuningDevice device{0, tests::make_h200()};
};

BackwardProblem causal(bool deterministic = false) {
  BackwardProblem problem;
  problem.attention.causal = true;
  problem.deterministic = deterministic;
  return problem;
}

}  // namespace

TEST_CASE("tuning of gradients chooses the fastest that is right, and keeps a record beside forward's") {
  const TemporaryDirectory directory;
  Shop shop(directory.path());
  const BackwardTuningRecord record = shop.tuner.tune(causal(), kShape, {}, shop.device);
  CHECK(shop.benches == 1);
  CHECK(record.chosen == kFast);
  CHECK(record.default_variant == kDefault);
  CHECK(record.chosen_us == 50);
  CHECK(record.default_us == 100);
  const auto wrong = std::find_if(record.candidates.begin(), record.candidates.end(),
                                  [](const auto& each) { return each.variant == kWrong; });
  REQUIRE(wrong != record.candidates.end());
  CHECK(wrong->outcome == CandidateOutcome::wrong);
  CHECK(wrong->why == "dq is off");
  CHECK(record.candidates.size() ==
        generator::legal_backward_variants(causal().attention, find_architecture("sm_90a")).size());
  const std::string path = record_path(shop.device.identity, causal(), record.bucket);
  CHECK(path ==
        "tuning/nvidia-h200-sm_90a-132sm-140g-50m-1980mhz-3201mhz-6144b/"
        "bwd-bf16-d128-causal.qmore-kv8k-wmore.json");
  CHECK(std::filesystem::exists(directory.path() / path));

  Shop another(directory.path());  // as another process
  const auto choice = another.tuner.choose(causal(), record.bucket, another.device);
  CHECK(choice.tuned);
  CHECK(choice.variant == kFast);
  CHECK(choice.default_variant == kDefault);
  CHECK(another.tuner.tune(causal(), kShape, {}, another.device).chosen == kFast);
  CHECK(another.benches == 0);
  CHECK(another.records.all(another.device.identity).size() == 1);
  CHECK(another.records.chosen(causal(), find_architecture("sm_90a")) == std::vector{kFast});
  CHECK(another.records.chosen(causal(true), find_architecture("sm_90a")).empty());
}

TEST_CASE("deterministic gradients and those of biases and slopes have classes of their own, f32 and sinks do not") {
  const auto name = [](const char* text) { return to_string(tuning_class(parse_backward_problem(text))); };
  CHECK(name("bwd-bf16-d64-causal-deterministic") == "bwd-bf16-d64-causal-deterministic");
  CHECK(name("bwd-bf16-d64-causal-sinks-f32-dsinks") == "bwd-bf16-d64-causal");
  CHECK(name("bwd-bf16-d64-alibi-bias.f32-dslopes-dbias") == "bwd-bf16-d64-alibi-bias.f32-dslopes-dbias");
  Shop shop;
  BackwardProblem problem = causal(true);
  problem.f32 = problem.attention.sinks = problem.sinks = true;
  shop.tuner.tune(problem, kShape, {}, shop.device);
  CHECK(shop.measured == causal(true));
  CHECK(shop.tuner.choose(causal(true), shape_bucket(kShape, 132), shop.device).tuned);
  CHECK_FALSE(shop.tuner.choose(causal(), shape_bucket(kShape, 132), shop.device).tuned);
}

TEST_CASE("of few queries the default of gradients is mma's, and policies are those of forward's tuning") {
  Shop shop;
  CHECK(shop.tuner.tune(causal(), kFewQueries, {}, shop.device).default_variant == kMma);
  Shop frozen({}, TuningPolicy::frozen);
  CHECK(code_of([&] { frozen.tuner.tune(causal(), kShape, {}, frozen.device); }) == ErrorCode::unsupported);
  Shop eager({}, TuningPolicy::on_first_use);
  int settled = 0;
  CHECK(eager.tuner.choose_for_call(causal(), kShape, eager.device, [&] { ++settled; }).variant == kFast);
  CHECK(settled == 1);
  CHECK(eager.benches == 1);
  BackwardTuneOptions options;
  options.candidates = {parse_backward_variant("q16-kv16-w8")};
  CHECK(code_of([&] { shop.tuner.tune(causal(true), kShape, options, shop.device); }) == ErrorCode::invalid_argument);
  BackwardProblem paged;
  paged.attention.ragged = paged.attention.paged = true;
  CHECK(code_of([&] { shop.tuner.tune(paged, kShape, {}, shop.device); }) == ErrorCode::unsupported);
}

TEST_CASE("a record of gradients is JSON of a later format, which reads back") {
  Shop shop;
  const BackwardTuningRecord record = shop.tuner.tune(causal(true), kShape, {}, shop.device);
  const std::string json = to_json(record);
  CHECK(json.find("{\n  \"format\": 2,\n") == 0);
  CHECK(to_json(parse_backward_tuning_record(json)) == json);
  CHECK(code_of([&] { parse_tuning_record(json); }) == ErrorCode::unsupported);
  CHECK(code_of([&] { parse_backward_tuning_record(to_json(tests::make_record())); }) == ErrorCode::invalid_argument);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = json;
    changed.replace(changed.find(from), from.size(), to);
    return code_of([&] { parse_backward_tuning_record(changed); });
  };
  CHECK(with("\"format\": 2", "\"format\": 3") == ErrorCode::unsupported);
  CHECK(with("\"chosen\": \"mma-q32", "\"chosen\": \"mma-q31x") == ErrorCode::unsupported);
  CHECK(with("\"problem\": \"bwd-", "\"problem\": \"fwd-") == ErrorCode::invalid_argument);
}

TEST_CASE("a cache lists, verifies, exports and imports records of gradients, and finds a damaged one") {
  const TemporaryDirectory directory;
  EngineOptions options;
  options.cache_directory = (directory / "cache").string();
  {
    Shop shop(options.cache_directory);
    shop.tuner.tune(causal(), kShape, {}, shop.device);
    shop.tuner.tune(causal(true), kShape, {}, shop.device);
  }
  const Cache cache(options);
  REQUIRE(cache.records().size() == 2);
  CHECK(cache.verify().records == 2);
  tests::write_bytes(directory / "records.fjb", cache.export_bundle());
  EngineOptions elsewhere;
  elsewhere.cache_directory = (directory / "elsewhere").string();
  CHECK(Cache(elsewhere).import_bundle((directory / "records.fjb").string()).records == 2);
  Shop imported(elsewhere.cache_directory);
  CHECK(imported.tuner.choose(causal(), shape_bucket(kShape, 132), imported.device).variant == kFast);
  tests::write_bytes(directory / "cache" / cache.records().front().path, "{}");
  CHECK(cache.verify().damaged.size() == 1);
}

TEST_CASE("a call takes the variant that is asked for, else a record's, else the default") {
  const HostTensor rows(DType::bf16, {1, 128, 2, 128}), lse(DType::f32, {1, 2, 128});
  const Tensor packed = rows.view();
  HostTensor dq(DType::bf16, rows.shape());
  const GradientTensors into{dq.view(), {}, {}};
  const AttentionOptions opts;
  const Architecture& h100 = find_architecture("sm_90a");
  const auto chosen = [&](const Tensor& q, const std::optional<BackwardVariant>& asked,
                          const std::optional<BackwardVariant>& recorded) {
    BackwardOptions backward;
    backward.variant = asked;
    const Tensor out = packed, log_sum = lse.view();
    const GivenGradients given{packed, q, packed, packed, out, log_sum, into, opts, backward};
    BackwardCall call = validate_backward(given);
    choose_variant(call, h100, 1, recorded);
    return call.variant;
  };
  CHECK(chosen(packed, kWrong, kFast) == kWrong);
  CHECK(chosen(packed, {}, kFast) == kFast);
  CHECK(chosen(packed, {}, {}) == kHopper);
  CHECK(chosen(packed, {}, kHopper) == kHopper);
  Tensor repeated = packed;  // which has no tensor map
  repeated.strides[1] = 0;
  CHECK(chosen(repeated, {}, kHopper) == kMma);
  CHECK(chosen(repeated, {}, kFast) == kFast);
}

TEST_CASE("gradients of candidates are compared with the reference, and with the default's") {
  const CheckCase call(Problem{.head_dim = 16, .head_dim_v = 16, .causal = true}, kGradientCheckShapes.back());
  const HostTensor dout = HostTensor::random_normal(DType::bf16, {2, 140, 2, 16}, 3);
  const ExpectedGradients expected = expected_gradients(call, dout);
  const auto made = [&](double factor, int nan_at = -1) {
    std::vector<HostTensor> tensors;
    for (const auto* values : {&expected.low.dq, &expected.low.dk, &expected.low.dv}) {
      std::vector<double> scaled = *values;
      for (double& value : scaled) value *= factor;
      if (nan_at >= 0) scaled[static_cast<std::size_t>(nan_at)] = std::numeric_limits<double>::quiet_NaN();
      const Dims shape = values == &expected.low.dq ? Dims{2, 140, 2, 16} : Dims{2, 70, 2, 16};
      tensors.push_back(HostTensor::from_doubles(DType::bf16, shape, scaled.data(), scaled.size()));
    }
    return tensors;
  };
  CHECK(why_not_as_expected(made(1), expected) == "");
  CHECK(why_not_as_expected(made(1.3), expected).find("dq is off by ") == 0);
  CHECK(why_not_as_expected(made(1, 5), expected) != "");
  CHECK(why_unlike(made(1), made(1), expected) == "");
  CHECK(why_unlike(made(1.3), made(1), expected).find("dq is off by ") == 0);
  CHECK(why_unlike(made(1.01), made(1)) == "");
  CHECK(why_unlike(made(1.1), made(1)).find("dq differs from the default's by 0.1") == 0);
  CHECK(why_unlike(made(1, 5), made(1)) != "");
  CHECK(why_unlike(made(0), made(0)) == "");
}
