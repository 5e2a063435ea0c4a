// SPDX-License-Identifier: Apache-2.0
// A kernel that a call or the user asks for, before it is made: chosen and rendered. Needs no driver.
#pragma once

#include <optional>
#include <vector>

#include "flashjit/engine.h"
#include "generator/source.h"
#include "generator/spec.h"
#include "generator/templates.h"
#include "runtime/kernels/kernel_store.h"

namespace flashjit::runtime {

struct WantedKernel {
  // target: the name of the spec's architecture for a cubin, or what ptx_target() makes of it.
  WantedKernel(const generator::KernelSpec& wanted, const generator::Templates& templates, const std::string& target);
  WantedKernel(const generator::KernelSpec& wanted, const generator::Templates& templates)
      : WantedKernel(wanted, templates, wanted.architecture().name) {}

  generator::KernelSpec spec;
  KernelRequest request;

  const std::string& name() const noexcept { return request.source().name; }
  KernelInfo info(const KernelStore::Result& made) const;
};

// Of a kernel beside those of forward attention.
KernelFacts facts_of(const generator::PlainKernel& kernel, const Architecture& architecture,
                     const KernelStore::Result& made);

// What calls for the problem that get one of the variants run beside attention, each once: also what makes their block
// masks of their predicates.
std::vector<generator::PlainKernel> kernels_beside(const Problem& problem, const std::vector<Variant>& variants,
                                                   const Architecture& architecture,
                                                   const generator::Templates& templates);

// What calls for the problem take by the default rules, or the given variant; each once.
std::vector<Variant> variants_of_calls(const Problem& problem, const std::optional<Variant>& variant,
                                       const Architecture& architecture);

}  // namespace flashjit::runtime
