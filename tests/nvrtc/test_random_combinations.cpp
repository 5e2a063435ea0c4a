// SPDX-License-Identifier: Apache-2.0
// verify --random in the emulator: a few of the combinations that a GPU is given by thousands.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cli/verify/random_verification.h"
#include "flashjit/flashjit.h"
#include "generator/templates.h"
#include "tests/support/kept_kernels.h"
#include "tests/support/planted_faults.h"
#include "tests/support/sample.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;

EngineOptions options_for(const std::string& architecture) {
  EngineOptions options = tests::options_with_kept_kernels();
  options.emulate = architecture;
  return options;
}

std::vector<cli::RandomFailure> failures_of(EngineOptions options, const cli::Combinations& combinations) {
  Engine engine(std::move(options));
  const cli::InterruptGuard interrupt;
  const cli::VerificationOptions verification{.jobs = 2, .schedules = {.count = 2}};
  return cli::verify_random(engine, engine.system().devices.at(0), combinations, verification, interrupt);
}

void write_templates(const generator::Templates& templates, const std::filesystem::path& directory) {
  for (const auto& [name, text] : templates.files()) {
    std::filesystem::create_directories((directory / name).parent_path());
    std::ofstream(directory / name, std::ios::binary) << text;
  }
}

}  // namespace

TEST_CASE("random combinations of features agree with the reference in both families") {
  for (const std::string architecture : {"sm_89", "sm_90a"})
    for (const cli::RandomFailure& each : failures_of(options_for(architecture), {12, 0}))
      FAIL_CHECK(architecture, ", seed ", each.seed, ": ", each.failure.what, "\n", each.failure.problem, "\n",
                 each.failure.variant, "\n", each.failure.shape);
}

TEST_CASE("a wrong scale is found in most random combinations, and told with their seeds") {
  const tests::TemporaryDirectory directory;
  write_templates(tests::templates_with(tests::kWrongScale), directory.path());
  EngineOptions options = options_for("sm_80");
  options.template_directory = directory.path().string();
  const std::vector<cli::RandomFailure> failures = failures_of(options, {8, 100});
  CHECK(failures.size() >= 4);  // where scores are 0, or a row sees one key, the scale does not matter
  for (const cli::RandomFailure& each : failures) {
    CHECK(each.seed >= 100);
    CHECK(each.seed < 108);
    CHECK(each.failure.what.find(": error ") != std::string::npos);
  }
}
