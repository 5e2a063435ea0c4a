// SPDX-License-Identifier: Apache-2.0
// The tuner's bench for gradients on the emulator: right candidates pass its checks, a wrong one does not.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "runtime/backends/backward_bench.h"
#include "runtime/backends/emulated_backend.h"
#include "runtime/kernels/nvrtc.h"
#include "runtime/kernels/template_directory.h"
#include "runtime/support/logger.h"
#include "tests/support/plant.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;
using namespace flashjit::runtime;

const std::vector<CallShape> kSmall = {
    {.batch = 1, .seqlen_q = 70, .seqlen_kv = 150, .num_heads_q = 2, .num_heads_kv = 1},
    {.batch = 1, .seqlen_q = 90, .seqlen_kv = 40, .num_heads_q = 1, .num_heads_kv = 1}};
constexpr CallShape kTimed{.batch = 1, .seqlen_q = 64, .seqlen_kv = 130, .num_heads_q = 2, .num_heads_kv = 2};

struct Bench {
  Bench(const char* architecture, const generator::Templates& templates, const BackwardProblem& problem)
      : target(find_architecture(architecture)),
        nvrtc({EngineOptions::from_environment().nvrtc_path, EngineOptions::from_environment().nvrtc_directories}, log),
        store(without_cache(), nvrtc, log),
        plain_kernels(templates),
        backend(target, templates, store, nullptr, {}),
        bench({backend, plain_kernels, store, target, ptx_target(target.name), nullptr, kHostMemory,
               [](BackwardCall&, int repeats) { return std::vector<double>(static_cast<std::size_t>(repeats), 1.); },
               [] { return 0.; }},
              problem, kTimed, kSmall, 2) {}
  static KernelStoreOptions without_cache() {
    KernelStoreOptions options;
    options.policy = Policy::off;
    return options;
  }

  const Logger log{nullptr};
  const Architecture& target;
  Nvrtc nvrtc;
  KernelStore store;
  PlainKernels plain_kernels;
  EmulatedBackend backend;
  BackwardBench bench;
};

BackwardProblem narrow(const char* text) { return tuning_class(parse_backward_problem(text)); }

}  // namespace

TEST_CASE("candidates for gradients that are right pass the checks of the bench, emulated") {
  for (const auto& [architecture, problem] : {std::pair{"sm_80", "bwd-bf16-d64-causal-softcap-deterministic"},
                                              {"sm_80", "bwd-f16-d64-window-alibi-bias.bf16-mask.tensors-dslopes"},
                                              {"sm_90a", "bwd-bf16-d64-causal"}}) {
    CAPTURE(std::string(problem));
    Bench on(architecture, generator::embedded_templates(), narrow(problem));
    std::vector<BackwardVariant> variants;
    if (std::string(architecture) == "sm_90a") variants.push_back(parse_backward_variant("hopper-q128-kv128"));
    variants.push_back(parse_backward_variant("q128-kv128-w8-r1-s1"));
    variants.push_back(parse_backward_variant("q32-kv64-w4-r2-s2"));
    int done = 0;
    const auto compiled = on.bench.compile(
        variants, [] { return false; }, [&](int n) { done = n; });
    CHECK(done == static_cast<int>(variants.size()));
    for (const CompiledCandidate& each : compiled) CHECK((each.ok && !each.identity.empty()));
    for (const BackwardVariant& variant : variants) CHECK(on.bench.check(variant) == "");
    CHECK(on.bench.time(variants.back(), 3).size() == 3);
  }
}

TEST_CASE("a candidate whose gradients are wrong does not pass the checks of the bench, emulated") {
  const tests::TemporaryDirectory directory;
  // Of variants with two tiles of rows alone.
  tests::plant("kernels/mma_backward.cuh", "* Shape::kRowTiles + m, 16 * k,", "* Shape::kRowTiles, 16 * k,",
               directory / "templates");
  const generator::Templates faulty = read_templates((directory / "templates").string());
  Bench on("sm_80", faulty, narrow("bwd-bf16-d64"));
  CHECK(on.bench.check(parse_backward_variant("q64-kv64-w4-r1-s1")) == "");
  const std::string why = on.bench.check(parse_backward_variant("q64-kv64-w4-r2-s1"));
  CHECK(why.find("dk is off by ") == 0);
  CHECK(why.find("(70 queries, 150 keys)") != why.npos);
  CHECK(on.bench.check(parse_backward_variant("q32-kv64-w4-r1-s1")) == "");
  CHECK_FALSE(on.bench
                  .compile(
                      {parse_backward_variant("q16-kv16-w8")}, [] { return false; }, [](int) {})
                  .front()
                  .ok);
}
