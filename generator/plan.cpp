// SPDX-License-Identifier: Apache-2.0
#include "generator/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "flashjit/error.h"

namespace flashjit::generator {
namespace {

constexpr int kWarpSize = 32;
constexpr int kElementBytes = 2;

int round_up(int a, int b) { return (a + b - 1) / b * b; }

// Registers a thread needs: the output and score accumulators, two key steps of probabilities, a Q fragment or all of
// Q, the softmax state, and the rest for addresses, one K or V fragment and the loop. The rest and the surcharges were
// fitted to what ptxas 13.0 makes of the variants: those above the limit spill, those below do not.
int estimate_registers(const Problem& problem, const Plan& plan, const Variant& variant) {
  const int m_tiles = plan.rows_per_warp / 16;
  const int output = m_tiles * plan.padded_head_dim_v / 8 * 4;
  const int scores = m_tiles * variant.block_kv / 8 * 4;
  const int probabilities = 2 * m_tiles * 4;
  const int query = m_tiles * 4 * (variant.query == QuerySource::registers ? plan.padded_head_dim / 16 : 1);
  const int softmax = m_tiles * 6;
  constexpr int kRest = 27;
  const int many_scores = std::max(0, scores - 64);
  const int for_scores = problem.causal                         ? many_scores * 9 / 32
                         : variant.pipeline == Pipeline::rotate ? many_scores / 32
                                                                : 0;
  // Rows of other widths are requested in bands of chunks, each with indices of its own.
  const int for_bands = problem.head_dim % 64 == 0 && problem.head_dim_v % 64 == 0 ? 0 : 1;
  const int for_two_layouts = plan.padded_head_dim == plan.padded_head_dim_v ? 0 : 2;
  const int for_query = problem.causal && query > 32 ? 7 : 0;
  return output + scores + probabilities + query + softmax + kRest + for_scores + for_query + for_bands +
         for_two_layouts;
}

}  // namespace

Plan make_plan(const Problem& problem, const Variant& variant) {
  Plan plan{};
  plan.threads = variant.warps * kWarpSize;
  plan.rows_per_warp = variant.block_q / variant.warps;
  plan.padded_head_dim = round_up(problem.head_dim, 16);
  plan.padded_head_dim_v = round_up(problem.head_dim_v, 16);
  const int q_tile = variant.block_q * plan.padded_head_dim * kElementBytes;
  const int k_ring = variant.k_stages * variant.block_kv * plan.padded_head_dim * kElementBytes;
  const int v_ring = variant.v_stages * variant.block_kv * plan.padded_head_dim_v * kElementBytes;
  const int output = variant.block_q * plan.padded_head_dim_v * kElementBytes;
  const int q_beside_rings = variant.query == QuerySource::shared ? q_tile : 0;
  plan.smem_bytes = std::max({q_beside_rings + k_ring + v_ring, q_tile, output});
  plan.registers = estimate_registers(problem, plan, variant);
  return plan;
}

std::int64_t grid_size(const Variant& variant, std::int64_t batch, std::int64_t num_heads_q, std::int64_t seqlen_q) {
  constexpr std::int64_t kMaxGrid = 0x7fffffff;  // gridDim.x: CUDA C++ Programming Guide, "Technical Specifications"
  const std::int64_t tiles = (seqlen_q + variant.block_q - 1) / variant.block_q;
  std::int64_t heads = 0, blocks = 0;
  if (__builtin_mul_overflow(batch, num_heads_q, &heads) || __builtin_mul_overflow(heads, tiles, &blocks) ||
      blocks > kMaxGrid)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("q: batch * heads * tiles of {} rows must be at most {}, was {} * {} * {}", variant.block_q,
                            kMaxGrid, batch, num_heads_q, tiles));
  return blocks;
}

}  // namespace flashjit::generator
