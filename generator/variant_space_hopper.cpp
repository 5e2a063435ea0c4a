// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "generator/family_space.h"
#include "generator/plan.h"
#include "generator/variant_space.h"
#include "generator/variant_words.h"

namespace flashjit::generator {
namespace {

constexpr std::string_view kArchitecture = "sm_90a";  // wgmma and setmaxnreg exist there and nowhere else

// --- What each field may be, and which go together -------------------------------------------------------------------

std::string why_out_of_range(const HopperVariant& v) {
  if (v.block_q < 64 || v.block_q > 256 || v.block_q % 64 != 0)
    return must("block_q", "a multiple of 64 from 64 to 256", v.block_q);
  if (v.block_kv < 16 || v.block_kv > 256 || v.block_kv % 16 != 0)
    return must("block_kv", "a multiple of 16 from 16 to 256", v.block_kv);
  if (v.stages < 1 || v.stages > 4) return must("stages", "1 to 4", v.stages);
  if (v.q_stages < 1 || v.q_stages > 2) return must("q_stages", "1 or 2", v.q_stages);
  if (v.cluster < 1 || v.cluster > 2) return must("cluster", "1 or 2", v.cluster);
  return {};
}

// The next tile's scores are issued with the last P V: they need its query, its first keys and registers to be there.
std::string why_not_fused(const HopperVariant& v) {
  if (v.overlap != GemmSoftmax::two_stage) return must("overlap", "2stage with fused", spell(kOverlaps, v.overlap));
  if (!v.warp_specialized) return must("warp_specialized", "ws with fused", "nows");
  if (v.output == OutputSlot::query) return must("output", "half or whole with fused", "oquery");
  if (v.scheduler == Scheduler::single) return must("scheduler", "fixed or dynamic with fused", "single");
  if (v.stages < 2) return must("stages", "2 to 4 with fused", v.stages);
  return {};
}

// One consumer thread does the loads of a tile, in between: nothing runs ahead of the tile.
std::string why_not_unspecialized(const HopperVariant& v) {
  if (v.cluster != 1) return must("cluster", "1 with nows", v.cluster);
  if (v.q_stages != 1) return must("q_stages", "1 with nows", v.q_stages);
  if (v.scheduler == Scheduler::dynamic) return must("scheduler", "single or fixed with nows", "dynamic");
  if (v.stages < 2) return must("stages", "2 to 4 with nows", v.stages);
  return {};
}

std::string why_incompatible(const HopperVariant& v) {
  if (v.boundary == TileBoundary::fused)
    if (std::string why = why_not_fused(v); !why.empty()) return why;
  if (!v.warp_specialized)
    if (std::string why = why_not_unspecialized(v); !why.empty()) return why;
  if (v.ping_pong != PingPong::off && v.block_q < 128)
    return must("block_q", fmt::format("128 or more with {}", spell(kPingPongs, v.ping_pong)), v.block_q);
  if (v.ping_pong == PingPong::softmax && v.overlap != GemmSoftmax::serial)
    return must("overlap", "serial with ppsoftmax", spell(kOverlaps, v.overlap));
  if (v.rescale == Rescale::lazy && v.overlap == GemmSoftmax::three_stage)
    return must("rescale", "always or rare with 3stage, whose keys do not stay", "lazy");
  if (v.cluster == 2 && v.scheduler == Scheduler::dynamic)
    return must("scheduler", "single or fixed with cl2", "dynamic");
  if (v.scheduler == Scheduler::single && v.q_stages != 1) return must("q_stages", "1 with single", v.q_stages);
  return {};
}

// --- What the problem allows -----------------------------------------------------------------------------------------

std::string why_no_output_slot(const Problem& problem, const HopperVariant& v) {
  const Panels panels = panels_of(problem.head_dim), panels_v = panels_of(problem.head_dim_v);
  if (v.output == OutputSlot::half && panels_v.count < 2)
    return fmt::format("variant: output must be oquery or whole for {}, whose output is one panel, was half",
                       to_string(problem));
  if (v.output == OutputSlot::query && (panels_v.columns != panels.columns || panels_v.count > panels.count))
    return fmt::format(
        "variant: output must be half or whole for {}, whose output does not fit the place of q, was "
        "oquery",
        to_string(problem));
  return {};
}

std::string why_too_large(const Problem& problem, const HopperVariant& v, const Architecture& architecture) {
  const Plan plan = make_plan(problem, v);
  if (plan.smem_bytes > architecture.smem_per_block)
    return fmt::format("variant: {} needs {} bytes of shared memory for {}, must be at most {} on {}", spell_variant(v),
                       plan.smem_bytes, to_string(problem), architecture.smem_per_block, architecture.name);
  // ptxas allots an instruction's registers from those of the launch, before any move between warpgroups.
  constexpr int kRegistersOfSm = 65536, kMaxRegisters = 255, kBesideAccumulator = 30;
  const int at_launch = std::min(kMaxRegisters, kRegistersOfSm / plan.threads / 8 * 8);
  const int columns = std::max(v.block_kv, problem.head_dim_v);
  if (columns / 2 + kBesideAccumulator > at_launch)
    return fmt::format("variant: block_kv and head_dim_v must be at most {} with {} rows, was {}",
                       (at_launch - kBesideAccumulator) / 4 * 8, v.block_q, columns);
  if (plan.registers > available_registers(v))
    return fmt::format("variant: {} needs about {} registers a thread for {}, must be at most {}", spell_variant(v),
                       plan.registers, to_string(problem), available_registers(v));
  return {};
}

// --- Defaults --------------------------------------------------------------------------------------------------------

// Calls of few queries are left to the mma family. Chosen from the measurements on the H200 in
// docs/kernels/hopper_forward.md; the last two lines are legal for every problem.
constexpr DefaultRule kRules[] = {
    {64, 64, Mask::full, kBelow1k, "hopper-q256-kv64-s4-qs2-whole-2stage-ppgemm-lazy-fixed-fused"},
    {64, 64, Mask::full, kFrom1k, "hopper-q256-kv64-s4-qs2-whole-2stage-ppoff-lazy-fixed-fused"},
    {64, 64, Mask::causal, kManyQueries, "hopper-q256-kv64-s4-qs2-whole-2stage-ppgemm-lazy-dynamic-fused"},

    {128, 128, Mask::full, kBelow1k, "hopper-q128-kv128-s2-qs2-whole-2stage-ppgemm-rare-fixed-fused"},
    {128, 128, Mask::full, kFrom1k, "hopper-q128-kv128-s2-qs2-whole-2stage-ppgemm-lazy-fixed-fused"},
    {128, 128, Mask::causal, kBelow1k, "hopper-q128-kv64-s4-qs2-whole-2stage-ppgemm-lazy-dynamic-fused"},
    {128, 128, Mask::causal, kFrom1k, "hopper-q128-kv128-s2-qs2-whole-2stage-ppgemm-lazy-dynamic-fused"},

    {192, 128, Mask::full, kManyQueries, "hopper-q128-kv128-s2-qs1-half-2stage-ppgemm-rare-fixed-split"},
    {192, 128, Mask::causal, kManyQueries, "hopper-q128-kv128-s2-qs1-half-2stage-ppgemm-rare-dynamic-split"},
    {256, 256, Mask::full, kManyQueries, "hopper-q128-kv64-s2-qs1-half-2stage-ppgemm-rare-fixed-split"},
    {256, 256, Mask::causal, kManyQueries, "hopper-q128-kv64-s2-qs1-half-2stage-ppgemm-rare-dynamic-split"},
    {256, 64, Mask::full, kManyQueries, "hopper-q128-kv64-s2-qs1-whole-2stage-ppgemm-rare-fixed-split"},
    {256, 64, Mask::causal, kManyQueries, "hopper-q128-kv64-s2-qs1-whole-2stage-ppgemm-rare-dynamic-split"},
};

// --- The space -------------------------------------------------------------------------------------------------------

constexpr const char* kTiles[] = {"q128-kv128", "q128-kv176", "q128-kv96", "q128-kv80", "q128-kv64",
                                  "q128-kv48",  "q192-kv128", "q192-kv80", "q256-kv64", "q64-kv128"};
// How the work of a tile overlaps: tried with every tile.
constexpr const char* kSchemes[] = {"2stage-ppgemm-fused", "2stage-ppgemm-split", "2stage-ppoff-split",
                                    "serial-ppsoftmax-split", "3stage-ppgemm-split"};
// How shared memory is spent: the first that fits is taken.
constexpr const char* kStorages[] = {"s2-qs2-whole", "s2-qs1-whole", "s2-qs1-half", "s2-qs1-oquery", "s1-qs1-whole"};
// One choice at a time, on a tile that leaves room for it.
constexpr const char* kRoomyTile = "q128-kv64-2stage-ppgemm-split";
constexpr const char* kChoices[] = {"always",       "lazy",       "nows-ppoff-fixed", "nows-ppoff-single", "psmem",
                                    "cl2-fixed",    "fixed",      "single",           "natural",           "longest",
                                    "serial-ppoff", "kv32-3stage"};
// Other uses of shared memory, on a tile that is small whatever the head dims.
constexpr const char* kSmallTile = "q64-kv32-2stage-ppoff-split";
constexpr const char* kOtherStorages[] = {"s1-qs1-oquery", "s3-qs2-whole", "s4-qs1-whole"};

HopperVariant change(const HopperVariant& variant, std::string_view parts) {
  return std::get<HopperVariant>(parse_variant(parts, variant));
}

// Illegal when no storage fits.
HopperVariant store(HopperVariant variant, const Problem& problem, const Architecture& architecture) {
  for (const char* storage : kStorages) {
    variant = change(variant, storage);
    if (why_illegal(problem, variant, architecture).empty()) break;
  }
  return variant;
}

}  // namespace

bool has_hopper_kernels(const Architecture& architecture) noexcept { return architecture.name == kArchitecture; }

std::string why_illegal(const Problem& problem, const HopperVariant& variant, const Architecture& architecture) {
  if (!has_hopper_kernels(architecture))
    return must("architecture of the hopper family", kArchitecture, architecture.name);
  if (std::string why = why_out_of_range(variant); !why.empty()) return why;
  if (std::string why = why_incompatible(variant); !why.empty()) return why;
  if (std::string why = why_no_output_slot(problem, variant); !why.empty()) return why;
  return why_too_large(problem, variant, architecture);
}

std::span<const DefaultRule> hopper_default_rules() { return kRules; }

std::vector<HopperVariant> hopper_candidates(const Problem& problem, const Architecture& architecture) {
  HopperVariant plain;
  plain.order = order_for(problem);
  std::vector<HopperVariant> variants;
  for (const char* tile : kTiles)
    for (const char* scheme : kSchemes)
      variants.push_back(store(change(change(plain, tile), scheme), problem, architecture));
  for (const char* choice : kChoices)
    variants.push_back(store(change(change(plain, kRoomyTile), choice), problem, architecture));
  for (const char* storage : kOtherStorages) variants.push_back(change(change(plain, kSmallTile), storage));
  return variants;
}

}  // namespace flashjit::generator
