// SPDX-License-Identifier: Apache-2.0
// All that the host knows of the mma.sync forward kernel: its tunables, what of them is legal, the plan that follows,
// the defaults, what is worth trying, and its source. docs/kernels/forward_mma.md has the reasons.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "generator/arguments.h"
#include "generator/family.h"
#include "generator/features.h"
#include "generator/kernels/mma.h"
#include "generator/plan.h"
#include "generator/source.h"
#include "generator/source_parts.h"
#include "generator/tunables.h"

namespace flashjit {
namespace generator {
namespace {

// --- Tunables --------------------------------------------------------------------------------------------------------

constexpr Word<Pipeline> kPipelines[] = {{Pipeline::serial, "serial", "Pipeline::serial"},
                                         {Pipeline::overlap, "overlap", "Pipeline::overlap"},
                                         {Pipeline::rotate, "rotate", "Pipeline::rotate"}};
constexpr Word<SmemLayout> kLayouts[] = {{SmemLayout::linear, "linear", "false"},
                                         {SmemLayout::swizzle, "swizzle", "true"}};
constexpr Word<QuerySource> kQueries[] = {{QuerySource::shared, "qsmem", "false"},
                                          {QuerySource::registers, "qregs", "true"}};
constexpr Word<Rescale> kRescales[] = {
    {Rescale::always, "always", "false"}, {Rescale::rare, "rare", "true"}, {Rescale::lazy, "lazy"}};
constexpr Word<TileOrder> kOrders[] = {{TileOrder::natural, "natural", "false"},
                                       {TileOrder::longest_first, "longest", "true"}};
constexpr Word<bool> kSplits[] = {{false, "wholekv", "false"}, {true, "splitkv", "true"}};

using V = MmaVariant;
constexpr auto kTunables = std::make_tuple(
    Number<V>{&V::block_q, "block_q", "q", "kBlockQ"},
    Number<V>{&V::block_kv, "block_kv", "kv", "kBlockKv", 16, 128, 16},
    Number<V>{&V::warps, "warps", "w", "kWarps", 4, 8, 4}, Number<V>{&V::k_stages, "k_stages", "k", "kKStages", 1, 3},
    Number<V>{&V::v_stages, "v_stages", "v", "kVStages", 1, 3},
    Number<V>{&V::ctas_per_sm, "ctas_per_sm", "c", "", 1, 4}, choice(&V::pipeline, kPipelines, "Pipeline", "kPipeline"),
    choice(&V::layout, kLayouts, "bool", "kSwizzle"), Number<V>{&V::ldmatrix, "ldmatrix", "x", "kLdmatrix", 2, 4, 2},
    choice(&V::query, kQueries, "bool", "kQueryInRegisters"), choice(&V::rescale, kRescales, "bool", "kRareRescale"),
    choice(&V::order, kOrders, "bool", "kLongestFirst"), Extra<V>{choice(&V::split_kv, kSplits, "bool", "kSplitKv")});

// --- The plan --------------------------------------------------------------------------------------------------------

// Words of 16 bits of a row of queries, keys or values in shared memory.
int columns_of(const Problem& problem, int head_dim) { return padded(head_dim / q_elements_of_word(problem)); }

// Registers a thread needs: the output and score accumulators, two key steps of probabilities, a Q fragment or all of
// Q, the softmax state, and the rest for addresses, one K or V fragment and the loop. The rest and the surcharges were
// fitted to what ptxas 13.0 makes of the variants: those above the limit spill, those below do not, but for ALiBi at
// head dim 128 without a causal mask, where 24 B spill on sm_80. Dropout spills with all of them and is not counted.
int estimate_registers(const Problem& problem, const MmaVariant& variant) {
  const int m_tiles = variant.block_q / variant.warps / 16;
  const int columns = columns_of(problem, problem.head_dim), head_dim_v = padded(problem.head_dim_v);
  const int output = m_tiles * head_dim_v / 8 * 4;
  const int scores = m_tiles * variant.block_kv / 8 * 4;
  const int probabilities = 2 * m_tiles * 4;
  const int query = m_tiles * 4 * (variant.query == QuerySource::registers ? columns / 16 : 1);
  const int softmax = m_tiles * 6;
  constexpr int kRest = 27;
  const int many_scores = std::max(0, scores - 64);
  const int for_scores = has_diagonal(problem)                  ? many_scores * 9 / 32
                         : variant.pipeline == Pipeline::rotate ? many_scores / 32
                                                                : 0;
  // Rows of other widths are requested in bands of chunks, each with indices of its own.
  const int for_bands = problem.head_dim % 64 == 0 && problem.head_dim_v % 64 == 0 ? 0 : 1;
  const int for_two_layouts = columns == columns_of(problem, problem.head_dim_v) ? 0 : 2;
  const int for_query = has_diagonal(problem) && query > 32 ? 7 : 0;
  const int for_band = has_band(problem) ? scores / 8 : 0;  // clean steps mask, too
  const int for_parts = (has_cap(problem) + has_slopes(problem)) * scores / 4;
  const int for_predicates = has_part(Slot::predicate, problem) ? (problem.block_mask ? 56 : 28) : 0;
  const int for_texts = has_score_text(problem) ? scores * 3 / 8 + 12 : 0;
  const int for_sums = sums_apart(problem) ? m_tiles * 18 : 0;
  return output + scores + probabilities + query + softmax + kRest + for_sums + for_scores + for_query + for_band +
         std::max(for_parts, for_texts) + for_predicates + for_bands + for_two_layouts;
}

// Up to the arguments.
Plan make_usual_plan(const Problem& problem, const MmaVariant& variant) {
  const int columns = columns_of(problem, problem.head_dim), columns_v = columns_of(problem, problem.head_dim_v);
  const int q_tile = variant.block_q * columns * kElementBytes;
  const int k_ring = variant.k_stages * variant.block_kv * columns * kElementBytes;
  const int v_row = problem.values_transposed ? problem.head_dim_v : columns_v * kElementBytes;  // of a key
  const int v_ring = variant.v_stages * variant.block_kv * v_row;
  const int output = variant.block_q * padded(problem.head_dim_v / out_elements_of_word(problem)) * kElementBytes;
  const int q_beside_rings = variant.query == QuerySource::shared ? q_tile : 0;
  Plan plan{};
  plan.threads = variant.warps * kWarpSize;
  plan.smem_bytes = std::max({q_beside_rings + k_ring + v_ring, q_tile, output});
  plan.registers = estimate_registers(problem, variant);
  return plan;
}

// --- What goes together ----------------------------------------------------------------------------------------------

constexpr int kRegistersPerSm = 65536;
constexpr int kMaxRegisters = 255;   // of a thread
constexpr int kReservedSmem = 1024;  // the driver's share of shared memory for each resident block

std::string why_incompatible(const MmaVariant& v) {
  if (v.block_q != 16 * v.warps && v.block_q != 32 * v.warps)
    return must("block_q", "16 or 32 rows for each warp", v.block_q);
  if (v.split_kv && v.block_q != 16 * v.warps) return must("block_q", "16 rows for each warp with splitkv", v.block_q);
  if (v.pipeline == Pipeline::serial && (v.k_stages != 1 || v.v_stages != 1))
    return must("stages", "k1 and v1 with the serial pipeline", std::max(v.k_stages, v.v_stages));
  if (v.pipeline == Pipeline::rotate && (v.k_stages != 2 || v.v_stages != 3))
    return fmt::format("variant: stages must be k2 and v3 with the rotate pipeline, were k{} and v{}", v.k_stages,
                       v.v_stages);
  return {};
}

// Products of e4m3 take 32 keys at a time, whose values come by one ldmatrix.
std::string why_not_of_8_bits(const Problem& problem, const MmaVariant& v) {
  if (!is_of_8_bits(problem)) return {};
  const std::string of = fmt::format(" for queries of {}", to_string(q_dtype(problem)));
  if (v.block_kv % 32 != 0) return must("block_kv", "a multiple of 32" + of, v.block_kv);
  if (std::string why = why_not_of_one_scale(problem, v.block_kv); !why.empty()) return why;
  if (v.ldmatrix != 4) return must("ldmatrix", "x4" + of, v.ldmatrix);
  return {};
}

// Large heads with many features at once may need more registers than there are: what needs the fewest is legal for
// all, as a kernel that spills is better than none.
bool is_last_resort(const MmaVariant& v) {
  return v.block_q == 64 && v.warps == 4 && v.block_kv == 32 && v.k_stages == 1 && v.v_stages == 1 &&
         v.ctas_per_sm == 1 && v.pipeline == Pipeline::overlap && v.query == QuerySource::shared;
}

bool has_rotary_keys(const Problem& problem) { return problem.k_rotary; }

// --- Defaults --------------------------------------------------------------------------------------------------------

// What stands above fits large shared memory (sm_80, 90, 100, 103); what does not fit the 99 KiB of sm_86, 89 and 120
// falls through to a later line. Chosen from the measurements on the H200 in docs/kernels/forward_mma.md, where few
// queries share a tile on an H100.
constexpr DefaultRule kRules[] = {
    // Keys in two tensors, as MLA decodes: many heads share keys, so two groups of warps share what is copied. By
    // registers and shared memory, no chip was there to measure them.
    {kLargestHeadDim, kLargestHeadDimV, Mask::any, "q16+", "mma-q32-kv64-w8-k3-v3-c1-overlap-qsmem-splitkv",
     has_rotary_keys},
    {kLargestHeadDim, kLargestHeadDimV, Mask::any, "q16+", "mma-q32-kv64-w8-k2-v1-c1-overlap-qsmem-splitkv",
     has_rotary_keys},
    {kLargestHeadDim, kLargestHeadDimV, Mask::any, "q16+", "mma-q32-kv128-w8-k2-v1-c1-overlap-qsmem-splitkv",
     has_rotary_keys},
    {kLargestHeadDim, kLargestHeadDimV, Mask::any, "q16+", "mma-q16-kv128-w4-k2-v1-c1-overlap-qsmem-splitkv",
     has_rotary_keys},

    // Products of e4m3: by registers and shared memory, no chip was there to measure them.
    {128, 128, Mask::any, "q16-q64", "mma-q64-kv64-w4-k2-v2-c2-overlap-qregs-splitkv", is_of_8_bits},
    {256, 256, Mask::any, "q16-q64", "mma-q64-kv32-w4-k2-v2-c1-overlap-qsmem-splitkv", is_of_8_bits},
    {64, 64, Mask::any, "q16+", "mma-q128-kv64-w4-k2-v2-c2-overlap-qregs", is_of_8_bits},
    {128, 128, Mask::any, "q16+", "mma-q128-kv64-w4-k2-v2-c2-overlap-qsmem", is_of_8_bits},
    {192, 192, Mask::any, "q16+", "mma-q128-kv64-w8-k2-v2-c1-overlap-qsmem", is_of_8_bits},
    {256, 256, Mask::any, "q16+", "mma-q128-kv32-w8-k2-v2-c1-overlap-qsmem", is_of_8_bits},

    {128, 128, Mask::any, "q16-q64 w05", "mma-q64-kv64-w4-k3-v3-c1-overlap-qregs-splitkv"},
    {128, 128, Mask::any, "q16-q64", "mma-q64-kv64-w4-k2-v2-c2-overlap-qregs-splitkv"},
    {128, 128, Mask::any, "q16-q64", "mma-q64-kv64-w4-k2-v2-c1-overlap-qregs-splitkv"},
    {256, 256, Mask::any, "q16-q64", "mma-q64-kv32-w4-k2-v2-c1-overlap-qsmem-splitkv"},

    // With a window all tiles are equally long, and narrow blocks leave less of them outside.
    {64, 64, Mask::band, "q128+", "mma-q128-kv32-w4-k2-v2-c3-overlap-qsmem-natural"},
    {128, 128, Mask::band, "q128+", "mma-q128-kv32-w4-k2-v2-c2-overlap-qsmem-natural"},
    {128, 128, Mask::band, "q128+", "mma-q64-kv64-w4-k1-v1-c2-overlap-qsmem-natural"},
    {64, 64, Mask::full, "q128+ kv1k-kv2k", "mma-q128-kv128-w4-k1-v1-c2-overlap-qsmem"},
    {64, 64, Mask::full, "q128+ kv8k+", "mma-q128-kv96-w4-k1-v1-c2-overlap-qregs"},
    {64, 64, Mask::causal, "q128+ kv1k-kv2k", "mma-q128-kv32-w4-k2-v2-c3-overlap-qsmem"},
    {64, 64, Mask::any, "q16+", "mma-q128-kv64-w4-k1-v1-c2-overlap-qregs"},

    {128, 128, Mask::full, "q128+ kv8k+", "mma-q256-kv64-w8-k2-v3-c1-rotate-qsmem"},
    {128, 128, Mask::any, "q16+", "mma-q128-kv64-w4-k2-v1-c2-overlap-qsmem"},
    {128, 128, Mask::any, "q16+", "mma-q128-kv64-w4-k1-v1-c2-overlap-qsmem"},
    {128, 128, Mask::any, "q16+", "mma-q128-kv48-w4-k2-v2-c2-overlap-qsmem"},
    {128, 128, Mask::any, "q16+", "mma-q128-kv64-w4-k2-v1-c1-overlap-qsmem"},
    {128, 128, Mask::any, "q16+", "mma-q128-kv32-w4-k2-v1-c2-overlap-qsmem"},
    {128, 128, Mask::any, "q16+", "mma-q128-kv32-w4-k2-v1-c1-overlap-qsmem"},

    {256, 256, Mask::any, "q128+ kv1k-kv2k", "mma-q64-kv64-w4-k1-v1-c2-overlap-qsmem"},
    {256, 256, Mask::any, "q16+", "mma-q128-kv128-w8-k1-v1-c1-overlap-qsmem"},
    {256, 256, Mask::any, "q16+", "mma-q128-kv64-w8-k1-v1-c1-overlap-qsmem"},
    {256, 256, Mask::any, "q16+", "mma-q64-kv64-w4-k1-v1-c1-overlap-qsmem"},
    {256, 256, Mask::any, "q16+", "mma-q64-kv32-w4-k1-v1-c1-overlap-qsmem"},

    // Large heads: by registers and shared memory, no chip was there to measure them. Dropout needs 128 keys.
    {kLargestHeadDim, kLargestHeadDimV, Mask::any, "q16-q64", "mma-q16-kv64-w4-k3-v2-c2-overlap-qsmem-splitkv",
     is_large},
    {kLargestHeadDim, kLargestHeadDimV, Mask::any, "q16-q64", "mma-q16-kv64-w4-k2-v2-c1-overlap-qsmem-splitkv",
     is_large},
    {kLargestHeadDim, kLargestHeadDimV, Mask::any, "q16-q64", "mma-q16-kv128-w4-k2-v1-c1-overlap-qsmem-splitkv",
     is_large},
    {kLargestHeadDim, kLargestHeadDimV, Mask::any, "q16+", "mma-q64-kv64-w8-k3-v2-c1-overlap-qsmem", is_large},
    {kLargestHeadDim, kLargestHeadDimV, Mask::any, "q16+", "mma-q32-kv64-w4-k2-v1-c1-overlap-qsmem", is_large},
    {kLargestHeadDim, kLargestHeadDimV, Mask::any, "q16+", "mma-q64-kv128-w8-k2-v1-c1-overlap-qsmem", is_large},
    {kLargestHeadDim, kLargestHeadDimV, Mask::any, "q16+", "mma-q32-kv128-w4-k2-v1-c1-overlap-qsmem", is_large},
    {kLargestHeadDim, kLargestHeadDimV, Mask::any, "q16+", "mma-q16-kv64-w4-k2-v2-c1-overlap-qsmem", is_large},
    {kLargestHeadDim, kLargestHeadDimV, Mask::any, "q16+", "mma-q16-kv128-w4-k2-v1-c1-overlap-qsmem", is_large},
};

// For results that depend on their row alone: blocks of as many keys whatever the number of queries.
constexpr DefaultRule kInvariantRules[] = {
    {256, 256, Mask::any, "q16+", "mma-q64-kv32-w4-k2-v2-c2-overlap-qregs-always-splitkv"},
    {256, 256, Mask::any, "q16+", "mma-q64-kv32-w4-k1-v1-c1-overlap-qsmem-always-splitkv"},
    {kLargestHeadDim, kLargestHeadDimV, Mask::any, "q16+", "mma-q32-kv64-w8-k2-v2-c1-overlap-qsmem-always-splitkv",
     is_large},
    {kLargestHeadDim, kLargestHeadDimV, Mask::any, "q16+", "mma-q16-kv64-w4-k2-v1-c1-overlap-qsmem-always-splitkv",
     is_large},
    {kLargestHeadDim, kLargestHeadDimV, Mask::any, "q16+", "mma-q16-kv128-w4-k2-v1-c1-overlap-qsmem-always-splitkv",
     is_large},
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

// --- The source ------------------------------------------------------------------------------------------------------

std::string render_config(const Problem& problem, const MmaVariant& variant) {
  ConfigText config(problem);
  add_to(config, kTunables, variant);
  return config.text();
}

}  // namespace

std::string spell_variant(const MmaVariant& variant) { return spell_variant(kTunables, family_name(variant), variant); }
const void* read_part(std::string_view part, MmaVariant& variant) { return read_part(kTunables, part, variant); }
VariantKey::Words key_of(const MmaVariant& variant) noexcept { return key_of(kTunables, variant); }

Plan make_plan(const Problem& problem, const MmaVariant& variant) {
  Plan plan = is_large(problem) ? make_large_plan(problem, variant) : make_usual_plan(problem, variant);
  plan.argument_bytes = argument_bytes(problem, sizeof(MmaArguments) + (variant.split_kv ? sizeof(SplitArguments) : 0),
                                       alignof(MmaArguments));
  return plan;
}

std::string why_illegal(const Problem& problem, const MmaVariant& variant, const Architecture& architecture) {
  if (std::string why = why_out_of_range(kTunables, variant); !why.empty()) return why;
  if (variant.rescale == Rescale::lazy) return "variant: rescale must be always or rare in the mma family, was lazy";
  if (is_large(problem)) {
    if (std::string why = why_not_of_large(problem, variant); !why.empty()) return why;
  } else if (std::string why = why_incompatible(variant); !why.empty()) {
    return why;
  }
  if (needs_tma(problem, architecture)) return must("family", "hopper for " + to_string(problem), "mma");
  if (std::string why = why_not_of_8_bits(problem, variant); !why.empty()) return why;
  // E5m2 becomes f16 by moving bytes.
  if (problem.k_rotary && problem.e4m3 && !problem.e5m2 && !converts_to_8_bits(architecture))
    return must("architecture", "sm_89 or a later one for keys and values of e4m3", architecture.name);
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
  // sm_100a and sm_103a make f16 of what is of 8 bits first (docs/kernels/fp8.md).
  const int for_conversion = is_of_8_bits(problem) && architecture.major == 10 ? 40 : 0;
  const int margin = (architecture.major > 9 ? 20 : architecture.major < 9 ? for_rotation : 0) + for_conversion;
  const int available =
      std::min(kMaxRegisters, kRegistersPerSm / (plan.threads * variant.ctas_per_sm) / 8 * 8) - margin;
  if (plan.registers > available && !is_last_resort(variant))
    return fmt::format("variant: {} needs about {} registers a thread for {}, must be at most {}",
                       spell_variant(variant), plan.registers, to_string(problem), available);
  return {};
}

std::span<const DefaultRule> mma_default_rules() { return kRules; }
std::span<const DefaultRule> mma_invariant_rules() { return kInvariantRules; }

std::vector<Candidate> mma_candidates(const Problem& problem, const Architecture& architecture) {
  std::vector<Candidate> candidates;
  if (is_large(problem)) {
    for (const MmaVariant& variant : large_mma_tiles(problem))
      add_most_blocks(variant, problem, architecture, candidates);
    return candidates;
  }
  for (const Tile& tile : kTiles)
    for (const Ring& ring : kRings)
      for (QuerySource query : {QuerySource::shared, QuerySource::registers}) {
        MmaVariant variant = combine(tile, ring, query);
        variant.order = order_for(problem);
        add_most_blocks(variant, problem, architecture, candidates);
      }
  for (const char* tile :
       {"mma-q64-w4-kv64-k2-v2-c2-overlap-qregs-splitkv", "mma-q64-w4-kv32-k2-v2-c1-overlap-qsmem-splitkv"})
    candidates.push_back({parse_variant(tile), {}});
  for (const char* step : {"v1", "v2", "v3", "v4", "v5"}) candidates.push_back({parse_variant(step), {}});
  return candidates;
}

const char* template_of(const Problem& problem, const MmaVariant&) {
  return is_large(problem) ? "kernels/mma_large.cuh" : "kernels/mma_forward.cuh";
}

std::string render_kernel(const KernelSpec& spec, const MmaVariant& variant, std::string_view entry) {
  const Plan& plan = spec.plan();
  const bool overlaps = variant.split_kv && can_overlap_launches(spec.architecture());
  const std::string_view shape = is_large(spec.problem()) ? "LargeMmaShape" : "ForwardShape";
  const std::string_view kernel = is_large(spec.problem()) ? "LargeForwardMma" : "ForwardMma";
  return render_arguments("MmaArguments", spec.problem(), variant.split_kv) + render_config(spec.problem(), variant) +
         render({shape, plan.smem_bytes, plan.threads, plan.argument_bytes}) +
         fmt::format(
             "extern \"C\" __global__ void __launch_bounds__({0}, {1})\n"
             "    {2}(const __grid_constant__ Arguments args) {{\n"
             "  extern __shared__ __align__(128) char smem[];\n"
             "{3}"
             "  if (!{4}<Config>::has_tile(args)) return;\n"
             "  bool far = {4}<Config>::expects_far(args);\n"
             "  while (!{4}<Config>(args, ptx::cvta_to_shared(smem), far).run()) far = true;\n"
             "}}\n",
             plan.threads, variant.ctas_per_sm, entry, overlaps ? "  ptx::launch_dependents();\n" : "", kernel);
}

}  // namespace generator

bool operator==(const MmaVariant& a, const MmaVariant& b) noexcept {
  return generator::equal(generator::kTunables, a, b);
}
bool operator<(const MmaVariant& a, const MmaVariant& b) noexcept {
  return generator::less(generator::kTunables, a, b);
}

}  // namespace flashjit
