// SPDX-License-Identifier: Apache-2.0
#include "runtime/forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/device.h"
#include "runtime/memory_place.h"

namespace flashjit::runtime {
namespace {

constexpr float kLog2E = 1.4426950408889634f;
// In place of a scale of 0: the kernel multiplies masked scores of -infinity by it, and 0 would make them NaN.
constexpr float kSmallestScaleLog2 = 1e-37f;
constexpr std::uint32_t kNegatePair = 0x80008000;  // the sign bits of two 16-bit numbers
constexpr std::int64_t kSectionBytes = 32 << 20;   // of K and V that a run of heads keeps in L2

// In bytes. The stride of a dimension of size 1 or 0 may be anything and is never used.
std::int64_t byte_stride(const Tensor& tensor, int dim) {
  return tensor.shape[dim] > 1 ? tensor.strides[dim] * static_cast<std::int64_t>(size_of(tensor.dtype)) : 0;
}

generator::RowStrides row_strides(const Tensor& tensor) {
  return {byte_stride(tensor, 0), byte_stride(tensor, 1), byte_stride(tensor, 2)};
}

// Of [batch, head, row].
generator::RowStrides lse_strides(const Tensor& lse) {
  return {byte_stride(lse, 0), byte_stride(lse, 2), byte_stride(lse, 1)};
}

std::int32_t heads_per_section(const ForwardCall& call, std::int64_t heads_per_group) {
  const std::int64_t row_bytes =
      (call.problem.head_dim + call.problem.head_dim_v) * static_cast<std::int64_t>(size_of(call.problem.dtype));
  const std::int64_t head_bytes = std::max<std::int64_t>(1, call.seqlen_kv * row_bytes);
  const std::int64_t groups = std::clamp<std::int64_t>(kSectionBytes / head_bytes, 1, call.num_heads_kv);
  return static_cast<std::int32_t>(groups * heads_per_group);
}

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

generator::ForwardArguments make_forward_arguments(const ForwardCall& call, const LaunchRecord& record) {
  const std::int64_t heads_per_group = call.num_heads_q / call.num_heads_kv;
  generator::ForwardArguments arguments{};
  arguments.q = call.q->data;
  arguments.k = call.k->data;
  arguments.v = call.v->data;
  arguments.out = call.out->data;
  arguments.q_strides = row_strides(*call.q);
  arguments.k_strides = row_strides(*call.k);
  arguments.v_strides = row_strides(*call.v);
  arguments.out_strides = row_strides(*call.out);
  if (call.lse) {
    arguments.lse = static_cast<float*>(call.lse->data);
    arguments.lse_strides = lse_strides(*call.lse);
  }
  arguments.scale_log2 = std::max(std::fabs(call.softmax_scale) * kLog2E, kSmallestScaleLog2);
  arguments.query_sign = call.softmax_scale < 0 ? kNegatePair : 0;
  arguments.batch = static_cast<std::int32_t>(call.batch);
  arguments.seqlen_q = static_cast<std::int32_t>(call.seqlen_q);
  arguments.seqlen_kv = static_cast<std::int32_t>(call.seqlen_kv);
  arguments.num_heads_q = static_cast<std::int32_t>(call.num_heads_q);
  arguments.heads_per_group = static_cast<std::int32_t>(heads_per_group);
  arguments.num_q_tiles =
      static_cast<std::int32_t>((call.seqlen_q + record.variant.block_q - 1) / record.variant.block_q);
  arguments.heads_per_section = heads_per_section(call, heads_per_group);
  return arguments;
}

ForwardLaunch make_forward_launch(const ForwardCall& call, const LaunchRecord& record, Stream stream) {
  ForwardLaunch launch;
  launch.function = record.function;
  launch.arguments = make_forward_arguments(call, record);
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
