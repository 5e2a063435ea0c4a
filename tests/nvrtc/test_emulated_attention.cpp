// SPDX-License-Identifier: Apache-2.0
// attention() without a GPU: real kernels, compiled to PTX and run in the emulator, against the reference.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "flashjit/emulator.h"
#include "flashjit/flashjit.h"
#include "runtime/support/parallel.h"
#include "tests/support/large_scores.h"
#include "tests/support/same_bytes.h"
#include "tests/support/surrounded_by_nan.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;
using tests::same_bytes;

EngineOptions emulating(const std::string& architecture) {
  EngineOptions options = EngineOptions::from_environment();
  options.policy = Policy::off;
  options.emulate = architecture;
  return options;
}

Engine& engine_for(const std::string& architecture) {
  static Engine sm_80(emulating("sm_80")), sm_90a(emulating("sm_90a"));
  return architecture == "sm_80" ? sm_80 : sm_90a;
}

struct Sizes {
  std::int64_t batch = 1, seqlen_q = 130, seqlen_kv = 200, num_heads_q = 4, num_heads_kv = 2, head_dim = 64,
               head_dim_v = 64;
};

HostTensor filled_with_nan(DType dtype, const Dims& shape) {
  HostTensor tensor(dtype, shape);
  for (std::size_t i = 0; i < tensor.element_count(); ++i) {
    store_element(tensor.data(), dtype, static_cast<std::int64_t>(i), std::numeric_limits<double>::quiet_NaN());
  }
  return tensor;
}

// One problem in host memory.
struct Case {
  explicit Case(const Sizes& s = {}, DType dtype = DType::bf16)
      : q(HostTensor::random_normal(dtype, {s.batch, s.seqlen_q, s.num_heads_q, s.head_dim}, 1)),
        k(HostTensor::random_normal(dtype, {s.batch, s.seqlen_kv, s.num_heads_kv, s.head_dim}, 2)),
        v(HostTensor::random_normal(dtype, {s.batch, s.seqlen_kv, s.num_heads_kv, s.head_dim_v}, 3)),
        out(filled_with_nan(dtype, {s.batch, s.seqlen_q, s.num_heads_q, s.head_dim_v})),
        lse(filled_with_nan(DType::f32, {s.batch, s.num_heads_q, s.seqlen_q})) {}

  void check(const HostTensor& result, const AttentionOptions& opts) const {
    const auto exact = reference::attention(q.view(), k.view(), v.view(), opts);
    const auto low = reference::attention_in_low_precision(q.view(), k.view(), v.view(), opts);
    const reference::Comparison values = reference::compare(result, exact, low);
    CAPTURE(values.max_error);
    CAPTURE(values.bound);
    CHECK(values.passed);
    if (opts.lse) CHECK(reference::compare_lse(lse, exact).passed);
  }

  HostTensor q, k, v, out, lse;
};

}  // namespace

TEST_CASE("both families compute attention on the CPU") {
  for (const std::string architecture : {"sm_80", "sm_90a"}) {
    for (const bool causal : {false, true}) {
      for (const DType dtype : {DType::bf16, DType::f16}) {
        CAPTURE(architecture);
        CAPTURE(causal);
        CAPTURE(std::string(to_string(dtype)));
        Case c({}, dtype);
        AttentionOptions opts;
        opts.causal = causal;
        opts.lse = c.lse.view();
        Engine& engine = engine_for(architecture);
        engine.attention(c.q.view(), c.k.view(), c.v.view(), c.out.view(), opts);
        c.check(c.out, opts);
        const KernelInfo info = engine.prepare(c.q.view(), c.k.view(), c.v.view(), c.out.view(), opts);
        CHECK(info.problem == Problem{dtype, 64, 64, causal});
        CHECK(std::holds_alternative<HopperVariant>(info.variant) == (architecture == "sm_90a"));
      }
    }
  }
}

TEST_CASE("the returned tensor owns host memory") {
  const Case c;
  const AttentionOptions opts;
  const DeviceTensor out = engine_for("sm_90a").attention(c.q.view(), c.k.view(), c.v.view(), opts);
  CHECK(out.device() == kHostMemory);
  c.check(HostTensor::from_device(out), opts);
}

TEST_CASE("the output is the same under every schedule, and there are no findings") {
  for (const std::string architecture : {"sm_80", "sm_90a"}) {
    CAPTURE(architecture);
    Case c;
    AttentionOptions opts;
    opts.causal = true;
    opts.lse = c.lse.view();
    HostTensor first_out, first_lse;
    std::uint64_t instructions = 0;
    for (const std::uint64_t seed : {0, 1, 2, 99}) {
      CAPTURE(seed);
      c.out = filled_with_nan(DType::bf16, c.out.shape());
      c.lse = filled_with_nan(DType::f32, c.lse.shape());
      opts.lse = c.lse.view();
      EmulationOptions emulation;
      emulation.seed = seed;
      const emulator::Report report =
          engine_for(architecture).emulate(c.q.view(), c.k.view(), c.v.view(), c.out.view(), opts, emulation);
      CHECK_MESSAGE(report.clean(), to_string(report));
      CHECK(report.counters.warp_instructions > 0);
      if (instructions == 0) {
        c.check(c.out, opts);
        first_out = c.out, first_lse = c.lse, instructions = report.counters.warp_instructions;
      }
      CHECK(same_bytes(c.out, first_out));
      CHECK(same_bytes(c.lse, first_lse));
    }
  }
}

TEST_CASE("strides, few queries, rows that see no key, a negative scale and different head dims") {
  for (const std::string architecture : {"sm_80", "sm_90a"}) {
    CAPTURE(architecture);
    Engine& engine = engine_for(architecture);
    for (const Sizes& sizes : {Sizes{2, 3, 77, 8, 1, 64, 64}, Sizes{1, 200, 70, 2, 2, 64, 64},
                               Sizes{1, 90, 150, 2, 1, 96, 64}, Sizes{1, 70, 0, 2, 1, 64, 64}}) {
      Case c(sizes);
      CAPTURE(to_string(c.q.shape()));
      CAPTURE(to_string(c.k.shape()));
      AttentionOptions opts;
      opts.causal = true;
      opts.softmax_scale = -0.2f;
      opts.lse = c.lse.view();
      engine.attention(c.q.view(), c.k.view(), c.v.view(), c.out.view(), opts);
      c.check(c.out, opts);
    }
    // Q, K and V as slices of one [batch, seqlen, 3 * heads, head_dim] tensor.
    const HostTensor fused = HostTensor::random_normal(DType::bf16, {1, 140, 6, 64}, 5);
    const auto slice = [&](int part) {
      Tensor view = fused.view();
      view.data = static_cast<std::uint16_t*>(view.data) + 2 * 64 * part;
      view.shape[2] = 2;
      return view;
    };
    HostTensor out = filled_with_nan(DType::bf16, {1, 140, 2, 64});
    engine.attention(slice(0), slice(1), slice(2), out.view());
    const auto exact = reference::attention(slice(0), slice(1), slice(2));
    const auto low = reference::attention_in_low_precision(slice(0), slice(1), slice(2));
    CHECK(reference::compare(out, exact, low).passed);
  }
}

TEST_CASE("under random windows both families agree with the reference") {
  std::mt19937 generator(5);
  const auto from_to = [&](int least, int most) { return std::uniform_int_distribution(least, most)(generator); };
  const auto side = [&](std::int64_t keys) -> std::int64_t {
    const std::int64_t sides[] = {-1, from_to(0, 9), from_to(10, 70), from_to(0, static_cast<int>(keys) + 20)};
    return sides[from_to(0, 3)];
  };
  for (const auto& [architecture, spelling] : {std::pair{"sm_80", "mma-q64-kv32-k2-v2"},
                                               {"sm_80", "mma-q64-kv32-serial"},
                                               {"sm_80", "mma-q64-kv32-k2-v1-qregs"},
                                               {"sm_80", "mma-q64-kv32-k2-v3-rotate-always"},
                                               {"sm_90a", "hopper-q128-kv64-s2-whole-lazy-dynamic-fused"},
                                               {"sm_90a", "hopper-q128-kv32-serial-ppsoftmax-whole-always-single"},
                                               {"sm_90a", "hopper-q64-kv32-cl2-ppoff-whole-fixed"}}) {
    for (const bool causal : {false, true}) {
      for (int i = 0; i < 4; ++i) {
        Case c({1, from_to(1, 150), from_to(1, 220), 2, 1, 64, 64}, i % 2 == 0 ? DType::bf16 : DType::f16);
        AttentionOptions opts;
        opts.causal = causal;
        opts.window = {side(c.k.shape()[1]), side(c.k.shape()[1])};
        opts.softmax_scale = i == 3 ? 2.0f : 0.125f;  // scores that jump
        opts.lse = c.lse.view();
        opts.variant = parse_variant(spelling);
        CAPTURE(spelling);
        CAPTURE(causal);
        CAPTURE(opts.window.left);
        CAPTURE(opts.window.right);
        CAPTURE(c.q.shape()[1]);
        CAPTURE(c.k.shape()[1]);
        engine_for(architecture).attention(c.q.view(), c.k.view(), c.v.view(), c.out.view(), opts);
        c.check(c.out, opts);
      }
    }
  }
}

TEST_CASE("windows of other sizes compile nothing, and the keys that a query sees choose the kernel") {
  Engine engine(emulating("sm_90a"));
  Case c({1, 3, 8192, 1, 1, 64, 64});
  const auto kernel_of = [&](const Window& window) {
    AttentionOptions opts;
    opts.window = window;
    return engine.prepare(c.q.view(), c.k.view(), c.v.view(), c.out.view(), opts);
  };
  const Problem problem{DType::bf16, 64, 64, true, true};
  const KernelInfo narrow = kernel_of({40, 0});
  CHECK(narrow.problem == problem);
  CHECK(narrow.variant == engine.default_variant(problem, "sm_90a", shape_bucket({1, 3, 41, 1, 1}, 132)));
  const std::uint64_t compiles = engine.counters().compiles;
  CHECK(kernel_of({0, 0}).name == narrow.name);
  CHECK(kernel_of({1022, 0}).name == narrow.name);
  CHECK(engine.counters().compiles == compiles);
  CHECK(kernel_of({8000, 0}).variant ==
        engine.default_variant(problem, "sm_90a", shape_bucket({1, 3, 8001, 1, 1}, 132)));
}

TEST_CASE("scores as large as f32 holds, in every way of rescaling") {
  for (const auto& [architecture, spelling] : {std::pair{"sm_80", "mma-rare"},
                                               {"sm_80", "mma-always"},
                                               {"sm_90a", "hopper-kv64-lazy"},
                                               {"sm_90a", "hopper-kv64-rare"},
                                               {"sm_90a", "hopper-kv64-always"}}) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      for (const tests::LargeScores& problem : tests::problems_with_large_scores(dtype)) {
        CAPTURE(spelling);
        CAPTURE(std::string(to_string(dtype)));
        CAPTURE(problem.name);
        Case c({1, problem.q.shape()[1], problem.k.shape()[1], 1, 1, 64, 64}, dtype);
        c.q = problem.q, c.k = problem.k, c.v = problem.v;
        AttentionOptions opts = problem.options;
        opts.variant = parse_variant(spelling);
        opts.lse = c.lse.view();
        engine_for(architecture).attention(c.q.view(), c.k.view(), c.v.view(), c.out.view(), opts);
        c.check(c.out, opts);
      }
    }
  }
}

TEST_CASE("NaN in memory around the tensors reaches nothing") {
  for (const std::string architecture : {"sm_80", "sm_90a"}) {
    for (const Window& window : {Window{}, Window{-1, 0}, Window{40, 17}}) {
      CAPTURE(architecture);
      CAPTURE(window.left);
      CAPTURE(window.right);
      Case c({2, 70, 150, 2, 1, 72, 40});
      const HostTensor q = tests::surrounded_by_nan(c.q), k = tests::surrounded_by_nan(c.k),
                       v = tests::surrounded_by_nan(c.v);
      AttentionOptions opts;
      opts.window = window;
      opts.lse = c.lse.view();
      engine_for(architecture)
          .attention(tests::view_inside(q.view()), tests::view_inside(k.view()), tests::view_inside(v.view()),
                     c.out.view(), opts);
      c.check(c.out, opts);
    }
  }
}

TEST_CASE("NaN in a key reaches only the rows that see it") {
  constexpr std::int64_t kRows = 130, kPoisoned = 70;
  for (const std::string architecture : {"sm_80", "sm_90a"}) {
    for (const Window& window : {Window{-1, 0}, Window{20, 0}, Window{9, 5}}) {
      CAPTURE(architecture);
      CAPTURE(window.left);
      Case c({1, kRows, kRows, 1, 1, 64, 64});
      AttentionOptions opts;
      opts.window = window;
      opts.lse = c.lse.view();
      const reference::Result exact = reference::attention(c.q.view(), c.k.view(), c.v.view(), opts);
      const reference::Result low = reference::attention_in_low_precision(c.q.view(), c.k.view(), c.v.view(), opts);
      store_element(c.k.data(), c.k.dtype(), kPoisoned * 64, std::numeric_limits<double>::quiet_NaN());
      engine_for(architecture).attention(c.q.view(), c.k.view(), c.v.view(), c.out.view(), opts);
      const std::int64_t last = window.left < 0 ? kRows - 1 : kPoisoned + window.left;
      for (std::int64_t i = (kPoisoned - window.right) * 64; i < (last + 1) * 64; ++i) {
        CHECK(std::isnan(load_element(c.out.data(), c.out.dtype(), i)));
        store_element(c.out.data(), c.out.dtype(), i, exact.out[static_cast<std::size_t>(i)]);
      }
      CHECK(reference::compare(c.out, exact, low).passed);
    }
  }
}

TEST_CASE("every scheduler of the Hopper family, and clusters") {
  Engine& engine = engine_for("sm_90a");
  for (const std::string spelling : {"hopper-q128-kv64-s2-single", "hopper-q128-kv64-s2-fixed",
                                     "hopper-q128-kv64-s2-dynamic", "hopper-q128-kv64-s2-cl2-fixed"}) {
    CAPTURE(spelling);
    Case c({1, 300, 150, 4, 2, 64, 64});
    AttentionOptions opts;
    opts.lse = c.lse.view();
    opts.variant = parse_variant(spelling);
    engine.attention(c.q.view(), c.k.view(), c.v.view(), c.out.view(), opts);
    c.check(c.out, opts);
  }
}

TEST_CASE("what threads read and write themselves is in their own block of a cluster") {
  Engine& engine = engine_for("sm_90a");
  for (const std::string spelling : {"hopper-q128-kv64-s2-cl2-lazy-fixed", "hopper-q128-kv64-s2-psmem-cl2-fixed"}) {
    for (const float scale : {0.1f, 30.0f, -0.2f}) {  // as usual; scores again as maxima jump; Q with its sign changed
      CAPTURE(spelling);
      CAPTURE(scale);
      Case c({1, 200, 150, 2, 2, 64, 64});
      AttentionOptions opts;
      opts.lse = c.lse.view();
      opts.softmax_scale = scale;
      opts.variant = parse_variant(spelling);
      engine.attention(c.q.view(), c.k.view(), c.v.view(), c.out.view(), opts);
      c.check(c.out, opts);
    }
  }
}

TEST_CASE("a prepared engine compiles nothing more, and many threads may call it") {
  EngineOptions options = emulating("sm_90a");
  Engine engine(options);
  const Problem problem{DType::bf16, 64, 64, false};
  const std::vector<KernelInfo> infos = engine.prepare(problem);
  REQUIRE(!infos.empty());
  for (const KernelInfo& info : infos) {
    CHECK(info.architecture == "sm_90a");
    CHECK(info.origin == KernelInfo::Origin::compiled);
    CHECK(info.cubin_bytes > 0);
  }
  CHECK(engine.prepare(problem).front().origin == KernelInfo::Origin::memory);
  const std::uint64_t compiles = engine.counters().compiles;
  CHECK(compiles == infos.size());

  std::vector<Case> cases(3);
  runtime::parallel_for(cases.size(), [&](std::size_t i) {
    Case& c = cases[i];
    engine.attention(c.q.view(), c.k.view(), c.v.view(), c.out.view());
  });
  for (const Case& c : cases) c.check(c.out, {});
  CHECK(engine.counters().compiles == compiles);
}

TEST_CASE("PTX is kept in the cache beside cubins, under a key of its own") {
  const tests::TemporaryDirectory directory;
  EngineOptions options = emulating("sm_80");
  options.policy = Policy::compile;
  options.cache_directory = directory.path().string();
  const Problem problem{DType::bf16, 64, 64, false};
  const Variant variant = Engine(options).default_variant(problem, "sm_80");
  const KernelInfo made = Engine(options).prepare(problem, -1, variant).front();
  CHECK(made.origin == KernelInfo::Origin::compiled);
  CHECK_FALSE(made.cache_file.empty());

  Engine again(options);
  CHECK(again.prepare(problem, -1, variant).front().origin == KernelInfo::Origin::disk);
  CHECK(again.counters().compiles == 0);
  const KernelInfo cubin = again.compile(problem, variant, "sm_80");
  CHECK(cubin.origin == KernelInfo::Origin::compiled);
  CHECK(cubin.cache_file != made.cache_file);
}
