// SPDX-License-Identifier: Apache-2.0
// What the host knows of the mma.sync forward kernel of large heads beside what all forward kernels of the family have:
// what is legal, the plan that follows, and what is worth trying. docs/kernels/large_heads.md has the reasons.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "generator/arguments.h"
#include "generator/features.h"
#include "generator/kernels/mma.h"
#include "generator/tunables.h"

namespace flashjit::generator {
namespace {

// --- The plan --------------------------------------------------------------------------------------------------------

// As in LargeMmaShape.
constexpr int kMaximaOfRow = kWarpsOfLargeRows * 4;

int ceil_div(int a, int b) { return (a + b - 1) / b; }

int rows_of_warp(const MmaVariant& v) { return v.block_q * kWarpsOfLargeRows / v.warps; }

// Of so many words of keys.
int key_piece_bytes(int words, int block_kv) {
  return block_kv * column_piece_width(words, kMostPieceBytes / (kElementBytes * block_kv)) * kElementBytes;
}

// Of K, of what of it stands apart, and of V.
int piece_bytes(const Problem& problem, const MmaVariant& v) {
  const int elements = kv_elements_of_word(problem);
  const int apart = problem.k_rotary ? problem.head_dim - problem.head_dim_v : 0;
  const int words_v = padded(problem.head_dim_v / elements);
  const unsigned fit = static_cast<unsigned>(kMostPieceBytes / (kElementBytes * words_v));
  const int keys = std::min(static_cast<int>(std::bit_floor(fit)), v.block_kv);
  return std::max({key_piece_bytes((problem.head_dim - apart) / elements, v.block_kv),
                   key_piece_bytes(apart, v.block_kv), keys * words_v * kElementBytes});
}

// The accumulators of output and scores, a fragment of Q or P, the softmax, and the rest, with surcharges for what
// parts keep beside them. Fitted to what ptxas 13.0 makes of tiles of 32 rows at head dim 512: those above the limit
// spill.
int estimate_large_registers(const Problem& problem, const MmaVariant& v) {
  const int m_tiles = rows_of_warp(v) / 16;
  const int output = m_tiles * ceil_div(padded(problem.head_dim_v) / 16, kWarpsOfLargeRows) * 8;
  const int scores = m_tiles * v.block_kv / kWarpsOfLargeRows / 8 * 4;
  const int fragment = m_tiles * 4, softmax = m_tiles * 6;
  constexpr int kRest = 48;
  const int for_dropout = (problem.dropout ? 4 : 0) + (problem.dropout_mask ? 12 : 0);
  const int for_parts = (has_cap(problem) + has_slopes(problem)) * 6;
  const int for_predicates = has_part(Slot::predicate, problem) ? 8 : 0;
  const int for_rotary = problem.k_rotary ? 4 : 0;
  const int for_scales = problem.token_scales ? v.block_kv / kWarpSize * 2 + 20 : problem.e4m3 ? 8 : 0;
  return output + scores + fragment + softmax + kRest + for_dropout + for_parts + for_predicates + for_rotary +
         for_scales;
}

}  // namespace

Plan make_large_plan(const Problem& problem, const MmaVariant& v) {
  const int query = v.block_q * padded(problem.head_dim) * kElementBytes;
  const int probabilities = v.block_q * v.block_kv * kElementBytes;
  const int ring = (v.k_stages + v.v_stages) * piece_bytes(problem, v);
  Plan plan{};
  plan.threads = v.warps * kWarpSize;
  plan.smem_bytes = std::max(query + probabilities + v.block_q * kMaximaOfRow + ring,
                             v.block_q * padded(problem.head_dim_v) * kElementBytes);
  plan.registers = estimate_large_registers(problem, v);
  return plan;
}

std::string why_not_of_large(const Problem& problem, const MmaVariant& v) {
  const auto want = [](std::string_view what, std::string_view required, const auto& was) {
    return must(what, fmt::format("{} for head dims above {}", required, kMostUsualHeadDim), was);
  };
  const int rows = rows_of_warp(v);
  if (rows != 16 && (rows != 32 || v.split_kv))
    return want("block_q",
                v.split_kv ? "16 rows for each four warps with splitkv" : "16 or 32 rows for each four warps",
                v.block_q);
  if (v.block_kv != 64 && v.block_kv != 128) return want("block_kv", "64 or 128", v.block_kv);
  if (v.v_stages != v.k_stages && v.v_stages != v.k_stages - 1)
    return want("v_stages", fmt::format("as k_stages, {}, or one less", v.k_stages), v.v_stages);
  if (v.pipeline != Pipeline::overlap) return want("pipeline", "overlap", "serial or rotate");
  if (v.ldmatrix != 4) return want("ldmatrix", "x4", v.ldmatrix);
  if (v.query != QuerySource::shared) return want("query", "qsmem", "qregs");
  if (problem.k_rotary && rows != 16) return must("block_q", "16 rows for each four warps beside k_rotary", v.block_q);
  // Which probabilities are dropped is decided for 32 keys at once, and a warp has a quarter of a block's.
  if (has_part(Slot::probability, problem) && v.block_kv != 128)
    return want("block_kv", "128 with dropout", v.block_kv);
  return {};
}

std::vector<MmaVariant> large_mma_tiles(const Problem& problem) {
  std::vector<MmaVariant> variants;
  MmaVariant plain = std::get<MmaVariant>(parse_variant("mma"));
  plain.order = order_for(problem);
  const auto add = [&](const char* tile, std::initializer_list<const char*> rings) {
    for (const char* block : {"kv64", "kv128"})
      for (const char* ring : rings)
        variants.push_back(std::get<MmaVariant>(parse_variant(fmt::format("{}-{}-{}", tile, block, ring), plain)));
  };
  if (problem.k_rotary) {
    add("q32-w8-splitkv", {"k2-v1", "k3-v2", "k3-v3"});
    add("q16-w4-splitkv", {"k2-v1", "k3-v2", "k3-v3"});
    return variants;
  }
  for (const char* tile : {"q64-w8", "q32-w4", "q16-w4-splitkv"}) add(tile, {"k2-v1", "k3-v2"});
  return variants;
}

}  // namespace flashjit::generator
