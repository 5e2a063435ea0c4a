// SPDX-License-Identifier: Apache-2.0
#include "runtime/wanted_kernel.h"

#include "generator/variant_space.h"

namespace flashjit::runtime {

KernelInfo WantedKernel::info(const KernelStore::Result& made) const {
  const KernelImage& image = *made.image;
  KernelInfo info;
  info.name = name();
  info.problem = problem;
  info.variant = variant;
  info.architecture = architecture->name;
  info.origin = made.from_memory ? KernelInfo::Origin::memory : image.origin;
  info.compile_ms = image.compile_ms;
  info.threads = plan.threads;
  info.registers = image.registers;
  info.spill_bytes = image.spill_bytes;
  info.stack_bytes = image.stack_bytes;
  info.shared_memory_bytes = plan.smem_bytes;
  info.cubin_bytes = image.bytes.size();
  info.cache_file = image.cache_file;
  info.cache_problem = image.cache_problem;
  return info;
}

WantedKernel want_kernel(const Problem& problem, const Variant& variant, const Architecture& architecture,
                         const generator::Templates& templates) {
  validate(problem);
  generator::require_legal(problem, variant, architecture);
  const generator::Plan plan = generator::make_plan(problem, variant);
  KernelRequest request;
  request.source = generator::render_forward(problem, variant, architecture, templates);
  request.target = architecture.name;
  request.facts = {{"problem", to_string(problem)},
                   {"variant", to_string(variant)},
                   {"threads", std::to_string(plan.threads)},
                   {"smem_bytes", std::to_string(plan.smem_bytes)}};
  return {problem, variant, &architecture, plan, std::move(request)};
}

std::vector<Variant> variants_of_calls(const Problem& problem, const std::optional<Variant>& variant,
                                       const Architecture& architecture) {
  return variant ? std::vector{*variant} : generator::default_variants(problem, architecture);
}

}  // namespace flashjit::runtime
