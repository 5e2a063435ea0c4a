// SPDX-License-Identifier: Apache-2.0
// flashjit verify of texts, in the emulator.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/io/npy.h"
#include "flashjit/tensor.h"
#include "tests/support/cache_entries.h"
#include "tests/support/command.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit::tests;
using nlohmann::json;

constexpr const char* kSmall =
    "verify --device emulate --arch sm_80 --head-dim 16 --dtype f16 --variant mma-q64-kv32-k2-v2 --schedules 2 --json ";

Outcome run(const std::filesystem::path& directory, const std::string& arguments) {
  const char* const nvrtc = std::getenv("FLASHJIT_NVRTC");
  return run_command(directory,
                     fmt::format("{} FLASHJIT_POLICY=off FLASHJIT_NVRTC='{}'", kBareEnvironment, nvrtc ? nvrtc : ""),
                     arguments);
}

}  // namespace

TEST_CASE("verify compares texts with captures, with and without a block mask, beside each mask") {
  const TemporaryDirectory directory;
  const flashjit::HostTensor slopes = flashjit::HostTensor::random_normal(flashjit::DType::f32, {4}, 1);
  write_bytes(directory / "slopes.npy", flashjit::cli::npy_bytes(slopes));
  for (const std::string block_mask : {"", "--block-mask"}) {
    CAPTURE(block_mask);
    const Outcome outcome =
        run(directory.path(), kSmall + block_mask +
                                  " --mask full,causal --mask '(query - key) % step != 1' "
                                  "--capture step=3 --score 'score - slope(head) * abs(query - key)' "
                                  "--capture slope=slopes.npy");
    CAPTURE(outcome.err);
    CHECK(outcome.exit_code == 0);
    const json told = json::parse(outcome.out);
    CHECK(told.at("kernels") == 2);
    CHECK(told.at("wrong_kernels") == 0);
    CHECK(told.at("comparisons") == 16);
  }
}

TEST_CASE("verify tells an error of a text by its own lines") {
  const TemporaryDirectory directory;
  const Outcome outcome = run(directory.path(), std::string(kSmall) + "--mask full --score 'score + nothing'");
  CHECK(outcome.exit_code == 2);
  CHECK(mentions(outcome.err, "score: line 1, column 9: identifier \"nothing\" is undefined"));
}

TEST_CASE("verify --random is the same each time, and tells what it did as text and as JSON") {
  const TemporaryDirectory directory;
  const std::string arguments = "verify --device emulate --arch sm_80 --schedules 1 --jobs 2 --random 2 --seed 4";
  const Outcome text = run(directory.path(), arguments);
  CHECK(text.out == "emulated sm_80: 2 random combinations from seed 4, 0 wrong\n");
  const Outcome outcome = run(directory.path(), arguments + " --json");
  CHECK(outcome.exit_code == 0);
  const json told = json::parse(outcome.out);
  CHECK(told.at("combinations") == 2);
  CHECK(told.at("seed") == 4);
  CHECK(told.at("wrong") == 0);
  CHECK(told.at("failures").empty());
}
