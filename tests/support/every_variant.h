// SPDX-License-Identifier: Apache-2.0
// What is compiled and verified of a problem's variants.
#pragma once

#include <string>
#include <vector>

#include "flashjit/engine.h"

namespace flashjit::tests {

// Also those that the model prunes on the architecture: they may be defaults of others.
inline std::vector<Variant> every_variant(const Engine& engine, const Problem& problem,
                                          const std::string& architecture) {
  using Verdict = VariantExplanation::Verdict;
  std::vector<Variant> variants;
  for (const VariantExplanation& each : engine.explain_variants(problem, architecture))
    if (each.verdict == Verdict::kept || each.verdict == Verdict::pruned) variants.push_back(each.variant);
  return variants;
}

}  // namespace flashjit::tests
