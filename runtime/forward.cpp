// SPDX-License-Identifier: Apache-2.0
#include "runtime/forward.h"

#include <fmt/format.h>

#include "runtime/device.h"
#include "runtime/memory_place.h"

namespace flashjit::runtime {
namespace {

void require_not_capturing(const Driver& driver, Stream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver.cuStreamIsCapturing(stream, &status);
  // The default stream answers so while another stream of its context captures.
  const bool implicit = result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (!implicit) driver.check(result, "cuStreamIsCapturing");
  if (!implicit && status == CU_STREAM_CAPTURE_STATUS_NONE) return;
  throw Error(ErrorCode::unsupported,
              "stream: a call must be prepared before it is captured in a graph (Engine::prepare, or one call outside "
              "the capture), this one was not");
}

}  // namespace

ForwardLaunch make_forward_launch(const ForwardCall& call, const LaunchRecord& record, Stream stream) {
  ForwardLaunch launch;
  launch.function = record.function;
  launch.arguments = make_forward_arguments(call, record.variant.block_q);
  launch.config.gridDimX =
      static_cast<unsigned>(generator::grid_size(record.variant, call.batch, call.num_heads_q, call.seqlen_q));
  launch.config.gridDimY = 1;
  launch.config.gridDimZ = 1;
  launch.config.blockDimX = static_cast<unsigned>(record.plan.threads);
  launch.config.blockDimY = 1;
  launch.config.blockDimZ = 1;
  launch.config.sharedMemBytes = static_cast<unsigned>(record.plan.smem_bytes);
  launch.config.hStream = stream;
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
  const Variant* variant = opts.variant ? &*opts.variant : nullptr;
  const LengthRange range = length_range(call.seqlen_q, call.seqlen_kv);
  if (const LaunchRecord* ready = kernels.find(LaunchKey(device_ordinal, call.problem, range, variant))) return *ready;
  require_not_capturing(driver, opts.stream);
  return kernels.prepare(call.problem, range, variant, device(device_ordinal));
}

void enqueue_forward(Kernels& kernels, const ForwardCall& call, const AttentionOptions& opts) {
  if (call.nothing_to_do()) return;
  const Driver& driver = Driver::load();
  const int device = forward_device(driver, call, opts.stream);
  const ContextScope scope(driver, device, opts.stream);
  const LaunchRecord& kernel = forward_kernel(driver, kernels, call, opts, device);
  make_forward_launch(call, kernel, opts.stream).enqueue(driver);
}

}  // namespace flashjit::runtime
