// SPDX-License-Identifier: Apache-2.0
// Calls with one plan: those that follow the first are made of it, wherever their tensors are.
#include <doctest/doctest.h>

#include <thread>
#include <vector>

#include "flashjit/batch_plan.h"
#include "tests/gpu/attention_case.h"
#include "tests/gpu/driver_calls.h"

namespace {

using namespace flashjit;
using tests::AttentionCase;
using tests::ScopedContext;
using tests::ScopedStream;
using tests::shared_engine;
using tests::test_device;

// Few queries, many keys: they are split.
constexpr tests::Sizes kSizes{2, 2, 3000, 8, 2, 64, 64};

AttentionOptions with(const BatchPlan& plan, Stream stream = nullptr) {
  AttentionOptions options;
  options.plan = &plan, options.stream = stream;
  return options;
}

// Layers of a model.
struct Layers {
  Layers() {
    for (std::uint64_t seed = 0; seed < 3; ++seed) cases.emplace_back(kSizes, DType::bf16, 10 * seed + 1);
    for (const AttentionCase& each : cases) expected.push_back(each.expected({}));
  }
  BatchPlan plan(const AttentionOptions& options = {}) const {
    return shared_engine().plan(cases[0].q, cases[0].k, cases[0].v, options);
  }
  std::vector<AttentionCase> cases;
  std::vector<AttentionCase::Expected> expected;
};

const Layers& layers() {
  static const Layers* const made = new Layers;
  return *made;
}

void check_layer(std::size_t i, AttentionOptions options, bool with_lse, Engine& engine = shared_engine()) {
  CAPTURE(i);
  const AttentionCase& layer = layers().cases[i];
  const DeviceTensor out = layer.poisoned_out(), lse = layer.poisoned_lse();
  if (with_lse) options.lse = lse;
  engine.attention(layer.q, layer.k, layer.v, out, options);
  layers().expected[i].check_out(out);
  if (with_lse) layers().expected[i].check_lse(lse);
}

std::vector<const char*> splitting_variants() {
  std::vector<const char*> variants{"mma-q64-kv32-splitkv", "mma-q64-kv32"};
  if (test_device().architecture == "sm_90a")
    for (const char* hopper : {"hopper-q16-kv64-s2-qs1-whole-serial-ppoff-fixed-splitkv",
                               "hopper-q64-kv64-s2-qs2-whole-ppoff-split-splitkv", "hopper-q64-kv64-whole-ppoff-rare"})
      variants.push_back(hopper);
  return variants;
}

}  // namespace

TEST_SUITE("sanitizer") {
  TEST_CASE("layers with one plan, whose calls differ in addresses alone") {
    const BatchPlan plan = layers().plan();
    for (int round = 0; round < 2; ++round)
      for (std::size_t i = 0; i < layers().cases.size(); ++i) check_layer(i, with(plan), true);
  }
}

TEST_CASE("layers with one plan are right with every kind of kernel, with their LSE and without") {
  for (const char* variant : splitting_variants()) {
    CAPTURE(variant);
    AttentionOptions options;
    options.variant = parse_variant(variant);
    const BatchPlan plan = layers().plan(options);
    for (int round = 0; round < 4; ++round)
      for (std::size_t i = 0; i < layers().cases.size(); ++i) check_layer(i, with(plan), round % 2 == 1);
  }
}

TEST_CASE("what layers with one plan may not differ in is still found, and does not disturb later ones") {
  const AttentionCase& layer = layers().cases[0];
  const BatchPlan plan = layers().plan();
  const DeviceTensor out = layer.poisoned_out();
  const AttentionOptions options = with(plan);
  const auto refused = [&](const Tensor& k, const Tensor& into) {
    try {
      shared_engine().attention(layer.q, k, layer.v, into, options);
      return std::string("taken");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::invalid_argument);
      return std::string(error.what()).substr(0, std::string(error.what()).find(':'));
    }
  };
  for (int round = 0; round < 2; ++round) {
    check_layer(0, options, false);
    Tensor k = layer.k.view();
    CHECK(refused(layer.k_host.view(), out) == "k");
    k.data = nullptr;
    CHECK(refused(k, out) == "k");
    k.data = static_cast<char*>(layer.k.data()) + 2;
    CHECK(refused(k, out) == "k");
    CHECK(refused(layer.k, Tensor(layer.q.data(), DType::bf16, layer.out_shape)) == "out");
    k = layer.k.view(), k.shape[1] -= 1;
    CHECK(refused(k, out) == "v");
    check_layer(1, options, false);
  }
}

TEST_CASE("layers with one plan may be on any stream, and captured") {
  const ScopedContext context(0);
  const ScopedStream stream;
  const BatchPlan plan = layers().plan();
  check_layer(0, with(plan), false);
  DRIVER_CALL(cuCtxSynchronize);
  const AttentionCase& layer = layers().cases[2];
  const DeviceTensor out = layer.poisoned_out(), captured = layer.poisoned_out();
  shared_engine().attention(layer.q, layer.k, layer.v, out, with(plan, stream.get()));
  stream.synchronize();
  layers().expected[2].check_out(out);
  DRIVER_CALL(cuStreamBeginCapture, stream.get(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  shared_engine().attention(layer.q, layer.k, layer.v, captured, with(plan, stream.get()));
  CUgraph graph = nullptr;
  DRIVER_CALL(cuStreamEndCapture, stream.get(), &graph);
  CUgraphExec executable = nullptr;
  DRIVER_CALL(cuGraphInstantiateWithFlags, &executable, graph, 0);
  for (int run = 0; run < 2; ++run) DRIVER_CALL(cuGraphLaunch, executable, stream.get());
  stream.synchronize();
  layers().expected[2].check_out(captured);
  DRIVER_CALL(cuGraphExecDestroy, executable);
  DRIVER_CALL(cuGraphDestroy, graph);
}

TEST_CASE("calls of many kinds with one plan, by turns and again and again") {
  const BatchPlan plan = layers().plan();
  const std::vector<float> scales{0.125f, 0.25f, 0.0625f, 0.5f, 1.f, 0.75f};
  std::vector<AttentionCase::Expected> expected;
  for (const float scale : scales) {
    AttentionOptions options;
    options.softmax_scale = scale;
    expected.push_back(layers().cases[0].expected(options));
  }
  const DeviceTensor out = layers().cases[0].poisoned_out();
  for (int round = 0; round < 3; ++round)
    for (std::size_t i = 0; i < scales.size(); ++i) {
      AttentionOptions options = with(plan);
      options.softmax_scale = scales[i];
      for (int again = 0; again <= round; ++again)
        shared_engine().attention(layers().cases[0].q, layers().cases[0].k, layers().cases[0].v, out, options);
      expected[i].check_out(out);
    }
}

TEST_CASE("layers whose keys and values stand in pages, and packed ones, with a plan each") {
  constexpr tests::Sizes kPaged{2, 2, 3072, 8, 2, 64, 64};
  constexpr std::int64_t kPage = 64;
  HostTensor numbers(DType::i32, {2, kPaged.seqlen_kv / kPage}), lengths(DType::i32, {2}), offsets(DType::i32, {3});
  for (std::int64_t i = 0; i < 2 * kPaged.seqlen_kv / kPage; ++i)
    store_element(numbers.data(), DType::i32, i, static_cast<double>(i));
  for (const std::int64_t i : {0, 1}) store_element(lengths.data(), DType::i32, i, kPaged.seqlen_kv);
  for (const std::int64_t i : {0, 1, 2}) store_element(offsets.data(), DType::i32, i, static_cast<double>(2 * i));
  const DeviceTensor table = numbers.to_device(), used = lengths.to_device(), queries = offsets.to_device();
  BatchPlan plan;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    CAPTURE(seed);
    const AttentionCase c(kPaged, DType::bf16, 100 + 10 * seed);
    const DeviceTensor out = c.poisoned_out();
    const Dims pages{2 * kPaged.seqlen_kv / kPage, kPage, 2, 64}, packed{4, 8, 64};
    const Tensor q(c.q.data(), DType::bf16, packed), k(c.k.data(), DType::bf16, pages),
        v(c.v.data(), DType::bf16, pages), into(out.data(), DType::bf16, packed);
    AttentionOptions options;
    options.page_table = table, options.seqused_kv = used, options.cu_seqlens_q = queries;
    options.max_seqlen_q = 2;
    if (seed == 0) plan = shared_engine().plan(q, k, v, options);
    options.plan = &plan;
    shared_engine().attention(q, k, v, into, options);
    c.check_out(out);
  }
}

TEST_CASE("a plan serves engines that come after the one that made it, and several by turns") {
  EngineOptions own = EngineOptions::from_environment();
  own.policy = Policy::off;
  BatchPlan plan;
  for (int life = 0; life < 2; ++life) {
    Engine engine(own);
    if (life == 0) plan = engine.plan(layers().cases[0].q, layers().cases[0].k, layers().cases[0].v);
    for (std::size_t i = 0; i < layers().cases.size(); ++i) check_layer(i, with(plan), false, engine);
  }
  check_layer(1, with(plan), false);
  Engine other(own);
  for (int turn = 0; turn < 6; ++turn)
    check_layer(turn % 3, with(plan), false, turn % 2 == 0 ? other : shared_engine());
}

TEST_CASE("threads that share a plan from its first call on all get right results") {
  const BatchPlan plan = layers().plan();
  std::vector<DeviceTensor> outs;
  for (int i = 0; i < 12; ++i) outs.push_back(layers().cases[i % 3].poisoned_out());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < outs.size(); ++i)
    threads.emplace_back([&, i] {
      const AttentionCase& layer = layers().cases[i % 3];
      for (int round = 0; round < 20; ++round)
        shared_engine().attention(layer.q, layer.k, layer.v, outs[i], with(plan));
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < outs.size(); ++i) layers().expected[i % 3].check_out(outs[i]);
}
