// SPDX-License-Identifier: Apache-2.0
#include "runtime/backends/forward.h"

#include <fmt/format.h>

#include <cstring>

#include "runtime/backends/memory_place.h"
#include "runtime/backends/tensor_map_encoder.h"
#include "runtime/call/forward_arguments.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/tile_counters.h"

namespace flashjit::runtime {
namespace {

bool is_capturing(const Driver& driver, Stream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver.cuStreamIsCapturing(stream, &status);
  // The default stream answers so while another stream of its context captures.
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
  driver.check(result, "cuStreamIsCapturing");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void require_not_capturing(const Driver& driver, Stream stream) {
  if (!is_capturing(driver, stream)) return;
  throw Error(ErrorCode::unsupported,
              "stream: a call must be prepared before it is captured in a graph (Engine::prepare, or one call outside "
              "the capture), this one was not");
}

template <class Value>
void write_argument(Launch& launch, std::size_t offset, const Value& value) {
  std::memcpy(launch.arguments + offset, &value, sizeof(value));
}

void write_tensor_maps(const Driver& driver, Launch& launch) {
  static_assert(Launch::kMaxMaps <= TensorMapEncoder::kPlaces);
  thread_local TensorMapEncoder encoder;
  for (int i = 0; i < launch.map_count; ++i) {
    const MapPlace& place = launch.maps[i];
    write_argument(launch, place.offset, encoder.encode(driver, i, *place.tensor, place.box));
  }
}

// Sets every field: a launch's config comes without initial values.
void set_config(CUlaunchConfig& config, std::int64_t blocks, const generator::Plan& plan, Stream stream) {
  config.gridDimX = static_cast<unsigned>(blocks);
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = static_cast<unsigned>(plan.threads);
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned>(plan.smem_bytes);
  config.hStream = stream;
  config.attrs = nullptr;
  config.numAttrs = 0;
}

}  // namespace

// A kernel has its cluster's size compiled in: the launch needs no attribute, only a grid that is a multiple of it.
ForwardLaunch make_forward_launch(const Driver& driver, const ForwardCall& call, const LaunchRecord& record,
                                  Stream stream) {
  ForwardLaunch launch(record, call);
  Launch& bound = launch.bound;
  set_config(launch.config, bound.blocks, record.spec.plan(), stream);
  write_tensor_maps(driver, bound);
  if (TileCounters* counters = record.tile_counters) {
    std::uint32_t* const counter = is_capturing(driver, stream) ? counters->for_graph() : counters->for_launch();
    write_argument(bound, bound.tile_counter_offset, counter);
  }
  return launch;
}

int forward_device(const Driver& driver, const ForwardCall& call, Stream stream) {
  const int device = common_device(driver, call);
  const int owner = stream_device(driver, stream);
  if (device >= 0 && owner >= 0 && owner != device) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("stream: must belong to device {} like q, belonged to device {}", device, owner));
  }
  return device;
}

const LaunchRecord& forward_kernel(const Driver& driver, Kernels& kernels, const ForwardCall& call,
                                   const AttentionOptions& opts, int device_ordinal) {
  const Device& on = device(device_ordinal);
  const auto kernel = [&](const auto& key, const auto&... chosen_by) -> const LaunchRecord& {
    if (const LaunchRecord* ready = kernels.find(LaunchKey(device_ordinal, call.problem, key))) return *ready;
    require_not_capturing(driver, opts.stream);
    return kernels.prepare(call.problem, chosen_by..., on);
  };
  if (!has_tensor_maps(call) && takes_default_without_tma(call, opts, require_architecture(on)))
    return kernel(WithoutTensorMaps{}, WithoutTensorMaps{});
  if (opts.variant) return kernel(*opts.variant, *opts.variant);
  const CallShape shape = tuning_shape(call);
  return kernel(shape_bucket(shape, on.info.sm_count), shape, opts.stream);
}

}  // namespace flashjit::runtime
