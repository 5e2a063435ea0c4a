// SPDX-License-Identifier: Apache-2.0
#include "runtime/backends/remembered_calls.h"

#include <cstring>
#include <optional>

#include "runtime/backends/gpu_operation.h"
#include "runtime/backends/memory_place.h"
#include "runtime/backends/tensor_map_encoder.h"
#include "runtime/cuda/device.h"

namespace flashjit::runtime {

RememberedCall::RememberedCall(const Driver& driver, const GivenCall& call, const LaunchRecord& record,
                               const Where& where)
    : where_(where), tile_counters_(record.tile_counters), operation_(call, record.spec, record.limits) {
  driver.check(driver.cuCtxGetCurrent(&context_), "cuCtxGetCurrent");
  const CallTensors tensors(call);
  TensorMapEncoder encoder;
  for (const MovableOperation::MovableLaunch& launch : operation_.launches()) {
    Enqueued& enqueued = enqueued_.emplace_back();
    enqueued.function = record.function(launch.launch.turn);
    set_config(enqueued.config, launch.launch, nullptr);
    for (const auto& [of, number] : launch.maps) {
      Tensor tensor = *of.tensor;
      tensor.data = tensors[number].data;
      const auto begin = reinterpret_cast<std::uintptr_t>(of.ended ? ended_tensor_map_address(tensor) : tensor.data);
      enqueued.maps.push_back({of.offset, number, begin - tensors.address(number), begin,
                               encoder.encode(driver, 0, {of.offset, &tensor, of.box, of.ended})});
    }
  }
}

bool RememberedCall::serves(const Driver& driver, const GivenCall& call, const CallTensors& tensors,
                            std::uint64_t backend) const {
  return backend == where_.backend && operation_.serves(call, tensors) && is_there(driver, tensors, call.opts.stream);
}

void RememberedCall::repeat(const Driver& driver, const CallTensors& tensors, Stream stream) const {
  CUcontext current = nullptr;
  std::optional<ContextScope> scope;
  if (driver.cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != context_)
    scope.emplace(driver, where_.device, stream);
  for (std::size_t i = 0; i < enqueued_.size(); ++i)
    enqueue(driver, operation_.launches()[i], enqueued_[i], tensors, stream);
}

bool RememberedCall::is_there(const Driver& driver, const CallTensors& tensors, Stream stream) const {
  for (int i = 0; i < tensors.size(); ++i) {
    if (known_.has(tensors.address(i))) continue;
    if (device_of_memory(driver, tensors.address(i)) != where_.device) return false;
    known_.add(tensors.address(i));
  }
  const CUcontext of_stream = stream_context(driver, stream);
  return !of_stream || of_stream == context_;
}

void RememberedCall::enqueue(const Driver& driver, const MovableOperation::MovableLaunch& launch, const Enqueued& made,
                             const CallTensors& tensors, Stream stream) const {
  alignas(generator::TensorMap) std::byte arguments[Launch::kMaxBytes];
  launch.write(tensors, arguments);
  for (const EncodedMap& map : made.maps) {
    auto* const place = ::new (arguments + map.offset) generator::TensorMap(map.map);
    const std::uintptr_t address = tensors.address(map.tensor) + map.behind;
    if (address != map.address)
      driver.check(
          driver.cuTensorMapReplaceAddress(reinterpret_cast<CUtensorMap*>(place), reinterpret_cast<void*>(address)),
          "cuTensorMapReplaceAddress");
  }
  if (launch.launch.tile_counter_offset != Launch::kNowhere) {
    std::uint32_t* const counter = next_tile_counter(driver, *tile_counters_, stream);
    std::memcpy(arguments + launch.launch.tile_counter_offset, &counter, sizeof(counter));
  }
  CUlaunchConfig config = made.config;
  config.hStream = stream;
  void* parameters[] = {arguments};
  driver.check(driver.cuLaunchKernelEx(&config, made.function, parameters, nullptr), "cuLaunchKernelEx");
}

bool RememberedCalls::repeat(const Driver& driver, const GivenCall& call, std::uint64_t backend) {
  const CallTensors tensors(call);
  const auto one = find(driver, call, tensors, backend);
  if (!one) return false;
  one->repeat(driver, tensors, call.opts.stream);
  if (!repeated_.load(std::memory_order_relaxed)) repeated_.store(true, std::memory_order_relaxed);
  return true;
}

bool RememberedCalls::wants_more() const noexcept {
  return added_.load(std::memory_order_relaxed) < kMost || repeated_.load(std::memory_order_relaxed);
}

void RememberedCalls::add(const Driver& driver, std::shared_ptr<const RememberedCall> one, const GivenCall& call,
                          std::uint64_t backend) {
  const CallTensors tensors(call);
  const std::lock_guard lock(mutex_);
  const std::size_t count = added_.load(std::memory_order_relaxed);
  added_.store(count + 1, std::memory_order_relaxed);
  repeated_.store(false, std::memory_order_relaxed);
  if (!one->serves(driver, call, tensors, backend) || find(driver, call, tensors, backend)) return;
  calls_[count % kMost].store(std::move(one));
}

std::shared_ptr<const RememberedCall> RememberedCalls::find(const Driver& driver, const GivenCall& call,
                                                            const CallTensors& tensors, std::uint64_t backend) const {
  for (const auto& each : calls_)
    if (auto one = each.load(std::memory_order_acquire); one && one->serves(driver, call, tensors, backend)) return one;
  return nullptr;
}

}  // namespace flashjit::runtime
