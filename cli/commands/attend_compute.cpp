// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/attend_compute.h"

#include <flashjit/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>
#include <vector>

#include "cli/io/device.h"
#include "cli/io/flops.h"
#include "cli/io/problem_options.h"
#include "cli/io/progress.h"
#include "cli/io/transposed_values.h"

namespace flashjit::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTimedLaunches = 10;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

Problem problem_of(const Inputs& inputs) {
  Problem problem = problem_of(inputs.q.dtype(), static_cast<int>(inputs.q.shape()[3]),
                               static_cast<int>(inputs.v.shape()[3]), inputs.options_on_host(), inputs.k.dtype());
  problem.values_transposed = inputs.values_transposed;
  return problem;
}

// As that of rows without keys.
HostTensor empty_lse(const Dims& shape) {
  HostTensor lse(DType::f32, shape);
  for (std::size_t i = 0; i < lse.element_count(); ++i)
    store_element(lse.data(), lse.dtype(), static_cast<std::int64_t>(i), -std::numeric_limits<double>::infinity());
  return lse;
}

// A call with all that it reads and writes in memory of a device.
struct CallOnDevice {
  CallOnDevice(const Inputs& inputs, int ordinal)
      : device(ordinal),
        q(inputs.q.to_device(nullptr, ordinal)),
        k(inputs.k.to_device(nullptr, ordinal)),
        memory_of_v((inputs.values_transposed ? with_keys_along_rows(inputs.v) : inputs.v).to_device(nullptr, ordinal)),
        v(inputs.values_transposed ? view_with_keys_along_rows(memory_of_v.view(), inputs.v.shape()[1])
                                   : memory_of_v.view()),
        // Kernels do not write rows that belong to no sequence.
        out(HostTensor(inputs.out_dtype(), inputs.out_shape()).to_device(nullptr, ordinal)),
        lse(empty_lse(inputs.lse_shape()).to_device(nullptr, ordinal)),
        options(
            inputs.texts.on_device(with_tensors(inputs.options, inputs.tensors, ordinal, tensors), ordinal, tensors)) {}

  int device;
  DeviceTensor q, k, memory_of_v;
  Tensor v;
  DeviceTensor out, lse;
  std::vector<DeviceTensor> tensors;  // of the options
  AttentionOptions options;           // without lse
};

Answer::Speed measured_speed(Engine& engine, const CallOnDevice& call, const AttentionOptions& options,
                             const Inputs& inputs) {
  MeasureOptions measure;
  measure.repeats = kTimedLaunches;
  Answer::Speed speed;
  speed.kernel_us = engine.measure(call.q, call.k, call.v, call.out, options, measure).median_us;
  if (problem_of(inputs).ragged) return speed;
  speed.tflops = tflops(forward_flops(inputs.q.shape(), inputs.k.shape()[1], inputs.v.shape()[3], inputs.options),
                        speed.kernel_us);
  return speed;
}

struct GradientRow {
  const char* name;
  bool GradientInputs::*asked;
  std::optional<HostTensor> Answer::*answer;
  std::optional<Tensor> GradientTensors::*into;
  std::vector<double> reference::Gradients::*values;
  HostTensor Inputs::*of;  // null: it is of an option
  std::optional<Tensor> AttentionOptions::*of_option = nullptr;
};
using G = GradientInputs;
using R = reference::Gradients;
using T = GradientTensors;
using O = AttentionOptions;
constexpr GradientRow kGradients[] = {
    {"dq", &G::dq, &Answer::dq, &T::dq, &R::dq, &Inputs::q},
    {"dk", &G::dk, &Answer::dk, &T::dk, &R::dk, &Inputs::k},
    {"dv", &G::dv, &Answer::dv, &T::dv, &R::dv, &Inputs::v},
    {"dbias", &G::dbias, &Answer::dbias, &T::dbias, &R::dbias, nullptr, &O::bias},
    {"dslopes", &G::dslopes, &Answer::dslopes, &T::dslopes, &R::dslopes, nullptr, &O::alibi_slopes},
    {"dsinks", &G::dsinks, &Answer::dsinks, &T::dsinks, &R::dsinks, nullptr, &O::sinks}};

// What the gradient is of, wherever its memory is.
Tensor original(const GradientRow& row, const Inputs& inputs, const AttentionOptions& options) {
  return row.of ? (inputs.*row.of).view() : *(options.*row.of_option);
}

std::optional<Tensor> view_of(const std::optional<HostTensor>& tensor) {
  return tensor ? std::optional<Tensor>(tensor->view()) : std::nullopt;
}

// Gradients by kernels, from the output and LSE that the call has by now.
void add_gradients(Engine& engine, const CallOnDevice& call, const Inputs& inputs, Answer& answer) {
  const Clock::time_point start = Clock::now();
  const GradientInputs& asked = *inputs.gradients;
  const DeviceTensor dout = asked.dout.to_device(nullptr, call.device);
  DeviceTensor dlse;
  if (asked.dlse) dlse = asked.dlse->to_device(nullptr, call.device);
  std::vector<std::pair<std::optional<HostTensor> Answer::*, DeviceTensor>> made;
  GradientTensors into;
  for (const GradientRow& row : kGradients) {
    if (!(asked.*row.asked)) continue;
    const Tensor of = original(row, inputs, call.options);
    made.emplace_back(row.answer, DeviceTensor::allocate(of.dtype, of.shape, nullptr, call.device));
    into.*row.into = made.back().second.view();
  }
  const std::optional<Tensor> of_lse = asked.dlse ? std::optional<Tensor>(dlse.view()) : std::nullopt;
  engine.attention_backward(dout, call.q, call.k, call.v, call.out, call.lse, into, call.options,
                            {of_lse, asked.variant, asked.deterministic});
  for (const auto& [gradient, memory] : made) answer.*gradient = HostTensor::from_device(memory);
  answer.first_backward_ms = milliseconds_since(start);
}

void add_reference_gradients(const Inputs& inputs, Answer& answer) {
  const GradientInputs& asked = *inputs.gradients;
  const AttentionOptions options = inputs.options_on_host();
  const reference::Gradients all = reference::attention_backward(asked.dout.view(), inputs.q.view(), inputs.k.view(),
                                                                 inputs.v.view(), options, view_of(asked.dlse));
  for (const GradientRow& row : kGradients) {
    if (!(asked.*row.asked)) continue;
    const Tensor of = original(row, inputs, options);
    const std::vector<double>& values = all.*row.values;
    answer.*row.answer = HostTensor::from_doubles(of.dtype, of.shape, values.data(), values.size());
  }
}

void compare_gradients(Engine* engine, const Inputs& inputs, const Answer& answer, Check& check) {
  const Tensor q = inputs.q.view(), k = inputs.k.view(), v = inputs.v.view(), dout = inputs.gradients->dout.view();
  const std::optional<Tensor> dlse = view_of(inputs.gradients->dlse);
  const AttentionOptions options = inputs.options_on_host();
  const reference::Gradients exact = engine != nullptr ? engine->reference_backward(dout, q, k, v, options, dlse)
                                                       : reference::attention_backward(dout, q, k, v, options, dlse);
  const reference::Gradients low = engine != nullptr
                                       ? engine->reference_backward_in_low_precision(dout, q, k, v, options, dlse)
                                       : reference::attention_backward_in_low_precision(dout, q, k, v, options, dlse);
  for (const GradientRow& row : kGradients)
    if (const std::optional<HostTensor>& gradient = answer.*row.answer)
      check.push_back({row.name, reference::compare(*gradient, exact.*row.values, low.*row.values)});
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
  std::optional<Variant> chosen;
  if (!variant.empty()) chosen = choose_variant(engine, variant, problem, device.architecture);
  const ProgressLine progress("attention on " + device.name);
  const CallOnDevice call(inputs, device.ordinal);
  AttentionOptions options = call.options;
  options.variant = chosen;
  options.lse = call.lse.view();

  Answer answer;
  answer.device = device.name;
  const Clock::time_point start = Clock::now();
  engine.attention(call.q, call.k, call.v, call.out, options);
  answer.out = HostTensor::from_device(call.out);
  answer.first_call_ms = milliseconds_since(start);
  answer.lse = HostTensor::from_device(call.lse);
  if (inputs.gradients) add_gradients(engine, call, inputs, answer);
  if (answer.out.element_count() == 0) return answer;  // no kernel ran
  answer.kernel = engine.prepare(call.q, call.k, call.v, call.out, options);
  if (!is_emulated(device)) answer.speed = measured_speed(engine, call, options, inputs);
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
  if (inputs.gradients) add_reference_gradients(inputs, answer);
  answer.cpu_ms = milliseconds_since(start);
  answer.out = HostTensor::from_doubles(inputs.out_dtype(), inputs.out_shape(), result.out.data(), result.out.size());
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
  Check check{{"out", reference::compare(answer.out, exact, low)},
              {"lse", reference::compare_lse(answer.lse, exact, low)}};
  if (inputs.gradients) compare_gradients(engine, inputs, answer, check);
  return check;
}

bool has_passed(const Check& check) {
  return std::all_of(check.begin(), check.end(), [](const Compared& each) { return each.comparison.passed; });
}

}  // namespace flashjit::cli
