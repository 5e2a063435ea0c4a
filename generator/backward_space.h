// SPDX-License-Identifier: Apache-2.0
// Which variants of backward kernels are worth trying. docs/kernels/backward.md has what the model was held against.
#pragma once

#include <vector>

#include "flashjit/backward.h"

namespace flashjit::generator {

// problem: of backward_problem. Everything that is considered, with the verdict on it: first what is kept, and of that
// first the defaults.
std::vector<BackwardVariantExplanation> explain_backward_variants(const Problem& problem,
                                                                  const Architecture& architecture);
// What of it is kept.
std::vector<BackwardVariant> legal_backward_variants(const Problem& problem, const Architecture& architecture);

}  // namespace flashjit::generator
