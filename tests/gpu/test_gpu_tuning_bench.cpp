// SPDX-License-Identifier: Apache-2.0
// The tuner's bench on a real device: what it lets through, what it refuses, and that nothing of it stays.
#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include "generator/variant_space.h"
#include "runtime/backends/gpu_tuning_bench.h"
#include "runtime/kernels/nvrtc.h"
#include "tests/gpu/attention_case.h"
#include "tests/gpu/driver_calls.h"
#include "tests/support/planted_faults.h"

using namespace flashjit;
using namespace flashjit::runtime;

namespace {

constexpr CallShape kShape{.batch = 2, .seqlen_q = 515, .seqlen_kv = 773, .num_heads_q = 6, .num_heads_kv = 3};
constexpr const char* kDynamic = "hopper-q128-kv64-s2-qs2-whole-2stage-ppoff-dynamic";
constexpr const char* kMma = "mma-q64-kv64-w4-k2-v1-overlap";

// A bench with a compiler and a store of its own, which keeps nothing on the disk.
class Workbench {
 public:
  explicit Workbench(const Problem& problem, const CallShape& shape = kShape,
                     const generator::Templates& templates = generator::embedded_templates())
      : Workbench(problem, shape, templates, EngineOptions::from_environment()) {}

  TuningBench::Compiled compile(const Variant& variant) {
    return bench
        .compile(
            {variant}, [] { return false; }, [](int) {})
        .at(0);
  }
  // What check() says of a variant that compiles.
  std::string check(const Variant& variant) {
    const TuningBench::Compiled compiled = compile(variant);
    INFO(compiled.why);
    REQUIRE(compiled.ok);
    return bench.check(variant);
  }

 private:
  Workbench(const Problem& problem, const CallShape& shape, const generator::Templates& templates,
            const EngineOptions& options)
      : nvrtc({options.nvrtc_path, options.nvrtc_directories}),
        store({.policy = Policy::off, .user = nullptr, .layers = {}}, nvrtc, log),
        bench(store, templates, device(0), problem, shape) {}

  const Logger log{nullptr};
  Nvrtc nvrtc;
  KernelStore store;

 public:
  GpuTuningBench bench;
};

Problem make_problem(bool causal = false, int head_dim = 64) { return {DType::bf16, head_dim, head_dim, causal}; }

bool is_hopper() { return device(0).architecture && std::string(device(0).architecture->name) == "sm_90a"; }

std::vector<Variant> some_variants() {
  std::vector<Variant> variants = {parse_variant(kMma)};
  if (is_hopper()) variants.push_back(parse_variant(kDynamic));
  return variants;
}

}  // namespace

TEST_CASE("the default variants are right, and are timed as often as asked") {
  for (const bool causal : {false, true}) {
    for (const int head_dim : {64, 128}) {
      CAPTURE(causal);
      CAPTURE(head_dim);
      const Problem problem = make_problem(causal, head_dim);
      Workbench workbench(problem);
      for (const Variant& variant : generator::default_variants(problem, require_architecture(device(0)))) {
        CAPTURE(to_string(variant));
        CHECK(workbench.check(variant) == "");
        for (const int launches : {1, 2, 7, 1}) {
          const std::vector<double> times = workbench.bench.time(variant, launches);
          CHECK(times.size() == static_cast<std::size_t>(launches));
          for (const double us : times) CHECK(us > 0);
        }
      }
    }
  }
}

TEST_CASE("calls of every kind can be timed") {
  const CallShape shapes[] = {{1, 1, 4099, 32, 8}, {1, 1, 1, 1, 1}, {3, 64, 70, 2, 2}, {1, 3000, 131, 1, 1}};
  for (const CallShape& shape : shapes) {
    for (const bool causal : {false, true}) {
      CAPTURE(shape.seqlen_q);
      Workbench workbench(make_problem(causal), shape);
      for (const Variant& variant : some_variants()) {
        CHECK(workbench.check(variant) == "");
        CHECK(workbench.bench.time(variant, 3).size() == 3);
      }
    }
  }
}

TEST_CASE("what stands for users' functions is right and can be timed, with block masks and without") {
  for (const bool block_mask : {false, true}) {
    for (const char* functions : {"score.arithmetic-mask.tensors", "score.tensors-mask.arithmetic"}) {
      const Problem problem =
          parse_problem(std::string("fwd-bf16-d64-causal-") + (block_mask ? "blocks-" : "") + functions);
      CAPTURE(to_string(problem));
      for (const CallShape& shape : {kShape, CallShape{2, 1, 4099, 32, 8}}) {
        Workbench workbench(problem, shape);
        std::vector<Variant> variants = some_variants();
        variants.push_back(generator::default_variant(problem, require_architecture(device(0)), {}));
        for (const Variant& variant : variants) {
          CAPTURE(to_string(variant));
          CHECK(workbench.check(variant) == "");
          CHECK(workbench.bench.time(variant, 3).size() == 3);
        }
      }
    }
  }
}

TEST_CASE("a block mask that depends on heads is made for each of them") {
  Workbench workbench(parse_problem("fwd-bf16-d64-blocks-boolean_mask"), {3, 100, 300, 4, 2});
  for (const Variant& variant : some_variants()) CHECK(workbench.check(variant) == "");
}

TEST_CASE("several kernels are compiled, the results in their order, and told one by one") {
  Workbench workbench(make_problem());
  std::vector<Variant> variants = {parse_variant(kMma), parse_variant("mma-q64-kv32-w4"),
                                   parse_variant("mma-q128-kv64-w4-k1-v1"), parse_variant(kMma)};
  std::vector<int> told;
  const auto results = workbench.bench.compile(
      variants, [] { return false; }, [&](int done) { told.push_back(done); });
  REQUIRE(results.size() == variants.size());
  std::set<std::string> identities;
  for (const TuningBench::Compiled& result : results) {
    INFO(result.why);
    CHECK(result.ok);
    CHECK(result.spill_bytes == 0);
    identities.insert(result.identity);
  }
  CHECK(told == std::vector<int>{1, 2, 3, 4});
  CHECK(identities.size() == 3);
  CHECK(results[0].identity == results[3].identity);
  for (const Variant& variant : variants) CHECK(workbench.bench.check(variant) == "");
}

TEST_CASE("what was not tried is neither compiled nor failed") {
  Workbench workbench(make_problem());
  const auto results = workbench.bench.compile(
      some_variants(), [] { return true; }, [](int) {});
  for (const TuningBench::Compiled& result : results) {
    CHECK_FALSE(result.ok);
    CHECK(result.why.empty());
  }
}

TEST_CASE("an illegal variant and one that the compiler refuses fail, and say why") {
  Workbench workbench(make_problem());
  CHECK_FALSE(workbench.compile(parse_variant("mma-q64-kv48-w4-k3-v3-c9")).ok);
  const generator::Templates broken = tests::templates_with(tests::kDoesNotCompile);
  const TuningBench::Compiled refused = Workbench(make_problem(), kShape, broken).compile(parse_variant(kMma));
  CHECK_FALSE(refused.ok);
  CHECK(refused.why != "");
}

TEST_CASE("a kernel with a wrong scale is wrong") {
  const generator::Templates templates = tests::templates_with(tests::kWrongScale);
  Workbench workbench(make_problem(), kShape, templates);
  for (const Variant& variant : some_variants()) {
    CAPTURE(to_string(variant));
    CHECK(workbench.check(variant).find("is off by") != std::string::npos);
  }
}

TEST_CASE("a kernel that leaves its counter of tiles dirty is wrong") {
  if (!is_hopper()) return;
  const generator::Templates templates = tests::templates_with(tests::kDirtyTileCounter);
  Workbench workbench(make_problem(), kShape, templates);
  CHECK(workbench.check(parse_variant(kDynamic)).find("is off by") != std::string::npos);
}

TEST_CASE("a shape that does not fit the device's memory is told so, and the device works on") {
  const CallShape huge{.batch = 64, .seqlen_q = 1 << 20, .seqlen_kv = 1 << 20, .num_heads_q = 64, .num_heads_kv = 64};
  try {
    Workbench workbench(make_problem(), huge);
    FAIL("2 TiB fit");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::driver);
    CHECK(std::string(error.what()).find("must fit into the free memory") != std::string::npos);
  }
  Workbench workbench(make_problem());
  CHECK(workbench.check(parse_variant(kMma)) == "");
}

TEST_CASE("the memory of the tensors goes back to the device") {
  const CallShape large{.batch = 1, .seqlen_q = 1 << 18, .seqlen_kv = 1 << 18, .num_heads_q = 16, .num_heads_kv = 16};
  const tests::ScopedContext context(0);
  const auto free_bytes = [] {
    std::size_t free = 0, total = 0;
    DRIVER_CALL(cuMemGetInfo, &free, &total);
    return free;
  };
  { Workbench(make_problem(), kShape); }  // what a first use of the device takes for good
  const std::size_t before = free_bytes();
  {
    Workbench workbench(make_problem(), large);
    CHECK(free_bytes() + (std::size_t{1} << 30) < before);
  }
  CHECK(free_bytes() + (std::size_t{1} << 28) > before);
}

TEST_CASE("a bench works while another stream captures a graph") {
  const tests::ScopedContext context(0);
  const tests::ScopedStream stream;
  DRIVER_CALL(cuStreamBeginCapture, stream.get(), CU_STREAM_CAPTURE_MODE_GLOBAL);
  {
    Workbench workbench(make_problem());
    CHECK(workbench.check(parse_variant(kMma)) == "");
    CHECK(workbench.bench.time(parse_variant(kMma), 2).size() == 2);
  }
  CUgraph graph = nullptr;
  DRIVER_CALL(cuStreamEndCapture, stream.get(), &graph);
  DRIVER_CALL(cuGraphDestroy, graph);
}
