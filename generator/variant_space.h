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

// All that are worth trying, the defaults first.
std::vector<Variant> legal_variants(const Problem& problem, const Architecture& architecture);

// Whether that family has kernels for the architecture: then they are its defaults, except for few queries.
bool has_hopper_kernels(const Architecture& architecture) noexcept;

Variant default_variant(const Problem& problem, const Architecture& architecture, LengthRange range);

}  // namespace flashjit::generator
