// SPDX-License-Identifier: Apache-2.0
// Which legal variants are not worth trying: a model of what limits a kernel's inner loop, compared with the best that
// there is for the problem. docs/architecture.md has the measurements that it was held against.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "flashjit/problem.h"

namespace flashjit::generator {

// What tensor cores and copies read from and write to shared memory for 1000 operations of the two products.
double smem_bytes_per_kflop(const Problem& problem, const Variant& variant);

// The share of the tensor cores' peak that this traffic and the family's instruction leave. 0 where there is no model.
double attainable_rate(const Problem& problem, const Variant& variant, const Architecture& architecture);

// Of kernels of mma.sync on sm_90a with this traffic.
double mma_attainable_rate(double smem_bytes_per_kflop);
// One line.
std::string why_far_below(double attainable_rate, double best);

// Turns what is kept, but far below the best of those kept, into pruned; not the first so many.
void prune(std::vector<VariantExplanation>& variants, std::size_t spared);

}  // namespace flashjit::generator
