// SPDX-License-Identifier: Apache-2.0
// Which variants are legal for a problem on an architecture, and which one is the default.
#pragma once

#include <string>
#include <vector>

#include "flashjit/problem.h"

namespace flashjit::generator {

// Empty when the variant is legal; else one line that says what it must be and what it was.
std::string why_illegal(const Problem& problem, const Variant& variant, const Architecture& architecture);
// Throws Error(invalid_argument) with that line.
void require_legal(const Problem& problem, const Variant& variant, const Architecture& architecture);

// Everything that is considered, with the verdict on it: first what is kept, and of that first the defaults.
std::vector<VariantExplanation> explain_variants(const Problem& problem, const Architecture& architecture);
// What of it is kept: all that are worth trying.
std::vector<Variant> legal_variants(const Problem& problem, const Architecture& architecture);

// Whether that family has kernels for the architecture: then they are its defaults.
bool has_hopper_kernels(const Architecture& architecture) noexcept;

Variant default_variant(const Problem& problem, const Architecture& architecture, const ShapeBucket& bucket);
// For calls whose tensors TMA cannot describe: of the mma family, which reads any.
Variant default_without_tma(const Problem& problem, const Architecture& architecture);
// For calls whose keys have splits of a fixed size: one by which equal rows have equal results. with_tma: TMA can
// describe the call's tensors.
Variant invariant_variant(const Problem& problem, const Architecture& architecture, const ShapeBucket& bucket,
                          bool with_tma);
// Empty, or why a variant is none of these.
std::string why_not_invariant(const Variant& variant);
// All of these, each once: those of the largest shapes first, that without TMA last.
std::vector<Variant> default_variants(const Problem& problem, const Architecture& architecture);

}  // namespace flashjit::generator
