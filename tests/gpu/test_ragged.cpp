// SPDX-License-Identifier: Apache-2.0
// Ragged batches: every kernel family of the device against the reference, with NaN around every sequence.
#include <doctest/doctest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "flashjit/flashjit.h"
#include "tests/gpu/attention_case.h"
#include "tests/gpu/driver_calls.h"
#include "tests/support/ragged_batch.h"
#include "tests/support/scattered_pages.h"

namespace {

using namespace flashjit;
using tests::RaggedBatch;
using tests::ScopedContext;
using tests::ScopedStream;
using tests::shared_engine;
using tests::test_device;

constexpr std::uint64_t kBatches = 40;

}  // namespace

TEST_SUITE("sanitizer") {
  TEST_CASE("a few ragged batches in both families") {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      CAPTURE(seed);
      if (test_device().architecture == "sm_90a")
        RaggedBatch(seed, {}).check(shared_engine(), parse_variant("hopper-q64-kv64-whole-ppoff-rare"));
      RaggedBatch(seed, {}).check(shared_engine(), parse_variant("mma-q64-kv32"));
      for (const std::string rows : {"q4", "q8", "q16"})
        if (test_device().architecture == "sm_90a")
          RaggedBatch(seed, {}).check(
              shared_engine(), parse_variant("hopper-" + rows + "-kv64-qs1-whole-serial-ppoff-fixed-split-splitkv"));
      if (test_device().architecture == "sm_90a")
        RaggedBatch(seed, {.page_size = 16}).check(shared_engine(), parse_variant("hopper-q64-kv64-whole-ppoff-rare"));
      RaggedBatch(seed, {.page_size = 24}).check(shared_engine(), parse_variant("mma-q64-kv32"));
    }
  }
}

TEST_CASE("ragged batches with the kernels that the library chooses") {
  for (const int head_dim : {64, 128, 80, 256})
    for (std::uint64_t seed = 0; seed < kBatches; ++seed) {
      CAPTURE(head_dim);
      CAPTURE(seed);
      RaggedBatch(seed, {DType::bf16, head_dim, head_dim, 700}).check(shared_engine());
    }
}

TEST_CASE("keys and values in pages with the kernels that the library chooses") {
  std::uint64_t seed = 0;
  for (const int head_dim : {64, 128, 80, 256})
    for (const std::int64_t page_size : {1, 8, 16, 48, 64, 100, 256}) {
      CAPTURE(head_dim);
      CAPTURE(page_size);
      CAPTURE(++seed);
      RaggedBatch(seed, {DType::bf16, head_dim, head_dim, 600, page_size}).check(shared_engine());
    }
}

namespace {

// A pool of keys or of values, of NaN but for these pages.
class DevicePool {
 public:
  explicit DevicePool(const Dims& shape) : memory_(DeviceTensor::allocate(DType::bf16, shape)) {
    DRIVER_CALL(cuMemsetD8, address(), 0xff, memory_.size_bytes());
  }
  void operator()(std::size_t place, const char* rows, std::size_t bytes) const {
    DRIVER_CALL(cuMemcpyHtoD, address() + place, rows, bytes);
  }
  Tensor view() const { return memory_.view(); }

 private:
  CUdeviceptr address() const { return reinterpret_cast<CUdeviceptr>(memory_.data()); }
  DeviceTensor memory_;
};

}  // namespace

TEST_CASE("pages and rows of a cache are found behind its first 2^31 elements, and pages behind the first 65536") {
  const Dims shape{66'000, 64, 4, 128};
  const tests::ScatteredPages pages(shape, {5000, 3001}), rows(shape, {64, 33});
  const ScopedContext context(0);
  std::size_t free_bytes = 0, total_bytes = 0;
  DRIVER_CALL(cuMemGetInfo, &free_bytes, &total_bytes);
  if (free_bytes < 2 * pages.pool_bytes() + (std::size_t{1} << 30)) {
    MESSAGE("device 0 has no room for twice " << pages.pool_bytes() << " bytes: nothing to test");
    return;
  }
  const DevicePool k(shape), v(shape);
  for (const char* variant : {"", "mma-q64-kv32"}) {
    CAPTURE(variant);
    for (const bool paged : {true, false}) {
      CAPTURE(paged);
      const tests::ScatteredPages& batch = paged ? pages : rows;
      batch.put_keys(k);
      batch.put_values(v);
      const DeviceTensor q = batch.q().to_device(), used = batch.used().to_device(),
                         where = (paged ? batch.table() : batch.first_pages()).to_device();
      AttentionOptions options;
      options.causal = true;
      options.seqused_kv = used.view();
      (paged ? options.page_table : options.batch_indices_kv) = where.view();
      if (*variant) options.variant = parse_variant(variant);
      batch.check(HostTensor::from_device(shared_engine().attention(q, k.view(), v.view(), options)));
    }
  }
}

TEST_CASE("ragged batches with kernels of the mma family") {
  for (const char* variant : {"mma-q128-kv64-w4-k2-v1-c2-overlap-qsmem", "mma-q64-kv32", "v1"})
    for (std::uint64_t seed = 0; seed < kBatches; ++seed) {
      CAPTURE(variant);
      CAPTURE(seed);
      RaggedBatch(seed, {DType::f16, 64, 64, 700}).check(shared_engine(), parse_variant(variant));
    }
}

namespace {

HostTensor ints(const std::vector<std::int32_t>& values) {
  HostTensor tensor(DType::i32, {static_cast<std::int64_t>(values.size())});
  std::memcpy(tensor.data(), values.data(), values.size() * sizeof(std::int32_t));
  return tensor;
}

// Three causal sequences somewhere in 400 rows of four heads.
struct PackedCall {
  HostTensor q_host, k_host, v_host;
  DeviceTensor q, k, v, offsets, out;
  AttentionOptions options;

  explicit PackedCall(std::uint64_t seed)
      : q_host(HostTensor::random_normal(DType::bf16, {400, 4, 128}, seed)),
        k_host(HostTensor::random_normal(DType::bf16, {400, 2, 128}, seed + 1)),
        v_host(HostTensor::random_normal(DType::bf16, {400, 2, 128}, seed + 2)),
        q(q_host.to_device()),
        k(k_host.to_device()),
        v(v_host.to_device()),
        offsets(ints({0, 0, 0, 0}).to_device()),
        out(HostTensor(DType::bf16, {400, 4, 128}).to_device()) {
    options.causal = true;
    options.cu_seqlens_q = options.cu_seqlens_kv = offsets.view();
  }

  void enqueue(CUstream stream) {
    options.stream = stream;
    shared_engine().attention(q, k, v, out, options);
  }
  void set_offsets(const std::vector<std::int32_t>& values) const {
    const HostTensor tensor = ints(values);
    DRIVER_CALL(cuMemcpyHtoD, reinterpret_cast<CUdeviceptr>(offsets.data()), tensor.data(),
                values.size() * sizeof(std::int32_t));
  }
  // Of sequences that leave no row out.
  void check(const std::vector<std::int32_t>& values) const {
    AttentionOptions of_host = options;
    const HostTensor tensor = ints(values);
    of_host.cu_seqlens_q = of_host.cu_seqlens_kv = tensor.view();
    const auto exact = flashjit::reference::attention(q_host.view(), k_host.view(), v_host.view(), of_host);
    const auto low =
        flashjit::reference::attention_in_low_precision(q_host.view(), k_host.view(), v_host.view(), of_host);
    HostTensor got(DType::bf16, exact.shape);
    out.copy_to_host(got.data());
    CHECK(flashjit::reference::compare(got, exact, low).passed);
  }
};

}  // namespace

TEST_CASE("a graph that was captured with one batch computes others, whose lengths it finds when it runs") {
  PackedCall call(71);
  const ScopedContext context(0);
  const ScopedStream stream;
  DRIVER_CALL(cuCtxSynchronize);
  call.enqueue(stream.get());  // makes the kernels
  stream.synchronize();
  DRIVER_CALL(cuStreamBeginCapture, stream.get(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  call.enqueue(stream.get());
  CUgraph graph = nullptr;
  DRIVER_CALL(cuStreamEndCapture, stream.get(), &graph);
  CUgraphExec executable = nullptr;
  DRIVER_CALL(cuGraphInstantiateWithFlags, &executable, graph, 0);
  for (const std::vector<std::int32_t>& offsets :
       {std::vector<std::int32_t>{0, 400, 400, 400}, {0, 13, 200, 400}, {0, 400, 0, 0}, {0, 0, 399, 400}}) {
    CAPTURE(offsets[1]);
    call.set_offsets(offsets);
    for (int run = 0; run < 2; ++run) DRIVER_CALL(cuGraphLaunch, executable, stream.get());
    stream.synchronize();
    call.check(offsets);
  }
  DRIVER_CALL(cuGraphExecDestroy, executable);
  DRIVER_CALL(cuGraphDestroy, graph);
}

namespace {

constexpr int kCalls = 4;

// Calls of batches that differ.
struct PackedCalls {
  const std::vector<std::int32_t> offsets[kCalls] = {
      {0, 130, 260, 400}, {0, 400, 400, 400}, {0, 1, 2, 400}, {0, 0, 0, 400}};
  std::vector<PackedCall> calls;

  PackedCalls() {
    for (int i = 0; i < kCalls; ++i) {
      calls.emplace_back(100 + 10 * i);
      calls.back().set_offsets(offsets[i]);
    }
  }
  void check() const {
    for (int i = 0; i < kCalls; ++i) {
      CAPTURE(i);
      calls[i].check(offsets[i]);
    }
  }
};

}  // namespace

TEST_CASE("batches on streams of their own do not disturb each other's lists") {
  const ScopedContext context(0);
  const ScopedStream streams[kCalls];
  PackedCalls batches;
  DRIVER_CALL(cuCtxSynchronize);
  for (int round = 0; round < 25; ++round)
    for (int i = 0; i < kCalls; ++i) batches.calls[i].enqueue(streams[i].get());
  DRIVER_CALL(cuCtxSynchronize);
  batches.check();
}

TEST_CASE("threads with batches on one stream do not disturb each other's lists") {
  const ScopedContext context(0);
  const ScopedStream stream;
  PackedCalls batches;
  DRIVER_CALL(cuCtxSynchronize);
  std::vector<std::thread> threads;
  for (PackedCall& call : batches.calls)
    threads.emplace_back([&] {
      for (int round = 0; round < 100; ++round) call.enqueue(stream.get());
    });
  for (std::thread& thread : threads) thread.join();
  stream.synchronize();
  batches.check();
}

TEST_CASE("a graph has a list of its own beside batches on the stream that it was captured on") {
  const ScopedContext context(0);
  const ScopedStream stream, of_graph;
  PackedCalls batches;
  DRIVER_CALL(cuCtxSynchronize);
  for (PackedCall& call : batches.calls) call.enqueue(stream.get());
  stream.synchronize();
  DRIVER_CALL(cuStreamBeginCapture, stream.get(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  batches.calls[0].enqueue(stream.get());
  CUgraph graph = nullptr;
  DRIVER_CALL(cuStreamEndCapture, stream.get(), &graph);
  CUgraphExec executable = nullptr;
  DRIVER_CALL(cuGraphInstantiateWithFlags, &executable, graph, 0);
  for (int round = 0; round < 25; ++round) {
    DRIVER_CALL(cuGraphLaunch, executable, of_graph.get());
    for (int i = 1; i < kCalls; ++i) batches.calls[i].enqueue(stream.get());
  }
  DRIVER_CALL(cuCtxSynchronize);
  batches.check();
  DRIVER_CALL(cuGraphExecDestroy, executable);
  DRIVER_CALL(cuGraphDestroy, graph);
}

TEST_CASE("a step that is captured with its plan makes one list for all layers, and allocates nothing") {
  PackedCall layers[] = {PackedCall(500), PackedCall(600), PackedCall(700)};
  const ScopedContext context(0);
  const ScopedStream stream;
  DRIVER_CALL(cuCtxSynchronize);
  for (PackedCall& layer : layers) layer.options.cu_seqlens_q = layer.options.cu_seqlens_kv = layers[0].offsets.view();
  AttentionOptions options = layers[0].options;
  options.stream = stream.get();
  BatchPlan plan = shared_engine().plan(layers[0].q, layers[0].k, layers[0].v, options);
  stream.synchronize();
  DRIVER_CALL(cuStreamBeginCapture, stream.get(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  shared_engine().update(plan, layers[0].q, layers[0].k, layers[0].v, options);
  for (PackedCall& layer : layers) {
    layer.options.plan = &plan;
    layer.enqueue(stream.get());
    layer.options.plan = nullptr;
  }
  CUgraph graph = nullptr;
  DRIVER_CALL(cuStreamEndCapture, stream.get(), &graph);
  std::size_t nodes = 0;
  DRIVER_CALL(cuGraphGetNodes, graph, nullptr, &nodes);
  CHECK(nodes == 4);  // kernels, and no memory
  CUgraphExec executable = nullptr;
  DRIVER_CALL(cuGraphInstantiateWithFlags, &executable, graph, 0);
  for (const std::vector<std::int32_t>& offsets :
       {std::vector<std::int32_t>{0, 400, 400, 400}, {0, 13, 200, 400}, {0, 0, 399, 400}}) {
    CAPTURE(offsets[1]);
    layers[0].set_offsets(offsets);
    DRIVER_CALL(cuGraphLaunch, executable, stream.get());
    stream.synchronize();
    for (const PackedCall& layer : layers) layer.check(offsets);
  }
  DRIVER_CALL(cuGraphExecDestroy, executable);
  DRIVER_CALL(cuGraphDestroy, graph);
}
