// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/option_gradients.h"

#include <algorithm>

#include "generator/backward.h"
#include "runtime/call/forward_arguments.h"
#include "runtime/call/operands.h"
#include "runtime/support/reject.h"

namespace flashjit::runtime {
namespace {

struct OptionGradient {
  const char *name, *option;
  std::optional<Tensor> GradientTensors::*gradient;
  std::optional<Tensor> AttentionOptions::*of;
  Operand::Role role;
};
constexpr OptionGradient kOptionGradients[] = {
    {"dsinks", "sinks", &GradientTensors::dsinks, &AttentionOptions::sinks, Operand::Role::of_heads}};

bool is_wanted(const std::optional<Tensor>& gradient) noexcept {
  if (!gradient) return false;
  const Dims& shape = gradient->shape;
  return std::none_of(shape.begin(), shape.end(), [](std::int64_t size) { return size == 0; });
}

void add(BackwardCall& call, const OptionGradient& row) {
  const std::optional<Tensor>&gradient = call.given.into.*row.gradient, &of = call.given.opts.*row.of;
  if (!gradient) return;
  if (!of) reject("{}: must not be given without {}, of which it is the gradient", row.name, row.option);
  if (gradient->dtype != DType::f32) reject("{}: dtype must be f32, was {}", row.name, to_string(gradient->dtype));
  if (gradient->shape != of->shape)
    reject("{}: shape must be {} like that of {}, was {}", row.name, to_string(of->shape), row.option,
           to_string(gradient->shape));
  check_shape(row.name, *gradient, rules_of(row.role, *gradient));
  add_operand(call.forward.operands, row.name, *gradient, row.role, true);
}

// gradients: [heads], or [batch, heads]. terms: of a head of a batch entry, for so many of which there is memory.
generator::HeadGradientArguments head_gradient(const BackwardCall& call, const Tensor& gradients, std::int64_t terms,
                                               std::int64_t padded_terms) {
  const bool of_entries = gradients.shape.size() > 1;
  return {.gradients = static_cast<float*>(gradients.data),
          .batch_stride = of_entries ? gradients.strides[0] : 0,
          .heads = static_cast<int>(call.forward.num_heads_q),
          .batch = of_entries ? 1 : static_cast<int>(call.forward.batch),
          .terms = static_cast<int>(terms),
          .padded_terms = static_cast<int>(padded_terms)};
}

std::int64_t numbers_of(const Tensor& gradients) {
  std::int64_t count = 1;
  for (const std::int64_t size : gradients.shape) count *= size;
  return count;
}

}  // namespace

void add_option_gradients(BackwardCall& call) {
  for (const OptionGradient& row : kOptionGradients) add(call, row);
}

bool has_sink_gradients(const BackwardCall& call) noexcept { return is_wanted(call.given.into.dsinks); }
bool has_option_gradients(const BackwardCall& call) noexcept { return has_sink_gradients(call); }

PlainLaunch make_sink_gradient_launch(const BackwardCall& call, const Architecture& architecture,
                                      PlainKernels& kernels) {
  const Tensor& gradients = *call.given.into.dsinks;
  const generator::SinkGradientArguments arguments{
      head_gradient(call, gradients, call.forward.seqlen_q, padded_seqlen(call)),
      head_arguments(*call.given.opts.sinks), lse_log2(call), row_sums(call)};
  const generator::PlainKernel& kernel =
      kernels.get(fmt::format("sink-gradients {}", architecture.name),
                  [&](const auto& templates) { return generator::render_sink_gradients(architecture, templates); });
  PlainLaunch made = plain_launch(kernel, numbers_of(gradients), "dsinks");
  made.launch.write_argument(0, arguments);
  return made;
}

}  // namespace flashjit::runtime
