// SPDX-License-Identifier: Apache-2.0
// A kernel that a call or the user asks for, before it is made: chosen, planned and rendered. Needs no driver.
#pragma once

#include <optional>
#include <vector>

#include "flashjit/engine.h"
#include "generator/plan.h"
#include "generator/source.h"
#include "runtime/kernel_store.h"

namespace flashjit::runtime {

struct WantedKernel {
  Problem problem;
  Variant variant;
  const Architecture* architecture = nullptr;
  generator::Plan plan{};
  KernelRequest request;  // for the cubin of the architecture

  const std::string& name() const noexcept { return request.source.name; }
  KernelInfo info(const KernelStore::Result& made) const;
};

// Throws Error(invalid_argument) for a problem or a variant that cannot be.
WantedKernel want_kernel(const Problem& problem, const Variant& variant, const Architecture& architecture,
                         const generator::Templates& templates);

// What calls for the problem take by the default rules, or the given variant; each once.
std::vector<Variant> variants_of_calls(const Problem& problem, const std::optional<Variant>& variant,
                                       const Architecture& architecture);

}  // namespace flashjit::runtime
