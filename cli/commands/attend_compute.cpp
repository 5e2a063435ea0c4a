// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/attend_compute.h"

#include <flashjit/error.h>
#include <fmt/format.h>

#include <chrono>
#include <limits>

#include "cli/io/device.h"
#include "cli/io/flops.h"
#include "cli/io/problem_options.h"
#include "cli/io/progress.h"

namespace flashjit::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTimedLaunches = 10;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

Problem problem_of(const Inputs& inputs) {
  return problem_of(inputs.q.dtype(), static_cast<int>(inputs.q.shape()[3]), static_cast<int>(inputs.v.shape()[3]),
                    inputs.options_on_host(), inputs.k.dtype());
}

// As that of rows without keys.
HostTensor empty_lse(const Dims& shape) {
  HostTensor lse(DType::f32, shape);
  for (std::size_t i = 0; i < lse.element_count(); ++i)
    store_element(lse.data(), lse.dtype(), static_cast<std::int64_t>(i), -std::numeric_limits<double>::infinity());
  return lse;
}

}  // namespace

Dims Inputs::out_shape() const {
  const Dims& shape = q.shape();
  return {shape[0], shape[1], shape[2], v.shape()[3]};
}

Dims Inputs::lse_shape() const {
  const Dims& shape = q.shape();
  return {shape[0], shape[2], shape[1]};
}

Answer attend_by_kernel(Engine& engine, const DeviceInfo& device, const Inputs& inputs, const std::string& variant) {
  const Problem problem = problem_of(inputs);
  AttentionOptions options = inputs.options;
  if (!variant.empty()) options.variant = choose_variant(engine, variant, problem, device.architecture);
  const ProgressLine progress("attention on " + device.name);
  const int ordinal = device.ordinal;
  const DeviceTensor q = inputs.q.to_device(nullptr, ordinal), k = inputs.k.to_device(nullptr, ordinal),
                     v = inputs.v.to_device(nullptr, ordinal);
  std::vector<DeviceTensor> tensors;
  options = inputs.texts.on_device(with_tensors(options, inputs.tensors, ordinal, tensors), ordinal, tensors);
  // Kernels do not write rows that belong to no sequence.
  const DeviceTensor out = HostTensor(problem.dtype, inputs.out_shape()).to_device(nullptr, ordinal);
  const DeviceTensor lse = empty_lse(inputs.lse_shape()).to_device(nullptr, ordinal);
  options.lse = lse.view();

  Answer answer;
  answer.device = device.name;
  const Clock::time_point start = Clock::now();
  engine.attention(q, k, v, out, options);
  answer.out = HostTensor::from_device(out);
  answer.first_call_ms = milliseconds_since(start);
  answer.lse = HostTensor::from_device(lse);
  if (answer.out.element_count() == 0) return answer;  // no kernel ran
  answer.kernel = engine.prepare(q, k, v, out, options);
  if (is_emulated(device)) return answer;
  answer.speed.emplace();
  MeasureOptions measure;
  measure.repeats = kTimedLaunches;
  answer.speed->kernel_us = engine.measure(q, k, v, out, options, measure).median_us;
  if (problem.ragged) return answer;
  answer.speed->tflops =
      tflops(forward_flops(inputs.q.shape(), inputs.k.shape()[1], inputs.v.shape()[3], inputs.options),
             answer.speed->kernel_us);
  return answer;
}

Answer attend_by_reference(const Inputs& inputs) {
  if (!inputs.texts.empty())
    throw Error(ErrorCode::unsupported,
                "--score, --mask: a text must be run by a GPU, or by --device emulate: the CPU has no compiler for it");
  const ProgressLine progress("attention on the CPU in double precision");
  const Clock::time_point start = Clock::now();
  const reference::Result result =
      reference::attention(inputs.q.view(), inputs.k.view(), inputs.v.view(), inputs.options_on_host());
  Answer answer;
  answer.device = "CPU reference";
  answer.cpu_ms = milliseconds_since(start);
  answer.out = HostTensor::from_doubles(inputs.q.dtype(), inputs.out_shape(), result.out.data(), result.out.size());
  answer.lse = HostTensor::from_doubles(DType::f32, inputs.lse_shape(), result.lse.data(), result.lse.size());
  return answer;
}

Check check_against_reference(Engine* engine, const Inputs& inputs, const Answer& answer) {
  const ProgressLine progress("reference on the CPU in double precision");
  const Tensor q = inputs.q.view(), k = inputs.k.view(), v = inputs.v.view();
  const AttentionOptions options = inputs.options_on_host();
  const reference::Result exact =
      engine != nullptr ? engine->reference(q, k, v, options) : reference::attention(q, k, v, options);
  const reference::Result low = engine != nullptr ? engine->reference_in_low_precision(q, k, v, options)
                                                  : reference::attention_in_low_precision(q, k, v, options);
  return {reference::compare(answer.out, exact, low), reference::compare_lse(answer.lse, exact, low)};
}

}  // namespace flashjit::cli
