// SPDX-License-Identifier: Apache-2.0
// Ragged batches without a GPU: real kernels in the emulator, which knows which memory they may touch, against the
// reference, with NaN around every sequence.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "flashjit/batch_plan.h"
#include "flashjit/emulator.h"
#include "flashjit/flashjit.h"
#include "runtime/call/movable_operation.h"
#include "tests/support/emulating_engine.h"
#include "tests/support/kept_kernels.h"
#include "tests/support/ragged_batch.h"
#include "tests/support/sample.h"
#include "tests/support/scattered_pages.h"

namespace {

using namespace flashjit;
using tests::engine_for;
using tests::RaggedBatch;

}  // namespace

TEST_CASE("sequences of any lengths, packed or padded, with empty ones among them") {
  tests::Sampler sampler;
  for (const std::string architecture : {"sm_80", "sm_90a"}) {
    CAPTURE(architecture);
    for (std::uint64_t seed = 0; seed < 24; ++seed) {
      if (!sampler.takes_next()) continue;
      CAPTURE(seed);
      RaggedBatch(seed, {}).check(engine_for(architecture));
    }
  }
}

TEST_CASE("keys and values in pages of any size, in any order, with NaN around them") {
  tests::Sampler sampler;
  for (const std::string architecture : {"sm_80", "sm_90a"})
    for (const std::int64_t page_size : {1, 8, 16, 24, 64, 100, 256}) {
      CAPTURE(architecture);
      CAPTURE(page_size);
      for (std::uint64_t seed = 0; seed < 6; ++seed) {
        if (!sampler.takes_next()) continue;
        CAPTURE(seed);
        RaggedBatch(seed, {.page_size = page_size}).check(engine_for(architecture));
      }
    }
}

TEST_CASE("pages are found anywhere in a pool of more than 65536, by rows of a table with 40000 entries") {
  for (const int head_dim : {16, 64}) {
    CAPTURE(head_dim);
    const Dims shape{70'000, 8, 1, head_dim};
    const tests::ScatteredPages pages(shape, {2400, 1601});
    HostTensor k(DType::bf16, shape), v(DType::bf16, shape);
    const auto fill = [](HostTensor& pool) {
      std::memset(pool.data(), 0xff, pool.element_count() * size_of(pool.dtype()));  // NaN
      return [to = static_cast<char*>(pool.data())](std::size_t place, const char* rows, std::size_t bytes) {
        std::memcpy(to + place, rows, bytes);
      };
    };
    pages.put_keys(fill(k));
    pages.put_values(fill(v));
    AttentionOptions options;
    options.causal = true;
    options.page_table = pages.table().view(), options.seqused_kv = pages.used().view();
    for (const std::string architecture : {"sm_80", "sm_90a"}) {
      CAPTURE(architecture);
      Engine& engine = engine_for(architecture);
      pages.check(HostTensor::from_device(engine.attention(pages.q().view(), k.view(), v.view(), options)));
    }
  }
}

namespace {

struct SplittingVariant {
  const char *architecture, *spelling;
  std::int64_t many_keys;  // of a sequence: it is split, wherever it stands
};
constexpr SplittingVariant kSplittingVariants[] = {
    {"sm_80", "mma-q64-kv32-k2-v2-splitkv", 600},
    {"sm_90a", "hopper-q64-kv64-qs2-whole-ppoff-split-splitkv", 600},
    {"sm_90a", "hopper-q16-kv64-s2-qs1-whole-serial-ppoff-fixed-splitkv", 8300}};  // fewer are split by clusters

}  // namespace

TEST_CASE("keys that are split, of few queries and of more than there is room for at once") {
  tests::Sampler sampler;
  for (const auto& [architecture, spelling, many_keys] : kSplittingVariants) {
    CAPTURE(spelling);
    const Variant variant = parse_variant(spelling);
    for (const std::int64_t page_size : {0, 16})
      for (std::uint64_t seed = 0; seed < 12; ++seed) {
        if (!sampler.takes_next()) continue;
        CAPTURE(seed);
        CAPTURE(page_size);
        const std::int64_t queries = seed % 3 == 2 ? 70 : 3;
        RaggedBatch(seed, {.longest = 900, .longest_queries = queries, .page_size = page_size})
            .check(engine_for(architecture), variant);
      }
  }
}

namespace {

HostTensor ints(const std::vector<std::int32_t>& values, const Dims& shape = {}) {
  HostTensor tensor(DType::i32, shape.size() > 0 ? shape : Dims{static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), static_cast<std::int32_t*>(tensor.data()));
  return tensor;
}

// Packed, of three sequences, two heads and 64 columns.
struct Packed {
  HostTensor q = HostTensor::random_normal(DType::bf16, {90, 2, 64}, 1);
  HostTensor k = HostTensor::random_normal(DType::bf16, {150, 2, 64}, 2);
  HostTensor v = HostTensor::random_normal(DType::bf16, {150, 2, 64}, 3);
};

// Of rows that belong to a sequence.
void check_near(const HostTensor& out, const reference::Result& exact) {
  double largest = 0;
  for (std::size_t i = 0; i < exact.out.size(); ++i) {
    if (exact.lse[i / 64 % 2 * 90 + i / 128] == -std::numeric_limits<double>::infinity()) continue;
    const double value = load_element(out.data(), out.dtype(), static_cast<std::int64_t>(i));
    largest = std::max(largest, std::isnan(value) ? 1e9 : std::abs(value - exact.out[i]));
  }
  CHECK(largest < 0.03);
}

}  // namespace

TEST_CASE("lengths and places that make no sense are cut to the tensors: nothing outside of them is touched") {
  const Packed packed;
  struct Case {
    const char* what;
    HostTensor of_queries, of_keys;
    bool queries_overlap = false;  // then no rows are promised
  };
  const Case all[] = {{"one falls", ints({0, 200, -5, 90}), ints({0, 150, 150, 150}), true},
                      {"all fall and leave", ints({50, 20, 80, 1000}), ints({-7, 3, 2000, 9})},
                      {"zeros behind the last", ints({0, 40, 90, 0, 0, 0, 0}), ints({0, 70, 150, 0, 0, 0, 0})},
                      {"before the first row", ints({-3, -2, -1, 0}), ints({0, 50, 100, 150})},
                      {"keys anywhere", ints({0, 30, 60, 90}), ints({1 << 30, 5, -(1 << 30), 1 << 30})}};
  for (const std::string architecture : {"sm_80", "sm_90a"})
    for (const auto& [what, of_queries, of_keys, queries_overlap] : all) {
      CAPTURE(architecture);
      CAPTURE(std::string(what));
      AttentionOptions options;
      options.cu_seqlens_q = of_queries.view(), options.cu_seqlens_kv = of_keys.view();
      const DeviceTensor out =
          engine_for(architecture).attention(packed.q.view(), packed.k.view(), packed.v.view(), options);
      CHECK(out.shape() == Dims{90, 2, 64});
      if (!queries_overlap)
        check_near(HostTensor::from_device(out),
                   reference::attention(packed.q.view(), packed.k.view(), packed.v.view(), options));
    }
}

TEST_CASE("packed tensors may have a batch of one, and a sequence gets what it gets alone") {
  const Packed packed;
  const HostTensor of_queries = ints({0, 33, 33, 90}), of_keys = ints({0, 70, 100, 150});
  for (const std::string architecture : {"sm_80", "sm_90a"}) {
    CAPTURE(architecture);
    AttentionOptions options;
    options.causal = true;
    options.cu_seqlens_q = of_queries.view(), options.cu_seqlens_kv = of_keys.view();
    Engine& engine = engine_for(architecture);
    const HostTensor out =
        HostTensor::from_device(engine.attention(packed.q.view(), packed.k.view(), packed.v.view(), options));
    const auto with_batch = [](const HostTensor& tensor) {
      return Tensor(const_cast<void*>(tensor.data()), tensor.dtype(), {1, tensor.shape()[0], 2, 64});
    };
    const DeviceTensor same =
        engine.attention(with_batch(packed.q), with_batch(packed.k), with_batch(packed.v), options);
    CHECK(same.shape() == Dims{1, 90, 2, 64});
    CHECK(std::memcmp(HostTensor::from_device(same).data(), out.data(), out.element_count() * 2) == 0);
    // The last sequence.
    const auto rows = [](const HostTensor& tensor, std::int64_t first, std::int64_t count) {
      return Tensor(static_cast<char*>(const_cast<void*>(tensor.data())) + first * 2 * 64 * 2, tensor.dtype(),
                    {1, count, 2, 64});
    };
    AttentionOptions alone;
    alone.causal = true;
    const reference::Result exact =
        reference::attention(rows(packed.q, 33, 57), rows(packed.k, 100, 50), rows(packed.v, 100, 50), alone);
    for (std::size_t i = 0; i < exact.out.size(); ++i) {
      const double value = load_element(out.data(), out.dtype(), static_cast<std::int64_t>(33 * 2 * 64 + i));
      if (!(std::abs(value - exact.out[i]) < 0.03)) FAIL_CHECK("element ", i, " is ", value, ", not ", exact.out[i]);
    }
  }
}

namespace {

// Causal, and without keys of its own for the second sequence.
struct PlannedCall {
  Packed packed;
  HostTensor of_queries = ints({0, 33, 33, 90}), of_keys = ints({0, 70, 100, 150});
  AttentionOptions options;

  PlannedCall() {
    options.causal = true;
    options.cu_seqlens_q = of_queries.view(), options.cu_seqlens_kv = of_keys.view();
  }
  BatchPlan plan(Engine& engine) const {
    return engine.plan(packed.q.view(), packed.k.view(), packed.v.view(), options);
  }
  HostTensor run(Engine& engine, const BatchPlan* plan) {
    options.plan = plan;
    HostTensor out(DType::bf16, {90, 2, 64});
    engine.attention(packed.q.view(), packed.k.view(), packed.v.view(), out.view(), options);
    options.plan = nullptr;
    return out;
  }
  std::string refusal(Engine& engine, const BatchPlan& plan) {
    try {
      run(engine, &plan);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::invalid_argument);
      options.plan = nullptr;
      return error.what();
    }
    return "";
  }
};

int block_q_of(const AttentionOptions& options) {
  return std::visit([](const auto& of_family) { return of_family.block_q; }, *options.variant);
}

double largest_difference(const HostTensor& a, const HostTensor& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.element_count(); ++i) {
    const double difference = load_element(a.data(), a.dtype(), static_cast<std::int64_t>(i)) -
                              load_element(b.data(), b.dtype(), static_cast<std::int64_t>(i));
    largest = std::max(largest, std::isnan(difference) ? 1e9 : std::abs(difference));
  }
  return largest;
}

bool same_bytes(const HostTensor& a, const HostTensor& b) {
  return a.shape() == b.shape() && std::memcmp(a.data(), b.data(), a.element_count() * size_of(a.dtype())) == 0;
}

}  // namespace

TEST_CASE("calls with a plan give what they give without one, until it is made anew of other lengths") {
  for (const std::string architecture : {"sm_80", "sm_90a"}) {
    CAPTURE(architecture);
    Engine& engine = engine_for(architecture);
    PlannedCall call;
    const HostTensor first = call.run(engine, nullptr);
    BatchPlan plan = call.plan(engine);
    CHECK(plan.variant() == engine
                                .prepare(call.packed.q.view(), call.packed.k.view(), call.packed.v.view(),
                                         HostTensor(DType::bf16, {90, 2, 64}).view(), call.options)
                                .variant);
    CHECK(same_bytes(call.run(engine, &plan), first));
    // It has what the lengths were.
    static_cast<std::int32_t*>(call.of_queries.data())[1] = 80;
    static_cast<std::int32_t*>(call.of_queries.data())[2] = 85;
    const HostTensor second = call.run(engine, nullptr);
    CHECK_FALSE(same_bytes(second, first));
    CHECK(same_bytes(call.run(engine, &plan), first));
    engine.update(plan, call.packed.q.view(), call.packed.k.view(), call.packed.v.view(), call.options);
    const BatchPlan moved = std::move(plan);
    CHECK(same_bytes(call.run(engine, &moved), second));
    CHECK(call.refusal(engine, plan) == "plan: must be made by Engine::plan, was empty");
  }
}

TEST_CASE("a plan lies in the caller's memory where that is given, of as many words as it is told") {
  Engine& engine = engine_for("sm_90a");
  PlannedCall call;
  const Tensor q = call.packed.q.view(), k = call.packed.k.view(), v = call.packed.v.view();
  const Dims words = engine.plan_dims(q, k, v, call.options);
  const HostTensor memory(DType::i32, words), short_by_one(DType::i32, {words[0] - 1}), floats(DType::f32, words);
  const BatchPlan plan = engine.plan(q, k, v, memory.view(), call.options);
  CHECK(plan.memory().data == memory.data());
  const HostTensor longer(DType::i32, {words[0] + 100});
  CHECK(engine.plan(q, k, v, longer.view(), call.options).memory().shape == words);
  CHECK(same_bytes(call.run(engine, &plan), call.run(engine, nullptr)));
  const auto refusal = [&](const Tensor& bad) -> std::string {
    try {
      engine.plan(q, k, v, bad, call.options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refusal(short_by_one.view()) ==
        fmt::format("memory: must have at least {} words, had {}", words[0], words[0] - 1));
  CHECK(refusal(floats.view()) == "memory: dtype must be i32, was f32");
  Tensor askew(static_cast<char*>(const_cast<void*>(memory.data())) + 4, DType::i32, words);
  CHECK(refusal(askew).starts_with("memory: must be aligned to 16 bytes"));
}

TEST_CASE("a plan has room for the partial results of split keys, whether lengths differ or not, call after call") {
  const HostTensor q = HostTensor::random_normal(DType::bf16, {2, 1, 2, 64}, 1);
  for (const auto& [architecture, variant, keys] : kSplittingVariants) {
    Engine& engine = engine_for(architecture);
    const HostTensor k = HostTensor::random_normal(DType::bf16, {2, keys, 2, 64}, 2);
    const HostTensor used = ints({static_cast<std::int32_t>(keys), 300});
    for (const bool is_ragged : {false, true}) {
      CAPTURE(std::string(variant));
      CAPTURE(is_ragged);
      AttentionOptions options;
      options.variant = parse_variant(variant);
      if (is_ragged) options.seqused_kv = used.view();
      const auto run = [&] { return HostTensor::from_device(engine.attention(q.view(), k.view(), k.view(), options)); };
      const HostTensor without = run();
      const BatchPlan plan = engine.plan(q.view(), k.view(), k.view(), options);
      options.plan = &plan;
      const HostTensor first = run();
      CHECK(same_bytes(run(), first));
      // Without a plan another kernel joins the splits of tiles of 16 rows, in another order.
      const bool in_order = is_ragged || block_q_of(options) != 16;
      if (in_order)
        CHECK(same_bytes(first, without));
      else
        CHECK(largest_difference(first, without) < 1e-3);
    }
  }
}

TEST_CASE("more queries than max_seqlen_q make no other sequence wrong") {
  const HostTensor q = HostTensor::random_normal(DType::bf16, {34, 2, 64}, 1);
  const HostTensor k = HostTensor::random_normal(DType::bf16, {4, 1400, 2, 64}, 2);
  // Of the second and the fourth sequence one, which is what slots have room for.
  const HostTensor starts = ints({0, 16, 17, 33, 34}), used = ints({1400, 1400, 1400, 1400});
  AttentionOptions options;
  options.cu_seqlens_q = starts.view(), options.seqused_kv = used.view();
  const reference::Result exact = reference::attention(q.view(), k.view(), k.view(), options);
  options.max_seqlen_q = 1;
  for (const auto& [architecture, variant, keys] : kSplittingVariants) {
    CAPTURE(std::string(variant));
    options.variant = parse_variant(variant);
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      // All at once, so that one may write where another has written.
      const EmulationOptions emulation{.seed = seed, .resident_blocks = 132};
      const HostTensor out(DType::bf16, q.shape());
      const auto report =
          engine_for(architecture).emulate(q.view(), k.view(), k.view(), out.view(), options, emulation);
      CHECK(report.findings.empty());
      for (const std::int64_t row : {16, 33})
        for (std::int64_t i = row * 2 * 64; i < (row + 1) * 2 * 64; ++i)
          CHECK(std::abs(load_element(out.data(), out.dtype(), i) - exact.out[static_cast<std::size_t>(i)]) < 2e-3);
    }
  }
}

TEST_CASE("a plan of split keys is refused by calls that see more keys or pack other heads") {
  Engine& engine = engine_for("sm_90a");
  const HostTensor q = HostTensor::random_normal(DType::bf16, {1, 1, 8, 64}, 1);
  const HostTensor k = HostTensor::random_normal(DType::bf16, {1, 1024, 1, 64}, 2);
  const auto refused = [&](AttentionOptions planned, const AttentionOptions& called, const std::string& message) {
    planned.variant = called.variant;
    const BatchPlan plan = engine.plan(q.view(), k.view(), k.view(), planned);
    AttentionOptions options = called;
    options.plan = &plan;
    CHECK_THROWS_WITH_AS(engine.attention(q.view(), k.view(), k.view(), options), message.c_str(), Error);
    planned.plan = &plan;
    CHECK_NOTHROW(engine.attention(q.view(), k.view(), k.view(), planned));
  };
  AttentionOptions narrow, wide;
  wide.variant = parse_variant("hopper-q64-kv64-qs2-whole-ppoff-split-splitkv");
  narrow.window = {200, 0}, wide.window = {900, 0};
  refused(narrow, wide, "plan: keys that window and chunk show a tile must be 901 as in the call, was 201");
  narrow.window = wide.window = {};
  narrow.chunk = 100, wide.chunk = 1000;
  refused(narrow, wide, "plan: keys that window and chunk show a tile must be 1000 as in the call, was 100");

  const HostTensor mask = HostTensor::random_normal(DType::boolean, {1, 1, 1, 1024}, 3);
  AttentionOptions of_all, of_each;
  of_all.boolean_mask = of_each.boolean_mask = mask.view();
  of_all.variant = wide.variant;
  const DeviceTensor one = engine.block_mask(of_all, {1, 1, 1024, 1, 1}),
                     eight = engine.block_mask(of_each, {1, 1, 1024, 8, 8});
  of_all.block_mask = one.view(), of_each.block_mask = eight.view();
  refused(
      of_each, of_all,
      "plan: query heads of a tile, one with a block mask for many heads or a q_scale for each, must be 8 as in the "
      "call, was 1");
}

TEST_CASE("split keys of a tile whose queries stand in two chunks") {
  const HostTensor q = HostTensor::random_normal(DType::f16, {1, 20, 8, 64}, 1);
  const HostTensor k = HostTensor::random_normal(DType::f16, {1, 515, 1, 64}, 2),
                   v = HostTensor::random_normal(DType::f16, {1, 515, 1, 64}, 3);
  for (const std::string architecture : {"sm_80", "sm_90a"}) {
    CAPTURE(architecture);
    AttentionOptions options;
    options.chunk = 248;
    options.variant = parse_variant(architecture == "sm_80" ? "mma-q64-kv32-k2-v2-splitkv"
                                                            : "hopper-q64-kv64-qs2-whole-ppoff-split-splitkv");
    const DeviceTensor out = engine_for(architecture).attention(q.view(), k.view(), v.view(), options);
    const auto exact = reference::attention(q.view(), k.view(), v.view(), options);
    const auto low = reference::attention_in_low_precision(q.view(), k.view(), v.view(), options);
    CHECK(reference::compare(HostTensor::from_device(out), exact, low).passed);
  }
}

TEST_CASE("a plan of splits of a fixed size is refused by calls whose sequences may have more of them") {
  Engine& engine = engine_for("sm_90a");
  const HostTensor q = HostTensor::random_normal(DType::bf16, {2, 2, 64}, 1);
  const HostTensor k = HostTensor::random_normal(DType::bf16, {2, 1408, 1, 64}, 2);
  const HostTensor starts = ints({0, 1, 2}), used = ints({100, 60});
  AttentionOptions planned;
  planned.cu_seqlens_q = starts.view(), planned.seqused_kv = used.view();
  planned.max_seqlen_q = 1, planned.max_seqlen_kv = 128, planned.fixed_split_size = 64;
  BatchPlan plan = engine.plan(q.view(), k.view(), k.view(), planned);
  AttentionOptions longer = planned;
  longer.max_seqlen_kv = 1400;
  const std::string refusal =
      "plan: splits of that size, by max_seqlen_kv, window and chunk, must be 22 as in the call, was 2";
  CHECK_THROWS_WITH_AS(engine.update(plan, q.view(), k.view(), k.view(), longer), refusal.c_str(), Error);
  longer.plan = planned.plan = &plan;
  CHECK_THROWS_WITH_AS(engine.attention(q.view(), k.view(), k.view(), longer), refusal.c_str(), Error);
  CHECK_NOTHROW(engine.attention(q.view(), k.view(), k.view(), planned));
}

TEST_CASE("a window that hides no keys before a query takes no more splits than none does") {
  Engine& engine = engine_for("sm_90a");
  const HostTensor q = HostTensor::random_normal(DType::bf16, {2, 2, 64}, 1);
  const HostTensor k = HostTensor::random_normal(DType::bf16, {2, 1408, 1, 64}, 2);
  const HostTensor starts = ints({0, 1, 2}), used = ints({1400, 900});
  for (const std::int64_t fixed : {0, 64}) {
    CAPTURE(fixed);
    AttentionOptions planned;
    planned.cu_seqlens_q = starts.view(), planned.seqused_kv = used.view();
    planned.max_seqlen_q = 1, planned.fixed_split_size = fixed;
    planned.window = {-1, 10};
    const BatchPlan plan = engine.plan(q.view(), k.view(), k.view(), planned);
    AttentionOptions called = planned;
    called.window = {std::numeric_limits<std::int32_t>::max(), 10};
    planned.plan = called.plan = &plan;
    const DeviceTensor unlimited = engine.attention(q.view(), k.view(), k.view(), planned);
    const DeviceTensor limited = engine.attention(q.view(), k.view(), k.view(), called);
    CHECK(same_bytes(HostTensor::from_device(limited), HostTensor::from_device(unlimited)));
  }
}

TEST_CASE("a plan for packed queries is refused by calls whose sequences have a batch entry each, and the reverse") {
  Engine& engine = engine_for("sm_90a");
  const HostTensor packed = HostTensor::random_normal(DType::bf16, {3, 2, 64}, 1);
  const HostTensor padded = HostTensor::random_normal(DType::bf16, {3, 3, 2, 64}, 2);
  const HostTensor k = HostTensor::random_normal(DType::bf16, {3, 600, 1, 64}, 3);
  const HostTensor starts = ints({0, 1, 2, 3}), used = ints({600, 300, 7});
  AttentionOptions of_packed, of_padded;
  of_packed.seqused_kv = of_padded.seqused_kv = used.view();
  of_packed.cu_seqlens_q = starts.view();
  const BatchPlan packed_plan = engine.plan(packed.view(), k.view(), k.view(), of_packed),
                  padded_plan = engine.plan(padded.view(), k.view(), k.view(), of_padded);
  of_packed.plan = &padded_plan, of_padded.plan = &packed_plan;
  of_packed.variant = padded_plan.variant(), of_padded.variant = packed_plan.variant();
  CHECK_THROWS_WITH_AS(engine.attention(packed.view(), k.view(), k.view(), of_packed),
                       "plan: batch entries of q must be 1 as in the call, was 3", Error);
  CHECK_THROWS_WITH_AS(engine.attention(padded.view(), k.view(), k.view(), of_padded),
                       "plan: batch entries of q must be 3 as in the call, was 1", Error);
}

TEST_CASE("a plan is refused by calls that it was not made for, which then are right without it") {
  Engine& engine = engine_for("sm_90a");
  PlannedCall call;
  const BatchPlan plan = call.plan(engine);
  CHECK(call.refusal(engine, BatchPlan()) == "plan: must be made by Engine::plan, was empty");
  {
    PlannedCall other;
    other.options.causal = false;
    CHECK(other.refusal(engine, plan) == "plan: must be for fwd-bf16-d64-ragged, was for fwd-bf16-d64-causal-ragged");
  }
  {
    PlannedCall other;
    other.of_queries = ints({0, 90}), other.of_keys = ints({0, 150});
    other.options.cu_seqlens_q = other.of_queries.view(), other.options.cu_seqlens_kv = other.of_keys.view();
    CHECK(other.refusal(engine, plan) == "plan: batch must be 1 as in the call, was 3");
  }
  {
    PlannedCall other;
    other.packed.k = other.packed.v = HostTensor::random_normal(DType::bf16, {151, 2, 64}, 2);
    CHECK(other.refusal(engine, plan) == "plan: rows of keys must be 151 as in the call, was 150");
  }
  {
    PlannedCall other;
    other.options.variant = parse_variant("mma-q64-kv32");
    CHECK(other.refusal(engine, plan).starts_with("variant: must be hopper-"));
  }
  {
    AttentionOptions dense;
    dense.plan = &plan;
    const HostTensor x = HostTensor::random_normal(DType::bf16, {1, 9, 2, 64}, 1);
    CHECK_THROWS_WITH_AS(engine.attention(x.view(), x.view(), x.view(), dense),
                         "plan: must be for fwd-bf16-d64, was for fwd-bf16-d64-causal-ragged", Error);
  }
  call.options.plan = &plan;
  CHECK_THROWS_WITH_AS(call.plan(engine), "plan: must not be given where one is made", Error);
  call.options.plan = nullptr;
  CHECK(same_bytes(call.run(engine, &plan), call.run(engine, nullptr)));
}

namespace {

Engine& checking_engine() {
  static Engine engine([] {
    EngineOptions options = tests::options_with_kept_kernels();
    options.emulate = "sm_90a";
    options.check_pages = true;
    return options;
  }());
  return engine;
}

// Two sequences of 33 and 57 queries, whose keys are in pages of 16.
struct PagedCall {
  HostTensor q = HostTensor::random_normal(DType::bf16, {90, 2, 64}, 1);
  HostTensor pages = HostTensor::random_normal(DType::bf16, {7, 16, 2, 64}, 2);
  std::vector<std::int32_t> offsets{0, 33, 90}, used{20, 48}, table{6, 0, 99, 3, 3, 1}, rows;
  std::int64_t max_seqlen_q = 0, max_seqlen_kv = 0;

  // What a call that looks first says; empty: it is right.
  std::string refusal() {
    const HostTensor of_queries = ints(offsets), of_keys = ints(used), pages_of = ints(table, {2, 3});
    const HostTensor rows_of = ints(rows);
    AttentionOptions options;
    options.cu_seqlens_q = of_queries.view(), options.seqused_kv = of_keys.view();
    options.page_table = pages_of.view();
    if (!rows.empty()) options.batch_indices_kv = rows_of.view();
    options.max_seqlen_q = max_seqlen_q, options.max_seqlen_kv = max_seqlen_kv;
    HostTensor out(DType::bf16, {90, 2, 64});
    try {
      checking_engine().attention(q.view(), pages.view(), pages.view(), out.view(), options);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::invalid_argument);
      CHECK_THROWS_WITH_AS(checking_engine().plan(q.view(), pages.view(), pages.view(), options), error.what(), Error);
      return error.what();
    }
    return "";
  }
};

std::string refusal_with(void (*change)(PagedCall& call)) {
  PagedCall call;
  change(call);
  return call.refusal();
}

}  // namespace

TEST_CASE("with check_pages a call tells what is wrong in memory, and where") {
  CHECK(refusal_with([](PagedCall&) {}) == "");
  CHECK(refusal_with([](PagedCall& c) { c.table[1] = 7; }) ==
        "page_table: entry 1 of sequence 0 must be from 0 to 6, was 7");
  CHECK(refusal_with([](PagedCall& c) { c.table[5] = -1; }) ==
        "page_table: entry 2 of sequence 1 must be from 0 to 6, was -1");
  CHECK(refusal_with([](PagedCall& c) { c.used[1] = 49; }) ==
        "seqused_kv: must be from 0 to 48, as many rows as sequence 1 has, was 49");
  CHECK(refusal_with([](PagedCall& c) { c.used[0] = -2; }) ==
        "seqused_kv: must be from 0 to 48, as many rows as sequence 0 has, was -2");
  CHECK(refusal_with([](PagedCall& c) { c.offsets[1] = 95; }) == "cu_seqlens_q: must be from 0 to 90, was 95 at 1");
  CHECK(refusal_with([](PagedCall& c) {
          c.offsets = {40, 33, 90};
        }) == "cu_seqlens_q: must not decrease, but to zeros behind the last sequence, was 33 behind 40 at 1");
  CHECK(refusal_with([](PagedCall& c) { c.offsets = {0, 90, 0}; }) == "");
  CHECK(refusal_with([](PagedCall& c) {
          c.rows = {0, 2};
        }) == "batch_indices_kv: must be from 0 to 1, was 2 of sequence 1");
  CHECK(refusal_with([](PagedCall& c) { c.rows = {1, 1}; }) == "");
  CHECK(refusal_with([](PagedCall& c) { c.max_seqlen_q = 56; }) ==
        "max_seqlen_q: must be at least 57, the length of sequence 1, was 56");
  CHECK(refusal_with([](PagedCall& c) { c.max_seqlen_kv = 47; }) ==
        "max_seqlen_kv: must be at least 48, the length of sequence 1, was 47");
}

TEST_CASE("with check_pages what nobody needs may be anything, and calls with a plan are looked at by its lengths") {
  CHECK(refusal_with([](PagedCall& c) { c.offsets = {0, 90, 90}, c.used[1] = -5, c.table[3] = -1; }) == "");
  CHECK(refusal_with([](PagedCall& c) { c.rows = {0, -1}, c.used[1] = 0; }) == "");
  const HostTensor q = HostTensor::random_normal(DType::bf16, {2, 1, 2, 64}, 1);
  const HostTensor pages = HostTensor::random_normal(DType::bf16, {7, 16, 2, 64}, 2);
  HostTensor used = ints({20, 48}), table = ints({6, 0, 99, 3, 3, 1}, {2, 3});
  AttentionOptions options;
  options.seqused_kv = used.view(), options.page_table = table.view();
  const BatchPlan plan = checking_engine().plan(q.view(), pages.view(), pages.view(), options);
  options.plan = &plan;
  const auto call = [&] { checking_engine().attention(q.view(), pages.view(), pages.view(), options); };
  call();
  static_cast<std::int32_t*>(used.data())[1] = 5000;  // the plan has 48
  call();
  static_cast<std::int32_t*>(used.data())[1] = 16;
  static_cast<std::int32_t*>(table.data())[5] = -1;
  CHECK_THROWS_WITH_AS(call(), "page_table: entry 2 of sequence 1 must be from 0 to 6, was -1", Error);
}

TEST_CASE("with check_pages lengths of any batch are looked at, and a batch of one length is not") {
  Packed packed;
  const HostTensor of_queries = ints({0, 33, 33, 90}), of_keys = ints({0, 70, 100, 150}), padding = ints({0, 0, 51});
  AttentionOptions options;
  options.cu_seqlens_q = of_queries.view(), options.cu_seqlens_kv = of_keys.view();
  HostTensor out(DType::bf16, {90, 2, 64});
  const auto call = [&] {
    checking_engine().attention(packed.q.view(), packed.k.view(), packed.v.view(), out.view(), options);
  };
  call();
  options.leftpad_kv = padding.view();
  CHECK_THROWS_WITH_AS(call(), "leftpad_kv: must be from 0 to 50, the keys of sequence 2, was 51", Error);
  const HostTensor x = HostTensor::random_normal(DType::bf16, {1, 9, 2, 64}, 1);
  checking_engine().attention(x.view(), x.view(), x.view());
}

TEST_CASE(
    "launches of a call with a plan that are moved keep to the plan's memory, where nothing else may be written") {
  Engine& engine = engine_for("sm_90a");
  const HostTensor q = HostTensor::random_normal(DType::bf16, {2, 1, 8, 64}, 1);
  const HostTensor k = HostTensor::random_normal(DType::bf16, {2, 4096, 2, 64}, 2);
  HostTensor out(DType::bf16, q.shape());
  AttentionOptions options;
  const BatchPlan plan = engine.plan(q.view(), k.view(), k.view(), options);
  options.plan = &plan;
  const Tensor q_view = q.view(), k_view = k.view(), out_view = out.view();
  const auto serves = [&](const runtime::MovableOperation& operation, const Tensor& into) {
    const runtime::GivenCall call{q_view, k_view, k_view, into, options};
    return operation.serves(call, runtime::CallTensors(call));
  };
  const generator::KernelSpec kernel(plan.problem(), plan.variant(), find_architecture("sm_90a"));
  const runtime::MovableOperation operation({q_view, k_view, k_view, out_view, options}, kernel, {132, 132});
  CHECK(serves(operation, out_view));
  Tensor moved = out_view;
  moved.data =
      static_cast<char*>(plan.memory().data) +
      (reinterpret_cast<std::uintptr_t>(out_view.data) - reinterpret_cast<std::uintptr_t>(plan.memory().data)) % 16;
  CHECK(!serves(operation, moved));
}
