// SPDX-License-Identifier: Apache-2.0
// flashjit attend of pages and with gradients, in the emulator.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
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
    run("q.npy -o o.npy --lse l.npy --device emulate --cu-seqlens-q starts.npy --seqused-kv used.npy " + arguments);
    return read_bytes(directory_ / "o.npy") + read_bytes(directory_ / "l.npy");
  }
  // What it says of the comparison with the reference, which passes.
  nlohmann::json run(const std::string& arguments) const {
    const char* const nvrtc = std::getenv("FLASHJIT_NVRTC");
    const Outcome outcome =
        run_command(directory_.path(),
                    fmt::format("{} FLASHJIT_POLICY=off FLASHJIT_NVRTC='{}'", kBareEnvironment, nvrtc ? nvrtc : ""),
                    "attend --check --json " + arguments);
    CAPTURE(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    const nlohmann::json check = nlohmann::json::parse(outcome.out).at("check");
    CHECK(check.at("passed") == true);
    return check;
  }
  void save(const std::string& name, const HostTensor& tensor) const {
    write_bytes(directory_ / name, cli::npy_bytes(tensor));
  }
  HostTensor load(const std::string& name) const { return cli::read_npy((directory_ / name).string(), DType::f32); }

 private:
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

TEST_CASE("attend takes a cache of MLA: latent columns of e4m3 or not, in pages or not, beside rotary ones") {
  const Workshop shop;
  const HostTensor latent = HostTensor::random_normal(DType::f32, {2, 70, 1, 256}, 1),
                   rotary = HostTensor::random_normal(DType::f32, {2, 70, 1, 16}, 2), used = ints({70, 33});
  shop.save("query.npy", HostTensor::random_normal(DType::f32, {2, 1, 16, 272}, 3));
  shop.save("latent.npy", latent);
  shop.save("rotary.npy", rotary);
  shop.save("of_two.npy", used);
  const cli::CasePages pages = cli::in_pages(latent, rotary, used, 16, 5);
  shop.save("pages_latent.npy", pages.k);
  shop.save("pages_rotary.npy", pages.v);
  shop.save("of_pages.npy", pages.table);
  for (const std::string options : {" --arch sm_80", " --arch sm_89 --e4m3"}) {
    CAPTURE(options);
    const auto out = [&](const std::string& keys) {
      shop.run("query.npy " + keys + " -o out.npy --mask causal --seqused-kv of_two.npy --device emulate" + options);
      return shop.load("out.npy").to_doubles();
    };
    CHECK(out("latent.npy latent.npy --k-rotary rotary.npy") ==
          out("pages_latent.npy pages_latent.npy --k-rotary pages_rotary.npy --page-table of_pages.npy"));
  }
}

TEST_CASE("attend multiplies queries of e4m3, whose bytes a file may have, exactly or fast") {
  const Workshop shop;
  const HostTensor q = HostTensor::random_normal(DType::f32, {3, 70, 4, 32}, 1);
  shop.save("rounded.npy", q);
  shop.save("bytes.npy", q.converted_to(DType::e4m3));
  const double scales[] = {0.5, 2, 1, 1.5};
  shop.save("of_q.npy", HostTensor::from_doubles(DType::f32, {4}, scales, 4));
  for (const std::string architecture : {"sm_89", "sm_90a"}) {
    const std::string options = " k.npy v.npy -o out.npy --e4m3 --e4m3-queries --device emulate --arch " + architecture;
    CAPTURE(options);
    const auto out = [&](const std::string& more) {
      shop.run(more + options);
      return shop.load("out.npy").to_doubles();
    };
    const std::vector<double> exact = out("rounded.npy");
    CHECK(exact == out("bytes.npy"));
    CHECK(exact != out("bytes.npy --fast-sums"));
    CHECK(exact != out("bytes.npy --dtype f16"));
    CHECK(exact != out("bytes.npy --q-scale of_q.npy --mask causal"));
  }
  shop.run("bytes.npy k.npy v.npy -o out.npy --e4m3 --e4m3-queries --device cpu");
}

TEST_CASE("attend gives the gradients by kernels that the CPU gives, within what low precision makes of them") {
  const Workshop shop;
  shop.save("four.npy", HostTensor::random_normal(DType::f32, {3, 70, 4, 32}, 1));
  shop.save("dout.npy", HostTensor::random_normal(DType::f32, {3, 70, 4, 32}, 6));
  shop.save("dlse.npy", HostTensor::random_normal(DType::f32, {3, 4, 70}, 7));
  struct Call {
    std::string architecture, options;
    std::vector<std::string> gradients;
  };
  const std::vector<std::string> all{"dq", "dk", "dv"};
  const Call calls[] = {{"sm_80", "", all},
                        {"sm_90a", "--dlse dlse.npy --mask causal --softcap 5 --sinks sinks.npy", all},
                        {"sm_80", "--dtype f16 --alibi-slopes sinks.npy --dropout 0.3 --dropout-seed 5", {"dk"}}};
  for (const auto& [architecture, options, gradients] : calls) {
    CAPTURE(options);
    const std::string call = "four.npy k.npy v.npy --grad dout.npy " + options;
    std::string by_kernel = call + " --device emulate --arch " + architecture, by_cpu = call + " --device cpu";
    for (const std::string& name : gradients) {
      by_kernel += fmt::format(" --{0} {0}.npy", name);
      by_cpu += fmt::format(" --{0} exact_{0}.npy", name);
    }
    const nlohmann::json check = shop.run(by_kernel);
    CHECK(check.size() == 3 + gradients.size());
    shop.run(by_cpu);
    for (const std::string& name : gradients) {
      const std::vector<double> got = shop.load(name + ".npy").to_doubles();
      const std::vector<double> exact = shop.load("exact_" + name + ".npy").to_doubles();
      double difference = 0;
      for (std::size_t i = 0; i < exact.size(); ++i) difference = std::max(difference, std::abs(got[i] - exact[i]));
      CAPTURE(name);
      CHECK(difference <= 2 * check.at(name).at("bound").get<double>());
      CHECK(difference > 0);
    }
  }
  const std::string text = "--mask causal --mask '(query - key) % step != 1' --capture step=3";
  CHECK(shop.run("four.npy k.npy v.npy --grad dout.npy --dq dq.npy --dv dv.npy --device emulate --arch sm_86 " + text)
            .size() == 5);
  const std::string score =
      "--score 'key % 7 == 3 ? -infinity : score + slope(head) * tanh(score)' --capture slope=sinks.npy";
  CHECK(shop.run("four.npy k.npy v.npy --grad dout.npy --dq dq.npy --dk dk.npy --device emulate --arch sm_90a " + score)
            .size() == 5);
  const std::string variants = " --device emulate --arch sm_80 --variant v3 --grad-variant q32-kv64-w4-r2";
  CHECK(shop.run("four.npy k.npy v.npy --grad dout.npy --dq dq.npy" + variants).size() == 4);
}
