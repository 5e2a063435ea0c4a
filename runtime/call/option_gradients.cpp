// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/option_gradients.h"

#include <algorithm>

#include "generator/features.h"
#include "generator/plan.h"
#include "runtime/call/backward_kernels.h"
#include "runtime/call/forward_arguments.h"
#include "runtime/call/operands.h"
#include "runtime/call/ragged_backward.h"
#include "runtime/support/ceil_quotient.h"
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
    {"dbias", "bias", &GradientTensors::dbias, &AttentionOptions::bias, Operand::Role::captured_packed},
    {"dslopes", "alibi_slopes", &GradientTensors::dslopes, &AttentionOptions::alibi_slopes, Operand::Role::of_heads},
    {"dsinks", "sinks", &GradientTensors::dsinks, &AttentionOptions::sinks, Operand::Role::of_heads}};

void add(BackwardCall& call, const OptionGradient& row) {
  const std::optional<Tensor>&gradient = call.given.into.*row.gradient, &of = call.given.opts.*row.of;
  if (!gradient) return;
  if (!of) reject("{}: must not be given without {}, of which it is the gradient", row.name, row.option);
  if (gradient->dtype != DType::f32 && gradient->dtype != of->dtype)
    reject("{}: dtype must be {}f32, was {}", row.name,
           of->dtype == DType::f32 ? "" : std::string(to_string(of->dtype)) + " or ", to_string(gradient->dtype));
  if (gradient->shape != of->shape)
    reject("{}: shape must be {} like that of {}, was {}", row.name, to_string(of->shape), row.option,
           to_string(gradient->shape));
  check_shape(row.name, *gradient, rules_of(row.role, *gradient));
  add_operand(call.forward.operands, row.name, *gradient, row.role, true);
}

std::int64_t count_of(const Dims& shape) noexcept {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

bool is_wanted(const std::optional<Tensor>& gradient) noexcept { return gradient && count_of(gradient->shape) > 0; }

bool is_packed(const Tensor& tensor) noexcept {
  std::int64_t stride = 1;
  for (int i = tensor.shape.size() - 1; i >= 0; stride *= tensor.shape[i--])
    if (tensor.shape[i] > 1 && tensor.strides[i] != stride) return false;
  return true;
}

// Where the kernel sums the gradient of the bias.
float* bias_sums(const BackwardCall& call) {
  return floats(call.scratch.bias.data ? call.scratch.bias : *call.given.into.dbias);
}

// gradients: [heads], or [batch, heads]. rows: that its terms are of.
generator::HeadGradientArguments head_gradient(const BackwardCall& call, const Tensor& gradients,
                                               const generator::SequenceRows& rows) {
  const bool of_entries = gradients.shape.size() > 1;
  return {.gradients = floats(gradients),
          .batch_stride = of_entries ? gradients.strides[0] : 0,
          .heads = static_cast<int>(call.forward.num_heads_q),
          .batch = of_entries ? 1 : static_cast<int>(call.forward.batch),
          .rows = rows};
}

generator::BiasGradientArguments bias_gradient_arguments(const BackwardCall& call) {
  const Dims& shape = call.given.into.dbias->shape;
  const std::int64_t row = shape[3], head = shape[2] * row, entry = shape[1] * head;
  const auto stride = [&](int dim, std::int64_t elements) { return shape[dim] > 1 ? elements : 0; };
  return {bias_sums(call), stride(0, entry), stride(1, head), stride(2, row)};
}

template <class Arguments>
PlainLaunch made_of(const generator::PlainKernel& kernel, std::int64_t blocks, const char* name,
                    const Arguments& arguments) {
  PlainLaunch made = plain_launch(kernel, blocks, name);
  made.launch.write_argument(0, arguments);
  return made;
}

// Whether an element of the bias stands for several pairs of a query and a key.
bool is_shared(const BackwardCall& call, const Tensor& bias) {
  const std::int64_t all[] = {call.forward.batch, call.forward.num_heads_q, call.forward.seqlen_q};
  for (int dim = 0; dim < 3; ++dim)
    if (bias.shape[dim] < all[dim]) return true;
  return false;
}

}  // namespace

void add_option_gradients(BackwardCall& call) {
  for (const OptionGradient& row : kOptionGradients) add(call, row);
  if (call.given.backward.deterministic && call.given.into.dbias && is_shared(call, *call.given.into.dbias))
    throw Error(
        ErrorCode::unsupported,
        fmt::format("deterministic: must be false for the gradient of a bias of shape {}, whose sums over batch "
                    "entries, heads or queries are in no order yet",
                    to_string(call.given.into.dbias->shape)));
}

OptionGradients option_gradients(const BackwardCall& call) noexcept {
  const GradientTensors& into = call.given.into;
  return {is_wanted(into.dsinks), is_wanted(into.dslopes), is_wanted(into.dbias)};
}

generator::KernelGradients kernel_gradients(const BackwardCall& call) noexcept {
  const OptionGradients of_options = option_gradients(call);
  const bool takes_turns = !generator::is_large(call.forward.problem);  // where dq is deterministic
  return {call.key_gradient, of_options.slopes, of_options.bias,
          takes_turns && call.given.backward.deterministic && call.given.into.dq.has_value()};
}

Tensor slope_gradient_sums(const BackwardCall& call) {
  const auto* variant = std::get_if<MmaBackwardVariant>(&call.variant);
  if (!option_gradients(call).slopes || !variant) return {};
  const std::int64_t entries = call.given.k.shape[batch_dim];
  return Tensor(nullptr, DType::f32, {entries, call.forward.num_heads_q, key_places(call), variant->warps});
}

Tensor bias_gradient_sums(const BackwardCall& call) {
  const std::optional<Tensor>& dbias = call.given.into.dbias;
  if (!is_wanted(dbias) || (dbias->dtype == DType::f32 && is_packed(*dbias))) return {};
  return Tensor(nullptr, DType::f32, dbias->shape);
}

void set_score_gradients(Launch& launch, const BackwardCall& call, std::size_t core_bytes) {
  const OptionGradients of_options = option_gradients(call);
  std::size_t at = generator::argument_bytes(call.forward.problem, core_bytes, alignof(generator::BackwardArguments));
  if (of_options.slopes) {
    launch.write_argument(at, generator::SlopeGradientArguments{floats(call.scratch.slopes)});
    at += sizeof(generator::SlopeGradientArguments);
  }
  if (of_options.bias) launch.write_argument(at, bias_gradient_arguments(call));
}

PlainLaunch make_bias_clear_launch(const BackwardCall& call, const Architecture& architecture, PlainKernels& kernels) {
  return make_clear_launch(reinterpret_cast<unsigned*>(bias_sums(call)), count_of(call.given.into.dbias->shape),
                           architecture, kernels);
}

PlainLaunch make_sink_gradient_launch(const BackwardCall& call, const Architecture& architecture,
                                      PlainKernels& kernels) {
  const Tensor& gradients = *call.given.into.dsinks;
  const int block_of_rows = is_whole(call) ? generator::block_q(call.variant) : 1;
  const generator::SinkGradientArguments arguments{head_gradient(call, gradients, query_rows(call.forward)),
                                                   head_arguments(*call.given.opts.sinks),
                                                   lse_log2(call),
                                                   row_sums(call),
                                                   static_cast<int>(padded_seqlen(call)),
                                                   block_of_rows};
  return made_of(sink_gradient_kernel(architecture, kernels), count_of(gradients.shape), "dsinks", arguments);
}

PlainLaunch make_slope_gradient_launch(const BackwardCall& call, const Architecture& architecture,
                                       PlainKernels& kernels) {
  const Tensor &gradients = *call.given.into.dslopes, &sums = call.scratch.slopes;
  const generator::SlopeGradientSumsArguments arguments{
      head_gradient(call, gradients, key_rows(call.forward)), floats(sums), static_cast<int>(sums.shape[2]),
      generator::block_kv(call.variant), static_cast<int>(sums.shape[3])};
  return made_of(slope_gradient_kernel(architecture, kernels), count_of(gradients.shape), "dslopes", arguments);
}

PlainLaunch make_bias_gradient_launch(const BackwardCall& call, const Architecture& architecture,
                                      PlainKernels& kernels) {
  const Tensor& dbias = *call.given.into.dbias;
  const auto element = static_cast<std::int64_t>(size_of(dbias.dtype));
  const std::int64_t keys = dbias.shape[3], blocks_of_row = ceil_quotient(keys, generator::kBiasGradientKeys);
  const generator::BiasGradientRowsArguments arguments{
      .sums = bias_sums(call),
      .gradients = static_cast<char*>(dbias.data),
      .strides = {dbias.strides[0] * element, dbias.strides[2] * element, dbias.strides[1] * element},
      .heads = static_cast<int>(dbias.shape[1]),
      .queries = static_cast<int>(dbias.shape[2]),
      .keys = static_cast<int>(keys),
      .blocks_of_row = static_cast<int>(blocks_of_row)};
  return made_of(bias_gradient_kernel(dbias.dtype, architecture, kernels), count_of(dbias.shape) / keys * blocks_of_row,
                 "dbias", arguments);
}

}  // namespace flashjit::runtime
