// SPDX-License-Identifier: Apache-2.0
// attention() without a GPU: real kernels, compiled to PTX and run in the emulator, against the reference.
#include <doctest/doctest.h>

#include <cmath>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "flashjit/emulator.h"
#include "flashjit/flashjit.h"
#include "runtime/support/parallel.h"
#include "tests/support/emulating_engine.h"
#include "tests/support/kept_kernels.h"
#include "tests/support/large_scores.h"
#include "tests/support/same_bytes.h"
#include "tests/support/sample.h"
#include "tests/support/surrounded_by_nan.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;
using tests::emulating;
using tests::engine_for;
using tests::same_bytes;

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
    if (opts.lse) CHECK(reference::compare_lse(lse, exact, low).passed);
  }

  HostTensor q, k, v, out, lse;
};

// An architecture, and of its family a variant that is taken for random calls.
const std::pair<std::string, std::string> kWaysOfBothFamilies[] = {
    {"sm_80", "mma-q64-kv32-k2-v2"},
    {"sm_80", "mma-q64-kv32-serial"},
    {"sm_80", "mma-q64-kv32-k2-v1-qregs"},
    {"sm_80", "mma-q64-kv32-k2-v3-rotate-always"},
    {"sm_90a", "hopper-q128-kv64-s2-whole-lazy-dynamic-fused"},
    {"sm_90a", "hopper-q128-kv32-serial-ppsoftmax-whole-always-single"},
    {"sm_90a", "hopper-q64-kv32-cl2-ppoff-whole-fixed"}};

// What a random call takes.
class Chance {
 public:
  explicit Chance(unsigned seed) : generator_(seed) {}

  int from_to(int least, int most) { return std::uniform_int_distribution(least, most)(generator_); }
  // Of a window over that many keys.
  std::int64_t side(std::int64_t keys) {
    const std::int64_t sides[] = {-1, from_to(0, 9), from_to(10, 70), from_to(0, static_cast<int>(keys) + 20)};
    return sides[from_to(0, 3)];
  }
  // Of each head, some of them 0: those that the paper has, and others of either sign.
  HostTensor slopes(const Dims& shape) {
    HostTensor slopes(DType::f32, shape);
    for (std::size_t i = 0; i < slopes.element_count(); ++i)
      store_element(slopes.data(), DType::f32, static_cast<std::int64_t>(i),
                    from_to(-1, 2) * std::exp2(-from_to(0, 8)));
    return slopes;
  }
  // Of each head: none, among the scores, above and below any of them, and so large that only they are left.
  HostTensor sinks(const Dims& shape) {
    HostTensor sinks(DType::f32, shape);
    for (std::size_t i = 0; i < sinks.element_count(); ++i) {
      const double values[] = {-std::numeric_limits<double>::infinity(), 1e30, -1e30, from_to(-9, 9) / 3.0,
                               from_to(-90, 90) / 1.0};
      store_element(sinks.data(), DType::f32, static_cast<std::int64_t>(i), values[from_to(0, 4)]);
    }
    return sinks;
  }
  std::int64_t chunk(std::int64_t keys) {
    const std::int64_t chunks[] = {1, from_to(2, 9), from_to(10, 70), keys, keys + 20, std::int64_t{1} << 40};
    return chunks[from_to(0, 5)];
  }

 private:
  std::mt19937 generator_;
};

HostTensor of_heads(const std::vector<double>& heads) {
  return HostTensor::from_doubles(DType::f32, {static_cast<std::int64_t>(heads.size())}, heads.data(), heads.size());
}

// By a kernel whose warps share the rows of a tile.
void check_shared_rows(const std::string& rows, const Sizes& sizes, bool causal, DType dtype = DType::bf16) {
  Case c(sizes, dtype);
  AttentionOptions opts;
  opts.causal = causal;
  opts.lse = c.lse.view();
  opts.variant = parse_variant("hopper-" + rows + "-kv64-s2-qs1-whole-serial-ppoff-fixed-split-splitkv");
  engine_for("sm_90a").attention(c.q.view(), c.k.view(), c.v.view(), c.out.view(), opts);
  c.check(c.out, opts);
}

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
  tests::Sampler sampler;
  Chance chance(5);
  for (const auto& [architecture, spelling] : kWaysOfBothFamilies) {
    for (const bool causal : {false, true}) {
      for (int i = 0; i < 4; ++i) {
        if (!sampler.takes_next()) continue;
        Case c({1, chance.from_to(1, 150), chance.from_to(1, 220), 2, 1, 64, 64},
               i % 2 == 0 ? DType::bf16 : DType::f16);
        AttentionOptions opts;
        opts.causal = causal;
        opts.window = {chance.side(c.k.shape()[1]), chance.side(c.k.shape()[1])};
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

TEST_CASE("with a slot for one block a warpgroup may pass over what another one visits") {
  tests::Sampler sampler;
  for (const char* spelling :
       {"hopper-q128-kv32-s1-qs1-whole-serial-ppsoftmax-split", "hopper-q128-kv32-s1-qs1-whole-serial-ppgemm-split",
        "hopper-q128-kv32-s1-qs1-whole-ppgemm-split", "hopper-q128-kv32-s1-qs2-whole-ppgemm-split",
        "hopper-q192-kv32-s1-qs1-whole-ppgemm-rare-split", "hopper-q128-kv32-s1-qs1-whole-3stage-ppgemm-rare-split"}) {
    CAPTURE(spelling);
    const bool has_windows = std::string_view(spelling).find("3stage") == std::string_view::npos;
    for (const Window window : {Window{}, Window{20, 0}, Window{20, 20}, Window{0, 70}}) {
      if (window != Window{} && !has_windows) continue;
      CAPTURE(window.left);
      if (!sampler.takes_next()) continue;
      Case c({1, 300, 300, 2, 1, 64, 64});
      AttentionOptions opts;
      opts.window = window;
      opts.causal = window == Window{};
      opts.variant = parse_variant(spelling);
      engine_for("sm_90a").attention(c.q.view(), c.k.view(), c.v.view(), c.out.view(), opts);
      c.check(c.out, opts);
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
  const std::uint64_t compiles = tests::kernels_of(engine);
  CHECK(kernel_of({0, 0}).name == narrow.name);
  CHECK(kernel_of({1022, 0}).name == narrow.name);
  CHECK(tests::kernels_of(engine) == compiles);
  CHECK(kernel_of({8000, 0}).variant ==
        engine.default_variant(problem, "sm_90a", shape_bucket({1, 3, 8001, 1, 1}, 132)));
}

TEST_CASE("under random caps and slopes both families agree with the reference") {
  tests::Sampler sampler;
  Chance chance(6);
  constexpr float kCaps[] = {1.5f, 20, 1000};
  constexpr float kScales[] = {0.125f, 2, -0.125f};
  for (const auto& [architecture, spelling] : kWaysOfBothFamilies) {
    for (const bool causal : {false, true}) {
      for (int i = 0; i < 4; ++i) {
        if (!sampler.takes_next()) continue;
        const std::int64_t batch = chance.from_to(1, 2), heads_kv = 1 << chance.from_to(0, 2);
        const std::int64_t keys = chance.from_to(1, 180);
        Case c({batch, chance.from_to(1, 90), keys, 4, heads_kv, 64, 64}, i % 2 == 0 ? DType::bf16 : DType::f16);
        const HostTensor slopes = chance.slopes(i == 1 ? Dims{4} : Dims{batch, 4});
        AttentionOptions opts;
        opts.causal = causal;
        if (i != 0) opts.alibi_slopes = slopes.view();
        if (i != 1) opts.softcap = kCaps[chance.from_to(0, 2)];
        if (i == 3) opts.window = {chance.side(keys), chance.side(keys)};
        opts.softmax_scale = kScales[chance.from_to(0, 2)];
        opts.lse = c.lse.view();
        opts.variant = parse_variant(spelling);
        CAPTURE(spelling);
        CAPTURE(causal);
        CAPTURE(opts.softcap);
        CAPTURE(opts.alibi_slopes.has_value());
        CAPTURE(*opts.softmax_scale);
        CAPTURE(opts.window.left);
        CAPTURE(opts.window.right);
        CAPTURE(to_string(c.q.shape()));
        CAPTURE(to_string(c.k.shape()));
        engine_for(architecture).attention(c.q.view(), c.k.view(), c.v.view(), c.out.view(), opts);
        c.check(c.out, opts);
      }
    }
  }
}

// With slopes of powers of two f32 holds what they add. The nearest key of a row decides alone, or the farthest.
TEST_CASE("slopes so steep that one key decides") {
  const HostTensor slopes = of_heads({0x1p20, -0x1p20, 0, 0x1p-120});
  for (const auto& [architecture, spelling] : kWaysOfBothFamilies) {
    for (const bool causal : {false, true}) {
      for (const float softcap : {0.0f, 5.0f}) {
        CAPTURE(spelling);
        CAPTURE(causal);
        CAPTURE(softcap);
        Case c({1, 40, 150, 4, 2, 64, 64});
        AttentionOptions opts;
        opts.causal = causal;
        opts.softcap = softcap;
        opts.alibi_slopes = slopes.view();
        opts.lse = c.lse.view();
        opts.variant = parse_variant(spelling);
        engine_for(architecture).attention(c.q.view(), c.k.view(), c.v.view(), c.out.view(), opts);
        c.check(c.out, opts);
      }
    }
  }
}

TEST_CASE("a cap holds any score, and NaN stays in its row") {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  // Each the only product of a row with all keys.
  const double products[] = {1e9, -1e9, kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()};
  const HostTensor slopes = of_heads({0.25, -0.125});
  for (const auto& [architecture, spelling] : kWaysOfBothFamilies) {
    for (const bool causal : {false, true}) {
      for (const auto& [softcap, has_slopes] : {std::pair{30.0f, false}, {30.0f, true}, {0.0f, true}}) {
        CAPTURE(spelling);
        CAPTURE(causal);
        CAPTURE(softcap);
        CAPTURE(has_slopes);
        Case c({1, 50, 100, 2, 1, 64, 64});
        for (std::int64_t key = 0; key < 100; ++key) store_element(c.k.data(), c.k.dtype(), key * 64, 1);
        for (std::int64_t i = 0; i < static_cast<std::int64_t>(std::size(products)); ++i) {
          const std::int64_t row = (9 * i + 3) * 2 * 64;
          for (std::int64_t column = 0; column < 64; ++column)
            store_element(c.q.data(), c.q.dtype(), row + column, column == 0 ? products[i] : 0);
        }
        AttentionOptions opts;
        opts.causal = causal;
        opts.softcap = softcap;
        if (has_slopes) opts.alibi_slopes = slopes.view();
        opts.lse = c.lse.view();
        opts.variant = parse_variant(spelling);
        engine_for(architecture).attention(c.q.view(), c.k.view(), c.v.view(), c.out.view(), opts);
        c.check(c.out, opts);
      }
    }
  }
}

// Beside it f32 does not hold what they take, and f16 holds no exponential of that.
TEST_CASE("a huge score outweighs what slopes take from it") {
  constexpr std::int64_t kKey = 20, kColumns = 2;
  constexpr double kSize = 6e4;
  const HostTensor slopes = of_heads({0.25, 0.2, 0.15, -0.25});
  for (const auto& [architecture, spelling] : kWaysOfBothFamilies) {
    for (const bool causal : {false, true}) {
      CAPTURE(spelling);
      CAPTURE(causal);
      Case c({1, 40, 150, 4, 2, 64, 64}, DType::f16);
      const auto fill = [](HostTensor& tensor, double value, std::int64_t first, std::int64_t rows) {
        for (std::int64_t i = first * kColumns; i < (first + rows) * kColumns; ++i)
          store_element(tensor.data(), tensor.dtype(), i / kColumns * 64 + i % kColumns, value);
      };
      fill(c.q, kSize, 0, 40 * 4);
      fill(c.k, 0, 0, 150 * 2);
      fill(c.k, kSize, kKey * 2, 2);
      AttentionOptions opts;
      opts.causal = causal;
      opts.alibi_slopes = slopes.view();
      opts.lse = c.lse.view();
      opts.variant = parse_variant(spelling);
      engine_for(architecture).attention(c.q.view(), c.k.view(), c.v.view(), c.out.view(), opts);
      c.check(c.out, opts);
    }
  }
}

TEST_CASE("caps and slopes of other values compile nothing") {
  Engine engine(emulating("sm_90a"));
  Case c({2, 20, 70, 4, 2, 64, 64});
  const auto name_of = [&](float softcap, const HostTensor& slopes) {
    AttentionOptions opts;
    opts.softcap = softcap;
    opts.alibi_slopes = slopes.view();
    opts.lse = c.lse.view();
    engine.attention(c.q.view(), c.k.view(), c.v.view(), c.out.view(), opts);
    c.check(c.out, opts);
    return engine.prepare(c.q.view(), c.k.view(), c.v.view(), c.out.view(), opts).name;
  };
  const std::string name = name_of(30, of_heads({1, 2, 3, 4}));
  const std::uint64_t compiles = tests::kernels_of(engine);
  CHECK(name_of(2, of_heads({1, 2, 3, 4})) == name);
  CHECK(name_of(30, of_heads({-1, 0.5, 0, 4})) == name);
  CHECK(name_of(1e-6f, Chance(1).slopes({2, 4})) == name);
  CHECK(tests::kernels_of(engine) == compiles);
}

TEST_CASE("under random sinks and chunks both families agree with the reference") {
  tests::Sampler sampler;
  Chance chance(7);
  constexpr float kScales[] = {0.125f, 2, -0.125f};
  for (const auto& [architecture, spelling] : kWaysOfBothFamilies) {
    for (const bool causal : {false, true}) {
      for (int i = 0; i < 6; ++i) {
        if (!sampler.takes_next()) continue;
        const std::int64_t batch = chance.from_to(1, 2), heads_kv = 1 << chance.from_to(0, 2);
        const std::int64_t keys = chance.from_to(1, 180);
        Case c({batch, chance.from_to(1, 150), keys, 4, heads_kv, 64, 64}, i % 2 == 0 ? DType::bf16 : DType::f16);
        const HostTensor sinks = chance.sinks(chance.from_to(0, 1) == 0 ? Dims{4} : Dims{batch, 4}),
                         slopes = chance.slopes({4});
        AttentionOptions opts;
        opts.causal = causal;
        if (i != 0 && i != 1) opts.sinks = sinks.view();
        if (i != 2 && i != 3) opts.chunk = chance.chunk(keys);
        if (i == 5) {
          opts.window = {chance.side(keys), chance.side(keys)};
          opts.softcap = 20;
          opts.alibi_slopes = slopes.view();
        }
        opts.softmax_scale = kScales[chance.from_to(0, 2)];
        opts.lse = c.lse.view();
        opts.variant = parse_variant(spelling);
        CAPTURE(spelling);
        CAPTURE(causal);
        CAPTURE(i);
        CAPTURE(opts.chunk);
        CAPTURE(*opts.softmax_scale);
        CAPTURE(opts.window.left);
        CAPTURE(opts.window.right);
        CAPTURE(to_string(c.q.shape()));
        CAPTURE(to_string(c.k.shape()));
        engine_for(architecture).attention(c.q.view(), c.k.view(), c.v.view(), c.out.view(), opts);
        c.check(c.out, opts);
      }
    }
  }
}

TEST_CASE("rows that see no key give 0 and their sink, under a causal mask and in chunks") {
  // With a scale of 0 what such rows keep as their maximum is next to 0 too.
  constexpr float kScales[] = {0.125f, 0};
  const std::vector<double> values = {-100, -1e38, -std::numeric_limits<double>::infinity(), 1e30};
  const HostTensor sinks = of_heads(values);
  for (const auto& [architecture, spelling] : kWaysOfBothFamilies) {
    for (const std::int64_t keys : {0, 40}) {
      if (keys == 0 && architecture == "sm_90a") continue;  // variants of this family need keys
      for (const std::int64_t chunk : {0, 1, 7, 90}) {
        CAPTURE(spelling);
        CAPTURE(keys);
        CAPTURE(chunk);
        Case c({1, 90, keys, 4, 2, 64, 64});
        AttentionOptions opts;
        opts.softmax_scale = kScales[chunk % 2];
        opts.causal = chunk == 0;
        opts.chunk = chunk;
        opts.sinks = sinks.view();
        opts.lse = c.lse.view();
        opts.variant = parse_variant(spelling);
        engine_for(architecture).attention(c.q.view(), c.k.view(), c.v.view(), c.out.view(), opts);
        c.check(c.out, opts);
        const std::int64_t unseeing = 90 - keys;
        bool all_zero = true;
        for (std::int64_t i = 0; i < unseeing * 4 * 64; ++i)
          all_zero = all_zero && load_element(c.out.data(), c.out.dtype(), i) == 0;
        CHECK(all_zero);
        for (std::int64_t head = 0; head < 4; ++head)
          for (const std::int64_t row : {std::int64_t{0}, unseeing - 1}) {
            const double lse = load_element(c.lse.data(), DType::f32, head * 90 + row),
                         sink = values[static_cast<std::size_t>(head)];
            CAPTURE(lse);
            CHECK((lse == sink || lse == doctest::Approx(sink)));  // nothing is approximately infinite
          }
      }
    }
  }
}

TEST_CASE("sinks of -infinity are none, and a chunk of all keys hides none") {
  const HostTensor none = of_heads(std::vector<double>(4, -std::numeric_limits<double>::infinity()));
  for (const std::string architecture : {"sm_80", "sm_90a"}) {
    CAPTURE(architecture);
    Case plain, c;
    AttentionOptions opts;
    opts.variant = parse_variant(architecture == "sm_80" ? "mma-q64-kv32-k2-v2" : "hopper-q128-kv64-s2-whole");
    const auto run = [&](Case& into) {
      opts.lse = into.lse.view();
      engine_for(architecture).attention(into.q.view(), into.k.view(), into.v.view(), into.out.view(), opts);
    };
    run(plain);
    opts.sinks = none.view();
    run(c);
    CHECK(same_bytes(c.out, plain.out));
    CHECK(same_bytes(c.lse, plain.lse));
    opts.sinks.reset();
    opts.chunk = 200;
    run(c);
    c.check(c.out, opts);
    opts.chunk = 0;
    c.check(c.out, opts);
  }
}

TEST_CASE("sinks and chunks of other values compile nothing") {
  Engine engine(emulating("sm_90a"));
  Case c({2, 20, 70, 4, 2, 64, 64});
  const auto name_of = [&](std::int64_t chunk, const HostTensor& sinks) {
    AttentionOptions opts;
    opts.chunk = chunk;
    opts.sinks = sinks.view();
    opts.lse = c.lse.view();
    engine.attention(c.q.view(), c.k.view(), c.v.view(), c.out.view(), opts);
    c.check(c.out, opts);
    return engine.prepare(c.q.view(), c.k.view(), c.v.view(), c.out.view(), opts).name;
  };
  const std::string name = name_of(30, of_heads({1, 2, 3, 4}));
  const std::uint64_t compiles = tests::kernels_of(engine);
  CHECK(name_of(30, of_heads({-1, 1e30, 0, -std::numeric_limits<double>::infinity()})) == name);
  CHECK(name_of(1, of_heads({1, 2, 3, 4})) == name);
  CHECK(name_of(70, Chance(1).sinks({2, 4})) == name);
  CHECK(name_of(std::numeric_limits<std::int64_t>::max(), Chance(2).sinks({4})) == name);
  CHECK(tests::kernels_of(engine) == compiles);
}

TEST_CASE("scores as large as f32 holds, in every way of rescaling") {
  tests::Sampler sampler;
  for (const auto& [architecture, spelling] : {std::pair{"sm_80", "mma-rare"},
                                               {"sm_80", "mma-always"},
                                               {"sm_90a", "hopper-kv64-lazy"},
                                               {"sm_90a", "hopper-kv64-rare"},
                                               {"sm_90a", "hopper-kv64-always"}}) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      for (const tests::LargeScores& problem : tests::problems_with_large_scores(dtype)) {
        if (!sampler.takes_next()) continue;
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
        if (architecture == std::string("sm_90a")) opts.variant = parse_variant(std::string(spelling) + "-whole");
        for (const double sink : {-3.0, 2e38, -2e38}) {
          CAPTURE(sink);
          const HostTensor sinks = of_heads({sink});
          opts.sinks = sinks.view();
          engine_for(architecture).attention(c.q.view(), c.k.view(), c.v.view(), c.out.view(), opts);
          c.check(c.out, opts);
        }
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

TEST_CASE("rows that warps share, for head dims of every width of panels") {
  tests::Sampler sampler;
  for (const std::int64_t head_dim : {8, 16, 24, 40, 128})
    for (const std::int64_t head_dim_v : {8, 24, 64, 136}) {
      if (!sampler.takes_next()) continue;
      CAPTURE(head_dim);
      CAPTURE(head_dim_v);
      check_shared_rows("q16", {1, 5, 150, 4, 2, head_dim, head_dim_v}, false);
    }
}

TEST_CASE("rows that warps share without tensor cores, for head dims of as many lanes as there may be") {
  tests::Sampler sampler;
  for (const std::string rows : {"q4", "q8"}) {
    DType dtype = rows == "q4" ? DType::bf16 : DType::f16;  // by turns
    for (const auto& [head_dim, head_dim_v] : {std::pair<std::int64_t, std::int64_t>{8, 256},
                                               {16, 16},
                                               {24, 72},
                                               {40, 8},
                                               {64, 128},
                                               {80, 32},
                                               {128, 64},
                                               {136, 24},
                                               {192, 192},
                                               {256, 48}}) {
      CAPTURE(rows);
      CAPTURE(std::string(to_string(dtype)));
      CAPTURE(head_dim);
      CAPTURE(head_dim_v);
      if (sampler.takes_next()) check_shared_rows(rows, {1, 5, 150, 4, 2, head_dim, head_dim_v}, false, dtype);
      dtype = dtype == DType::bf16 ? DType::f16 : DType::bf16;
    }
  }
}

TEST_CASE("queries of any group share tiles of few rows") {
  tests::Sampler sampler;
  for (const std::string rows : {"q4", "q8", "q16"})
    for (const std::int64_t group : {1, 2, 3, 4, 8, 16})
      for (const std::int64_t seqlen_q : {1, 2, 5}) {
        if (!sampler.takes_next()) continue;
        CAPTURE(rows);
        CAPTURE(group);
        CAPTURE(seqlen_q);
        check_shared_rows(rows, {1, seqlen_q, 150, 2 * group, 2, 64, 64}, seqlen_q % 2 == 1);
      }
}

TEST_CASE("keys of rows that warps share are split by clusters, by pairs and by the grid") {
  tests::Sampler sampler;
  for (const std::string rows : {"q4", "q8", "q16"})
    for (const auto& [seqlen_q, seqlen_kv] : {std::pair<std::int64_t, std::int64_t>{3, 2100}, {520, 2100}, {3, 8300}})
      for (const bool causal : {false, true}) {
        if (!sampler.takes_next()) continue;
        CAPTURE(rows);
        CAPTURE(seqlen_q);
        CAPTURE(seqlen_kv);
        CAPTURE(causal);
        check_shared_rows(rows, {1, seqlen_q, seqlen_kv, 2, 1, 16, 64}, causal);
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
    CHECK(info.origin != KernelInfo::Origin::memory);
    CHECK(info.cubin_bytes > 0);
  }
  CHECK(engine.prepare(problem).front().origin == KernelInfo::Origin::memory);
  const std::uint64_t compiles = tests::kernels_of(engine);
  CHECK(compiles == infos.size() + 1);  // and what combines split keys

  std::vector<Case> cases(3);
  runtime::parallel_for(cases.size(), [&](std::size_t i) {
    Case& c = cases[i];
    engine.attention(c.q.view(), c.k.view(), c.v.view(), c.out.view());
  });
  for (const Case& c : cases) c.check(c.out, {});
  CHECK(tests::kernels_of(engine) == compiles);
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
