// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/backward_kernels.h"

#include <fmt/format.h>

#include <algorithm>

#include "generator/functions.h"

namespace flashjit::runtime {

using generator::PlainKernel;

const PlainKernel& backward_kernel(const Problem& problem, const BackwardVariant& variant,
                                   const generator::KernelGradients& gradients, const Architecture& architecture,
                                   PlainKernels& kernels) {
  return kernels.get(fmt::format("backward {} {} {} {}", to_string(problem), to_string(variant), to_string(gradients),
                                 architecture.name),
                     [&](const auto& templates) {
                       return generator::render_backward(problem, variant, gradients, architecture, templates);
                     });
}

const PlainKernel& backward_clear_kernel(const Architecture& architecture, PlainKernels& kernels) {
  return kernels.get(fmt::format("backward-clear {}", architecture.name),
                     [&](const auto& templates) { return generator::render_backward_clear(architecture, templates); });
}

const PlainKernel& backward_prepare_kernel(DType dtype, const Architecture& architecture, PlainKernels& kernels) {
  return kernels.get(
      fmt::format("backward-prepare {} {}", to_string(dtype), architecture.name),
      [&](const auto& templates) { return generator::render_backward_prepare(dtype, architecture, templates); });
}

const PlainKernel& backward_finish_kernel(DType dtype, const Architecture& architecture, PlainKernels& kernels) {
  return kernels.get(
      fmt::format("backward-finish {} {}", to_string(dtype), architecture.name),
      [&](const auto& templates) { return generator::render_backward_finish(dtype, architecture, templates); });
}

const PlainKernel& key_tiles_kernel(const Architecture& architecture, PlainKernels& kernels) {
  return kernels.get(fmt::format("batch-plan {}", architecture.name),
                     [&](const auto& templates) { return generator::render_batch_plan(architecture, templates); });
}

const PlainKernel& backward_clear_rows_kernel(DType dtype, const Architecture& architecture, PlainKernels& kernels) {
  return kernels.get(
      fmt::format("backward-clear-rows {} {}", to_string(dtype), architecture.name),
      [&](const auto& templates) { return generator::render_backward_clear_rows(dtype, architecture, templates); });
}

const PlainKernel& sink_gradient_kernel(const Architecture& architecture, PlainKernels& kernels) {
  return kernels.get(fmt::format("sink-gradients {}", architecture.name),
                     [&](const auto& templates) { return generator::render_sink_gradients(architecture, templates); });
}

const PlainKernel& slope_gradient_kernel(const Architecture& architecture, PlainKernels& kernels) {
  return kernels.get(fmt::format("slope-gradients {}", architecture.name),
                     [&](const auto& templates) { return generator::render_slope_gradients(architecture, templates); });
}

const PlainKernel& bias_gradient_kernel(DType dtype, const Architecture& architecture, PlainKernels& kernels) {
  return kernels.get(
      fmt::format("bias-gradient {} {}", to_string(dtype), architecture.name),
      [&](const auto& templates) { return generator::render_bias_gradient(dtype, architecture, templates); });
}

const PlainKernel& backward_kernel(const BackwardProblem& problem, const BackwardVariant& variant,
                                   const Architecture& architecture, PlainKernels& kernels) {
  const generator::KernelGradients gradients = generator::kernel_gradients(problem);
  return backward_kernel(generator::backward_problem(problem.attention), variant,
                         generator::shared_out(problem.attention, gradients).front(), architecture, kernels);
}

std::vector<const PlainKernel*> kernels_beside(const BackwardProblem& problem,
                                               const std::vector<BackwardVariant>& variants,
                                               const Architecture& architecture, PlainKernels& kernels) {
  const Problem& attention = problem.attention;
  const auto is_whole = [&](const BackwardVariant& variant) {
    return generator::query_layout(attention, variant).is_whole;
  };
  const auto sums_queries = [&](const BackwardVariant& variant) {
    return generator::query_layout(attention, variant).columns > 0;
  };
  const auto clears_queries = [&](const BackwardVariant& variant) {
    return is_whole(variant) || !sums_queries(variant);
  };
  std::vector<const PlainKernel*> beside;
  if (problem.deterministic || problem.bias || std::any_of(variants.begin(), variants.end(), is_whole))
    beside.push_back(&backward_clear_kernel(architecture, kernels));
  if (!std::all_of(variants.begin(), variants.end(), is_whole)) {
    beside.push_back(&backward_prepare_kernel(attention.dtype, architecture, kernels));
    if (std::any_of(variants.begin(), variants.end(), sums_queries))
      beside.push_back(&backward_finish_kernel(attention.dtype, architecture, kernels));
  }
  for (const BackwardVariant& variant : variants) {
    const auto passes = generator::shared_out(attention, generator::kernel_gradients(problem));
    for (std::size_t i = 1; i < passes.size(); ++i)
      beside.push_back(
          &backward_kernel(generator::backward_problem(attention), variant, passes[i], architecture, kernels));
  }
  if (attention.ragged) {
    beside.push_back(&key_tiles_kernel(architecture, kernels));
    beside.push_back(&backward_clear_rows_kernel(problem.f32 ? DType::f32 : attention.dtype, architecture, kernels));
    if (problem.f32 && std::any_of(variants.begin(), variants.end(), clears_queries))  // of dq
      beside.push_back(&backward_clear_rows_kernel(attention.dtype, architecture, kernels));
  }
  if (problem.sinks) beside.push_back(&sink_gradient_kernel(architecture, kernels));
  if (problem.slopes) beside.push_back(&slope_gradient_kernel(architecture, kernels));
  if (problem.bias) {  // whose gradient may also be f32, and not packed
    const DType dtype = attention.bias->captures.front().dtype;
    beside.push_back(&bias_gradient_kernel(DType::f32, architecture, kernels));
    if (dtype != DType::f32) beside.push_back(&bias_gradient_kernel(dtype, architecture, kernels));
  }
  return beside;
}

}  // namespace flashjit::runtime
