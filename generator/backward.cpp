// SPDX-License-Identifier: Apache-2.0
#include "generator/backward.h"

#include <fmt/format.h>

#include <algorithm>

#include "flashjit/error.h"
#include "generator/arguments.h"
#include "generator/backward_family.h"
#include "generator/dtype.h"
#include "generator/family.h"
#include "generator/features.h"
#include "generator/plan.h"
#include "generator/source_parts.h"

namespace flashjit {

std::string to_string(const BackwardVariant& variant) {
  return std::visit([](const auto& of_family) { return generator::spell_variant(of_family); }, variant);
}

BackwardVariant parse_backward_variant(std::string_view text) {
  BackwardVariant plain;
  std::string_view rest = text;
  for (const BackwardVariant& of_family :
       {BackwardVariant(MmaBackwardVariant{}), BackwardVariant(HopperBackwardVariant{})}) {
    const std::string family = std::visit([](const auto& each) { return generator::family_name(each); }, of_family);
    if (rest != family && !rest.starts_with(family + '-')) continue;
    plain = of_family;
    rest.remove_prefix(family.size());
    break;
  }
  BackwardVariant variant = plain;
  while (!rest.empty()) {
    if (rest.front() == '-') rest.remove_prefix(1);
    const std::string_view part = rest.substr(0, rest.find('-'));
    if (std::visit([&](auto& of_family) { return generator::read_part(part, of_family); }, variant) == nullptr)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("variant: '{}' must be like {}, which has no '{}'", text, to_string(plain), part));
    rest.remove_prefix(part.size());
  }
  return variant;
}

namespace generator {
namespace {

// Of fewer a tile of the Hopper family would be padding for the most part, in memory too.
constexpr std::int64_t kLeastQueriesOfHopper = 64;

}  // namespace

Problem backward_problem(const Problem& problem) {
  Problem of_scores = problem;
  of_scores.sinks = false;       // they are in the LSE
  of_scores.block_mask = false;  // which leaves out no more than what is 0
  return of_scores;
}

BackwardVariant default_backward_variant(const Problem& problem, const Architecture& architecture,
                                         std::int64_t seqlen_q, bool has_tensor_maps) {
  const HopperBackwardVariant hopper = default_hopper_backward(problem, seqlen_q);
  const bool suits_hopper = has_tensor_maps && (seqlen_q >= kLeastQueriesOfHopper || is_large(problem));
  if (suits_hopper && why_illegal(problem, hopper, architecture).empty()) return hopper;
  return default_mma_backward(problem, architecture);
}

std::vector<BackwardVariant> default_backward_variants(const Problem& problem, const Architecture& architecture) {
  std::vector<BackwardVariant> variants;
  for (const std::int64_t seqlen_q : {kManyQueries, kLeastQueriesOfHopper, std::int64_t{1}}) {
    const BackwardVariant variant = default_backward_variant(problem, architecture, seqlen_q);
    if (variants.empty() || variants.back() != variant) variants.push_back(variant);
  }
  return variants;
}

std::string why_illegal(const Problem& problem, const BackwardVariant& variant, const Architecture& architecture) {
  return std::visit([&](const auto& of_family) { return why_illegal(problem, of_family, architecture); }, variant);
}

void require_legal(const BackwardProblem& problem, const BackwardVariant& variant, const Architecture& architecture) {
  validate(problem);
  const std::string why = why_illegal(backward_problem(problem.attention), variant, architecture);
  if (!why.empty()) throw Error(ErrorCode::invalid_argument, why);
}

QueryLayout query_layout(const Problem& problem, const BackwardVariant& variant) {
  return std::visit([&](const auto& of_family) { return query_layout(problem, of_family); }, variant);
}
TileOrder backward_order(const Problem& problem, bool deterministic) {
  constexpr int kNarrow = 64;
  const TileOrder order = order_for(problem);
  if (!deterministic) return order;
  const bool is_wide = std::max(problem.head_dim, problem.head_dim_v) > kNarrow;
  return order == TileOrder::longest_first && is_wide ? TileOrder::natural : TileOrder::longest_first;
}

int block_q(const BackwardVariant& variant) noexcept {
  return std::visit([](const auto& of_family) { return of_family.block_q; }, variant);
}
int block_kv(const BackwardVariant& variant) noexcept {
  return std::visit([](const auto& of_family) { return of_family.block_kv; }, variant);
}

std::string to_string(const KernelGradients& gradients) {
  constexpr const char* kPasses[] = {"", "-dv", "-dk", "-dq"};
  return fmt::format("{}{}{}{}{}", to_string(gradients.of_keys), gradients.slopes ? "-dslopes" : "",
                     gradients.bias ? "-dbias" : "", gradients.deterministic ? "-deterministic" : "",
                     kPasses[static_cast<int>(gradients.pass)]);
}

KernelGradients of_pass(const Problem& problem, const KernelGradients& gradients, GradientPass pass) {
  KernelGradients of = gradients;
  of.pass = pass;
  of.deterministic = false;  // these are always
  if (pass == GradientPass::queries) of.of_keys = problem.dtype;
  if (pass != GradientPass::keys) of.slopes = of.bias = false;  // whose sums go by tiles of keys
  return of;
}

std::vector<KernelGradients> shared_out(const Problem& problem, const KernelGradients& gradients) {
  if (!is_large(problem)) return {gradients};
  std::vector<KernelGradients> passes;
  for (const GradientPass pass : {GradientPass::keys, GradientPass::values, GradientPass::queries})
    passes.push_back(of_pass(problem, gradients, pass));
  return passes;
}

KernelGradients kernel_gradients(const BackwardProblem& problem) noexcept {
  return {problem.f32 ? DType::f32 : problem.attention.dtype, problem.slopes, problem.bias,
          problem.deterministic && !is_large(problem.attention)};
}

Source named_backward_source(const Problem& problem, const KernelGradients& gradients, const std::string& variant,
                             const Architecture& architecture) {
  const std::string of_forward = to_string(problem), made = to_string(gradients);
  return named_source(
      fmt::format("bwd-{}{}.{}.{}", of_forward.substr(of_forward.find('-') + 1),
                  gradients.of_keys == problem.dtype ? made.substr(std::min(made.find('-'), made.size())) : '-' + made,
                  variant, architecture.name),
      "flashjit_backward");
}

ConfigText backward_config(const Problem& problem, const KernelGradients& gradients) {
  const DType of_keys = gradients.of_keys;
  ConfigText config;
  config.use("Element", row_of(problem.dtype).element);
  config.use("GradientElement", of_keys == DType::f32 ? "Single" : row_of(of_keys).element);
  config.use("Arguments", "::Arguments");
  config.use("Masks", parts_in(Slot::mask, problem));
  config.use("Sequences", parts_in(Slot::sequences, problem));
  config.add("int", "kHeadDim", problem.head_dim);
  config.add("int", "kHeadDimV", problem.head_dim_v);
  config.add("int", "kGradientBytes", size_of(of_keys));
  config.add("bool", "kSplitKv", false);
  config.add("bool", "kDeterministic", gradients.deterministic);
  config.add("bool", "kLongestFirst", backward_order(problem, gradients.deterministic) == TileOrder::longest_first);
  return config;
}

PlainKernel render_backward(const Problem& problem, const BackwardVariant& variant, const KernelGradients& gradients,
                            const Architecture& architecture, const Templates& templates) {
  return std::visit(
      [&](const auto& of_family) { return render_backward(problem, of_family, gradients, architecture, templates); },
      variant);
}

PlainKernel render_backward_prepare(DType dtype, const Architecture& architecture, const Templates& templates) {
  return plain_kernel(
      {fmt::format("backward-prepare-{}", to_string(dtype)), "flashjit_backward_prepare", "kernels/backward_rows.cuh",
       "BackwardPrepareArguments", fmt::format("BackwardPrepare<{}>{{args}}", row_of(dtype).element)},
      kBackwardRowsThreads, sizeof(BackwardPrepareArguments), architecture, templates);
}

PlainKernel render_backward_finish(DType dtype, const Architecture& architecture, const Templates& templates) {
  return plain_kernel(
      {fmt::format("backward-finish-{}", to_string(dtype)), "flashjit_backward_finish", "kernels/backward_rows.cuh",
       "BackwardFinishArguments", fmt::format("BackwardFinish<{}>{{args}}", row_of(dtype).element)},
      kBackwardRowsThreads, sizeof(BackwardFinishArguments), architecture, templates);
}

PlainKernel render_sink_gradients(const Architecture& architecture, const Templates& templates) {
  return plain_kernel(
      {"sink-gradients", "flashjit_sink_gradients", "kernels/head_gradients.cuh", "SinkGradientArguments",
       "__shared__ HeadGradientShared shared;\n  HeadGradient<SinkTerms>{args.sum, {args}, shared}"},
      kHeadGradientThreads, sizeof(SinkGradientArguments), architecture, templates);
}

PlainKernel render_slope_gradients(const Architecture& architecture, const Templates& templates) {
  return plain_kernel(
      {"slope-gradients", "flashjit_slope_gradients", "kernels/head_gradients.cuh", "SlopeGradientSumsArguments",
       "__shared__ HeadGradientShared shared;\n  HeadGradient<SlopeTerms>{args.sum, {args}, shared}"},
      kHeadGradientThreads, sizeof(SlopeGradientSumsArguments), architecture, templates);
}

PlainKernel render_bias_gradient(DType dtype, const Architecture& architecture, const Templates& templates) {
  return plain_kernel(
      {fmt::format("bias-gradient-{}", to_string(dtype)), "flashjit_bias_gradient", "kernels/bias_gradient.cuh",
       "BiasGradientRowsArguments",
       fmt::format("BiasGradientRows<{}>{{args}}", dtype == DType::f32 ? "Single" : row_of(dtype).element)},
      kBackwardRowsThreads, sizeof(BiasGradientRowsArguments), architecture, templates);
}

PlainKernel render_backward_clear_rows(DType dtype, const Architecture& architecture, const Templates& templates) {
  return plain_kernel(
      {fmt::format("backward-clear-rows-{}", to_string(dtype)), "flashjit_backward_clear_rows",
       "kernels/backward_rows.cuh", "BackwardClearRowsArguments",
       fmt::format("BackwardClearRows<{}>{{args}}", dtype == DType::f32 ? "Single" : row_of(dtype).element)},
      kBackwardRowsThreads, sizeof(BackwardClearRowsArguments), architecture, templates);
}

PlainKernel render_backward_clear(const Architecture& architecture, const Templates& templates) {
  return plain_kernel({"backward-clear", "flashjit_backward_clear", "kernels/backward_rows.cuh",
                       "BackwardClearArguments", "BackwardClear{args}"},
                      kBackwardRowsThreads, sizeof(BackwardClearArguments), architecture, templates);
}

}  // namespace generator
}  // namespace flashjit
