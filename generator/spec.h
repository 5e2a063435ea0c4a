// SPDX-License-Identifier: Apache-2.0
// A kernel that can be made.
#pragma once

#include <string>

#include "flashjit/problem.h"
#include "generator/plan.h"

namespace flashjit::generator {

// A problem, a variant that is legal for it on the architecture, and the plan that follows. Whoever is given one has
// nothing to check.
class KernelSpec {
 public:
  // Throws Error(invalid_argument) for a problem that cannot be and for a variant that is not legal; it says why.
  KernelSpec(const Problem& problem, const Variant& variant, const Architecture& architecture);

  const Problem& problem() const noexcept { return problem_; }
  const Variant& variant() const noexcept { return variant_; }
  const Architecture& architecture() const noexcept { return *architecture_; }
  const Plan& plan() const noexcept { return plan_; }
  std::string name() const;  // readable: problem, variant, architecture

 private:
  Problem problem_;
  Variant variant_;
  const Architecture* architecture_;
  Plan plan_;
};

}  // namespace flashjit::generator
