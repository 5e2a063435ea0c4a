// SPDX-License-Identifier: Apache-2.0
// flashjit compile --bundle: one file that stands for NVRTC and the cache.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/cache_entries.h"
#include "tests/support/command.h"
#include "tests/support/temporary_directory.h"

namespace {

namespace fs = std::filesystem;
using namespace flashjit::tests;
using nlohmann::json;

constexpr const char* kCompile = "compile --arch sm_80 --head-dim 64 --json";

// With the NVRTC of the environment that the tests run in, and the home of a user.
std::string with_nvrtc(const fs::path& home) {
  const char* const nvrtc = std::getenv("FLASHJIT_NVRTC");
  return fmt::format("{} FLASHJIT_NVRTC='{}' HOME='{}'", kBareEnvironment, nvrtc == nullptr ? "" : nvrtc,
                     home.string());
}

}  // namespace

TEST_CASE("compile --bundle gives the same bytes everywhere, and they serve where there is nothing else") {
  const TemporaryDirectory here, there, home;
  const Outcome first = run_command(here.path(), with_nvrtc(home.path()), kCompile + std::string(" --bundle k.fjb"));
  CAPTURE(first.err);
  REQUIRE(first.exit_code == 0);
  const Outcome second = run_command(there.path(), with_nvrtc("/nowhere") + " FLASHJIT_POLICY=off",
                                     kCompile + std::string(" --bundle k.fjb"));
  REQUIRE(second.exit_code == 0);
  const auto compiled = json::parse(second.out).at("compiled").get<int>();
  CHECK(compiled > 1);
  CHECK(read_bytes(there / "k.fjb") == read_bytes(here / "k.fjb"));

  const std::string serving = fmt::format("{} FLASHJIT_POLICY=cache_only ", kBareEnvironment);
  const Outcome served = run_command(there.path(), serving + "FLASHJIT_BUNDLES=k.fjb", kCompile);
  CAPTURE(served.err);
  CHECK(served.exit_code == 0);
  const json kernels = json::parse(served.out).at("kernels");
  CHECK(kernels.size() == static_cast<std::size_t>(compiled));
  for (const json& kernel : kernels) CHECK(kernel.at("origin") == "bundle");
  CHECK(run_command(there.path(), serving, kCompile).exit_code == 2);
}

TEST_CASE("a bundle that is made again from a bundle is the same") {
  const TemporaryDirectory directory;
  const std::string environment = with_nvrtc("/nowhere");
  REQUIRE(run_command(directory.path(), environment, kCompile + std::string(" --bundle a.fjb")).exit_code == 0);
  const Outcome again =
      run_command(directory.path(), environment + " FLASHJIT_BUNDLES=a.fjb", kCompile + std::string(" --bundle b.fjb"));
  REQUIRE(again.exit_code == 0);
  CHECK(json::parse(again.out).at("compiled") == 0);
  CHECK(read_bytes(directory / "a.fjb") == read_bytes(directory / "b.fjb"));
}

TEST_CASE("a bundle of what calls choose serves all that they launch, and lacks what nobody chose") {
  const TemporaryDirectory directory;
  const std::string filling = with_nvrtc("/nowhere") + " FLASHJIT_CACHE_DIR=cache ";
  const std::vector<std::string> of_calls = {"compile --arch sm_80 --head-dim 64 --mask causal --paged --serving",
                                             "compile --arch sm_80 --head-dim 64 --mask causal --pass backward"};
  const std::vector<std::string> others = {
      "compile --arch sm_80 --head-dim 64 --mask causal --variant v1",
      "compile --arch sm_80 --head-dim 64 --mask causal --pass backward --variant mma-q32-kv64-w4-r1-s1"};
  for (const auto& lines : {of_calls, others})
    for (const std::string& line : lines) REQUIRE(run_command(directory.path(), filling, line).exit_code == 0);
  REQUIRE(run_command(directory.path(), filling, "cache export chosen.fjb --chosen").exit_code == 0);
  const std::string serving =
      fmt::format("{} FLASHJIT_POLICY=cache_only FLASHJIT_BUNDLES=chosen.fjb ", kBareEnvironment);
  for (const std::string& line : of_calls) CHECK(run_command(directory.path(), serving, line).exit_code == 0);
  for (const std::string& line : others) CHECK(run_command(directory.path(), serving, line).exit_code == 2);
}

TEST_CASE("no bundle is written when a kernel does not compile") {
  const TemporaryDirectory directory;
  fs::copy(fs::path(FLASHJIT_SOURCE_DIR) / "templates", directory / "templates", fs::copy_options::recursive);
  std::ofstream(directory / "templates/types.cuh", std::ios::app) << "#error broken\n";
  const Outcome outcome =
      run_command(directory.path(), with_nvrtc("/nowhere") + " FLASHJIT_POLICY=off FLASHJIT_TEMPLATE_DIR=templates",
                  kCompile + std::string(" --bundle k.fjb"));
  CHECK(outcome.exit_code == 1);
  CHECK(mentions(outcome.err, "k.fjb is not written"));
  CHECK(json::parse(outcome.out).at("failed") > 1);
  CHECK_FALSE(fs::exists(directory / "k.fjb"));
}
