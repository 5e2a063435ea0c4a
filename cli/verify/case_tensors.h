// SPDX-License-Identifier: Apache-2.0
// The tensors of options that the calls of a problem have, for comparisons with the reference.
#pragma once

#include <flashjit/problem.h>

#include <cstdint>
#include <vector>

#include "cli/io/option_tensors.h"

namespace flashjit::cli {

// One for each feature of the problem that is a tensor, but for users' functions; random ones depend on the shape and
// the seed only.
std::vector<OptionTensor> case_tensors(const Problem& problem, const CallShape& shape, std::uint64_t seed);

}  // namespace flashjit::cli
