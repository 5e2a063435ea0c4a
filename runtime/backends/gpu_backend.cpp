// SPDX-License-Identifier: Apache-2.0
#include "runtime/backends/gpu_backend.h"

#include <atomic>
#include <memory>
#include <span>

#include "runtime/backends/gpu_operation.h"
#include "runtime/backends/remembered_calls.h"
#include "runtime/call/ragged.h"
#include "runtime/call/splits.h"
#include "runtime/cuda/device.h"

namespace flashjit::runtime {
namespace {

void clear(const Driver& driver, std::span<std::byte> memory, Stream stream) {
  if (memory.empty()) return;
  driver.check(driver.cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(memory.data()), 0, memory.size(), stream),
               "cuMemsetD8Async");
}

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> next{0};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

GpuBackend::GpuBackend(Kernels& kernels) : number_(next_number()), kernels_(kernels) {}

void GpuBackend::describe(SystemInfo& info) const {
  info.driver_version = Driver::installed_version();
  const Driver* driver = Driver::try_load(&info.driver_problem);
  if (!driver) return;
  try {
    info.devices = describe_devices(*driver);
  } catch (const Error& error) {
    info.driver_problem = error.what();
  }
}

std::vector<KernelInfo> GpuBackend::prepare(const Problem& problem, int device, const std::optional<Variant>& variant) {
  const int ordinal = resolve_device(Driver::load(), device);
  return kernels_.prepare_all(problem, variant, runtime::device(ordinal));
}

KernelInfo GpuBackend::prepare(const ForwardCall& call, const AttentionOptions& opts) {
  if (call.nothing_to_do()) return {};
  const Driver& driver = Driver::load();
  const int device = resolve_device(driver, device_of(driver, call.operands, opts.stream));
  const ContextScope scope(driver, device, opts.stream);
  return forward_kernel(driver, kernels_, call, opts, device).info;
}

std::vector<KernelFacts> GpuBackend::prepare(const std::vector<const generator::PlainKernel*>& kernels, int device) {
  return kernels_.prepare_all(kernels, runtime::device(resolve_device(Driver::load(), device)));
}

const Architecture& GpuBackend::architecture(int device) const {
  return require_architecture(runtime::device(resolve_device(Driver::load(), device)));
}

int GpuBackend::output_device(const Operands& operands, Stream stream) const {
  return device_of(Driver::load(), operands, stream);
}

int GpuBackend::sm_count(const Operands& operands, Stream stream) const {
  const Driver& driver = Driver::load();
  return device(resolve_device(driver, device_of(driver, operands, stream))).info.sm_count;
}

const Architecture& GpuBackend::architecture(const Operands& operands, Stream stream) const {
  const Driver& driver = Driver::load();
  return require_architecture(device(resolve_device(driver, device_of(driver, operands, stream))));
}

void GpuBackend::run(const ForwardCall& call, const AttentionOptions& opts) {
  if (call.nothing_to_do()) return;
  const Driver& driver = Driver::load();
  const int device = device_of(driver, call.operands, opts.stream);
  const ContextScope scope(driver, device, opts.stream);
  const LaunchRecord& kernel = forward_kernel(driver, kernels_, call, opts, device);
  GpuOperation(driver, call, kernel, opts.stream).enqueue(driver);
}

bool GpuBackend::repeat(RememberedCalls& earlier, const GivenCall& call) {
  return earlier.repeat(Driver::load(), call, number_);
}

void GpuBackend::remember(RememberedCalls& calls, const GivenCall& given) noexcept {
  try {
    if (calls.wants_more()) try_to_remember(calls, given);
  } catch (const std::exception&) {
    // The call has run: those that follow do without.
  }
}

void GpuBackend::try_to_remember(RememberedCalls& calls, const GivenCall& given) {
  const Driver& driver = Driver::load();
  if (!driver.cuTensorMapReplaceAddress) return;
  const CallWithBatch with(given.q, given.k, given.v, given.out, given.opts);
  ForwardCall call = validate_inputs(with.q, with.k, with.v, with.opts);
  validate_out(call, with.out);
  if (call.nothing_to_do()) return;
  const Stream stream = given.opts.stream;
  const int device = device_of(driver, call.operands, stream);
  const ContextScope scope(driver, device, stream);
  const LaunchRecord& kernel = forward_kernel(driver, kernels_, call, with.opts, device);
  const RememberedCall::Where where{number_, device};
  calls.add(driver, std::make_shared<RememberedCall>(driver, given, kernel, where), given, number_);
}

void GpuBackend::look_at(const Operands& operands, Stream stream, const Look& look) {
  const Driver& driver = Driver::load();
  const ContextScope scope(driver, device_of(driver, operands, stream), stream);
  if (is_capturing(driver, stream)) return;
  look([&](const MemoryRange& range) {
    std::vector<std::int32_t> values((range.end - range.begin) / sizeof(std::int32_t));
    if (range.empty()) return values;
    driver.check(driver.cuMemcpyDtoHAsync(values.data(), range.begin, range.end - range.begin, stream),
                 "cuMemcpyDtoHAsync");
    driver.check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    return values;
  });
}

void GpuBackend::plan(const ForwardCall& call, const Tensor& memory, const AttentionOptions& opts) {
  if (call.nothing_to_do()) return;
  const Driver& driver = Driver::load();
  const int device = device_of(driver, call.operands, opts.stream);
  const ContextScope scope(driver, device, opts.stream);
  const LaunchRecord& kernel = forward_kernel(driver, kernels_, call, opts, device);
  if (!call.problem.ragged)
    return clear(driver, counters_of_plan(call, *call.variant, memory, kernel.limits.sm_count), opts.stream);
  Launch launch = make_batch_plan_launch(call, memory, kernel.limits.sm_count);
  enqueue(driver, launch, kernel.function(launch.turn), opts.stream);
}

void GpuBackend::run(const Operands& operands, Stream stream, const MakePlainLaunch& make) {
  const Driver& driver = Driver::load();
  const Device& on = device(resolve_device(driver, device_of(driver, operands, stream)));
  const ContextScope scope(driver, on.info.ordinal, stream);
  const Architecture& architecture = require_architecture(on);
  PlainLaunch made = make(architecture);
  if (made.launch.blocks == 0) return;
  write_tensor_maps(driver, made.launch);
  enqueue(driver, made.launch, kernels_.function_of(made.kernel, on), stream);
}

void GpuBackend::prepare(const Operands& operands, Stream stream, const MakePlainLaunch& make) {
  const Driver& driver = Driver::load();
  const Device& on = device(resolve_device(driver, device_of(driver, operands, stream)));
  const ContextScope scope(driver, on.info.ordinal, stream);
  const PlainLaunch made = make(require_architecture(on));
  if (made.launch.blocks > 0) kernels_.function_of(made.kernel, on);
}

}  // namespace flashjit::runtime
