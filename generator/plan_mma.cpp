// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "generator/arguments.h"
#include "generator/features.h"
#include "generator/plan.h"

namespace flashjit::generator {
namespace {

constexpr int kWarpSize = 32;
constexpr int kElementBytes = 2;

// Head dims inside the kernel: mma.sync takes 16 columns at a time.
int padded(int head_dim) { return (head_dim + 15) / 16 * 16; }

// Registers a thread needs: the output and score accumulators, two key steps of probabilities, a Q fragment or all of
// Q, the softmax state, and the rest for addresses, one K or V fragment and the loop. The rest and the surcharges were
// fitted to what ptxas 13.0 makes of the variants: those above the limit spill, those below do not.
int estimate_registers(const Problem& problem, const MmaVariant& variant) {
  const int m_tiles = variant.block_q / variant.warps / 16;
  const int head_dim = padded(problem.head_dim), head_dim_v = padded(problem.head_dim_v);
  const int output = m_tiles * head_dim_v / 8 * 4;
  const int scores = m_tiles * variant.block_kv / 8 * 4;
  const int probabilities = 2 * m_tiles * 4;
  const int query = m_tiles * 4 * (variant.query == QuerySource::registers ? head_dim / 16 : 1);
  const int softmax = m_tiles * 6;
  constexpr int kRest = 27;
  const int many_scores = std::max(0, scores - 64);
  const int for_scores = problem.causal                         ? many_scores * 9 / 32
                         : variant.pipeline == Pipeline::rotate ? many_scores / 32
                                                                : 0;
  // Rows of other widths are requested in bands of chunks, each with indices of its own.
  const int for_bands = problem.head_dim % 64 == 0 && problem.head_dim_v % 64 == 0 ? 0 : 1;
  const int for_two_layouts = head_dim == head_dim_v ? 0 : 2;
  const int for_query = problem.causal && query > 32 ? 7 : 0;
  const int for_window = problem.window ? scores / 8 : 0;  // clean steps mask, too
  return output + scores + probabilities + query + softmax + kRest + for_scores + for_query + for_window + for_bands +
         for_two_layouts;
}

}  // namespace

Plan make_plan(const Problem& problem, const MmaVariant& variant) {
  const int head_dim = padded(problem.head_dim), head_dim_v = padded(problem.head_dim_v);
  const int q_tile = variant.block_q * head_dim * kElementBytes;
  const int k_ring = variant.k_stages * variant.block_kv * head_dim * kElementBytes;
  const int v_ring = variant.v_stages * variant.block_kv * head_dim_v * kElementBytes;
  const int output = variant.block_q * head_dim_v * kElementBytes;
  const int q_beside_rings = variant.query == QuerySource::shared ? q_tile : 0;
  Plan plan{};
  plan.threads = variant.warps * kWarpSize;
  plan.smem_bytes = std::max({q_beside_rings + k_ring + v_ring, q_tile, output});
  plan.registers = estimate_registers(problem, variant);
  plan.argument_bytes = argument_bytes(problem, sizeof(MmaArguments), alignof(MmaArguments));
  return plan;
}

}  // namespace flashjit::generator
