// SPDX-License-Identifier: Apache-2.0
// What the host derives from problem and variant. The device computes the same, and the source asserts that they agree.
#pragma once

#include <cstdint>

#include "flashjit/problem.h"

namespace flashjit::generator {

struct Plan {
  int threads;          // of a block
  int smem_bytes;       // dynamic shared memory of a block
  int rows_per_warp;    // query rows: 16 or 32
  int padded_head_dim;  // head dims inside the kernel: the next multiple of 16
  int padded_head_dim_v;
  int registers;  // estimate per thread, by the model in plan.cpp
};

Plan make_plan(const Problem& problem, const Variant& variant);

// Blocks of a launch: one for each tile of block_q query rows of each head. Throws Error(invalid_argument) on overflow.
std::int64_t grid_size(const Variant& variant, std::int64_t batch, std::int64_t num_heads_q, std::int64_t seqlen_q);

}  // namespace flashjit::generator
