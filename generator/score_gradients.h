// SPDX-License-Identifier: Apache-2.0
// What a backward kernel has of the gradients that it makes of parameters of scores: the slot of
// templates/attention/score_gradient.cuh.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "generator/backward.h"

namespace flashjit::generator {

// The templates of a kernel, and those of the parts.
std::vector<std::string> with_score_gradients(std::vector<std::string> files, const KernelGradients& gradients);
// The type of the slot.
std::string score_gradient_parts(const KernelGradients& gradients);
// Members of the kernel's arguments, in this order: slopes, bias. Each takes a multiple of eight bytes.
std::string score_gradient_members(const KernelGradients& gradients);
std::size_t score_gradient_bytes(const KernelGradients& gradients) noexcept;

}  // namespace flashjit::generator
