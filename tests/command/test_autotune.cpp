// SPDX-License-Identifier: Apache-2.0
// flashjit autotune as far as it goes without a GPU: what is tuned, in which order, and how it is told.
#include <doctest/doctest.h>
#include <flashjit/error.h>
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/tune/run.h"
#include "cli/tune/shapes.h"
#include "cli/tune/table.h"
#include "tests/support/cache_entries.h"
#include "tests/support/command.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tuning_records.h"

namespace {

namespace fs = std::filesystem;
using namespace flashjit;
using namespace flashjit::tests;
using State = cli::TuneResult::State;

constexpr int kSms = 132;

// Runs what must fail, and leave no file.
std::string refusal(const std::string& arguments, const std::string& shapes = "") {
  const TemporaryDirectory directory;
  write_bytes(directory / "shapes.txt", shapes);
  const std::string why =
      expect_refusal(arguments, run_command(directory.path(), kBareEnvironment, "autotune " + arguments));
  CHECK(std::distance(fs::directory_iterator(directory.path()), fs::directory_iterator()) == 1);
  return why;
}

std::string why_no_shapes(const std::string& text) {
  try {
    cli::parse_shapes("f", text);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid_argument);
    return error.what();
  }
  return "";
}

cli::TuneSelection of_lengths(const std::string& seqlens) {
  cli::TuneSelection selection;
  selection.seqlens = seqlens;
  return selection;
}

cli::TuneResult result_of(State state, const TuningRecord& record) {
  return {record.problem, record.problem, record.bucket, record.shape, state, false, record, {}};
}

}  // namespace

TEST_CASE("autotune refuses bad options before it asks for a GPU") {
  CHECK(mentions(refusal(""), "needs one of --grid, --shapes and --seqlen"));
  CHECK(mentions(refusal("--grid backward"), "--grid: must be forward, was 'backward'"));
  CHECK(mentions(refusal("--grid forward --seqlen 512"), "--grid"));
  CHECK(mentions(refusal("--shapes nowhere.txt"), "--shapes: nowhere.txt cannot be read"));
  CHECK(mentions(refusal("--shapes ."), "--shapes: . must be a file with shapes, is not a regular file"));
  CHECK(mentions(refusal("--shapes /dev/zero"), "is not a regular file"));
  CHECK(mentions(refusal("--shapes shapes.txt"), "must have at least one line"));
  CHECK(mentions(refusal("--shapes shapes.txt", "bf16 128 full 1 512 512 16 5\n"),
                 "shapes.txt:1: heads_kv: must divide the 16 heads of q, was 5"));
  for (const char* seqlen : {"0", "1k", "64x", "-4", "4294967296"}) {
    CHECK(mentions(refusal(fmt::format("--seqlen={}", seqlen)), "--seqlen: must be a whole number from 1"));
  }
  CHECK(mentions(refusal("--seqlen 512,"), "--seqlen: must be a list separated by commas, was '512,'"));
  CHECK(mentions(refusal("--seqlen 512 --heads 6 --heads-kv 4"), "--heads-kv: must divide the 6 heads"));
  CHECK(mentions(refusal("--seqlen 512 --head-dim 12"), "--head-dim"));
  CHECK(mentions(refusal("--seqlen 512 --dtype f32"), "--dtype"));
  CHECK(mentions(refusal("--seqlen 512 --mask maybe"), "--mask: must be full or causal, was 'maybe'"));
  CHECK(mentions(refusal("--seqlen 512 --budget 0"), "--budget"));
  CHECK(mentions(refusal("--seqlen 512 --block-mask"), "--block-mask: must be made of --boolean-mask, --documents"));
  CHECK(mentions(refusal("--seqlen 512 --capture a=1"), "--capture: a must be used in the text of --score or --mask"));
  CHECK(mentions(refusal("--seqlen 512 --score 'score + a(key)' --capture a=no.npy"), "no.npy"));
  CHECK(mentions(refusal("--grid forward --score 'score * 2'"), "--score requires --seqlen"));
  CHECK(mentions(refusal("--grid forward --block-mask"), "--block-mask requires --seqlen"));
  CHECK(mentions(refusal("--grid forward --mask 'key < 9'"),
                 "--mask: must be full, causal or both of them with --grid, was 'key < 9'"));
  CHECK(mentions(refusal("--seqlen 512 --device first"), "--device: must be all or a number, was 'first'"));
  CHECK(mentions(refusal("--report nowhere/page.html"), "--report"));
}

TEST_CASE("autotune says that it needs a GPU, and writes nothing without one") {
  for (const char* arguments :
       {"--grid forward", "--seqlen 512 --dry-run", "--report page.html", "--builtin records.json",
        "--seqlen 512 --score 'score * a' --capture a=2 --mask causal --mask 'key % 3 == 0' --block-mask"}) {
    CHECK(mentions(refusal(arguments), "autotune: needs a GPU"));
  }
}

TEST_CASE("help of autotune has the options and an example") {
  const TemporaryDirectory directory;
  const Outcome outcome = run_command(directory.path(), kBareEnvironment, "autotune --help");
  CHECK(outcome.exit_code == 0);
  for (const char* option : {"--grid", "--shapes", "--seqlen", "--budget", "--device", "--again", "--jobs", "--dry-run",
                             "--report", "--builtin", "--json", "Examples:"}) {
    CHECK(mentions(outcome.out, option));
  }
}

TEST_CASE("a file of shapes has a line for each, with comments, and lists where problems differ") {
  const auto cases = cli::parse_shapes("f",
                                       "# dtype head_dim mask batch seqlen_q seqlen_kv heads_q heads_kv\n\n"
                                       "bf16 192x128 causal 4 64 8192 32 8  # prompt\n"
                                       "bf16,f16 64,128 full,causal 1 512 1024 16 16");
  REQUIRE(cases.size() == 1 + 8);
  CHECK(cases[0].problem == Problem{DType::bf16, 192, 128, true});
  CHECK(cases[0].shape == CallShape{4, 64, 8192, 32, 8});
  CHECK(cases[1].problem == Problem{DType::bf16, 64, 64, false});
  CHECK(cases[8].problem == Problem{DType::f16, 128, 128, true});
  CHECK(cases[8].shape == CallShape{1, 512, 1024, 16, 16});
}

TEST_CASE("an error in a file of shapes names the line and the field") {
  const std::string good = "bf16 128 full 1 512 512 16 16\n";
  CHECK(why_no_shapes(good) == "");
  CHECK(why_no_shapes(good + "\nbf16 128 full 1 512 512 16") ==
        "--shapes: f:3: must have the 8 fields dtype head_dim mask batch seqlen_q seqlen_kv heads_q heads_kv, has 7");
  CHECK(mentions(why_no_shapes(good + "f32 128 full 1 512 512 16 16"), "f:2: dtype: must be bf16 or f16, was 'f32'"));
  CHECK(mentions(why_no_shapes("bf16 100 full 1 512 512 16 16"),
                 "f:1: head_dim: that of q and k must be a multiple of 8"));
  CHECK(mentions(why_no_shapes("bf16 128 no 1 512 512 16 16"), "f:1: mask: must be full or causal, was 'no'"));
  CHECK(mentions(why_no_shapes("bf16 128 full 0 512 512 16 16"), "f:1: batch: must be a whole number from 1 to"));
  CHECK(mentions(why_no_shapes("bf16 128 full 1 5e2 512 16 16"), "f:1: seqlen_q: must be a whole number"));
  CHECK(mentions(why_no_shapes("bf16 128 full 1 512 -1 16 16"), "f:1: seqlen_kv: must be a whole number"));
  CHECK(mentions(why_no_shapes("bf16 128 full 1 512 512 x 16"), "f:1: heads_q: must be a whole number"));
  CHECK(mentions(why_no_shapes("bf16 128 full 1 512 512 16 32"), "f:1: heads_kv: must divide"));
  CHECK(mentions(why_no_shapes("# nothing\n"), "must have at least one line"));
}

TEST_CASE("the grid is that of the benchmark, and lists combine") {
  cli::TuneSelection grid;
  grid.grid = "forward";
  CHECK(grid.cases().size() == 36);
  grid.problems.masks = "causal";
  grid.problems.dtypes = "bf16,f16";
  CHECK(grid.cases().size() == 36);
  CHECK(grid.cases().front().shape == CallShape{32, 512, 512, 32, 32});
  cli::TuneSelection lists = of_lengths("512,64x8192");
  lists.problems.head_dims = "64,128";
  lists.heads = 8;
  lists.heads_kv = 2;
  const auto cases = lists.cases();
  REQUIRE(cases.size() == 8);
  CHECK(cases[1].shape == CallShape{1, 64, 8192, 8, 2});
}

TEST_CASE("under a window the keys of a shape are those that a query sees") {
  cli::TuneSelection selection = of_lengths("4096,64x8192,512");
  selection.problems.features.window = "1023,0";
  const auto cases = selection.cases();
  REQUIRE(cases.size() == 3);  // a window that ends at the query's own key makes one problem of both masks
  for (const auto& each : cases) CHECK(each.problem == Problem{DType::bf16, 128, 128, true, true});
  CHECK(cases[0].shape == CallShape{1, 4096, 1024, 16, 16});
  CHECK(cases[1].shape == CallShape{1, 64, 1024, 16, 16});
  CHECK(cases[2].shape == CallShape{1, 512, 512, 16, 16});

  selection.problems.features.window = "1000,-1";
  const auto by_mask = selection.cases();
  REQUIRE(by_mask.size() == 6);
  CHECK(by_mask[0].problem == Problem{DType::bf16, 128, 128, false, true});
  CHECK(by_mask[0].shape == CallShape{1, 4096, 4096, 16, 16});
  CHECK(by_mask[3].problem == Problem{DType::bf16, 128, 128, true, true});
  CHECK(by_mask[3].shape == CallShape{1, 4096, 1001, 16, 16});
}

TEST_CASE("in chunks the keys of a shape are those of a chunk") {
  cli::TuneSelection selection = of_lengths("16384,64x4096");
  selection.problems.masks = "causal";
  selection.problems.features.chunk = 8192;
  const auto cases = selection.cases();
  REQUIRE(cases.size() == 2);
  for (const auto& each : cases) CHECK(each.problem.chunk);
  CHECK(cases[0].shape == CallShape{1, 16384, 8192, 16, 16});
  CHECK(cases[1].shape == CallShape{1, 64, 4096, 16, 16});
}

TEST_CASE("a cap, ALiBi and sinks are of each problem, and change no shape") {
  cli::TuneSelection selection = of_lengths("4096");
  selection.problems.features.softcap = 30.0f;
  selection.problems.features.alibi = selection.problems.features.sinks = true;
  const auto cases = selection.cases();
  REQUIRE(cases.size() == 2);
  for (const auto& each : cases) {
    CHECK(each.problem.softcap);
    CHECK(each.problem.alibi);
    CHECK(each.problem.sinks);
    CHECK(each.shape == CallShape{1, 4096, 4096, 16, 16});
  }
}

TEST_CASE("shapes of one bucket are tuned once, by the first of them") {
  const auto plan = cli::plan_tunings(of_lengths("8192,16384,512,8192").cases(), {}, kSms, false);
  REQUIRE(plan.size() == 4);  // two buckets, with and without a mask
  CHECK(plan[0].shape.seqlen_q == 8192);
  CHECK(plan[1].shape.seqlen_q == 512);
  CHECK(plan[2].problem.causal);
  for (const auto& result : plan) {
    CHECK(result.state == State::pending);
    CHECK(!result.again);
  }
}

TEST_CASE("what has a complete record is not tuned again unless asked for") {
  cli::TuneSelection selection = of_lengths("4096");
  selection.problems.masks = "full";
  const auto plan = [&](const TuningRecord& record, bool again = false) {
    const auto results = cli::plan_tunings(selection.cases(), {record}, kSms, again);
    CHECK(results.at(0).again == (record.problem == results.at(0).problem));
    return results.at(0).state;
  };
  TuningRecord record = sample_record({}, shape_bucket({1, 4096, 4096, 16, 16}, kSms));
  CHECK(plan(record) == State::recorded);
  CHECK(plan(record, true) == State::pending);
  record.environment.back().second = "budget";
  CHECK(plan(record) == State::pending);
  record.environment.pop_back();
  CHECK(plan(record) == State::recorded);
  record.problem.causal = true;
  CHECK(plan(record) == State::pending);
}

TEST_CASE("texts are tuned by their class, and shown by it; another text of the class has its record") {
  cli::TuneSelection selection = of_lengths("4096");
  selection.problems.texts.masks = {"full", "key % step == 0"};
  selection.problems.texts.captures = {"step=4"};
  selection.problems.block_mask = true;
  const auto plan = cli::plan_tunings(selection.cases(), {}, kSms, false);
  REQUIRE(plan.size() == 1);
  CHECK(to_string(plan[0].problem) == "fwd-bf16-d128-blocks-mask.arithmetic");
  CHECK(plan[0].of_calls.mask == Mask("key % step == 0", {{"step", 4}}).source());
  CHECK(mentions(cli::table_text(plan), "fwd-bf16-d128-blocks-mask.arithmetic"));
  CHECK(describe(plan[0])["problem"] == "fwd-bf16-d128-blocks-mask.arithmetic");

  const TuningRecord record = sample_record(plan[0].problem, plan[0].bucket);
  selection.problems.texts.masks = {"full", "key < step"};
  CHECK(cli::plan_tunings(selection.cases(), {record}, kSms, false).at(0).state == State::recorded);
  selection.problems.block_mask = false;
  CHECK(cli::plan_tunings(selection.cases(), {record}, kSms, false).at(0).state == State::pending);
}

TEST_CASE("the table counts candidates, and the gain is the geometric mean over all records") {
  const TuningRecord record = sample_record();
  const cli::CandidateCounts counts = cli::count_candidates(record);
  CHECK(counts.measured == 3);
  CHECK(counts.stopped == 3);
  CHECK(counts.dropped == 4);
  CHECK(counts.untried == 1);
  TuningRecord by_default = record;
  by_default.chosen = by_default.default_variant;
  const std::vector<cli::TuneResult> results = {
      result_of(State::tuned, record),
      result_of(State::recorded, by_default),
      {record.problem, record.problem, record.bucket, record.shape, State::failed, false, {}, "no"}};
  const cli::TuneSummary summary = cli::summarize_results(results);
  CHECK(summary.mean_speedup == doctest::Approx(std::sqrt(801.0 / 749.0)));
  CHECK(summary.default_stayed == 1);
  CHECK(summary.failed == 1);
  const std::string table = cli::table_text(results);
  CHECK(mentions(table, "4 x 4096 q x 4096 kv, 16/4 heads"));
  CHECK(mentions(table, "3/3/4"));
  CHECK(mentions(table, to_string(record.chosen)));
  CHECK(mentions(cli::summary_text(summary), "1 tuned, 1 had a record, 1 failed, 0 left"));
}

TEST_CASE("a record without times tells of no gain") {
  TuningRecord record = sample_record();
  record.chosen_us = 0;
  CHECK(cli::speedup(record) == 1);
  CHECK(cli::summarize_results<Problem>({}).mean_speedup == 1);
}

TEST_CASE("gradients are tuned in their own classes, and told in the same table") {
  const auto cases_of = [](bool deterministic) {
    cli::TuneSelection selection = of_lengths("4096");
    selection.problems.masks = "full";
    std::vector<cli::TuneCaseOf<BackwardProblem>> cases;
    for (const auto& [problem, shape] : selection.cases())
      cases.push_back({{problem, false, false, false, false, deterministic}, shape});
    return cases;
  };
  const auto plan = cli::plan_tunings(cases_of(false), {}, kSms, false);
  REQUIRE(plan.size() == 1);
  CHECK(to_string(plan[0].problem) == "bwd-bf16-d128");
  BackwardTuningRecord record;
  record.problem = plan[0].problem, record.bucket = plan[0].bucket;
  record.chosen = parse_backward_variant("q64-kv64-w4-r1-s2"), record.default_variant = BackwardVariant{};
  record.chosen_us = 80, record.default_us = 100;
  record.candidates = {{record.default_variant, CandidateOutcome::measured, "", 100, 0, 9},
                       {record.chosen, CandidateOutcome::measured, "", 80, 0, 9}};
  const auto again = cli::plan_tunings(cases_of(false), {record}, kSms, false);
  CHECK(again.at(0).state == State::recorded);
  CHECK(cli::plan_tunings(cases_of(true), {record}, kSms, false).at(0).state == State::pending);
  CHECK(mentions(cli::table_text(again), "bwd-bf16-d128"));
  CHECK(mentions(cli::table_text(again), "mma-q64-kv64-w4-r1-s2"));
  CHECK(mentions(cli::table_text(again), "25.0"));
  CHECK(describe(again[0])["speedup"] == 1.25);
  CHECK(cli::summarize_results(again).mean_speedup == doctest::Approx(1.25));
}

TEST_CASE("what autotune cannot do for gradients it refuses by name") {
  CHECK(mentions(refusal("--pass backward --grid forward --report page.html"), "--report: must not be given beside"));
  CHECK(mentions(refusal("--grid forward --deterministic"), "--deterministic: must not be given without"));
  CHECK(mentions(refusal("--pass backward --seqlen 512 --paged"), "paged: must not be asked for"));
  CHECK(mentions(refusal("--pass sideways --grid forward"), "--pass"));
}
