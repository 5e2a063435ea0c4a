// SPDX-License-Identifier: Apache-2.0
// The kernels of calls for gradients: chosen and made ahead of calls.
#include <algorithm>

#include "flashjit/engine.h"
#include "flashjit/error.h"
#include "generator/backward.h"
#include "generator/backward_space.h"
#include "runtime/api/engine_impl.h"
#include "runtime/call/backward_kernels.h"

namespace flashjit {
namespace {

std::vector<BackwardVariant> variants_of_calls(const BackwardProblem& problem,
                                               const std::optional<BackwardVariant>& variant,
                                               const Architecture& architecture) {
  if (!variant)
    return generator::default_backward_variants(generator::backward_problem(problem.attention), architecture);
  generator::require_legal(problem, *variant, architecture);
  return {*variant};
}

bool contains(const std::vector<BackwardVariant>& variants, const BackwardVariant& variant) {
  return std::find(variants.begin(), variants.end(), variant) != variants.end();
}

BackwardKernelInfo info_of(const BackwardProblem& problem, const BackwardVariant& variant, const KernelFacts& facts) {
  BackwardKernelInfo info;
  static_cast<KernelFacts&>(info) = facts;
  info.problem = problem;
  info.variant = variant;
  return info;
}

}  // namespace

std::vector<BackwardVariant> Engine::default_backward_variants(const BackwardProblem& problem,
                                                               std::string_view architecture) const {
  validate(problem);
  return variants_of_calls(problem, {}, find_architecture(architecture));
}

std::vector<BackwardVariant> Engine::backward_variants(const BackwardProblem& problem,
                                                       std::string_view architecture) const {
  validate(problem);
  return generator::legal_backward_variants(generator::backward_problem(problem.attention),
                                            find_architecture(architecture));
}

std::vector<BackwardVariantExplanation> Engine::explain_backward_variants(const BackwardProblem& problem,
                                                                          std::string_view architecture) const {
  validate(problem);
  return generator::explain_backward_variants(generator::backward_problem(problem.attention),
                                              find_architecture(architecture));
}

std::string Engine::render_backward(const BackwardProblem& problem, const BackwardVariant& variant,
                                    std::string_view architecture) const {
  const Architecture& target = find_architecture(architecture);
  generator::require_legal(problem, variant, target);
  return runtime::backward_kernel(problem, variant, target, impl_->plain_kernels).source.text();
}

BackwardKernelInfo Engine::compile_backward(const BackwardProblem& problem, const BackwardVariant& variant,
                                            std::string_view architecture) {
  const Architecture& target = find_architecture(architecture);
  generator::require_legal(problem, variant, target);
  const KernelFacts made =
      impl_->kernels.compile(runtime::backward_kernel(problem, variant, target, impl_->plain_kernels), target);
  for (const generator::PlainKernel* kernel : runtime::kernels_beside(problem, {variant}, target, impl_->plain_kernels))
    impl_->store.get(runtime::KernelRequest(kernel->source, target.name, {}));
  return info_of(problem, variant, made);
}

std::vector<BackwardKernelInfo> Engine::prepare_backward(const BackwardProblem& problem, int device,
                                                         const std::optional<BackwardVariant>& variant) {
  validate(problem);
  const Architecture& architecture = impl_->backend.architecture(device);
  const auto kernel_of = [&](const BackwardVariant& each) {
    return &runtime::backward_kernel(problem, each, architecture, impl_->plain_kernels);
  };
  std::vector<BackwardVariant> variants = variants_of_calls(problem, variant, architecture);
  const std::vector<BackwardVariant> recorded =
      variant ? std::vector<BackwardVariant>() : impl_->recorded_variants(problem, device);
  std::vector<BackwardKernelInfo> of_records;  // what records chose beside the defaults, where it can be had
  for (const BackwardVariant& each : recorded) {
    if (contains(variants, each)) continue;
    try {
      of_records.push_back(info_of(problem, each, impl_->backend.prepare({kernel_of(each)}, device).front()));
    } catch (const Error& error) {
      impl_->log(LogLevel::warning, "{}: the variant of a tuning record cannot be had: {}", to_string(problem),
                 error.what());
    }
  }
  std::vector<const generator::PlainKernel*> kernels;
  for (const BackwardVariant& each : variants) kernels.push_back(kernel_of(each));
  const std::size_t defaults = variants.size();
  for (const BackwardKernelInfo& each : of_records) variants.push_back(each.variant);
  for (const generator::PlainKernel* beside :
       runtime::kernels_beside(problem, variants, architecture, impl_->plain_kernels))
    kernels.push_back(beside);
  const std::vector<KernelFacts> facts = impl_->backend.prepare(kernels, device);
  std::vector<BackwardKernelInfo> infos;
  for (std::size_t i = 0; i < defaults; ++i) infos.push_back(info_of(problem, variants[i], facts[i]));
  infos.insert(infos.end(), of_records.begin(), of_records.end());
  for (BackwardKernelInfo& info : infos) info.tuned = contains(recorded, info.variant);
  return infos;
}

}  // namespace flashjit
