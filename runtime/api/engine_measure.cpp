// SPDX-License-Identifier: Apache-2.0
// The engine's measurements on the GPU.
#include <fmt/format.h>

#include <functional>

#include "flashjit/engine.h"
#include "runtime/api/engine_impl.h"
#include "runtime/backends/gpu_operation.h"
#include "runtime/call/quantize.h"
#include "runtime/call/ragged.h"
#include "runtime/cuda/timer.h"
#include "runtime/support/statistics.h"

namespace flashjit {
namespace {

using runtime::Driver;

constexpr int kCeilingBlocksPerSm = 4;
constexpr int kCeilingRepeats = 5;
constexpr int kCeilingIterations = 1024;  // of the first launch, from which the length of the timed ones follows
constexpr double kCeilingMicroseconds = 20e3;
constexpr int kWarpSize = 32;

// A call with its context current and its kernel ready, to be launched many times.
struct Prepared {
  Prepared(runtime::Kernels& kernels, const runtime::ForwardCall& call, const AttentionOptions& opts)
      : driver(Driver::load()),
        device(runtime::device(runtime::device_of(driver, call.operands, opts.stream))),
        context(driver, device.info.ordinal, opts.stream),
        operation(driver, call, runtime::forward_kernel(driver, kernels, call, opts, device.info.ordinal),
                  opts.stream) {}

  const Driver& driver;
  const runtime::Device& device;
  runtime::ContextScope context;
  runtime::GpuOperation operation;
};

// Of tensors that outlive it.
runtime::ForwardCall call_with_work(const runtime::CallWithBatch& with) {
  runtime::ForwardCall call = runtime::validate_inputs(with.q, with.k, with.v, with.opts);
  runtime::validate_out(call, with.out);
  if (!call.nothing_to_do()) return call;
  throw Error(ErrorCode::invalid_argument,
              "q: must have elements to be measured, had shape " + to_string(with.q.shape));
}

// Launches of the ceiling kernel of one dtype on one device.
class CeilingLoop {
 public:
  CeilingLoop(const Driver& driver, const runtime::Device& device, CUfunction function)
      : driver_(driver),
        function_(function),
        sink_(DeviceTensor::allocate(DType::f32, {1}, nullptr, device.info.ordinal)) {
    config_.gridDimX = static_cast<unsigned>(kCeilingBlocksPerSm * device.info.sm_count);
    config_.gridDimY = config_.gridDimZ = 1;
    config_.blockDimX = generator::kCeilingThreads;
    config_.blockDimY = config_.blockDimZ = 1;
  }

  double microseconds(int iterations) {
    void* sink = sink_.data();
    void* parameters[] = {&sink, &iterations};
    const runtime::EventPair events(driver_);
    events.start(nullptr);
    driver_.check(driver_.cuLaunchKernelEx(&config_, function_, parameters, nullptr), "cuLaunchKernelEx");
    events.stop(nullptr);
    return events.wait_for_microseconds();
  }

  double operations(int iterations) const {
    const double warps = static_cast<double>(config_.gridDimX) * (generator::kCeilingThreads / kWarpSize);
    return generator::kCeilingFlops * iterations * warps;
  }

 private:
  const Driver& driver_;
  CUfunction function_;
  DeviceTensor sink_;
  CUlaunchConfig config_{};
};

}  // namespace

void Engine::Impl::require_gpu(const char* function) const {
  if (!emulated) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("{}: needs a GPU, this engine emulates {}", function, options.emulate));
}

Timing Engine::measure(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                       const AttentionOptions& opts, const MeasureOptions& options) {
  impl_->require_gpu("measure");
  const runtime::CallWithBatch with(q, k, v, out, opts);
  const runtime::ForwardCall call = call_with_work(with);
  Prepared prepared(impl_->kernels, call, with.opts);
  return runtime::measure_kernel(prepared.driver, prepared.device, opts.stream, options,
                                 [&] { prepared.operation.enqueue(prepared.driver); });
}

Timing Engine::measure(const Tensor& x, const Tensor& out, const Tensor& scale, const QuantizeOptions& opts,
                       const MeasureOptions& options) {
  impl_->require_gpu("measure");
  const runtime::QuantizeCall call(x, out, scale, opts);
  if (call.nothing_to_do())
    throw Error(ErrorCode::invalid_argument, "x: must have elements to be measured, had shape " + to_string(x.shape));
  const Driver& driver = Driver::load();
  const runtime::Device& device = runtime::device(runtime::device_of(driver, call.operands, opts.stream));
  const runtime::ContextScope context(driver, device.info.ordinal, opts.stream);
  quantize(x, out, scale, opts);  // what it needs is made now
  return runtime::measure_kernel(driver, device, opts.stream, options, [&] { quantize(x, out, scale, opts); });
}

HostCost Engine::measure_host_cost(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                   const AttentionOptions& opts) {
  impl_->require_gpu("measure_host_cost");
  const runtime::CallWithBatch with(q, k, v, out, opts);
  const runtime::ForwardCall call = call_with_work(with);
  Prepared prepared(impl_->kernels, call, with.opts);
  const Driver& driver = prepared.driver;
  // As of layers: calls have other keys and values than the first one, where k and v may take each other's place.
  attention(q, k, v, out, opts);
  const bool alike = k.dtype == v.dtype && k.shape == v.shape && k.strides == v.strides;
  return runtime::measure_host(
      driver, opts.stream, [&] { attention(q, alike ? v : k, alike ? k : v, out, opts); },
      [&] { prepared.operation.launch(driver); });
}

double Engine::measure_mma_ceiling(DType dtype, int device) {
  impl_->require_gpu("measure_mma_ceiling");
  const Driver& driver = Driver::load();
  const runtime::Device& target = runtime::device(runtime::resolve_device(driver, device));
  const Architecture& architecture = runtime::require_architecture(target);
  const runtime::KernelRequest request(generator::render_mma_ceiling(dtype, architecture, impl_->templates),
                                       architecture.name, {{"threads", std::to_string(generator::kCeilingThreads)}});
  const runtime::ContextScope context(driver, target.info.ordinal);
  CeilingLoop loop(driver, target, impl_->kernels.load(request, generator::kCeilingThreads, 0, target));

  loop.microseconds(kCeilingIterations);
  const double scale = kCeilingMicroseconds / std::max(1.0, loop.microseconds(kCeilingIterations));
  const int iterations = static_cast<int>(kCeilingIterations * std::clamp(scale, 1.0, 1e5));
  std::vector<double> times;
  for (int i = 0; i < kCeilingRepeats; ++i) times.push_back(loop.microseconds(iterations));
  return loop.operations(iterations) / runtime::median(std::move(times)) * 1e-6;
}

}  // namespace flashjit
