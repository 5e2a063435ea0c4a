// SPDX-License-Identifier: Apache-2.0
// What the environment says about an engine.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "flashjit/engine.h"
#include "flashjit/error.h"
#include "tests/support/temporary_directory.h"

namespace {

using flashjit::EngineOptions;

// The environment that options are read from, put back afterwards. Tests of one program run one after the other.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& variables) {
    for (const char* name : {"FLASHJIT_POLICY", "FLASHJIT_CACHE_DIR", "FLASHJIT_CACHE_SIZE", "FLASHJIT_SYSTEM_CACHE",
                             "FLASHJIT_BUNDLES", "FLASHJIT_TUNING", "FLASHJIT_NVRTC", "FLASHJIT_TEMPLATE_DIR",
                             "FLASHJIT_DEVICE", "FLASHJIT_CHECK_PAGES", "FLASHJIT_LOG", "XDG_CACHE_HOME", "HOME",
                             "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"}) {
      const char* value = getenv(name);
      before_[name] = value ? std::optional<std::string>(value) : std::nullopt;
      unsetenv(name);
    }
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const auto& [name, value] : before_) {
      if (value)
        setenv(name.c_str(), value->c_str(), 1);
      else
        unsetenv(name.c_str());
    }
  }

 private:
  std::map<std::string, std::optional<std::string>> before_;
};

std::string refusal(const std::map<std::string, std::string>& variables) {
  const Environment environment(variables);
  try {
    EngineOptions::from_environment();
  } catch (const flashjit::Error& error) {
    CHECK(error.code() == flashjit::ErrorCode::invalid_argument);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("an empty environment gives the default options without a cache directory") {
  const Environment environment({});
  const EngineOptions options = EngineOptions::from_environment();
  CHECK(options.policy == flashjit::Policy::compile);
  CHECK(options.tuning == flashjit::TuningPolicy::recorded);
  CHECK(options.cache_directory.empty());
  CHECK(options.cache_max_bytes == std::uint64_t{1} << 30);
  CHECK(options.system_cache_directories.empty());
  CHECK(options.bundles.empty());
  CHECK(options.embedded_bundles.empty());
  CHECK(options.nvrtc_path.empty());
  CHECK(options.nvrtc_directories.empty());
  CHECK(options.template_directory.empty());
  CHECK(options.emulate.empty());
  CHECK_FALSE(options.log);
}

TEST_CASE("each variable sets its option") {
  const Environment environment({{"FLASHJIT_POLICY", "cache_only"},
                                 {"FLASHJIT_NVRTC", "/n/libnvrtc.so"},
                                 {"FLASHJIT_TEMPLATE_DIR", "/t"},
                                 {"FLASHJIT_LOG", "warning"},
                                 {"FLASHJIT_CHECK_PAGES", "1"},
                                 {"FLASHJIT_CACHE_SIZE", "512M"},
                                 {"FLASHJIT_SYSTEM_CACHE", "/s:relative"},
                                 {"FLASHJIT_BUNDLES", ":/x.fjb::/y.fjb"},
                                 {"LD_LIBRARY_PATH", "/a::/b:"},
                                 {"CUDA_HOME", "/cuda"},
                                 {"VIRTUAL_ENV", "/venv"}});
  const EngineOptions options = EngineOptions::from_environment();
  CHECK(options.policy == flashjit::Policy::cache_only);
  CHECK(options.nvrtc_path == "/n/libnvrtc.so");
  CHECK(options.template_directory == "/t");
  CHECK(options.check_pages);
  CHECK(options.log);
  CHECK(options.cache_max_bytes == std::uint64_t{512} << 20);
  CHECK(options.system_cache_directories == std::vector<std::string>{"/s", "relative"});
  CHECK(options.bundles == std::vector<std::string>{"/x.fjb", "/y.fjb"});
  CHECK(options.nvrtc_directories == std::vector<std::string>{"/a", "/b", "/cuda/lib64", "/venv/lib"});
}

TEST_CASE("the cache directory is the library's own, else the user's cache, else below the home") {
  const auto directory = [](const std::map<std::string, std::string>& variables) {
    const Environment environment(variables);
    return EngineOptions::from_environment().cache_directory;
  };
  const flashjit::tests::TemporaryDirectory there;
  const std::string home = there.path().string(), gone = home + "/gone";
  CHECK(directory({{"FLASHJIT_CACHE_DIR", "/own"}, {"XDG_CACHE_HOME", "/xdg"}, {"HOME", home}}) == "/own");
  CHECK(directory({{"XDG_CACHE_HOME", "/xdg"}, {"HOME", home}}) == "/xdg/flashjit");
  CHECK(directory({{"XDG_CACHE_HOME", gone + "/"}, {"HOME", home}}) == gone + "/flashjit");
  CHECK(directory({{"XDG_CACHE_HOME", "relative"}, {"HOME", home}}) == home + "/.cache/flashjit");
  // What is not there is no place of ours to make.
  CHECK(directory({{"XDG_CACHE_HOME", gone + "/xdg"}, {"HOME", home}}) == home + "/.cache/flashjit");
  CHECK(directory({{"XDG_CACHE_HOME", gone + "/xdg/"}, {"HOME", gone}}).empty());
  CHECK(directory({{"HOME", gone}}).empty());
  CHECK(directory({{"HOME", "relative"}}).empty());
  CHECK(directory({{"HOME", ""}}).empty());
}

TEST_CASE("the size of the cache is bytes, or a number with a unit") {
  const auto size = [](const std::string& text) {
    const Environment environment({{"FLASHJIT_CACHE_SIZE", text}});
    return EngineOptions::from_environment().cache_max_bytes;
  };
  CHECK(size("") == std::uint64_t{1} << 30);
  CHECK(size("1") == 1);
  CHECK(size("123456789") == 123456789);
  CHECK(size("3K") == 3 * 1024);
  CHECK(size("2G") == std::uint64_t{2} << 30);
  CHECK(size("16777215T") == std::uint64_t{16777215} << 40);
  CHECK(size("18446744073709551615") == std::numeric_limits<std::uint64_t>::max());
  for (const char* bad : {"0", "0M", "M", "-1", "+1", "1.5G", "1 G", " 1", "1m", "1GB", "1X", "0x10", "16777216T",
                          "18446744073709551616", "99999999999999999999K"}) {
    CHECK(refusal({{"FLASHJIT_CACHE_SIZE", bad}}) ==
          std::string("FLASHJIT_CACHE_SIZE: must be bytes, or a number with K, M, G or T, and more than 0, was ") +
              bad);
  }
}

TEST_CASE("the tuning policy is one of four words") {
  using flashjit::TuningPolicy;
  const auto policy = [](const std::string& word) {
    const Environment environment({{"FLASHJIT_TUNING", word}});
    return EngineOptions::from_environment().tuning;
  };
  CHECK(policy("") == TuningPolicy::recorded);
  CHECK(policy("recorded") == TuningPolicy::recorded);
  CHECK(policy("off") == TuningPolicy::off);
  CHECK(policy("on_first_use") == TuningPolicy::on_first_use);
  CHECK(policy("frozen") == TuningPolicy::frozen);
}

TEST_CASE("the device is the GPU, or the emulator for an architecture") {
  const auto emulated = [](const std::string& device) {
    const Environment environment({{"FLASHJIT_DEVICE", device}});
    return EngineOptions::from_environment().emulate;
  };
  CHECK(emulated("").empty());
  CHECK(emulated("gpu").empty());
  CHECK(emulated("emulate") == "sm_90a");
  CHECK(emulated("emulate:sm_80") == "sm_80");
}

TEST_CASE("a value that means nothing is refused with the name of its variable") {
  CHECK(refusal({{"FLASHJIT_POLICY", "sometimes"}}) ==
        "FLASHJIT_POLICY: policy: must be compile, cache_only or off, was sometimes");
  CHECK(refusal({{"FLASHJIT_TUNING", "always"}}) ==
        "FLASHJIT_TUNING: tuning: must be off, recorded, on_first_use or frozen, was always");
  CHECK(refusal({{"FLASHJIT_CHECK_PAGES", "yes"}}) == "FLASHJIT_CHECK_PAGES: must be 1 or 0, was yes");
  CHECK(refusal({{"FLASHJIT_CHECK_PAGES", "0"}}).empty());
  CHECK(refusal({{"FLASHJIT_LOG", "loud"}}) == "FLASHJIT_LOG: must be debug, info or warning, was loud");
  CHECK(refusal({{"FLASHJIT_DEVICE", "cpu"}}) ==
        "FLASHJIT_DEVICE: must be gpu, emulate or emulate:ARCHITECTURE, was cpu");
  CHECK(refusal({{"FLASHJIT_DEVICE", "emulate:sm_42"}})
            .starts_with("FLASHJIT_DEVICE: architecture: must be one of sm_80"));
  CHECK(refusal({{"FLASHJIT_DEVICE", "emulate:"}}).starts_with("FLASHJIT_DEVICE: architecture: must be one of sm_80"));
  CHECK(refusal({{"FLASHJIT_POLICY", "off"}, {"FLASHJIT_LOG", "debug"}}).empty());
}
