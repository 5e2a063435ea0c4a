// SPDX-License-Identifier: Apache-2.0
// flashjit compile where kernels cannot be stored: that is what it was asked for, so it says why and fails.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/tune/run.h"
#include "tests/support/cache_entries.h"
#include "tests/support/command.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tuning_records.h"

namespace {

namespace fs = std::filesystem;
using namespace flashjit::tests;
using nlohmann::json;

constexpr const char* kOne = "compile --arch sm_80 --head-dim 64 --mask full --variant v1";
constexpr const char* kTwo = "compile --arch sm_80 --head-dim 64 --mask full,causal --variant v1";

Outcome run(const fs::path& directory, const std::string& environment, const std::string& arguments) {
  const char* const nvrtc = std::getenv("FLASHJIT_NVRTC");
  return run_command(directory,
                     fmt::format("{} FLASHJIT_NVRTC='{}' {}", kBareEnvironment, nvrtc ? nvrtc : "", environment),
                     arguments);
}

// The line in which it says that none, or not all, was stored.
std::string why_not_stored(const Outcome& outcome) {
  CHECK(outcome.exit_code == 2);
  const std::size_t at = outcome.err.find(" could not be stored: ");
  REQUIRE(at != std::string::npos);
  const std::size_t begin = outcome.err.rfind('\n', at) + 1;  // 0 where there is none before
  return outcome.err.substr(begin, outcome.err.find('\n', at) - begin);
}

}  // namespace

TEST_CASE("compile without a directory, or with one that it cannot use, says why and ends with 2") {
  const TemporaryDirectory directory;
  const std::string none = why_not_stored(run(directory.path(), "", kOne));
  CHECK(mentions(none, "1 of 1 kernels could not be stored: there is no directory for them"));
  CHECK(mentions(why_not_stored(run(directory.path(), "HOME=/nonexistent", kOne)), "there is no directory"));

  write_bytes(directory / "file", "x");
  const Outcome in_the_way = run(directory.path(), "FLASHJIT_CACHE_DIR=file", std::string(kOne) + " --json");
  CHECK(mentions(why_not_stored(in_the_way), "/file: cannot be opened: Not a directory"));
  const json kernel = json::parse(in_the_way.out).at("kernels").at(0);
  CHECK(kernel.at("cache_file").is_null());
  CHECK(mentions(kernel.at("cache_problem"), "Not a directory"));
  CHECK(mentions(why_not_stored(run(directory.path(), "FLASHJIT_CACHE_DIR=file/below", kOne)), "Not a directory"));

  fs::create_directory(directory / "open");
  REQUIRE(::chmod((directory / "open").c_str(), 0777) == 0);
  CHECK(mentions(why_not_stored(run(directory.path(), "FLASHJIT_CACHE_DIR=open", kOne)), "has mode 0777"));
  fs::create_directory(directory / "own");
  write_bytes(directory / "own/precious", "x");
  CHECK(mentions(why_not_stored(run(directory.path(), "FLASHJIT_CACHE_DIR=own", kOne)), "precious"));
  CHECK(count_files(directory / "own", "") == 1);
}

TEST_CASE("compile on a full disk says so and ends with 2") {
  const TemporaryDirectory directory;
  // A limit on the size of files stands for the disk: what goes beyond it fails in the middle of a write.
  const Outcome full =
      run(directory.path(), "FLASHJIT_CACHE_DIR=cache prlimit --fsize=4096 env --ignore-signal=XFSZ", kOne);
  CHECK(mentions(why_not_stored(full), "cannot be written: File too large"));
  CHECK(count_files(directory / "cache", ".tmp") == 0);
}

TEST_CASE("compile that stores some kernels and others not says how many and ends with 2") {
  const TemporaryDirectory directory;
  const Outcome both = run(directory.path(), "FLASHJIT_CACHE_DIR=cache", std::string(kTwo) + " --json");
  CAPTURE(both.err);
  REQUIRE(both.exit_code == 0);
  const fs::path file = json::parse(both.out).at("kernels").at(0).at("cache_file").get<std::string>();
  const int lost = count_files(file.parent_path(), ".fjc");
  fs::remove_all(file.parent_path());
  write_bytes(file.parent_path(), "a file in the way");
  const std::string why = why_not_stored(run(directory.path(), "FLASHJIT_CACHE_DIR=cache", kTwo));
  CHECK(mentions(why, fmt::format("{} of 2 kernels could not be stored: {}", lost, file.parent_path().string())));
}

TEST_CASE("compile that stores in a bundle needs no directory, and one that is told to store nothing is refused") {
  const TemporaryDirectory directory;
  const Outcome bundled = run(directory.path(), "", std::string(kOne) + " --bundle k.fjb");
  CHECK(bundled.exit_code == 0);
  CHECK(mentions(bundled.err, "could not be stored"));
  CHECK(fs::exists(directory / "k.fjb"));
  const std::string off = expect_refusal(kOne, run(directory.path(), "FLASHJIT_POLICY=off", kOne));
  CHECK(mentions(off, "FLASHJIT_POLICY: must not be off without --bundle"));
  CHECK(run(directory.path(), "FLASHJIT_BUNDLES=k.fjb", kOne).exit_code == 0);
}

TEST_CASE("compile adds what serving calls beside attention, where that is asked for") {
  const TemporaryDirectory directory;
  const auto kernels = [&](const std::string& options) {
    const Outcome outcome = run(directory.path(), "FLASHJIT_CACHE_DIR=cache", kOne + (" --json" + options));
    REQUIRE(outcome.exit_code == 0);
    const json printed = json::parse(outcome.out);
    std::vector<std::string> names;
    for (const json& kernel : printed.at("kernels")) names.push_back(kernel.at("problem"));
    return names;
  };
  CHECK(kernels("").size() == 1);
  const std::vector<std::string> all = kernels(" --serving");
  // Of append one, and one for each pairing and dtype of tables; sm_80 has no e4m3. Of merge each pair of dtypes.
  CHECK(all.size() == 1 + 7 + 4);
  for (const char* name : {"append-bf16", "append-bf16-rotary-neighbours-f16", "merge-f32-bf16"})
    CHECK(std::count(all.begin(), all.end(), name) == 1);
  CHECK(count_files(directory / "cache", ".fjc") == 12);
}

TEST_CASE("autotune makes the kernels of what has a record, and of nothing else") {
  using State = flashjit::cli::TuneResult::State;
  const TemporaryDirectory directory;
  flashjit::EngineOptions options = flashjit::EngineOptions::from_environment();
  options.cache_directory = directory.path().string();
  flashjit::Engine engine(options);
  flashjit::TuningRecord record = make_record();
  record.problem.head_dim = record.problem.head_dim_v = 64;
  record.chosen = flashjit::parse_variant("mma-v1");
  std::vector<flashjit::cli::TuneResult> results = {
      {record.problem, record.problem, record.bucket, record.shape, State::recorded, false, record, {}},
      {record.problem, record.problem, {}, record.shape, State::recorded, false, record, {}},
      {{}, {}, {}, record.shape, State::pending, false, {}, {}}};
  const flashjit::cli::InterruptGuard interrupt;
  flashjit::cli::compile_chosen(engine, "sm_90a", 0, interrupt, results);
  CHECK(results[0].state == State::recorded);
  CHECK(results[2].state == State::pending);
  CHECK(engine.counters().compiles == 1);
  flashjit::cli::compile_chosen(engine, "sm_90a", 0, interrupt, results);
  CHECK(engine.counters().compiles == 1);
}

TEST_CASE("autotune makes the kernels of texts, whether their class was tuned now or before") {
  using State = flashjit::cli::TuneResult::State;
  const TemporaryDirectory directory;
  flashjit::EngineOptions options = flashjit::EngineOptions::from_environment();
  options.cache_directory = directory.path().string();
  flashjit::Engine engine(options);
  flashjit::Problem of_calls{flashjit::DType::bf16, 64, 64};
  of_calls.score = flashjit::Score("score * 0.125f").source();
  flashjit::TuningRecord record = make_record();
  record.problem = flashjit::tuning_class(of_calls);
  record.chosen = flashjit::parse_variant("mma-v1");
  flashjit::Problem plain = of_calls;
  plain.score = nullptr;
  std::vector<flashjit::cli::TuneResult> results = {
      {record.problem, of_calls, record.bucket, record.shape, State::tuned, false, record, {}},
      {record.problem, of_calls, {}, record.shape, State::recorded, false, record, {}},
      {plain, plain, {}, record.shape, State::tuned, false, record, {}}};
  const flashjit::cli::InterruptGuard interrupt;
  flashjit::cli::compile_chosen(engine, "sm_90a", 0, interrupt, results);
  CHECK(engine.counters().compiles == 1);
  CHECK(engine.compile(of_calls, record.chosen, "sm_90a").origin != flashjit::KernelInfo::Origin::compiled);
}
