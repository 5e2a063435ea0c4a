// SPDX-License-Identifier: Apache-2.0
#include "generator/spec.h"

#include <fmt/format.h>

#include "generator/variant_space.h"

namespace flashjit::generator {

KernelSpec::KernelSpec(const Problem& problem, const Variant& variant, const Architecture& architecture)
    : problem_(problem), variant_(variant), architecture_(&architecture) {
  require_legal(problem, variant, architecture);
  plan_ = make_plan(problem, variant);
}

std::string KernelSpec::name() const {
  return fmt::format("{}.{}.{}", to_string(problem_), to_string(variant_), architecture_->name);
}

}  // namespace flashjit::generator
