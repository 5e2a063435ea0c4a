// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "generator/family_space.h"
#include "generator/plan.h"
#include "generator/variant_words.h"

namespace flashjit::generator {
namespace {

constexpr int kRegistersPerSm = 65536;
constexpr int kMaxRegisters = 255;   // of a thread
constexpr int kReservedSmem = 1024;  // the driver's share of shared memory for each resident block

std::string why_malformed(const MmaVariant& v) {
  if (v.warps != 4 && v.warps != 8) return must("warps", "4 or 8", v.warps);
  if (v.block_q != 16 * v.warps && v.block_q != 32 * v.warps)
    return must("block_q", "16 or 32 rows for each warp", v.block_q);
  if (v.block_kv < 16 || v.block_kv > 128 || v.block_kv % 16 != 0)
    return must("block_kv", "a multiple of 16 from 16 to 128", v.block_kv);
  if (v.k_stages < 1 || v.k_stages > 3) return must("k_stages", "1 to 3", v.k_stages);
  if (v.v_stages < 1 || v.v_stages > 3) return must("v_stages", "1 to 3", v.v_stages);
  if (v.ctas_per_sm < 1 || v.ctas_per_sm > 4) return must("ctas_per_sm", "1 to 4", v.ctas_per_sm);
  if (v.ldmatrix != 2 && v.ldmatrix != 4) return must("ldmatrix", "2 or 4", v.ldmatrix);
  if (v.pipeline == Pipeline::serial && (v.k_stages != 1 || v.v_stages != 1))
    return must("stages", "k1 and v1 with the serial pipeline", std::max(v.k_stages, v.v_stages));
  if (v.pipeline == Pipeline::rotate && (v.k_stages != 2 || v.v_stages != 3))
    return fmt::format("variant: stages must be k2 and v3 with the rotate pipeline, were k{} and v{}", v.k_stages,
                       v.v_stages);
  if (v.rescale == Rescale::lazy) return "variant: rescale must be always or rare in the mma family, was lazy";
  return {};
}

// --- Defaults --------------------------------------------------------------------------------------------------------

// What stands above fits large shared memory (sm_80, 90, 100, 103); what does not fit the 99 KiB of sm_86, 89 and 120
// falls through to a later line. Chosen from the measurements on the H200 in docs/kernels/forward_mma.md.
constexpr DefaultRule kRules[] = {
    {128, 128, Mask::any, "q64", "mma-q64-kv64-w4-k2-v2-c2-overlap-qregs"},
    {128, 128, Mask::any, "q64", "mma-q64-kv64-w4-k2-v2-c1-overlap-qregs"},
    {256, 256, Mask::any, "q64", "mma-q64-kv32-w4-k2-v2-c1-overlap-qsmem"},

    // With a window all tiles are equally long, and narrow blocks leave less of them outside.
    {64, 64, Mask::window, "q128+", "mma-q128-kv32-w4-k2-v2-c3-overlap-qsmem-natural"},
    {128, 128, Mask::window, "q128+", "mma-q128-kv32-w4-k2-v2-c2-overlap-qsmem-natural"},
    {128, 128, Mask::window, "q128+", "mma-q64-kv64-w4-k1-v1-c2-overlap-qsmem-natural"},
    {64, 64, Mask::full, "q128+ kv1k-kv2k", "mma-q128-kv128-w4-k1-v1-c2-overlap-qsmem"},
    {64, 64, Mask::full, "q128+ kv8k+", "mma-q128-kv96-w4-k1-v1-c2-overlap-qregs"},
    {64, 64, Mask::causal, "q128+ kv1k-kv2k", "mma-q128-kv32-w4-k2-v2-c3-overlap-qsmem"},
    {64, 64, Mask::any, "q64+", "mma-q128-kv64-w4-k1-v1-c2-overlap-qregs"},

    {128, 128, Mask::full, "q128+ kv8k+", "mma-q256-kv64-w8-k2-v3-c1-rotate-qsmem"},
    {128, 128, Mask::any, "q64+", "mma-q128-kv64-w4-k2-v1-c2-overlap-qsmem"},
    {128, 128, Mask::any, "q64+", "mma-q128-kv64-w4-k1-v1-c2-overlap-qsmem"},
    {128, 128, Mask::any, "q64+", "mma-q128-kv48-w4-k2-v1-c2-overlap-qsmem"},
    {128, 128, Mask::any, "q64+", "mma-q128-kv64-w4-k2-v1-c1-overlap-qsmem"},
    {128, 128, Mask::any, "q64+", "mma-q128-kv32-w4-k2-v1-c2-overlap-qsmem"},
    {128, 128, Mask::any, "q64+", "mma-q128-kv32-w4-k2-v1-c1-overlap-qsmem"},

    {256, 256, Mask::any, "q128+ kv1k-kv2k", "mma-q64-kv64-w4-k1-v1-c2-overlap-qsmem"},
    {256, 256, Mask::any, "q64+", "mma-q128-kv128-w8-k1-v1-c1-overlap-qsmem"},
    {256, 256, Mask::any, "q64+", "mma-q128-kv64-w8-k1-v1-c1-overlap-qsmem"},
    {256, 256, Mask::any, "q64+", "mma-q64-kv64-w4-k1-v1-c1-overlap-qsmem"},
};

// --- The space -------------------------------------------------------------------------------------------------------

struct Tile {
  int block_q, warps, block_kv;
};
constexpr Tile kTiles[] = {
    {128, 4, 64}, {128, 4, 96}, {128, 4, 128}, {128, 4, 32},   // 32 rows a warp
    {256, 8, 64}, {256, 8, 48},                                // the same, eight warps
    {64, 4, 64},  {64, 4, 32},  {128, 8, 64},  {128, 8, 128},  // 16 rows a warp
};
struct Ring {
  Pipeline pipeline;
  int k_stages, v_stages;
};
constexpr Ring kRings[] = {{Pipeline::overlap, 1, 1}, {Pipeline::overlap, 2, 1}, {Pipeline::rotate, 2, 3}};

MmaVariant combine(const Tile& tile, const Ring& ring, QuerySource query) {
  MmaVariant variant;
  variant.block_q = tile.block_q, variant.warps = tile.warps, variant.block_kv = tile.block_kv;
  variant.pipeline = ring.pipeline, variant.k_stages = ring.k_stages, variant.v_stages = ring.v_stages;
  variant.query = query;
  return variant;
}

// Thread blocks on an SM, by the model: more of them hide more latency, as long as no register spills for it.
void add_most_blocks(MmaVariant variant, const Problem& problem, const Architecture& architecture,
                     std::vector<Candidate>& candidates) {
  constexpr int kMostWarps = 12;
  std::optional<Variant> taken;
  for (variant.ctas_per_sm = kMostWarps / variant.warps; variant.ctas_per_sm >= 1; --variant.ctas_per_sm) {
    candidates.push_back({variant, taken});
    if (!taken && why_illegal(problem, variant, architecture).empty()) taken = variant;
  }
}

}  // namespace

std::string why_illegal(const Problem& problem, const MmaVariant& variant, const Architecture& architecture) {
  if (std::string why = why_malformed(variant); !why.empty()) return why;
  // With a third of the registers ptxas spills in the prologue of larger head dims.
  constexpr int kManyBlocksHeadDim = 64;
  if (variant.ctas_per_sm > 2 && std::max(problem.head_dim, problem.head_dim_v) > kManyBlocksHeadDim)
    return fmt::format("variant: ctas_per_sm must be 1 or 2 for head dims over {}, was {}", kManyBlocksHeadDim,
                       variant.ctas_per_sm);
  const Plan plan = make_plan(problem, variant);
  if (plan.smem_bytes > architecture.smem_per_block)
    return fmt::format("variant: {} needs {} bytes of shared memory for {}, must be at most {} on {}",
                       spell_variant(variant), plan.smem_bytes, to_string(problem), architecture.smem_per_block,
                       architecture.name);
  if (variant.ctas_per_sm * (plan.smem_bytes + kReservedSmem) > architecture.smem_per_sm)
    return fmt::format("variant: {} needs {} x {} bytes of shared memory for {}, must be at most {} on {}",
                       spell_variant(variant), variant.ctas_per_sm, plan.smem_bytes + kReservedSmem, to_string(problem),
                       architecture.smem_per_sm, architecture.name);
  // The model was fitted on sm_90a. For the earlier targets ptxas needs a few more where warps rotate, for the later
  // ones up to twenty more.
  const int for_rotation = variant.pipeline == Pipeline::rotate ? 8 : 0;
  const int margin = architecture.major > 9 ? 20 : architecture.major < 9 ? for_rotation : 0;
  const int available =
      std::min(kMaxRegisters, kRegistersPerSm / (plan.threads * variant.ctas_per_sm) / 8 * 8) - margin;
  if (plan.registers > available)
    return fmt::format("variant: {} needs about {} registers a thread for {}, must be at most {}",
                       spell_variant(variant), plan.registers, to_string(problem), available);
  return {};
}

std::span<const DefaultRule> mma_default_rules() { return kRules; }

std::vector<Candidate> mma_candidates(const Problem& problem, const Architecture& architecture) {
  std::vector<Candidate> candidates;
  for (const Tile& tile : kTiles)
    for (const Ring& ring : kRings)
      for (QuerySource query : {QuerySource::shared, QuerySource::registers}) {
        MmaVariant variant = combine(tile, ring, query);
        variant.order = order_for(problem);
        add_most_blocks(variant, problem, architecture, candidates);
      }
  for (const char* step : {"v1", "v2", "v3", "v4", "v5"}) candidates.push_back({parse_variant(step), {}});
  return candidates;
}

}  // namespace flashjit::generator
