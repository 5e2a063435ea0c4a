// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernels/wanted_kernel.h"

#include <algorithm>
#include <utility>

#include "generator/features.h"
#include "generator/variant_space.h"

namespace flashjit::runtime {

namespace {

// What the image says.
void set_facts(KernelFacts& facts, const KernelStore::Result& made) {
  const KernelImage& image = *made.image;
  facts.origin = made.from_memory ? KernelFacts::Origin::memory : image.origin;
  facts.compile_ms = image.compile_ms;
  facts.registers = image.registers;
  facts.spill_bytes = image.spill_bytes;
  facts.stack_bytes = image.stack_bytes;
  facts.cubin_bytes = image.bytes.size();
  facts.cache_file = image.cache_file;
  facts.cache_problem = image.cache_problem;
}

}  // namespace

KernelInfo WantedKernel::info(const KernelStore::Result& made) const {
  KernelInfo info;
  set_facts(info, made);
  info.name = name();
  info.problem = spec.problem();
  info.variant = spec.variant();
  info.architecture = spec.architecture().name;
  info.threads = spec.plan().threads;
  info.shared_memory_bytes = spec.plan().smem_bytes;
  return info;
}

KernelFacts facts_of(const generator::PlainKernel& kernel, const Architecture& architecture,
                     const KernelStore::Result& made) {
  KernelFacts facts;
  set_facts(facts, made);
  facts.name = kernel.source.name;
  facts.architecture = architecture.name;
  facts.threads = kernel.threads;
  facts.shared_memory_bytes = kernel.smem_bytes;
  return facts;
}

WantedKernel::WantedKernel(const generator::KernelSpec& wanted, const generator::Templates& templates,
                           const std::string& target)
    : spec(wanted),
      request(generator::render_forward(wanted, templates), target,
              {{"problem", to_string(wanted.problem())},
               {"variant", to_string(wanted.variant())},
               {"threads", std::to_string(wanted.plan().threads)},
               {"smem_bytes", std::to_string(wanted.plan().smem_bytes)}}) {}

std::vector<generator::PlainKernel> kernels_beside(const Problem& problem, const std::vector<Variant>& variants,
                                                   const Architecture& architecture,
                                                   const generator::Templates& templates) {
  std::vector<generator::PlainKernel> kernels;
  if (problem.block_mask && generator::has_part(generator::Slot::predicate, problem))
    kernels.push_back(generator::render_block_mask(generator::predicates_of(problem), architecture, templates));
  for (const Variant& variant : variants)
    for (generator::TurnKernel& beside : generator::render_beside({problem, variant, architecture}, templates)) {
      const auto is_same = [&](const generator::PlainKernel& other) {
        return other.source.name == beside.kernel.source.name;
      };
      if (std::none_of(kernels.begin(), kernels.end(), is_same)) kernels.push_back(std::move(beside.kernel));
    }
  return kernels;
}

std::vector<Variant> variants_of_calls(const Problem& problem, const std::optional<Variant>& variant,
                                       const Architecture& architecture) {
  return variant ? std::vector{*variant} : generator::default_variants(problem, architecture);
}

}  // namespace flashjit::runtime
