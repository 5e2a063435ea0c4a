// SPDX-License-Identifier: Apache-2.0
#include "runtime/backends/gpu_operation.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "generator/variant_space.h"
#include "runtime/backends/memory_place.h"
#include "runtime/backends/tensor_map_encoder.h"
#include "runtime/call/forward_arguments.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/tile_counters.h"

namespace flashjit::runtime {
namespace {

void require_not_capturing(const Driver& driver, Stream stream) {
  if (!is_capturing(driver, stream)) return;
  throw Error(ErrorCode::unsupported,
              "stream: a call must be prepared before it is captured in a graph (Engine::prepare, or one call outside "
              "the capture), this one was not");
}

DeviceTensor allocate_scratch(std::size_t bytes, Stream stream) {
  const auto words = static_cast<std::int64_t>(bytes / sizeof(std::int32_t));
  return DeviceTensor::allocate(DType::i32, {words}, stream);
}

// Those that a launch may have, the one that lets it overlap first.
struct LaunchAttributes {
  static constexpr int kSizes = 4;  // of clusters: 1, 2, 4 and 8

  explicit LaunchAttributes(int cluster) {
    list[0].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    list[0].value.programmaticStreamSerializationAllowed = 1;
    list[1].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    list[1].value.clusterDim.x = static_cast<unsigned>(cluster);
    list[1].value.clusterDim.y = list[1].value.clusterDim.z = 1;
  }
  CUlaunchAttribute list[2] = {};
};

// Which launches only read.
void set_attributes(CUlaunchConfig& config, const Launch& launch) {
  static LaunchAttributes of_size[LaunchAttributes::kSizes] = {LaunchAttributes(1), LaunchAttributes(2),
                                                               LaunchAttributes(4), LaunchAttributes(8)};
  const int log2 = std::countr_zero(static_cast<unsigned>(launch.cluster));
  const int size = launch.sizes_cluster ? std::min(log2, LaunchAttributes::kSizes - 1) : 0;
  config.attrs = of_size[size].list + (launch.overlaps ? 0 : 1);
  config.numAttrs = static_cast<unsigned>(launch.overlaps) + (size > 0 ? 1 : 0);
}

}  // namespace

void write_tensor_maps(const Driver& driver, Launch& launch) {
  static_assert(Launch::kMaxMaps <= TensorMapEncoder::kPlaces);
  thread_local TensorMapEncoder encoder;
  for (int i = 0; i < launch.map_count; ++i) {
    const MapPlace& place = launch.maps[i];
    launch.write_argument(place.offset, encoder.encode(driver, i, place));
  }
}

// A config comes without initial values.
void set_config(CUlaunchConfig& config, const Launch& launch, Stream stream) {
  config.gridDimX = static_cast<unsigned>(launch.blocks);
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = static_cast<unsigned>(launch.threads);
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned>(launch.shared_bytes);
  config.hStream = stream;
  set_attributes(config, launch);
}

// What a graph has must be nobody else's for as long as it may run.
OperationScratch::OperationScratch(const Driver& driver, StreamScratch* kept, Stream stream, std::size_t bytes) {
  if (bytes == 0) return;
  unsigned long long id = 0;
  const bool can_be_kept = kept && driver.cuStreamGetId && !is_capturing(driver, stream) &&
                           driver.cuStreamGetId(stream, &id) == CUDA_SUCCESS;
  if (can_be_kept)
    lent_.emplace(*kept, stream, id, bytes);
  else
    own_ = allocate_scratch(bytes, stream);
}

std::uint32_t* next_tile_counter(const Driver& driver, TileCounters& counters, Stream stream) {
  return is_capturing(driver, stream) ? counters.for_graph() : counters.for_launch();
}

GpuOperation::GpuOperation(const Driver& driver, const ForwardCall& call, const LaunchRecord& kernel, Stream stream)
    : scratch_(driver, kernel.scratch, stream, Operation::scratch_bytes(call, kernel.spec, kernel.limits)),
      operation_(call, kernel.spec, kernel.limits, scratch_.data()) {
  for (int i = 0; Launch & launch : operation_) {
    functions_[i] = kernel.function(launch.turn);
    set_config(configs_[i++], launch, stream);
    write_tensor_maps(driver, launch);
    if (launch.tile_counter_offset != Launch::kNowhere)
      launch.write_argument(launch.tile_counter_offset, next_tile_counter(driver, *kernel.tile_counters, stream));
  }
}

void enqueue(const Driver& driver, Launch& launch, CUfunction function, Stream stream) {
  CUlaunchConfig config;
  set_config(config, launch, stream);
  void* parameters[] = {launch.arguments};
  driver.check(driver.cuLaunchKernelEx(&config, function, parameters, nullptr), "cuLaunchKernelEx");
}

int device_of(const Driver& driver, const Operands& operands, Stream stream) {
  const int device = common_device(driver, operands, stream);
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
  if (call.fixed_split > 0 && !call.variant) {
    const Variant variant =
        generator::invariant_variant(call.problem, require_architecture(on),
                                     shape_bucket(tuning_shape(call), on.info.sm_count), has_tensor_maps(call));
    return kernel(variant, variant);
  }
  if (!has_tensor_maps(call) && takes_default_without_tma(call, require_architecture(on)))
    return kernel(WithoutTensorMaps{}, WithoutTensorMaps{});
  if (call.variant) return kernel(*call.variant, *call.variant);
  const CallShape shape = tuning_shape(call);
  return kernel(shape_bucket(shape, on.info.sm_count), shape, opts.stream);
}

}  // namespace flashjit::runtime
