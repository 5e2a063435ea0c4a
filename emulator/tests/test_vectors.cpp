// SPDX-License-Identifier: Apache-2.0
// Every instruction form of tests/vectors in the emulator, against what hardware computed. scripts/gpu-vectors makes
// the results, tests/vectors/make_forms.py the forms; how results compare is said there, form by form.
#include <doctest/doctest.h>

#include <filesystem>

#include "tests/support/instruction_forms.h"

namespace {

using namespace flashjit;
using namespace flashjit::vectors;

const std::filesystem::path kVectors = std::filesystem::path(FLASHJIT_SOURCE_DIR) / "tests" / "vectors";
constexpr std::uint64_t kSeeds = 4;

const Results& hardware() {
  static const Results results = read_results(kVectors / "results" / "nvidia-h200");
  return results;
}

// Empty, or what is wrong with the findings. Others may follow from that of what hardware refuses.
std::string wrong_findings(const Form& form, const emulator::Report& report) {
  if (form.finding.empty()) return report.clean() ? "" : to_string(report);
  if (report.clean()) return "no finding, must be " + form.finding;
  for (const auto& finding : report.findings) {
    if (emulator::to_string(finding.kind) != form.finding) return to_string(finding) + ", must be " + form.finding;
    if (!form.refused.empty()) break;
  }
  return "";
}

// Empty, or what is wrong.
std::string problem_of(const Form& form, std::uint64_t seed) {
  try {
    const Outcome outcome = run(form, seed);
    const std::string wrong = wrong_findings(form, outcome.report);
    if (!wrong.empty() || !form.refused.empty()) return wrong;
    return difference(form.comparison, outcome.output, hardware().outputs.at(form.name));
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("the results are those of these forms, and there is one for each") {
  CHECK(hardware().digest == read_json(kVectors / "data" / "index.json").at("digest").get<std::string>());
  std::map<std::string, std::string> refused;
  for (const Form& form : read_forms(kVectors / "data")) {
    INFO(form.name);
    if (!form.refused.empty()) refused[form.name] = form.refused;
    CHECK(hardware().outputs.count(form.name) == (form.refused.empty() ? 1 : 0));
    CHECK((form.refused.empty() || !form.finding.empty()));  // what hardware does not run, the emulator finds
  }
  CHECK(refused == hardware().refused);
}

TEST_CASE("each instruction form gives what hardware gave, under several schedules") {
  for (const Form& form : read_forms(kVectors / "data")) {
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      const std::string problem = problem_of(form, seed);
      INFO(form.name, ", seed ", seed);
      CHECK(problem == "");
    }
  }
}

TEST_CASE("results compare as the forms say") {
  const auto floats = [](std::uint32_t bits) {
    return Bytes{std::uint8_t(bits), std::uint8_t(bits >> 8), std::uint8_t(bits >> 16), std::uint8_t(bits >> 24)};
  };
  const auto equal = [&](const char* rule, std::uint32_t got, std::uint32_t expected) {
    return difference(comparison_of(Json::parse(rule)), floats(got), floats(expected)).empty();
  };
  constexpr std::uint32_t kOne = 0x3f800000, kNan = 0x7fc00000, kOtherNan = 0x7fffffff, kInfinity = 0x7f800000;
  CHECK(equal("null", kOne, kOne));
  CHECK_FALSE(equal("null", kNan, kOtherNan));
  constexpr const char* kSame = R"({"element":"f32","ulp":0})";
  CHECK(equal(kSame, kNan, kOtherNan));
  CHECK_FALSE(equal(kSame, kNan, kOne));
  CHECK_FALSE(equal(kSame, 0, 0x80000000));
  CHECK_FALSE(equal(kSame, kOne, kOne + 1));
  constexpr const char* kTwoUlp = R"({"element":"f32","ulp":2})";
  CHECK(equal(kTwoUlp, kOne - 2, kOne));
  CHECK_FALSE(equal(kTwoUlp, kOne + 3, kOne));
  CHECK(equal(kTwoUlp, 0x80000001, 1));
  CHECK_FALSE(equal(kTwoUlp, kInfinity, kInfinity - 1));
  constexpr const char* kAbsolute = R"({"element":"f32","abs":1e-6})";
  CHECK(equal(kAbsolute, kOne + 8, kOne));
  CHECK_FALSE(equal(kAbsolute, kOne + 9, kOne));
  CHECK_FALSE(equal(kAbsolute, kNan, kOne));
  CHECK_FALSE(equal(kAbsolute, kInfinity, kOne));
  const Comparison second_unit = comparison_of(Json::parse(R"({"units":[1]})"));
  Bytes got(32), expected(32);
  got[15] = 1;
  CHECK(difference(second_unit, got, expected).empty());
  got[16] = 1;
  CHECK_FALSE(difference(second_unit, got, expected).empty());
}
