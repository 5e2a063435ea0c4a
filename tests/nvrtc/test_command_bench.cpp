// SPDX-License-Identifier: Apache-2.0
// flashjit bench where no GPU is needed, with real kernels in the emulator.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/command.h"
#include "tests/support/temporary_directory.h"

using namespace flashjit::tests;

TEST_CASE(
    "bench --grid accuracy: rotated queries and keys of e4m3 lose less, with one scale and with scales of blocks") {
  const TemporaryDirectory directory;
  const char* const nvrtc = std::getenv("FLASHJIT_NVRTC");
  for (const std::string architecture : {"sm_89", "sm_90a"}) {
    const Outcome outcome =
        run_command(directory.path(),
                    fmt::format("{} FLASHJIT_POLICY=off FLASHJIT_NVRTC='{}'", kBareEnvironment, nvrtc ? nvrtc : ""),
                    "bench --grid accuracy --quick --json record.json --arch " + architecture);
    CAPTURE(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    const nlohmann::json record = nlohmann::json::parse(read_bytes(directory.path() / "record.json"));
    CHECK(record.at("device") == "emulated " + architecture);
    std::map<std::string, double> errors;
    for (const nlohmann::json& row : record.at("rows"))
      errors[row.at("dtype").get<std::string>() + " " + row.at("scales").get<std::string>() +
             (row.at("rotated").get<bool>() ? " rotated" : "")] = row.at("rmse");
    CHECK(errors.size() == 6);
    CHECK(errors.at("f16 -") < 1.9e-4);
    CHECK(errors.at("bf16 -") > errors.at("f16 -"));
    for (const std::string scales : {"tensor", "block"}) {
      const double plain = errors.at("e4m3 " + scales), rotated = errors.at("e4m3 " + scales + " rotated");
      CAPTURE(scales);
      CHECK(plain > 1.2 * rotated);
      CHECK(rotated < 1.2e-2);
      CHECK(rotated > errors.at("bf16 -"));
    }
    CHECK(errors.at("e4m3 block") < errors.at("e4m3 tensor"));
  }
}
