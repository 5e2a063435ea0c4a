// SPDX-License-Identifier: Apache-2.0
// What the fuzzers have found worth keeping holds in every build, with any compiler.
#include <doctest/doctest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "tests/fuzz/properties.h"
#include "tests/support/cache_entries.h"

namespace fs = std::filesystem;
namespace fuzz = flashjit::fuzz;

namespace {

using Property = std::function<void(std::string_view)>;

const std::map<std::string, Property> kProperties = {
    {"name", fuzz::check_name}, {"entry", fuzz::check_entry}, {"bundle", fuzz::check_bundle}, {"ptx", fuzz::check_ptx}};

void check_files(const fs::path& directory, const Property& property) {
  int inputs = 0;
  for (const fs::directory_entry& file : fs::directory_iterator(directory)) {
    INFO(file.path().string());
    CHECK_NOTHROW(property(flashjit::tests::read_bytes(file.path())));
    ++inputs;
  }
  CHECK(inputs > 1);
}

}  // namespace

TEST_CASE("every input that the fuzzers keep is handled") {
  int directories = 0;
  for (const fs::directory_entry& directory : fs::directory_iterator(FLASHJIT_SOURCE_DIR "/tests/fuzz/corpus")) {
    const auto property = kProperties.find(directory.path().filename().string());
    REQUIRE_MESSAGE(property != kProperties.end(), directory.path().string());
    check_files(directory.path(), property->second);
    ++directories;
  }
  CHECK(directories == static_cast<int>(kProperties.size()));
}

TEST_CASE("the golden files have the properties that the fuzzers look for") {
  const fs::path golden = FLASHJIT_SOURCE_DIR "/tests/golden";
  CHECK_NOTHROW(fuzz::check_entry(flashjit::tests::read_bytes(golden / "entry-v1.fjc")));
  CHECK_NOTHROW(fuzz::check_bundle(flashjit::tests::read_bytes(golden / "bundle-v1.fjb")));
}

TEST_CASE("the sums of an input are mended, so that fuzzers get past them") {
  const std::string entry = flashjit::tests::read_bytes(FLASHJIT_SOURCE_DIR "/tests/golden/entry-v1.fjc");
  const std::string bundle = flashjit::tests::read_bytes(FLASHJIT_SOURCE_DIR "/tests/golden/bundle-v1.fjb");
  std::string damaged = entry;
  damaged.replace(12, 12, 12, '\xff').replace(damaged.size() - 16, 16, 16, '\xff');
  CHECK(fuzz::with_true_sums_of_entry(damaged) == entry);
  damaged = bundle;
  damaged.replace(12, 12, 12, '\xff').replace(bundle.find("]}") + 2, 16, 16, '\xff');
  CHECK(fuzz::with_true_sums_of_bundle(damaged, false) == bundle);
  CHECK(fuzz::with_true_sums_of_bundle(damaged + "more", true) == bundle);
}
