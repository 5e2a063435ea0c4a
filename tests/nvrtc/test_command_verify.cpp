// SPDX-License-Identifier: Apache-2.0
// flashjit verify of texts and of gradients, in the emulator.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/io/npy.h"
#include "flashjit/tensor.h"
#include "tests/support/cache_entries.h"
#include "tests/support/command.h"
#include "tests/support/plant.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit::tests;
using nlohmann::json;

constexpr const char* kSmall =
    "verify --device emulate --arch sm_80 --head-dim 16 --dtype f16 --variant mma-q64-kv32-k2-v2 --schedules 2 --json ";

constexpr const char* kSmallBackward =
    "verify --pass backward --device emulate --arch sm_80 --head-dim 16 --dtype f16 --schedules 2 --json ";

Outcome run(const std::filesystem::path& directory, const std::string& arguments, const std::string& environment = "") {
  const char* const nvrtc = std::getenv("FLASHJIT_NVRTC");
  return run_command(
      directory,
      fmt::format("{} FLASHJIT_POLICY=off FLASHJIT_NVRTC='{}' {}", kBareEnvironment, nvrtc ? nvrtc : "", environment),
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

TEST_CASE("verify compares gradients over the cases of forward, under several schedules") {
  const TemporaryDirectory directory;
  const Outcome outcome =
      run(directory.path(), std::string(kSmallBackward) + "--mask causal --mask '(query - key) % 3 != 1' --softcap 5");
  CAPTURE(outcome.err);
  CHECK(outcome.exit_code == 0);
  const json told = json::parse(outcome.out);
  CHECK(told.at("kernels") == 1);
  CHECK(told.at("wrong_kernels") == 0);
  CHECK(told.at("comparisons") == 8);
  CHECK(told.at("runs") == 16);
  CHECK(told.at("warp_instructions") > 100000);
  const Outcome through = run(directory.path(), std::string(kSmallBackward) + "--score 'score * sigmoid(score)'");
  CAPTURE(through.err);
  CHECK(through.exit_code == 0);
  CHECK(json::parse(through.out).at("wrong_kernels") == 0);
}

TEST_CASE("verify --random draws calls for gradients, and is the same each time") {
  const TemporaryDirectory directory;
  const std::string arguments =
      "verify --pass backward --device emulate --arch sm_90a --schedules 2 --jobs 2 --random 6 --seed 4";
  CHECK(run(directory.path(), arguments).out == "emulated sm_90a: 6 random combinations from seed 4, 0 wrong\n");
}

TEST_CASE("verify finds backward kernels that are wrong, and those that race") {
  struct Fault {
    const char *original, *replacement, *what;
  };
  const Fault faults[] = {{"args.dk_strides, args.scale);", "args.dk_strides, 1.0f);", "dk: error "},
                          {"+ piece);\n    ptx::bar_sync();", "+ piece);", "mma_backward.cuh:"}};
  for (const auto& [original, replacement, what] : faults) {
    CAPTURE(std::string(what));
    const TemporaryDirectory directory;
    plant("kernels/mma_backward.cuh", original, replacement, directory / "templates");
    const std::string templates = fmt::format("FLASHJIT_TEMPLATE_DIR='{}'", (directory / "templates").string());
    const Outcome of_grid = run(directory.path(), std::string(kSmallBackward) + "--mask causal", templates);
    CHECK(of_grid.exit_code == 1);
    const json told = json::parse(of_grid.out);
    CHECK(told.at("wrong_kernels") == 1);
    const std::string first = told.at("failures").at(0).at("what");
    CAPTURE(first);
    CHECK(mentions(first, what));
    CHECK(told.at("failures").at(0).at("variant") == "default");
    const Outcome of_random = run(
        directory.path(), "verify --pass backward --device emulate --arch sm_80 --schedules 1 --random 4", templates);
    CHECK(of_random.exit_code == 1);
    CHECK(mentions(of_random.out, what));
    CHECK(mentions(of_random.out, "gradients of "));
  }
}
