// SPDX-License-Identifier: Apache-2.0
// Rows made e4m3 on the GPU, against the reference.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "flashjit/flashjit.h"
#include "tests/gpu/attention_case.h"
#include "tests/gpu/driver_calls.h"
#include "tests/support/quantize_case.h"
#include "tests/support/same_bytes.h"

namespace {

using namespace flashjit;
using tests::QuantizeCase;
using tests::QuantizedMemory;
using tests::same_bytes;

DeviceTensor on_device(const HostTensor& tensor, Stream stream = nullptr) {
  return tensor.to_device(stream, tests::test_device().ordinal);
}

// Where the GPU has no e4m3 there is nothing to see but that this is said.
bool has_e4m3() {
  const DeviceInfo& device = tests::test_device();
  if (device.major > 8 || (device.major == 8 && device.minor >= 9)) return true;
  const DeviceTensor x = on_device(HostTensor(DType::f16, {1, 1, 1, 16}));
  CHECK_THROWS_WITH_AS(tests::shared_engine().quantize(x.view()),
                       doctest::Contains("out: dtype e4m3 takes compute capability 8.9 or more"), Error);
  return false;
}

QuantizedMemory found(const QuantizeCase& c) {
  const DeviceTensor out = on_device(c.poisoned_out()), scale = on_device(c.poisoned_scale());
  std::vector<DeviceTensor> memory;
  std::vector<Tensor> there;
  for (const HostTensor& input : c.inputs) {
    memory.push_back(input.shape().size() > 0 ? on_device(input) : DeviceTensor());
    there.push_back(memory.back().view());
  }
  const Tensor x = c.view(there[QuantizeCase::x].data, there[QuantizeCase::x].dtype);
  tests::shared_engine().quantize(x, c.view(out.data(), DType::e4m3), scale, c.options_of(there));
  return {HostTensor::from_device(out), HostTensor::from_device(scale)};
}

void expect_quantized(std::uint64_t seed) {
  const QuantizeCase c(seed);
  CAPTURE(seed);
  CAPTURE(c.describe());
  CHECK(tests::difference(c, found(c), tests::expected_of(c)) == "");
}

}  // namespace

TEST_SUITE_BEGIN("sanitizer");

TEST_CASE("rows become e4m3 by the sanitizers' leave") {
  if (!has_e4m3()) return;
  for (std::uint64_t seed = 1000; seed < 1016; ++seed) expect_quantized(seed);
}

TEST_SUITE_END();
TEST_SUITE_BEGIN("quantize");

TEST_CASE("random rows become e4m3 as in the reference, and nothing beside them is written") {
  if (!has_e4m3()) return;
  for (std::uint64_t seed = 0; seed < 100; ++seed) expect_quantized(seed);
}

TEST_CASE("a long sequence of many heads, by scales of all kinds, and the same bits again") {
  if (!has_e4m3()) return;
  const HostTensor x = HostTensor::random_normal(DType::bf16, {1, 4001, 8, 128}, 1, 0.01);
  const DeviceTensor x_there = on_device(x);
  for (const ScaleOf scale_of : {ScaleOf::tensor, ScaleOf::head, ScaleOf::block}) {
    QuantizeOptions opts;
    opts.scale_of = scale_of, opts.rotation_seed = 5;
    if (scale_of == ScaleOf::block) opts.block_size = 128;
    const Quantized first = tests::shared_engine().quantize(x_there, opts),
                    second = tests::shared_engine().quantize(x_there, opts);
    const HostTensor out = HostTensor::from_device(first.out), scale = HostTensor::from_device(first.scale);
    CHECK(same_bytes(out, HostTensor::from_device(second.out)));
    CHECK(same_bytes(scale, HostTensor::from_device(second.scale)));
    HostTensor expected(DType::e4m3, x.shape()), expected_scale(DType::f32, first.scale.shape());
    reference::quantize(x.view(), expected.view(), expected_scale.view(), opts);
    std::int64_t apart = 0;
    for (std::size_t i = 0; i < expected.element_count(); ++i)
      apart +=
          static_cast<const unsigned char*>(out.data())[i] != static_cast<const unsigned char*>(expected.data())[i];
    CHECK(apart * 500 <= static_cast<std::int64_t>(expected.element_count()));
  }
}

TEST_CASE("a captured call quantises what is there when the graph runs") {
  if (!has_e4m3()) return;
  const tests::ScopedContext context(0);
  const tests::ScopedStream stream;
  const HostTensor first = HostTensor::random_normal(DType::f16, {1, 300, 2, 64}, 1),
                   second = HostTensor::random_normal(DType::f16, {1, 300, 2, 64}, 2);
  const DeviceTensor x = on_device(first, stream.get()),
                     out = on_device(HostTensor(DType::e4m3, first.shape()), stream.get()),
                     scale = on_device(HostTensor(DType::f32, {1, 2}), stream.get());
  QuantizeOptions opts;
  opts.rotation_seed = 11, opts.stream = stream.get();
  Engine& engine = tests::shared_engine();
  engine.quantize(x, out, scale, opts);
  DRIVER_CALL(cuStreamBeginCapture, stream.get(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  engine.quantize(x, out, scale, opts);
  CUgraph graph = nullptr;
  DRIVER_CALL(cuStreamEndCapture, stream.get(), &graph);
  CUgraphExec executable = nullptr;
  DRIVER_CALL(cuGraphInstantiateWithFlags, &executable, graph, 0);
  for (const HostTensor& now : {second, first}) {
    DRIVER_CALL(cuMemcpyHtoD, reinterpret_cast<CUdeviceptr>(x.data()), now.data(), now.element_count() * 2);
    DRIVER_CALL(cuGraphLaunch, executable, stream.get());
    stream.synchronize();
    const HostTensor graphed = HostTensor::from_device(out);
    engine.quantize(x, out, scale, opts);
    CHECK(same_bytes(graphed, HostTensor::from_device(out)));
  }
  DRIVER_CALL(cuGraphExecDestroy, executable);
  DRIVER_CALL(cuGraphDestroy, graph);
}

TEST_SUITE_END();
