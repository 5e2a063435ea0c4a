// SPDX-License-Identifier: Apache-2.0
// Tuning from the engine's side: what is chosen, what is refused, what is kept, and when nothing is measured.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "flashjit/cache.h"
#include "generator/family.h"
#include "tests/gpu/attention_case.h"
#include "tests/gpu/driver_calls.h"
#include "tests/support/backward_case.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;
using tests::AttentionCase;
using tests::TemporaryDirectory;
namespace fs = std::filesystem;
using Outcome = TunedCandidate::Outcome;

const Problem kProblem{DType::bf16, 64, 64, false};
const CallShape kShape{4, 2048, 2048, 16, 16};  // long enough to be timed well
const CallShape kCaseShape{2, 33, 77, 4, 2};    // of an AttentionCase

EngineOptions options_in(const TemporaryDirectory& directory, TuningPolicy policy = TuningPolicy::recorded) {
  EngineOptions options = EngineOptions::from_environment();
  options.policy = Policy::compile;
  options.tuning = policy;
  options.cache_directory = directory.path().string();
  options.system_cache_directories.clear();
  options.bundles.clear();
  options.log = nullptr;
  return options;
}

// Of the mma family, which every device has.
TuneOptions with_candidates(const std::vector<const char*>& spellings) {
  TuneOptions options;
  options.again = true;  // there may be a record inside the library
  for (const char* spelling : spellings) options.candidates.push_back(parse_variant(spelling));
  return options;
}
TuneOptions with_six_candidates() {
  return with_candidates({"mma-q64-kv64-w4", "mma-q64-kv32-w4", "mma-q128-kv64-w4", "mma-q128-kv32-w4",
                          "mma-q128-kv64-w8", "mma-q64-kv64-w4-k2-v1"});
}

const TunedCandidate& find(const TuningRecord& record, const Variant& variant) {
  const auto found = std::find_if(record.candidates.begin(), record.candidates.end(),
                                  [&](const TunedCandidate& candidate) { return candidate.variant == variant; });
  REQUIRE(found != record.candidates.end());
  return *found;
}

void replace(const fs::path& file, const std::string& original, const std::string& replacement) {
  std::ifstream in(file, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(in), {});
  const std::size_t at = text.find(original);
  REQUIRE(at != std::string::npos);
  text.replace(at, original.size(), replacement);
  std::ofstream(file, std::ios::binary | std::ios::trunc) << text;
}

constexpr const char* kWrong = "mma-q64-kv32-w4";
constexpr const char* kSpilling = "mma-q128-kv64-w8";

// The device code, but the first of these variants computes with a scale that is off, and the second keeps more numbers
// at once than a thread has registers.
void plant_faults(const fs::path& directory) {
  fs::copy(FLASHJIT_SOURCE_DIR "/templates", directory, fs::copy_options::recursive);
  replace(directory / "mma/warp_attention.cuh", R"(softmax(scale_log2), q_rows(q_rows), lane(lane) {
)",
          R"(softmax(Config::kBlockKv == 32 ? 1.05f * scale_log2 : scale_log2), q_rows(q_rows), lane(lane) {
    if constexpr (Config::kWarps == 8) {
      unsigned read[320], mixed = 0;
#pragma unroll
      for (int i = 0; i < 320; ++i) asm volatile("mov.u32 %0, %%clock;" : "=r"(read[i]));
#pragma unroll
      for (int i = 319; i >= 0; --i) mixed = mixed * 31 + read[i];
      if (mixed == 1) asm volatile("trap;");
    }
)");
}

// A file with all that the directory's cache holds.
std::string export_bundle(const EngineOptions& options, const TemporaryDirectory& directory) {
  const std::string file = (directory / "kernels.fjb").string();
  std::ofstream(file, std::ios::binary) << Cache(options).export_bundle();
  return file;
}

// Whether the call was refused while its stream was captured.
bool is_refused_in_capture(Engine& engine, const AttentionCase& c, const DeviceTensor& out) {
  const tests::ScopedStream stream;
  DRIVER_CALL(cuCtxSynchronize);
  AttentionOptions opts;
  opts.stream = stream.get();
  bool refused = false;
  DRIVER_CALL(cuStreamBeginCapture, stream.get(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  try {
    engine.attention(c.q, c.k, c.v, out, opts);
  } catch (const Error& error) {
    refused = error.code() == ErrorCode::unsupported;
  }
  CUgraph graph = nullptr;
  DRIVER_CALL(cuStreamEndCapture, stream.get(), &graph);
  if (graph) DRIVER_CALL(cuGraphDestroy, graph);
  return refused;
}

}  // namespace

TEST_CASE("tuning twice chooses the same variant, or one that is as fast") {
  const TemporaryDirectory directory;
  Engine engine(options_in(directory));
  const TuneOptions options = with_six_candidates();
  const TuningRecord first = engine.tune(kProblem, kShape, options, 0);
  const TuningRecord second = engine.tune(kProblem, kShape, options, 0);
  for (const TuningRecord& record : {first, second}) {
    CHECK(record.candidates.size() >= 6);
    CHECK(find(record, record.default_variant).outcome == Outcome::measured);
    CHECK(record.default_us > 0);
    CHECK(record.chosen_us <= record.default_us);
    CHECK(record.noise >= 0.01);
  }
  INFO(to_string(first.chosen), " and ", to_string(second.chosen));
  const double as_fast = 1 + first.noise + second.noise;
  CHECK(find(second, first.chosen).median_us <= as_fast * find(second, second.chosen).median_us);
  CHECK(engine.counters().tunings == 2);
  CHECK(engine.counters().timed_launches > 0);
}

TEST_CASE("a wrong kernel and a spilling one are never timed and never chosen") {
  const TemporaryDirectory directory, templates;
  plant_faults(templates / "templates");
  EngineOptions options = options_in(directory);
  options.template_directory = (templates / "templates").string();
  Engine engine(options);
  const TuningRecord record = engine.tune(kProblem, kShape, with_candidates({"mma-q64-kv64-w4", kWrong, kSpilling}), 0);
  const TunedCandidate& wrong = find(record, parse_variant(kWrong));
  CHECK(wrong.outcome == Outcome::wrong);
  CHECK(wrong.launches == 0);
  CHECK_FALSE(wrong.why.empty());
  const TunedCandidate& spilling = find(record, parse_variant(kSpilling));
  CHECK(spilling.outcome == Outcome::spills);
  CHECK(spilling.launches == 0);
  CHECK(find(record, parse_variant("mma-q64-kv64-w4")).launches > 0);
  CHECK(record.chosen != wrong.variant);
  CHECK(record.chosen != spilling.variant);
}

TEST_CASE("on first use a call tunes once, outside of captures only") {
  const TemporaryDirectory directory;
  Engine engine(options_in(directory, TuningPolicy::on_first_use));
  // A problem of which the library has no record.
  const AttentionCase c({.head_dim = 40, .head_dim_v = 40});
  const tests::ScopedContext context(0);
  const DeviceTensor out = c.poisoned_out();
  CHECK(is_refused_in_capture(engine, c, out));
  CHECK(engine.counters().tunings == 0);
  CHECK(engine.counters().timed_launches == 0);

  c.check_out(engine.attention(c.q, c.k, c.v));
  CHECK(engine.counters().tunings == 1);
  CHECK(engine.counters().records_used == 1);
  const std::uint64_t launches = engine.counters().timed_launches;
  CHECK(launches > 0);
  c.check_out(engine.attention(c.q, c.k, c.v));
  CHECK_FALSE(is_refused_in_capture(engine, c, out));
  CHECK(engine.counters().tunings == 1);
  CHECK(engine.counters().timed_launches == launches);
}

TEST_CASE("under frozen and recorded nothing is measured") {
  for (const TuningPolicy policy : {TuningPolicy::frozen, TuningPolicy::recorded}) {
    const TemporaryDirectory directory;
    Engine engine(options_in(directory, policy));
    const AttentionCase c;
    c.check_out(engine.attention(c.q, c.k, c.v));
    engine.prepare(kProblem, 0);
    if (policy == TuningPolicy::frozen) CHECK_THROWS_AS(engine.tune(kProblem, kShape, with_six_candidates(), 0), Error);
    CHECK(engine.counters().tunings == 0);
    CHECK(engine.counters().timed_launches == 0);
  }
}

TEST_CASE("with an exported bundle a fresh machine compiles and measures nothing") {
  const TemporaryDirectory directory, fresh;
  const AttentionCase c;
  const EngineOptions options = options_in(directory);
  TuningRecord record;
  {
    Engine engine(options);
    record = engine.tune(kProblem, kCaseShape, with_six_candidates(), 0);
  }
  EngineOptions elsewhere = options_in(fresh, TuningPolicy::on_first_use);
  elsewhere.bundles = {export_bundle(options, directory)};
  elsewhere.nvrtc_path = "/nowhere/libnvrtc.so";
  Engine engine(elsewhere);
  const DeviceTensor out = c.poisoned_out();
  CHECK(engine.prepare(c.q, c.k, c.v, out).variant == record.chosen);
  engine.attention(c.q, c.k, c.v, out);
  c.check_out(out);
  const Counters counters = engine.counters();
  CHECK(counters.compiles == 0);
  CHECK(counters.tunings == 0);
  CHECK(counters.timed_launches == 0);
  CHECK(counters.records_used == 1);
  // With what combines split keys, where the chosen one may split them.
  CHECK(counters.bundle_hits == (generator::splits_kv(record.chosen) ? 2 : 1));
  const std::vector<TuningRecord> records = engine.tuning_records(0);
  CHECK(std::any_of(records.begin(), records.end(), [&](const TuningRecord& known) {
    return known.problem == record.problem && known.bucket == record.bucket && known.chosen == record.chosen;
  }));
}

TEST_CASE("a bundle without the kernel that a record chooses is enough: the default takes its place") {
  const TemporaryDirectory directory, fresh;
  const AttentionCase c;
  EngineOptions defaults = options_in(directory, TuningPolicy::off);
  { Engine(defaults).attention(c.q, c.k, c.v); }
  EngineOptions options = options_in(fresh);
  options.bundles = {export_bundle(defaults, directory)};
  {
    Engine engine(options);  // makes a record, and what it chooses is then removed
    TuneOptions tuning = with_six_candidates();
    engine.tune(kProblem, kCaseShape, tuning, 0);
    for (const auto& file : fs::recursive_directory_iterator(fresh.path()))
      if (file.path().extension() == ".fjc") fs::remove(file.path());
  }
  options.policy = Policy::cache_only;
  Engine engine(options);
  c.check_out(engine.attention(c.q, c.k, c.v));
  CHECK(engine.counters().bundle_hits == 2);  // and what combines split keys
}

TEST_CASE("what was prepared keeps its variant until the engine is asked to adopt another") {
  const TemporaryDirectory directory;
  Engine engine(options_in(directory));
  const AttentionCase c;
  c.check_out(engine.attention(c.q, c.k, c.v));
  TuneOptions options = with_six_candidates();
  const TuningRecord record = engine.tune(kProblem, kCaseShape, options, 0);
  const std::uint64_t compiles = engine.counters().compiles;
  c.check_out(engine.attention(c.q, c.k, c.v));
  CHECK(engine.counters().compiles == compiles);
  options.again = false;
  options.adopt = true;
  CHECK(engine.tune(kProblem, kCaseShape, options, 0).chosen == record.chosen);
  CHECK(engine.counters().tunings == 1);
  c.check_out(engine.attention(c.q, c.k, c.v));

  Engine next(options_in(directory));
  const std::vector<KernelInfo> infos = next.prepare(kProblem, 0);
  CHECK(std::any_of(infos.begin(), infos.end(),
                    [&](const KernelInfo& info) { return info.tuned && info.variant == record.chosen; }));
}

TEST_CASE("what is tuned for one text is adopted by another of its class, and by none of another class") {
  const TemporaryDirectory directory;
  Engine engine(options_in(directory));
  const AttentionCase c;
  const DeviceTensor out = c.poisoned_out();
  const auto with_score = [](const Score& score) {
    AttentionOptions options;
    options.score = score;
    return options;
  };
  const AttentionOptions first = with_score(Score("score * 0.5f")), second = with_score(Score("score * 2"));
  const AttentionOptions of_tensors = with_score(Score("score + a(0, 0, head, key)", {{"a", c.q}}));
  const auto variant_of = [&](const AttentionOptions& options) {
    return engine.prepare(c.q, c.k, c.v, out, options).variant;
  };
  const auto all = {first, second, of_tensors};
  for (const AttentionOptions& options : all) engine.attention(c.q, c.k, c.v, out, options);
  const Variant of_other_class = variant_of(of_tensors);

  TuneOptions options = with_candidates({"mma-q64-kv64-w4", "mma-q64-kv32-w4"});
  options.adopt = true;
  const Problem problem = problem_of(DType::bf16, 64, 64, first);
  const TuningRecord record = engine.tune(problem, kCaseShape, options, 0);
  CHECK(record.problem == tuning_class(problem));
  CHECK(find(record, record.default_variant).outcome == Outcome::measured);
  for (const AttentionOptions& each : {first, second}) CHECK(variant_of(each) == record.chosen);
  CHECK(variant_of(of_tensors) == of_other_class);
  const std::uint64_t compiles = engine.counters().compiles;
  for (const AttentionOptions& each : all) engine.attention(c.q, c.k, c.v, out, each);
  CHECK(engine.counters().compiles == compiles);
}

TEST_CASE("gradients are tuned, and calls take what was chosen") {
  const TemporaryDirectory directory;
  BackwardProblem problem;
  problem.attention.head_dim = problem.attention.head_dim_v = 64;
  problem.attention.softcap = true;  // of the mma family, which every device has
  problem.deterministic = true;
  tests::BackwardCase c({.batch = 4, .seqlen_q = 512, .seqlen_kv = 512, .num_heads_q = 8, .num_heads_kv = 8});
  c.options.softcap = 20;
  c.deterministic = true;
  BackwardTuneOptions options;
  for (const char* spelling : {"q64-kv64-w4-r1-s1", "q64-kv64-w4-r1-s2", "q64-kv64-w8-r1-s1", "q32-kv64-w4-r2-s1"})
    options.candidates.push_back(parse_backward_variant(spelling));
  const CallShape shape{4, 512, 512, 8, 8};
  Engine engine(options_in(directory));
  const BackwardTuningRecord record = engine.tune_backward(problem, shape, options, 0);
  CHECK(record.problem == problem);
  CHECK(record.default_us > 0);
  for (const BackwardTunedCandidate& each : record.candidates) {
    CAPTURE(to_string(each.variant));
    CAPTURE(each.why);
    CHECK((each.outcome == Outcome::measured || each.outcome == Outcome::stopped || each.outcome == Outcome::spills));
  }
  REQUIRE(engine.backward_tuning_records(0).size() == 1);

  Engine next(options_in(directory));
  const std::vector<BackwardKernelInfo> infos = next.prepare_backward(problem, 0);
  CHECK(std::any_of(infos.begin(), infos.end(),
                    [&](const BackwardKernelInfo& info) { return info.tuned && info.variant == record.chosen; }));
  next.prepare(problem.attention, 0);
  const Counters before = next.counters();
  c.check(next);
  CHECK(next.counters().compiles == before.compiles);
  CHECK(next.counters().records_used > before.records_used);
}
