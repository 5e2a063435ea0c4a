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

bool RememberedCall::repeat(const Driver& driver, const GivenCall& call, const CallTensors& tensors,
                            std::uint64_t backend) const {
  if (backend != where_.backend || !operation_.serves(call, tensors)) return false;
  if (!is_there(driver, tensors, call.opts.stream)) return false;
  CUcontext current = nullptr;
  std::optional<ContextScope> scope;
  if (driver.cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != context_)
    scope.emplace(driver, where_.device, call.opts.stream);
  for (std::size_t i = 0; i < enqueued_.size(); ++i)
    enqueue(driver, operation_.launches()[i], enqueued_[i], tensors, call.opts.stream);
  return true;
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

void RememberedCalls::add(std::unique_ptr<RememberedCall> call) noexcept {
  count_.fetch_add(1, std::memory_order_relaxed);
  const RememberedCall* first = first_.load(std::memory_order_relaxed);
  do call->next_ = first;
  while (!first_.compare_exchange_weak(first, call.get(), std::memory_order_release, std::memory_order_relaxed));
  call.release();
}

bool RememberedCalls::repeat(const Driver& driver, const GivenCall& call, std::uint64_t backend) const {
  const CallTensors tensors(call);
  for (const RememberedCall* one = first_.load(std::memory_order_acquire); one; one = one->next_)
    if (one->repeat(driver, call, tensors, backend)) return true;
  return false;
}

RememberedCalls::~RememberedCalls() {
  for (const RememberedCall* one = first_.load(); one;) delete std::exchange(one, one->next_);
}

}  // namespace flashjit::runtime
