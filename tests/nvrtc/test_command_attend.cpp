// SPDX-License-Identifier: Apache-2.0
// flashjit attend of pages, in the emulator.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/io/npy.h"
#include "cli/verify/case_pages.h"
#include "tests/support/command.h"

using namespace flashjit;
using namespace flashjit::tests;

namespace {

HostTensor ints(const std::vector<double>& values) {
  return HostTensor::from_doubles(DType::i32, {static_cast<std::int64_t>(values.size())}, values.data(), values.size());
}

// Three sequences of 5, 1 and 4 queries on a cache of keys, beside the same keys in pages.
class Workshop {
 public:
  Workshop() {
    const HostTensor k = HostTensor::random_normal(DType::f32, {3, 90, 2, 32}, 2);
    const HostTensor v = HostTensor::random_normal(DType::f32, {3, 90, 2, 32}, 3), used = ints({90, 33, 0});
    save("q.npy", HostTensor::random_normal(DType::f32, {11, 4, 32}, 1));
    save("starts.npy", ints({0, 5, 6, 10}));
    save("sinks.npy", HostTensor::random_normal(DType::f32, {4}, 4));
    save("used.npy", used);
    save("k.npy", k);
    save("v.npy", v);
    const cli::CasePages pages = cli::in_pages(k, v, used, 16, 5);
    save("pages_k.npy", pages.k);
    save("pages_v.npy", pages.v);
    save("table.npy", pages.table);
    const cli::PageOrder order(k.shape(), used, 16, 5);
    for (const std::string name : {"of_k.npy", "of_v.npy"}) {
      HostTensor scales(DType::f32, {3, 90, 2});
      for (std::int64_t i = 0; i < 540; ++i)
        store_element(scales.data(), DType::f32, i, 0.25 * static_cast<double>(1 + i * 5 % 7));
      save(name, scales);
      save("pages_" + name, order.moved(scales));
    }
  }

  // The bytes of result and LSE.
  std::string attend(const std::string& arguments) const {
    const char* const nvrtc = std::getenv("FLASHJIT_NVRTC");
    const Outcome outcome =
        run_command(directory_.path(),
                    fmt::format("{} FLASHJIT_POLICY=off FLASHJIT_NVRTC='{}'", kBareEnvironment, nvrtc ? nvrtc : ""),
                    "attend q.npy -o o.npy --lse l.npy --device emulate --check --json --cu-seqlens-q starts.npy "
                    "--seqused-kv used.npy " +
                        arguments);
    CAPTURE(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    CHECK(nlohmann::json::parse(outcome.out).at("check").at("passed") == true);
    return read_bytes(directory_ / "o.npy") + read_bytes(directory_ / "l.npy");
  }

 private:
  void save(const std::string& name, const HostTensor& tensor) const {
    write_bytes(directory_ / name, cli::npy_bytes(tensor));
  }

  TemporaryDirectory directory_;
};

}  // namespace

TEST_CASE("attend over pages gives the bytes that the same keys in a cache give, in both families") {
  const Workshop shop;
  for (const std::string architecture : {"sm_80", "sm_90a"}) {
    for (const std::string features :
         {"", " --mask causal --window 20,0 --sinks sinks.npy", " --fixed-split-size 64"}) {
      const std::string options = " --arch " + architecture + features;
      CAPTURE(options);
      CHECK(shop.attend("pages_k.npy pages_v.npy --page-table table.npy" + options) ==
            shop.attend("k.npy v.npy" + options));
    }
  }
}

TEST_CASE("attend takes a cache of e4m3 with scales, in pages or not") {
  const Workshop shop;
  const std::string options = " --e4m3 --arch sm_90a";
  CHECK(shop.attend("pages_k.npy pages_v.npy --page-table table.npy --k-scale pages_of_k.npy --v-scale pages_of_v.npy" +
                    options) == shop.attend("k.npy v.npy --k-scale of_k.npy --v-scale of_v.npy" + options));
  CHECK(shop.attend("k.npy v.npy" + options) !=
        shop.attend("k.npy v.npy --k-scale of_k.npy --v-scale of_v.npy" + options));
}
