// SPDX-License-Identifier: Apache-2.0
// The same schemes over NCCL, ranks as threads with a GPU each. Where there are fewer than two ctest calls it skipped.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/distributed/attention_case.h"
#include "tests/distributed/gradient_case.h"
#include "tests/gpu/driver_calls.h"
#include "tests/support/error_code.h"
#include "tests/support/kept_kernels.h"
#include "tests/support/ranks.h"

namespace {

using namespace flashjit;
using namespace flashjit::distributed;
using tests::AttentionCase;

constexpr int kRanks = 2;

// Null where there are not so many GPUs.
Engine* engine_of_gpus() {
  static const std::unique_ptr<Engine> engine = [] {
    EngineOptions options = tests::options_with_kept_kernels();
    options.emulate.clear();
    auto made = std::make_unique<Engine>(options);
    if (made->system().devices.size() < kRanks) {
      std::printf("skipped: fewer than %d GPUs\n", kRanks);
      made.reset();
    }
    return made;
  }();
  return engine.get();
}

std::vector<std::exception_ptr> on_gpus(const std::function<void(Group&)>& work, std::chrono::milliseconds timeout) {
  const UniqueId id = make_unique_id();
  return tests::on_ranks(
      kRanks,
      [&](int rank) {
        return Group::from_unique_id(id, rank, kRanks, {rank, timeout});
      },
      work);
}

AttentionCase case_of(Scheme scheme, Layout layout, const Window& window) {
  AttentionCase of;
  of.scheme = scheme;
  of.layout = layout;
  of.seqlen_q = of.seqlen_kv = 1021;
  of.num_heads_q = 8;
  of.num_heads_kv = 2;
  of.head_dim = 128;
  of.options.window = window;
  return of;
}

}  // namespace

TEST_CASE("over NCCL: every scheme, mask and layout is right, and its bits are the same in a second run") {
  Engine* engine = engine_of_gpus();
  if (!engine) return;
  for (const Scheme scheme : {Scheme::all_gather, Scheme::ring, Scheme::all_to_all, Scheme::automatic})
    for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped})
      for (const Window window : {Window{}, Window{-1, 0}, Window{100, 0}, Window{64, 30}}) {
        const AttentionCase of = case_of(scheme, layout, window);
        CAPTURE(of.text());
        const auto run = [&] {
          return tests::attention_over_shards(
              *engine, [](const auto& work) { return on_gpus(work, std::chrono::seconds(60)); }, of);
        };
        const tests::WholeResult first = run();
        CHECK(tests::is_right(first, of, *engine));
        CHECK(tests::is_same(first, run()));
      }
}

TEST_CASE("over NCCL: gradients of every scheme are right, and deterministic ones the same in a second run") {
  Engine* engine = engine_of_gpus();
  if (!engine) return;
  BackwardOptions backward;
  backward.deterministic = true;
  for (const Scheme scheme : {Scheme::all_gather, Scheme::ring, Scheme::all_to_all, Scheme::automatic})
    for (const Layout layout : {Layout::contiguous, Layout::zigzag})
      for (const Window window : {Window{}, Window{-1, 0}, Window{100, 0}}) {
        const AttentionCase of = case_of(scheme, layout, window);
        CAPTURE(of.text());
        const auto run = [&] {
          return tests::gradients_over_shards(
              *engine, [](const auto& work) { return on_gpus(work, std::chrono::seconds(60)); }, of, backward);
        };
        const tests::WholeGradients first = run();
        CHECK(tests::are_right(first, of, *engine));
        CHECK(tests::is_same(first, run()));
      }
}

TEST_CASE("over NCCL: a call like one before is captured in a graph, of which each run gives the same bits") {
  Engine* engine = engine_of_gpus();
  if (!engine) return;
  for (const Scheme scheme : {Scheme::all_gather, Scheme::ring, Scheme::all_to_all}) {
    AttentionCase of;
    of.scheme = scheme;
    of.layout = Layout::zigzag;
    of.seqlen_q = of.seqlen_kv = 1021;
    of.head_dim = 128;
    of.options.causal = true;
    CAPTURE(of.text());
    const tests::WholeTensors whole(of);
    tests::rethrow_first(on_gpus(
        [&](Group& group) {
          const int rank = group.rank(), device = group.transport().device();
          const tests::ScopedContext context(device);
          const tests::ScopedStream stream;
          Options options = of.distributed_options();
          options.attention.stream = stream.get();
          const auto own = [&](const HostTensor& tensor) {
            return shard(tensor, options.queries, rank).to_device(nullptr, device);
          };
          const DeviceTensor q = own(whole.q), k = own(whole.k), v = own(whole.v), out = own(whole.q),
                             captured = own(whole.q);
          attention(*engine, group, q, k, v, out, options);
          stream.synchronize();
          DRIVER_CALL(cuStreamBeginCapture, stream.get(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
          attention(*engine, group, q, k, v, captured, options);
          CUgraph graph = nullptr;
          DRIVER_CALL(cuStreamEndCapture, stream.get(), &graph);
          CUgraphExec executable = nullptr;
          DRIVER_CALL(cuGraphInstantiateWithFlags, &executable, graph, 0);
          const std::vector<double> expected = HostTensor::from_device(out).to_doubles();
          for (int run = 0; run < 2; ++run) {
            DRIVER_CALL(cuGraphLaunch, executable, stream.get());
            stream.synchronize();
            if (HostTensor::from_device(captured).to_doubles() != expected) throw std::runtime_error("other bits");
          }
          DRIVER_CALL(cuGraphExecDestroy, executable);
          DRIVER_CALL(cuGraphDestroy, graph);
        },
        std::chrono::seconds(60)));
  }
}

TEST_CASE("over NCCL: all ranks take the variant that a record of the first one chose") {
  if (!engine_of_gpus()) return;
  EngineOptions options = tests::options_with_kept_kernels();
  options.emulate.clear();
  Engine first(options), second(options);
  const Problem problem = problem_of(DType::bf16, 128, 128, {});
  const CallShape shape{1, 1024, 1024, 8, 2};
  const DeviceInfo device = first.system().devices.front();
  TuneOptions unmeasured;  // a record as tuning makes one, with another variant than the default's
  unmeasured.keep = false;
  unmeasured.budget_seconds = 1;
  TuningRecord record = first.tune(problem, shape, unmeasured, 0);
  for (const Variant& variant : first.variants(problem, device.architecture))
    if (variant != record.default_variant) record.chosen = variant;
  first.use_records({record}, {}, 0);
  tests::rethrow_first(on_gpus(
      [&](Group& group) {
        Engine& engine = group.rank() == 0 ? first : second;
        const int ordinal = group.transport().device();
        agree(engine, group);
        const std::vector<TuningRecord> records = engine.tuning_records(ordinal);
        if (records.size() != 1 || records.front().chosen != record.chosen) throw std::runtime_error("other records");
        const DeviceTensor q = DeviceTensor::allocate(DType::bf16, {1, 1024, 8, 128}, nullptr, ordinal),
                           k = DeviceTensor::allocate(DType::bf16, {1, 1024, 2, 128}, nullptr, ordinal);
        if (engine.prepare(q, k, k, q).variant != record.chosen) throw std::runtime_error("another variant");
      },
      std::chrono::seconds(60)));
}

TEST_CASE("over NCCL: a rank that is not heard of is an Error on the other, in time") {
  Engine* engine = engine_of_gpus();
  if (!engine) return;
  AttentionCase of;
  const Options options = of.distributed_options();
  const tests::WholeTensors whole(of);
  const auto begin = std::chrono::steady_clock::now();
  const auto thrown = on_gpus(
      [&](Group& group) {
        const int rank = group.rank(), device = group.transport().device();
        const DeviceTensor q = shard(whole.q, options.queries, rank).to_device(nullptr, device),
                           k = shard(whole.k, *options.keys, rank).to_device(nullptr, device),
                           v = shard(whole.v, *options.keys, rank).to_device(nullptr, device);
        attention(*engine, group, q, k, v, options);  // so that connections are there
        group.wait();
        if (rank == 1) {
          std::this_thread::sleep_for(std::chrono::seconds(6));
          throw std::runtime_error("killed");
        }
        attention(*engine, group, q, k, v, options);
        group.wait();
      },
      std::chrono::milliseconds(2000));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));
  REQUIRE(thrown[0]);
  std::string message;
  CHECK(tests::code_of([&] { std::rethrow_exception(thrown[0]); }, &message) == ErrorCode::communication);
  MESSAGE(message);
}
