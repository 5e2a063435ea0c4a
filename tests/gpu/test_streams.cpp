// SPDX-License-Identifier: Apache-2.0
// Streams, contexts, threads and CUDA graphs.
#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/gpu/attention_case.h"
#include "tests/gpu/driver_calls.h"

using namespace flashjit;
using tests::AttentionCase;
using tests::kNoContext;
using tests::ScopedContext;
using tests::ScopedStream;
using tests::shared_engine;

TEST_CASE("a call on a stream of the caller's is ordered with the other work there") {
  const AttentionCase c;
  const ScopedContext context(0);
  const ScopedStream stream;
  AttentionOptions opts;
  opts.stream = stream.get();
  const DeviceTensor out = shared_engine().attention(c.q, c.k, c.v, opts);
  CHECK(out.stream() == stream.get());
  c.check_out(out);
}

TEST_CASE("a call with no context current leaves none") {
  const AttentionCase c;
  const ScopedContext none(kNoContext);
  c.check_out(shared_engine().attention(c.q, c.k, c.v));
  CHECK(tests::current_context() == nullptr);
}

TEST_CASE("a stream is enough when no context is current") {
  const AttentionCase c;
  const ScopedContext context(0);
  const ScopedStream stream;
  const ScopedContext none(kNoContext);
  AttentionOptions opts;
  opts.stream = stream.get();
  c.check_out(shared_engine().attention(c.q, c.k, c.v, opts));
  CHECK(tests::current_context() == nullptr);
}

TEST_CASE("each device computes on its own, from one engine") {
  const auto devices = shared_engine().system().devices;
  for (const DeviceInfo& device : devices) {
    const AttentionCase c;
    const DeviceTensor q = c.q_host.to_device(nullptr, device.ordinal), k = c.k_host.to_device(nullptr, device.ordinal),
                       v = c.v_host.to_device(nullptr, device.ordinal);
    const DeviceTensor out = shared_engine().attention(q, k, v);
    CHECK(out.device() == device.ordinal);
    c.check_out(out);
  }
}

TEST_CASE("sixteen threads that make the first call of an engine all get right results") {
  EngineOptions options = EngineOptions::from_environment();
  options.policy = Policy::off;
  Engine engine(options);
  const AttentionCase c;
  std::vector<DeviceTensor> outs(16);
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (DeviceTensor& out : outs) {
    threads.emplace_back([&] {
      try {
        out = engine.attention(c.q, c.k, c.v);
      } catch (const Error&) {
        ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(failures == 0);
  for (const DeviceTensor& out : outs) c.check_out(out);
  CHECK(engine.counters().compiles == 2);  // and what combines split keys
}

TEST_CASE("calls whose keys are split keep their scratch memory apart, on more streams than it is kept for") {
  constexpr int kStreams = 12, kRounds = 4;  // memory is kept for eight
  const ScopedContext context(0);
  // From small to large and back, so that kept memory grows, and is then larger than what is asked for.
  std::vector<AttentionCase> cases;
  for (const std::int64_t batch : {1, 3, 7, 2}) {
    const tests::Sizes sizes{batch, 1, 3000 + 100 * batch, 8, 2, 64, 64};
    cases.emplace_back(sizes, DType::bf16, 10 * static_cast<std::uint64_t>(batch));
  }
  std::vector<ScopedStream> streams(kStreams);
  struct Call {
    const AttentionCase* of;
    DeviceTensor out;
  };
  std::vector<Call> calls;
  for (int i = 0; i < kRounds * kStreams; ++i) {
    const AttentionCase& of = cases[static_cast<std::size_t>(i / kStreams + i) % cases.size()];
    calls.push_back({&of, of.poisoned_out()});
  }
  DRIVER_CALL(cuCtxSynchronize);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    AttentionOptions options;
    options.stream = streams[i % kStreams].get();
    shared_engine().attention(calls[i].of->q, calls[i].of->k, calls[i].of->v, calls[i].out, options);
  }
  for (const ScopedStream& stream : streams) stream.synchronize();
  for (const AttentionCase& of : cases) {
    const AttentionCase::Expected expected = of.expected({});
    for (const Call& call : calls)
      if (call.of == &of) expected.check_out(call.out);
  }
}

namespace {

// Captures the call into the caller's memory; the graph is null when the capture failed.
CUgraph capture(Engine& engine, const AttentionCase& c, const DeviceTensor& out, CUstream stream, ErrorCode* refused) {
  AttentionOptions opts;
  opts.stream = stream;
  DRIVER_CALL(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  try {
    engine.attention(c.q, c.k, c.v, out, opts);
  } catch (const Error& error) {
    *refused = error.code();
  }
  CUgraph graph = nullptr;
  DRIVER_CALL(cuStreamEndCapture, stream, &graph);
  return graph;
}

void replay(CUgraph graph, CUstream stream) {
  CUgraphExec executable = nullptr;
  DRIVER_CALL(cuGraphInstantiateWithFlags, &executable, graph, 0);
  DRIVER_CALL(cuGraphLaunch, executable, stream);
  DRIVER_CALL(cuStreamSynchronize, stream);
  DRIVER_CALL(cuGraphExecDestroy, executable);
}

}  // namespace

TEST_CASE("a prepared call is captured in a graph and computes when the graph runs") {
  EngineOptions options = EngineOptions::from_environment();
  options.policy = Policy::off;
  Engine engine(options);
  const AttentionCase c;
  engine.prepare({DType::bf16, 64, 64, false}, 0);
  const ScopedContext context(0);
  const ScopedStream stream;
  const DeviceTensor out = c.poisoned_out();
  DRIVER_CALL(cuCtxSynchronize);
  ErrorCode refused = ErrorCode::io;
  const CUgraph graph = capture(engine, c, out, stream.get(), &refused);
  CHECK(refused == ErrorCode::io);
  REQUIRE(graph != nullptr);
  for (int i = 0; i < 2; ++i) {
    replay(graph, stream.get());
    c.check_out(out);
  }
  DRIVER_CALL(cuGraphDestroy, graph);
}

TEST_CASE("a call that was not prepared is refused while a graph is captured, and the capture goes on") {
  EngineOptions options = EngineOptions::from_environment();
  options.policy = Policy::off;
  Engine engine(options);
  const AttentionCase c;
  const ScopedContext context(0);
  const ScopedStream stream;
  const DeviceTensor out = c.poisoned_out();
  DRIVER_CALL(cuCtxSynchronize);
  ErrorCode refused = ErrorCode::io;
  const CUgraph graph = capture(engine, c, out, stream.get(), &refused);
  CHECK(refused == ErrorCode::unsupported);
  CHECK(engine.counters().compiles == 0);
  REQUIRE(graph != nullptr);
  DRIVER_CALL(cuGraphDestroy, graph);
  c.check_out(engine.attention(c.q, c.k, c.v));
}

TEST_CASE("what calls allocate under a capture is of the graph, and gives the same as memory of the caller") {
  const AttentionCase c;
  const ScopedContext context(0);
  const ScopedStream stream;
  Engine& engine = shared_engine();
  const HostTensor dout_host = HostTensor::random_normal(DType::bf16, c.out_shape, 9);
  const DeviceTensor dout = dout_host.to_device(nullptr, c.q.device()), lse = c.poisoned_lse();
  AttentionOptions opts, opts_of_out;
  opts.stream = opts_of_out.stream = stream.get(), opts_of_out.lse = lse;
  BackwardOptions backward;
  backward.deterministic = true;
  const auto gradients_into = [&](const Gradients& into) {
    const DeviceTensor out = engine.attention(c.q, c.k, c.v, opts_of_out);
    engine.attention_backward(dout, c.q, c.k, c.v, out, lse, {into.dq, into.dk, into.dv}, opts, backward);
  };
  const auto zeros = [&] {
    return Gradients{HostTensor(DType::bf16, c.q_host.shape()).to_device(nullptr, c.q.device()),
                     HostTensor(DType::bf16, c.k_host.shape()).to_device(nullptr, c.q.device()),
                     HostTensor(DType::bf16, c.v_host.shape()).to_device(nullptr, c.q.device())};
  };
  const Gradients expected = zeros(), into = zeros();
  DRIVER_CALL(cuCtxSynchronize);
  gradients_into(expected);
  DRIVER_CALL(cuStreamSynchronize, stream.get());
  DRIVER_CALL(cuStreamBeginCapture, stream.get(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  CHECK_NOTHROW(gradients_into(into));
  CUgraph graph = nullptr;
  DRIVER_CALL(cuStreamEndCapture, stream.get(), &graph);
  REQUIRE(graph != nullptr);
  for (int i = 0; i < 2; ++i) replay(graph, stream.get());
  DRIVER_CALL(cuGraphDestroy, graph);
  const auto values = [](const DeviceTensor& of) { return HostTensor::from_device(of).to_doubles(); };
  CHECK(values(into.dq) == values(expected.dq));
  CHECK(values(into.dk) == values(expected.dk));
  CHECK(values(into.dv) == values(expected.dv));
}
