// SPDX-License-Identifier: Apache-2.0
#include "runtime/forward.h"

#include <fmt/format.h>

#include "runtime/device.h"
#include "runtime/memory_place.h"
#include "runtime/tensor_map.h"
#include "runtime/tile_counters.h"

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

void add_tensor_maps(const Driver& driver, const ForwardCall& call, const LaunchRecord& record,
                     const HopperVariant& variant, generator::HopperArguments& arguments) {
  const TensorMapBoxes boxes = tensor_map_boxes(variant, record.spec.plan(), arguments.packed_heads_log2);
  arguments.q = encode_tensor_map(driver, *call.q, boxes.q);
  arguments.k = encode_tensor_map(driver, *call.k, boxes.k);
  arguments.v = encode_tensor_map(driver, *call.v, boxes.v);
  arguments.out = encode_tensor_map(driver, *call.out, boxes.out);
}

CUlaunchConfig make_config(std::int64_t blocks, const generator::Plan& plan, Stream stream) {
  CUlaunchConfig config{};
  config.gridDimX = static_cast<unsigned>(blocks);
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = static_cast<unsigned>(plan.threads);
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned>(plan.smem_bytes);
  config.hStream = stream;
  return config;
}

ForwardLaunch make_launch(const Driver&, const ForwardCall& call, const LaunchRecord& record, const MmaVariant& variant,
                          Stream stream) {
  const generator::ForwardArguments arguments = make_forward_arguments(call, variant);
  return {record.function, make_config(count_tiles(arguments.sizes), record.spec.plan(), stream), arguments};
}

// The kernel has its cluster's size compiled in: the launch needs no attribute, only a grid that is a multiple of it.
ForwardLaunch make_launch(const Driver& driver, const ForwardCall& call, const LaunchRecord& record,
                          const HopperVariant& variant, Stream stream) {
  generator::HopperArguments arguments = make_forward_arguments(call, variant);
  const std::int64_t blocks = grid_size(variant, count_tiles(arguments.sizes), record.resident_blocks);
  add_tensor_maps(driver, call, record, variant, arguments);
  if (TileCounters* counters = record.tile_counters)
    arguments.tile_counter = is_capturing(driver, stream) ? counters->for_graph() : counters->for_launch();
  return {record.function, make_config(blocks, record.spec.plan(), stream), arguments};
}

}  // namespace

ForwardLaunch make_forward_launch(const Driver& driver, const ForwardCall& call, const LaunchRecord& record,
                                  Stream stream) {
  return std::visit([&](const auto& variant) { return make_launch(driver, call, record, variant, stream); },
                    record.spec.variant());
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
  const CallShape shape{call.batch, call.seqlen_q, call.seqlen_kv, call.num_heads_q, call.num_heads_kv};
  return kernel(shape_bucket(shape, on.info.sm_count), shape, opts.stream);
}

KernelInfo prepare_forward(Kernels& kernels, const ForwardCall& call, const AttentionOptions& opts) {
  if (call.nothing_to_do()) return {};
  const Driver& driver = Driver::load();
  const int device = resolve_device(driver, forward_device(driver, call, opts.stream));
  const ContextScope scope(driver, device, opts.stream);
  return forward_kernel(driver, kernels, call, opts, device).info;
}

void enqueue_forward(Kernels& kernels, const ForwardCall& call, const AttentionOptions& opts) {
  if (call.nothing_to_do()) return;
  const Driver& driver = Driver::load();
  const int device = forward_device(driver, call, opts.stream);
  const ContextScope scope(driver, device, opts.stream);
  const LaunchRecord& kernel = forward_kernel(driver, kernels, call, opts, device);
  make_forward_launch(driver, call, kernel, opts.stream).enqueue(driver);
}

}  // namespace flashjit::runtime
