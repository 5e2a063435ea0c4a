// SPDX-License-Identifier: Apache-2.0
// New keys and values written into caches on the GPU, against plain loops.
#include <doctest/doctest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "flashjit/flashjit.h"
#include "tests/gpu/attention_case.h"
#include "tests/gpu/driver_calls.h"
#include "tests/support/append_case.h"

namespace {

using namespace flashjit;
using tests::AppendCase;
using tests::difference;
using tests::poisoned;
using tests::whole_numbers;

DeviceTensor on_device(const HostTensor& tensor, Stream stream = nullptr) {
  return tensor.to_device(stream, tests::test_device().ordinal);
}

void expect_appended(const AppendCase& c) {
  CAPTURE(c.describe());
  HostTensor pool = poisoned(c.dtype, c.pool_shape);
  HostTensor q = c.in_place ? c.inputs[AppendCase::q] : poisoned(c.dtype, c.q_shape);
  const DeviceTensor pool_there = on_device(pool), q_there = on_device(q);
  std::vector<DeviceTensor> memory;
  std::vector<Tensor> here, there;
  for (const HostTensor& input : c.inputs) {
    here.push_back(input.view());
    memory.push_back(input.shape().size() > 0 ? on_device(input) : DeviceTensor());
    there.push_back(memory.back().view());
  }
  c.run(here, pool.data(), q.view(), [](const auto&... call) { reference::append(call...); });
  c.run(there, pool_there.data(), q_there.view(), [](const auto&... call) { tests::shared_engine().append(call...); });
  CHECK(difference(HostTensor::from_device(pool_there), pool, c.rotary).elements == 0);
  CHECK(difference(HostTensor::from_device(q_there), q, true).elements == 0);
}

}  // namespace

TEST_SUITE_BEGIN("sanitizer");

TEST_CASE("tokens are written where they belong by the sanitizers' leave") {
  for (std::uint64_t seed = 1000; seed < 1012; ++seed) expect_appended(AppendCase(seed));
}

TEST_SUITE_END();
TEST_SUITE_BEGIN("append");

TEST_CASE("random tokens are written where they belong, and nothing else is") {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    expect_appended(AppendCase(seed));
  }
}

TEST_CASE("a long prompt beside single tokens, in the pages of a large cache") {
  const std::int64_t page_size = 16, heads = 8, head_dim = 128, pages = 2048, entries = 512;
  std::vector<std::int64_t> starts{0}, used, table;
  for (std::int64_t sequence = 0; sequence < 64; ++sequence) {
    starts.push_back(starts.back() + (sequence == 5 ? 5000 : 1));
    used.push_back(sequence == 5 ? 5003 : 17 + sequence);
  }
  for (std::int64_t sequence = 0; sequence < 64; ++sequence)
    for (std::int64_t entry = 0; entry < entries; ++entry)
      table.push_back(sequence == 5 ? entry : entries + (sequence * 8 + entry % 8));
  const std::int64_t total = starts.back();
  const HostTensor k = HostTensor::random_normal(DType::bf16, {total, heads, head_dim}, 1),
                   v = HostTensor::random_normal(DType::bf16, {total, heads, head_dim}, 2),
                   lengths = whole_numbers(DType::i32, used), offsets = whole_numbers(DType::i32, starts),
                   of_sequences = whole_numbers(DType::i32, table, {64, entries});
  HostTensor k_cache = poisoned(DType::bf16, {pages, page_size, heads, head_dim}), v_cache = k_cache;
  const DeviceTensor k_there = on_device(k), v_there = on_device(v), lengths_there = on_device(lengths),
                     offsets_there = on_device(offsets), table_there = on_device(of_sequences),
                     k_cache_there = on_device(k_cache), v_cache_there = on_device(v_cache);
  AppendOptions here, there;
  here.seqused_kv = lengths.view(), here.cu_seqlens = offsets.view(), here.page_table = of_sequences.view();
  there.seqused_kv = lengths_there.view(), there.cu_seqlens = offsets_there.view(),
  there.page_table = table_there.view();
  reference::append(k.view(), v.view(), k_cache.view(), v_cache.view(), here);
  tests::shared_engine().append(k_there, v_there, k_cache_there, v_cache_there, there);
  CHECK(difference(HostTensor::from_device(k_cache_there), k_cache, false).elements == 0);
  CHECK(difference(HostTensor::from_device(v_cache_there), v_cache, false).elements == 0);
}

TEST_CASE("a captured call goes by what slots say when the graph runs") {
  const tests::ScopedContext context(0);
  const tests::ScopedStream stream;
  const HostTensor k = HostTensor::random_normal(DType::f16, {3, 2, 64}, 1);
  const DeviceTensor k_there = on_device(k, stream.get());
  const DeviceTensor k_cache = on_device(HostTensor(DType::f16, {4, 4, 2, 64}), stream.get()),
                     v_cache = on_device(HostTensor(DType::f16, {4, 4, 2, 64}), stream.get()),
                     slots = on_device(whole_numbers(DType::i64, {-1, -1, -1}), stream.get());
  AppendOptions opts;
  opts.slots = slots.view(), opts.stream = stream.get();
  Engine& engine = tests::shared_engine();
  engine.append(k_there, k_there, k_cache, v_cache, opts);
  const std::uint64_t compiles = engine.counters().compiles;
  DRIVER_CALL(cuStreamBeginCapture, stream.get(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  engine.append(k_there, k_there, k_cache, v_cache, opts);
  CUgraph graph = nullptr;
  DRIVER_CALL(cuStreamEndCapture, stream.get(), &graph);
  CUgraphExec executable = nullptr;
  DRIVER_CALL(cuGraphInstantiateWithFlags, &executable, graph, 0);
  HostTensor expected(DType::f16, {4, 4, 2, 64}), expected_v(DType::f16, {4, 4, 2, 64});
  for (const std::vector<std::int64_t>& places : {std::vector<std::int64_t>{5, 0, -1}, {15, 7, 3}}) {
    const HostTensor now = whole_numbers(DType::i64, places);
    DRIVER_CALL(cuMemcpyHtoD, reinterpret_cast<CUdeviceptr>(slots.data()), now.data(), 3 * sizeof(std::int64_t));
    DRIVER_CALL(cuGraphLaunch, executable, stream.get());
    stream.synchronize();
    AppendOptions same;
    same.slots = now.view();
    reference::append(k.view(), k.view(), expected.view(), expected_v.view(), same);
    CHECK(difference(HostTensor::from_device(k_cache), expected, false).elements == 0);
    CHECK(difference(HostTensor::from_device(v_cache), expected_v, false).elements == 0);
  }
  CHECK(engine.counters().compiles == compiles);
  DRIVER_CALL(cuGraphExecDestroy, executable);
  DRIVER_CALL(cuGraphDestroy, graph);
}

TEST_CASE("an engine that looks first says what is wrong, and writes nothing") {
  EngineOptions options = EngineOptions::from_environment();
  options.policy = Policy::off;
  options.check_pages = true;
  Engine engine(options);
  const DeviceTensor k = on_device(HostTensor(DType::f16, {2, 1, 64})),
                     cache = on_device(poisoned(DType::f16, {2, 4, 1, 64})),
                     others = on_device(poisoned(DType::f16, {2, 4, 1, 64})),
                     slots = on_device(whole_numbers(DType::i64, {0, 8}));
  AppendOptions opts;
  opts.slots = slots.view();
  CHECK_THROWS_WITH_AS(engine.append(k, k, cache, others, opts),
                       "slots: must be below 8, as many rows as k_cache has, was 8 of token 1", Error);
  CHECK(difference(HostTensor::from_device(cache), poisoned(DType::f16, {2, 4, 1, 64}), false).elements == 0);
}

TEST_SUITE_END();
