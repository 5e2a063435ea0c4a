// SPDX-License-Identifier: Apache-2.0
// All that the host knows of the Hopper forward kernel: its tunables, what of them is legal, the plan that follows, the
// defaults, what is worth trying, and its source. docs/kernels/hopper_forward.md has the reasons.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "generator/arguments.h"
#include "generator/family.h"
#include "generator/features.h"
#include "generator/kernels/hopper.h"
#include "generator/matrices.h"
#include "generator/stand_ins.h"
#include "generator/tunables.h"
#include "generator/variant_space.h"

namespace flashjit {
namespace generator {
namespace {

constexpr std::string_view kArchitecture = "sm_90a";  // wgmma and setmaxnreg exist there and nowhere else

// --- Tunables --------------------------------------------------------------------------------------------------------

constexpr Word<OutputSlot> kOutputs[] = {{OutputSlot::query, "oquery", "OutputSlot::query"},
                                         {OutputSlot::half, "half", "OutputSlot::half"},
                                         {OutputSlot::whole, "whole", "OutputSlot::whole"}};
constexpr Word<GemmSoftmax> kOverlaps[] = {{GemmSoftmax::serial, "serial", "GemmSoftmax::serial"},
                                           {GemmSoftmax::two_stage, "2stage", "GemmSoftmax::two_stage"},
                                           {GemmSoftmax::three_stage, "3stage", "GemmSoftmax::three_stage"}};
constexpr Word<PingPong> kPingPongs[] = {{PingPong::off, "ppoff", "PingPong::off"},
                                         {PingPong::gemm, "ppgemm", "PingPong::gemm"},
                                         {PingPong::softmax, "ppsoftmax", "PingPong::softmax"}};
constexpr Word<bool> kSpecializations[] = {{true, "ws", "true"}, {false, "nows", "false"}};
constexpr Word<ProbabilitySource> kProbabilities[] = {{ProbabilitySource::registers, "pregs", "true"},
                                                      {ProbabilitySource::shared, "psmem", "false"}};
constexpr Word<Rescale> kRescales[] = {{Rescale::always, "always", "Rescale::always"},
                                       {Rescale::rare, "rare", "Rescale::rare"},
                                       {Rescale::lazy, "lazy", "Rescale::lazy"}};
constexpr Word<Scheduler> kSchedulers[] = {{Scheduler::single, "single", "Scheduler::single"},
                                           {Scheduler::fixed, "fixed", "Scheduler::fixed"},
                                           {Scheduler::dynamic, "dynamic", "Scheduler::dynamic"}};
constexpr Word<TileOrder> kOrders[] = {{TileOrder::natural, "natural", "false"},
                                       {TileOrder::longest_first, "longest", "true"}};
constexpr Word<TileBoundary> kBoundaries[] = {{TileBoundary::split, "split", "false"},
                                              {TileBoundary::fused, "fused", "true"}};
constexpr Word<bool> kSplits[] = {{false, "wholekv", "false"}, {true, "splitkv", "true"}};

using V = HopperVariant;
constexpr auto kTunables = std::make_tuple(
    Number<V>{&V::block_q, "block_q", "q", "kBlockQ"},
    Number<V>{&V::block_kv, "block_kv", "kv", "kBlockKv", 16, 256, 16},
    Number<V>{&V::stages, "stages", "s", "kStages", 1, 4}, Number<V>{&V::q_stages, "q_stages", "qs", "kQStages", 1, 2},
    choice(&V::output, kOutputs, "OutputSlot", "kOutputSlot"),
    choice(&V::overlap, kOverlaps, "GemmSoftmax", "kOverlap"),
    choice(&V::ping_pong, kPingPongs, "PingPong", "kPingPong"),
    choice(&V::warp_specialized, kSpecializations, "bool", "kWarpSpecialized"),
    choice(&V::probabilities, kProbabilities, "bool", "kProbabilitiesInRegisters"),
    Number<V>{&V::cluster, "cluster", "cl", "kCluster", 1, 2}, choice(&V::rescale, kRescales, "Rescale", "kRescale"),
    choice(&V::scheduler, kSchedulers, "Scheduler", "kScheduler"), choice(&V::order, kOrders, "bool", "kLongestFirst"),
    choice(&V::boundary, kBoundaries, "bool", "kFusedBoundary"),
    Extra<V>{choice(&V::split_kv, kSplits, "bool", "kSplitKv")});

// --- The plan --------------------------------------------------------------------------------------------------------

constexpr int kMmaRows = 16;        // that the warps of a warpgroup share, where mma.sync multiplies them
constexpr int kFmaRows[] = {4, 8};  // where FFMA does
// Of the two warps that load for them, which are four where keys stand in pages.
constexpr int kFeederThreads = 64, kPageFeederThreads = 128;
constexpr int kChunkBytes = 16;
constexpr int kPlaceBytes = 64;              // where two tiles' sequences lie
constexpr int kSplitBytes = 32;              // what two tiles have of their keys
constexpr int kNoteBytes = 32;               // what the producer tells of listed blocks
constexpr int kBarrierBytes = 256;           // the barriers of all rings and the next tile's number
constexpr int kTransposedBarrierBytes = 64;  // and of that of transposed values

bool shares_rows(const HopperVariant& variant) { return variant.block_q <= kMmaRows; }
bool uses_tensor_cores(const HopperVariant& variant) { return variant.block_q >= kMmaRows; }
int warpgroups(const HopperVariant& variant) { return shares_rows(variant) ? 1 : variant.block_q / kWarpgroupRows; }
int producer_threads(const Problem& problem, const HopperVariant& variant) {
  if (shares_rows(variant)) return problem.paged ? kPageFeederThreads : kFeederThreads;
  return variant.warp_specialized ? kWarpgroupThreads : 0;
}

// Of values that come transposed, whose rows have the keys of a block: as wide a panel as divides it.
int keys_of_panel(const HopperVariant& variant) {
  constexpr int kMost = 128;
  return std::min(variant.block_kv & -variant.block_kv, kMost);
}

// Of products that stand apart, so many columns at a time: halves of the output, and of a wide one, whose registers are
// scarce, less.
int columns_apart(const Problem& problem) {
  constexpr int kWide = 160, kColumnsOfWide = 64, kColumnStep = 8;  // wgmma's
  return problem.head_dim_v > kWide ? kColumnsOfWide : round_up(problem.head_dim_v / 2, kColumnStep);
}

// Of a warp that has all rows: the output and the query, unless that is long, and scores and P of its keys. Without
// tensor cores a lane has some dims of all rows in f32.
int estimate_registers_of_shared_rows(const Problem& problem, const HopperVariant& variant) {
  constexpr int kLongestKeptQuery = 128, kWarps = kWarpgroupThreads / 32, kRest = 48;
  constexpr int kDimsOfLane = 8;
  const int scores = variant.block_kv / kWarps * 3 / 4;
  if (!uses_tensor_cores(variant)) return 2 * variant.block_q * kDimsOfLane + scores + kRest;
  const int query = problem.head_dim > kLongestKeptQuery ? 0 : problem.head_dim / 4;
  return problem.head_dim_v / 2 + query + scores + kRest;
}

// Registers a thread needs: the accumulators, P, and the rest for addresses, descriptors, softmax state and the loop. P
// neither takes the place of S register by register nor goes to shared memory piece by piece, so that it always counts.
// The rest and the surcharges were fitted to what ptxas 13.0 makes of the variants: those above the limit spill, those
// below do not.
int estimate_registers(const Problem& problem, const HopperVariant& variant) {
  if (shares_rows(variant)) return estimate_registers_of_shared_rows(problem, variant);
  const int scores = variant.block_kv / 2;
  const int second_scores = variant.overlap == GemmSoftmax::three_stage ? scores : 0;
  const int probabilities = variant.block_kv / (4 * q_elements_of_word(problem));
  const int output = (problem.head_dim_v + (sums_apart(problem) ? columns_apart(problem) : 0)) / 2;
  const int rest = warpgroups(variant) <= 2 ? 36 : 32;
  const int for_overlap = variant.overlap == GemmSoftmax::serial        ? scores * 3 / 16
                          : variant.overlap == GemmSoftmax::three_stage ? scores / 8
                                                                        : std::max(0, scores - 88);
  const int for_store = variant.probabilities == ProbabilitySource::shared ? 4 : 0;
  const int for_loads = variant.warp_specialized ? 0 : 24;
  const int for_cluster = variant.cluster == 1 ? 0 : 4;
  return scores + second_scores + probabilities + output + rest + for_overlap + for_store + for_loads + for_cluster;
}

// What the warps that share rows have made, and the other blocks of a cluster: PartialRows of hopper/joined_row.cuh.
int parts_bytes(const Problem& problem, const HopperVariant& variant) {
  if (!shares_rows(variant)) return 0;
  constexpr int kParts = 11, kColumnsOfProducts = 16, kStateBytes = 8;
  const int apart = uses_tensor_cores(variant) ? 32 : 0;
  const int columns = round_up(problem.head_dim_v, kColumnsOfProducts);
  return kParts * variant.block_q * (columns * static_cast<int>(sizeof(float)) + apart + kStateBytes);
}

int output_bytes(const Problem& problem, const HopperVariant& variant) {
  if (shares_rows(variant)) return 0;
  const Panels panels = out_panels_of(problem);
  switch (variant.output) {
    case OutputSlot::query:
      return 0;
    case OutputSlot::half:
      return variant.block_q * ((panels.count + 1) / 2) * panels.columns * kElementBytes;
    case OutputSlot::whole:
      break;
  }
  return variant.block_q * panels.row_bytes();
}

// --- What goes together ----------------------------------------------------------------------------------------------

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

// Warps that share rows wait for nobody, and each keeps what it has of the output: much of what there is to choose for
// warpgroups says nothing to them.
std::string why_not_shared(const Problem& problem, const HopperVariant& v) {
  const auto with = [&v](std::string_view what) { return fmt::format("{} with q{}", what, v.block_q); };
  if (v.block_kv % kWarpgroupRows != 0) return must("block_kv", with("64, 128, 192 or 256"), v.block_kv);
  if (has_part(Slot::probability, problem) && v.block_kv % 128 != 0)
    return must("block_kv", with("128 or 256 for dropout"), v.block_kv);
  if (v.q_stages != 1) return must("q_stages", with("1"), v.q_stages);
  if (v.output != OutputSlot::whole) return must("output", with("whole"), spell(kOutputs, v.output));
  if (v.overlap != GemmSoftmax::serial) return must("overlap", with("serial"), spell(kOverlaps, v.overlap));
  if (v.ping_pong != PingPong::off) return must("ping_pong", with("ppoff"), spell(kPingPongs, v.ping_pong));
  if (!v.warp_specialized) return must("warp_specialized", with("ws"), "nows");
  if (v.probabilities != ProbabilitySource::registers) return must("probabilities", with("pregs"), "psmem");
  if (v.cluster != 1) return must("cluster", with("1"), v.cluster);
  if (v.rescale == Rescale::lazy) return must("rescale", with("always or rare"), "lazy");
  if (v.scheduler != Scheduler::fixed) return must("scheduler", with("fixed"), spell(kSchedulers, v.scheduler));
  if (v.boundary != TileBoundary::split) return must("boundary", with("split"), "fused");
  if (!v.split_kv) return must("split_kv", with("splitkv"), "wholekv");
  return {};
}

std::string why_no_block_q(const HopperVariant& v) {
  const bool by_fma = std::find(std::begin(kFmaRows), std::end(kFmaRows), v.block_q) != std::end(kFmaRows);
  const bool of_warpgroups = v.block_q % kWarpgroupRows == 0 && v.block_q >= kWarpgroupRows && v.block_q <= 256;
  if (by_fma || v.block_q == kMmaRows || of_warpgroups) return {};
  return must("block_q",
              fmt::format("{}, {}, {} or a multiple of 64 from 64 to 256", kFmaRows[0], kFmaRows[1], kMmaRows),
              v.block_q);
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

// Products of e4m3 are wgmma's, of 32 keys at a time, in blocks whose values are transposed for them. Else what is
// stored in 8 bits becomes elements in registers, which wgmma does not take keys and values from, in the layouts of
// mma.sync.
std::string why_not_stored(const Problem& problem, const HopperVariant& v) {
  if (!has_part(Slot::stored, problem)) return {};
  if (problem.e4m3_queries) {
    constexpr int kDepth = 32;
    const std::string of = fmt::format(" for queries of {}", to_string(q_dtype(problem)));
    if (shares_rows(v)) return must("block_q", "64 or more" + of, v.block_q);
    if (v.block_kv % kDepth != 0) return must("block_kv", fmt::format("a multiple of {}{}", kDepth, of), v.block_kv);
    if (std::string why = why_not_of_one_scale(problem, v.block_kv); !why.empty()) return why;
    return v.cluster == 1 ? "" : must("cluster", "1" + of, v.cluster);
  }
  if (v.block_q == kMmaRows) return {};
  return must("block_q", fmt::format("{} for keys and values of {}", kMmaRows, to_string(kv_dtype(problem))),
              v.block_q);
}

// Blocks of a cluster share K and V, and so would have to list the same blocks, and have tiles of one sequence.
std::string why_not_listed(const Problem& problem, const HopperVariant& v) {
  if (v.cluster == 1) return {};
  if (v.split_kv) return must("cluster", "1 with splitkv", v.cluster);
  if (problem.block_mask) return must("cluster", "1 with a block mask", v.cluster);
  return problem.ragged ? must("cluster", "1 with a ragged batch", v.cluster) : "";
}

// The kernel of the ablation has no part but the causal mask, and splits nothing.
std::string why_not_served(const Problem& problem, const HopperVariant& v) {
  Problem plain = problem;
  plain.causal = false;
  if (!v.split_kv && feature_bits(plain) == 0) return {};
  const std::string with = v.split_kv ? " with splitkv" : " for " + to_string(problem);
  if (!v.warp_specialized) return must("warp_specialized", "ws" + with, "nows");
  if (v.probabilities == ProbabilitySource::shared) return must("probabilities", "pregs" + with, "psmem");
  if (v.output == OutputSlot::query) return must("output", "half or whole" + with, "oquery");
  if (v.overlap == GemmSoftmax::three_stage) return must("overlap", "serial or 2stage" + with, "3stage");
  return {};
}

// --- What the problem allows -----------------------------------------------------------------------------------------

std::string why_no_output_slot(const Problem& problem, const HopperVariant& v) {
  const Panels panels = q_panels_of(problem), panels_v = out_panels_of(problem);
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

// Whether what makes scores of products is most of the code, at head dims where it competes with much else.
bool is_mostly_scores(const Problem& problem) {
  return problem.head_dim > 64 && (has_score_text(problem) || has_part(Slot::predicate, problem));
}

// Whether probabilities are dropped, and nothing beside it takes many registers.
bool is_mostly_dropout(const Problem& problem) {
  return problem.dropout && !has_score_text(problem) && !problem.bias && !problem.block_mask &&
         !has_part(Slot::predicate, problem);
}

// Whether a user's mask asks memory for each key: that is then what takes the time, however wide a block is.
bool has_fetching_mask(const Problem& problem) {
  return problem.mask && !stand_in_of(*problem.mask).tensors.empty() && !problem.block_mask;
}

bool is_ragged(const Problem& problem) { return problem.ragged; }
bool is_summed_fast(const Problem& problem) { return problem.fast_sums; }
bool is_stored_in_8_bits(const Problem& problem) { return has_part(Slot::stored, problem) && !is_of_8_bits(problem); }

// Few queries and full GPUs: chosen from the measurements on the H200 in docs/kernels/hopper_forward.md, and at head
// dim 96 from the records inside the library. All rules for up to half a tile, one, two or four for each SM: from these
// records, the fastest that several neighbouring buckets share. For few queries the last line is legal for every
// problem, for more of them the last two are.
constexpr DefaultRule kRules[] = {
    // Products of e4m3, from the tables of docs/kernels/fp8.md.
    {64, 64, Mask::full, "q128+ kv1k-kv8k", "hopper-q256-kv64-s4-qs2-whole-2stage-ppoff-lazy-dynamic-fused",
     is_summed_fast},
    {64, 64, Mask::any, "q128+ kv1k-kv8k", "hopper-q256-kv64-s2-qs2-whole-2stage-ppoff-lazy-dynamic-split",
     is_summed_fast},
    {64, 64, Mask::any, "q128+", "hopper-q192-kv128-s2-qs2-whole-2stage-ppoff-lazy-dynamic-split", is_summed_fast},
    {64, 64, Mask::full, "q128+", "hopper-q192-kv128-s2-qs2-whole-2stage-ppoff-lazy-dynamic-fused", is_of_8_bits},
    {64, 64, Mask::any, "q128+ kv1k-kv2k", "hopper-q128-kv128-s2-qs2-whole-2stage-ppoff-lazy-dynamic-split",
     is_of_8_bits},
    {64, 64, Mask::any, "q128+", "hopper-q192-kv128-s2-qs2-whole-2stage-ppoff-lazy-dynamic-split", is_of_8_bits},
    {128, 128, Mask::full, "q128+ kv1k-kv2k", "hopper-q128-kv128-s2-qs2-whole-2stage-ppoff-lazy-dynamic-fused",
     is_summed_fast},
    {128, 128, Mask::any, "q128+ kv1k-kv2k", "hopper-q128-kv128-s2-qs2-whole-2stage-ppoff-lazy-dynamic-split",
     is_summed_fast},
    {128, 128, Mask::any, "q128+", "hopper-q192-kv96-s2-qs2-whole-2stage-ppoff-lazy-dynamic-split", is_summed_fast},
    {128, 128, Mask::any, "q128+", "hopper-q128-kv128-s2-qs2-whole-2stage-ppoff-lazy-dynamic-split", is_of_8_bits},
    {256, 256, Mask::causal, "q128+ kv1k", "hopper-q128-kv64-s2-qs2-whole-2stage-ppoff-rare-dynamic-split",
     is_summed_fast},
    {256, 256, Mask::any, "q128+", "hopper-q128-kv96-s2-qs1-half-2stage-ppoff-rare-dynamic-split", is_summed_fast},
    {256, 256, Mask::any, "q128+", "hopper-q128-kv32-s3-qs1-whole-2stage-ppoff-rare-dynamic-split", is_of_8_bits},
    {128, 128, Mask::any, "q16+ w05", "hopper-q64-kv64-s2-qs2-whole-2stage-ppoff-rare-dynamic-split-splitkv",
     is_of_8_bits},
    {256, 256, Mask::any, "q16+", "hopper-q64-kv64-s2-qs2-whole-2stage-ppoff-rare-dynamic-split", is_of_8_bits},
    {256, 256, Mask::any, "q16+", "hopper-q64-kv32-s2-qs1-whole-2stage-ppoff-rare-dynamic-split", is_of_8_bits},

    // Of keys and values in 8 bits, however many queries. Their bytes become elements for longer than they come, so
    // blocks of many keys, of which a warp has two sixteens to work on; at head dims up to 64 two blocks a
    // multiprocessor are the faster for it, above one with many slots.
    {64, 64, Mask::any, "q16+", "hopper-q16-kv128-s2-qs1-whole-serial-ppoff-rare-fixed-split-splitkv",
     is_stored_in_8_bits},
    {128, 128, Mask::any, "q16+", "hopper-q16-kv128-s4-qs1-whole-serial-ppoff-rare-fixed-split-splitkv",
     is_stored_in_8_bits},
    {256, 256, Mask::any, "q16+", "hopper-q16-kv64-s3-qs1-whole-serial-ppoff-rare-fixed-split-splitkv",
     [](const Problem& problem) { return is_stored_in_8_bits(problem) && !problem.ragged; }},
    {256, 256, Mask::any, "q16+", "hopper-q16-kv128-s2-qs1-whole-serial-ppoff-rare-fixed-split-splitkv",
     is_stored_in_8_bits},

    // With dropout at head dim 64 three warpgroups, one of which computes while others wait, in tiles apart, unless
    // predicates need their registers; with slopes and texts a third one for what they cost; with a cap and no causal
    // mask what does not spill; with texts and predicates tiles apart, which is a fifth less to compile and no slower;
    // with texts of scores and many keys fewer of them in a block, which is another seventh less to compile and 2 %
    // slower, with masks that ask memory half as many, which is a fifth less and as fast; a block of a bias has its
    // place in shared memory.
    {64, 64, Mask::any, "q128+ w4+", "hopper-q192-kv128-s2-qs2-whole-2stage-ppgemm-lazy-dynamic-split",
     is_mostly_dropout},
    {64, 64, Mask::any, "q128+", "hopper-q128-kv128-s3-qs2-whole-2stage-ppoff-lazy-dynamic-split",
     [](const Problem& problem) { return has_part(Slot::probability, problem); }},
    {128, 128, Mask::any, "q128+", "hopper-q128-kv128-s2-qs2-whole-2stage-ppgemm-lazy-dynamic-split",
     [](const Problem& problem) { return problem.head_dim > 64 && problem.dropout; }},
    {64, 64, Mask::causal, "q128+ kv8k+ w4+", "hopper-q192-kv128-s2-qs2-whole-2stage-ppgemm-lazy-dynamic-split",
     [](const Problem& problem) { return has_score_text(problem) && !problem.bias && !problem.block_mask; }},
    {64, 64, Mask::causal, "q128+ kv8k+ w4+", "hopper-q192-kv128-s2-qs2-whole-2stage-ppgemm-lazy-dynamic-fused",
     [](const Problem& problem) { return has_slopes(problem) && !problem.bias && !problem.block_mask; }},
    {128, 128, Mask::full, "q128+ kv2k+", "hopper-q128-kv128-s2-qs2-whole-2stage-ppgemm-rare-fixed-fused",
     [](const Problem& problem) { return has_cap(problem) && !is_mostly_scores(problem); }},
    {128, 128, Mask::any, "q128+ kv2k+", "hopper-q128-kv64-s2-qs2-whole-2stage-ppgemm-lazy-dynamic-split",
     has_fetching_mask},
    {128, 128, Mask::any, "q128+ kv8k+", "hopper-q128-kv96-s2-qs2-whole-2stage-ppgemm-lazy-dynamic-split",
     [](const Problem& problem) { return is_mostly_scores(problem) && has_score_text(problem); }},
    {128, 128, Mask::any, "q128+", "hopper-q128-kv128-s2-qs2-whole-2stage-ppgemm-lazy-dynamic-split", is_mostly_scores},
    {128, 128, Mask::any, "q128+", "hopper-q128-kv128-s2-qs1-half-2stage-ppgemm-lazy-dynamic-split", is_mostly_scores},
    // Few rows, which see few blocks together, and many keys of which a warp asks at once; of long sequences more rows.
    {64, 64, Mask::causal, "q128+ kvmore w4+", "hopper-q192-kv128-s2-qs2-whole-2stage-ppgemm-lazy-dynamic-fused",
     [](const Problem& problem) {
       return problem.block_mask && !has_slopes(problem) && !has_score_text(problem) && !problem.bias;
     }},
    {64, 64, Mask::any, "q128+", "hopper-q128-kv128-s3-qs2-whole-2stage-ppoff-lazy-dynamic-fused",
     [](const Problem& problem) { return problem.block_mask; }},

    // Few rows: warps share them, and keys are split where tiles are few or lengths unknown. Where tiles are many, keys
    // are split at head dims from 97 to 128, by kernels of 64 rows.
    {64, 64, Mask::any, "q16", "hopper-q16-kv128-s4-qs1-whole-serial-ppoff-rare-fixed-split-splitkv", is_ragged},
    {128, 128, Mask::any, "q16", "hopper-q16-kv128-s2-qs1-whole-serial-ppoff-rare-fixed-split-splitkv", is_ragged},
    {256, 256, Mask::any, "q16", "hopper-q16-kv64-s2-qs1-whole-serial-ppoff-rare-fixed-split-splitkv", is_ragged},
    {64, 64, Mask::any, "q16 w05", "hopper-q16-kv128-s4-qs1-whole-serial-ppoff-rare-fixed-split-splitkv"},
    {128, 128, Mask::any, "q16 w05", "hopper-q16-kv128-s2-qs1-whole-serial-ppoff-rare-fixed-split-splitkv"},
    {192, 192, Mask::any, "q16 w05", "hopper-q16-kv64-s3-qs1-whole-serial-ppoff-rare-fixed-split-splitkv"},
    {256, 256, Mask::any, "q16 w05", "hopper-q16-kv64-s2-qs1-whole-serial-ppoff-rare-fixed-split-splitkv"},
    {128, 128, Mask::any, "q16", "hopper-q64-kv64-s2-qs2-whole-2stage-ppoff-rare-dynamic-split-splitkv",
     [](const Problem& problem) { return problem.head_dim > 96; }},
    // Few queries: blocks of 64 keys, which are split where there are few heads, too.
    {128, 128, Mask::any, "q16-q64 w05", "hopper-q64-kv64-s2-qs2-whole-2stage-ppoff-rare-dynamic-split-splitkv"},
    {128, 128, Mask::any, "q16-q64", "hopper-q64-kv64-s2-qs2-whole-2stage-ppoff-rare-dynamic-split-splitkv", is_ragged},
    {192, 192, Mask::any, "q16-q64 w05", "hopper-q64-kv64-s2-qs1-whole-2stage-ppoff-rare-dynamic-split-splitkv"},
    {256, 256, Mask::any, "q16-q64 w05", "hopper-q64-kv32-s3-qs2-whole-2stage-ppoff-rare-dynamic-split-splitkv"},
    {64, 64, Mask::any, "q16-q64", "hopper-q64-kv128-s2-qs2-whole-2stage-ppoff-rare-dynamic-split"},
    {96, 96, Mask::causal, "q16-q64 kvmore w4+", "hopper-q128-kv128-s2-qs2-whole-2stage-ppgemm-lazy-fixed-fused"},
    {96, 96, Mask::any, "q16-q64 kv2k+ w4+", "hopper-q128-kv128-s2-qs2-whole-2stage-ppgemm-rare-fixed-fused"},
    {96, 96, Mask::full, "q16-q64 kv8k+ w2", "hopper-q128-kv128-s2-qs2-whole-2stage-ppgemm-rare-fixed-fused"},
    {192, 128, Mask::any, "q16-q64", "hopper-q64-kv128-s2-qs2-whole-2stage-ppoff-rare-dynamic-split"},
    {256, 256, Mask::any, "q16-q64", "hopper-q64-kv32-s3-qs2-whole-2stage-ppoff-rare-dynamic-split"},

    {64, 64, Mask::any, "q128+ kv2k+ w05", "hopper-q64-kv128-s2-qs2-whole-2stage-ppoff-lazy-dynamic-split"},
    {64, 64, Mask::full, "q128+ kv1k w05", "hopper-q64-kv128-s2-qs2-whole-2stage-ppoff-rare-dynamic-split"},
    {64, 64, Mask::full, "q128 kv2k w1", "hopper-q128-kv128-s2-qs1-whole-2stage-ppgemm-lazy-single-split"},
    {64, 64, Mask::full, "q128+ kv1k-kv2k w1", "hopper-q64-kv64-s2-qs2-whole-2stage-ppoff-lazy-dynamic-split"},
    {64, 64, Mask::full, "q128+ kv8k w1", "hopper-q128-kv128-s2-qs2-whole-2stage-ppgemm-rare-dynamic-fused"},
    {64, 64, Mask::full, "q128+ kvmore w1", "hopper-q128-kv128-s2-qs2-whole-2stage-ppgemm-rare-fixed-fused"},
    {64, 64, Mask::causal, "qmore kv1k-kv2k w1", "hopper-q64-kv64-s2-qs2-whole-2stage-ppoff-lazy-dynamic-split"},
    {64, 64, Mask::causal, "q128+ kv1k-kv2k w05-w1", "hopper-q64-kv64-s2-qs1-whole-2stage-ppoff-rare-single-split"},
    {64, 64, Mask::causal, "qmore kv8k+ w1", "hopper-q64-kv128-s2-qs1-whole-2stage-ppoff-rare-single-split"},
    {64, 64, Mask::causal, "q128 kv8k+ w1", "hopper-q128-kv128-s2-qs1-whole-2stage-ppgemm-lazy-single-split"},
    {64, 64, Mask::causal, "qmore kv8k+ w2", "hopper-q128-kv128-s2-qs1-whole-2stage-ppgemm-lazy-single-split"},
    {64, 64, Mask::causal, "qmore kv8k+ w4", "hopper-q256-kv64-s2-qs1-whole-2stage-ppgemm-lazy-single-split"},
    {64, 64, Mask::full, "q128+ kv1k", "hopper-q256-kv64-s4-qs2-whole-2stage-ppgemm-lazy-fixed-fused"},
    {64, 64, Mask::full, "q128+ kv2k+", "hopper-q256-kv64-s4-qs2-whole-2stage-ppoff-lazy-fixed-fused"},
    {64, 64, Mask::causal, "q128+", "hopper-q256-kv64-s4-qs2-whole-2stage-ppgemm-lazy-dynamic-fused"},

    {96, 96, Mask::full, "qmore kv1k w05", "hopper-q64-kv128-s2-qs2-whole-2stage-ppoff-rare-dynamic-split"},
    {96, 96, Mask::causal, "qmore kv2k w05", "hopper-q64-kv128-s2-qs2-whole-2stage-ppoff-rare-dynamic-split"},
    {96, 96, Mask::causal, "q128 kv1k w05", "hopper-q64-kv64-s2-qs1-whole-2stage-ppoff-rare-single-split"},
    {192, 128, Mask::causal, "qmore kv1k w05", "hopper-q64-kv64-s2-qs1-whole-2stage-ppoff-rare-single-split"},
    {192, 128, Mask::causal, "qmore kv2k w05", "hopper-q64-kv64-s2-qs2-whole-2stage-ppoff-lazy-dynamic-split"},
    {192, 128, Mask::causal, "q128 kv1k w05", "hopper-q64-kv64-s2-qs2-whole-2stage-ppoff-lazy-dynamic-split"},
    {192, 128, Mask::any, "q128+ w05", "hopper-q64-kv128-s2-qs2-whole-2stage-ppoff-lazy-dynamic-split"},
    {192, 128, Mask::causal, "qmore kv8k+ w1", "hopper-q64-kv128-s2-qs1-whole-2stage-ppoff-rare-single-split"},
    // With a window all tiles are equally long, and narrow blocks leave less of them outside.
    {128, 128, Mask::band, "q128+ kv1k-kv2k w4+", "hopper-q128-kv64-s3-qs2-whole-2stage-ppgemm-lazy-dynamic-fused"},
    {128, 128, Mask::causal, "qmore kv8k+ w2", "hopper-q128-kv128-s2-qs1-whole-2stage-ppgemm-lazy-single-split"},
    {128, 128, Mask::full, "q128+ kv1k", "hopper-q128-kv128-s2-qs2-whole-2stage-ppgemm-rare-fixed-fused"},
    {128, 128, Mask::full, "q128+ kv2k+", "hopper-q128-kv128-s2-qs2-whole-2stage-ppgemm-lazy-fixed-fused"},
    {128, 128, Mask::causal, "q128+ kv1k", "hopper-q128-kv64-s4-qs2-whole-2stage-ppgemm-lazy-dynamic-fused"},
    {128, 128, Mask::causal, "q128+ kv2k+", "hopper-q128-kv128-s2-qs2-whole-2stage-ppgemm-lazy-dynamic-fused"},

    {192, 128, Mask::causal, "qmore kv8k+ w2-w4", "hopper-q128-kv128-s2-qs1-half-2stage-ppgemm-lazy-single-split"},
    {192, 128, Mask::full, "q128+", "hopper-q128-kv128-s2-qs1-half-2stage-ppgemm-rare-fixed-split"},
    {192, 128, Mask::causal, "q128+", "hopper-q128-kv128-s2-qs1-half-2stage-ppgemm-rare-dynamic-split"},

    {256, 256, Mask::any, "q128+ w05", "hopper-q64-kv64-s2-qs2-whole-2stage-ppoff-lazy-dynamic-split"},
    {256, 256, Mask::causal, "qmore kv2k+ w1", "hopper-q64-kv64-s2-qs1-whole-2stage-ppoff-rare-single-split"},
    {256, 256, Mask::causal, "qmore kv8k w2-w4", "hopper-q128-kv64-s2-qs1-half-2stage-ppgemm-lazy-single-split"},
    {256, 256, Mask::causal, "qmore kvmore w2", "hopper-q128-kv64-s2-qs1-half-2stage-ppgemm-cl2-rare-single-split"},
    {256, 256, Mask::causal, "qmore kvmore w4", "hopper-q128-kv64-s2-qs1-half-2stage-ppgemm-rare-single-split"},
    {256, 256, Mask::full, "q128+", "hopper-q128-kv64-s2-qs1-half-2stage-ppgemm-rare-fixed-split"},
    {256, 256, Mask::causal, "q128+", "hopper-q128-kv64-s2-qs1-half-2stage-ppgemm-rare-dynamic-split"},
    {256, 64, Mask::full, "q128+", "hopper-q128-kv64-s2-qs1-whole-2stage-ppgemm-rare-fixed-split"},
    {256, 64, Mask::causal, "q128+", "hopper-q128-kv64-s2-qs1-whole-2stage-ppgemm-rare-dynamic-split"},

    // Large heads, as measured for docs/kernels/large_heads.md: pairs of blocks share keys where queries and keys are
    // many, unless half of the values are where keys were. Few queries split their keys; beside many, too, where pages
    // speak for batches that mix both.
    {kLargestHeadDim, kLargestHeadDimV, Mask::any, "q128+ kv2k+",
     "hopper-q64-kv64-s1-qs1-oquery-2stage-ppoff-cl2-rare-single-split-splitkv",
     [](const Problem& problem) { return is_large(problem) && problem.paged && !problem.latent; }},
    {kLargestHeadDim, kLargestHeadDimV, Mask::any, "q128+ kv2k+",
     "hopper-q64-kv64-s1-qs1-oquery-2stage-ppoff-cl2-rare-single-split",
     [](const Problem& problem) { return is_large(problem) && !problem.latent; }},
    {kLargestHeadDim, kLargestHeadDimV, Mask::any, "q128+",
     "hopper-q64-kv64-s1-qs1-oquery-2stage-ppoff-rare-single-split",
     [](const Problem& problem) { return is_large(problem) && !problem.paged; }},
    // Beside these splits spill.
    {kLargestHeadDim, kLargestHeadDimV, Mask::any, "q16+",
     "hopper-q64-kv64-s1-qs1-oquery-2stage-ppoff-rare-single-split",
     [](const Problem& problem) { return is_large(problem) && (problem.dropout || problem.dropout_mask); }},
    {kLargestHeadDim, kLargestHeadDimV, Mask::causal, "q16+",
     "hopper-q64-kv64-s1-qs1-oquery-2stage-ppoff-rare-single-split",
     [](const Problem& problem) { return is_large(problem) && problem.bias; }},
    {kLargestHeadDim, kLargestHeadDimV, Mask::any, "q16+",
     "hopper-q64-kv64-s1-qs1-oquery-2stage-ppoff-rare-single-split-splitkv", is_large},
};

// For results that depend on their row alone: at a head dim blocks of as many keys whatever the number of queries.
constexpr DefaultRule kInvariantRules[] = {
    {128, 128, Mask::any, "q128+", "hopper-q128-kv64-s3-qs2-whole-2stage-ppgemm-always-dynamic-split-splitkv"},
    {128, 128, Mask::any, "q16+", "hopper-q64-kv64-s2-qs2-whole-2stage-ppoff-always-dynamic-split-splitkv"},
    {192, 192, Mask::any, "q16+", "hopper-q64-kv64-s2-qs1-whole-2stage-ppoff-always-dynamic-split-splitkv"},
    {256, 256, Mask::any, "q16+", "hopper-q64-kv32-s3-qs1-whole-2stage-ppoff-always-dynamic-split-splitkv"},
};

// --- The space -------------------------------------------------------------------------------------------------------

constexpr const char* kTiles[] = {"q128-kv128", "q128-kv176", "q128-kv96", "q128-kv80", "q128-kv64", "q128-kv48",
                                  "q192-kv128", "q192-kv80",  "q256-kv64", "q64-kv128", "q64-kv64"};
// How the work of a tile overlaps: tried with every tile.
constexpr const char* kSchemes[] = {"2stage-ppgemm-fused", "2stage-ppgemm-split", "2stage-ppoff-split",
                                    "serial-ppsoftmax-split", "3stage-ppgemm-split"};
// How shared memory is spent: the first that fits is taken.
constexpr const char* kStorages[] = {"s2-qs2-whole", "s2-qs1-whole", "s2-qs1-half", "s2-qs1-oquery", "s1-qs1-whole"};
// The tiles that were the fastest somewhere, and what they were the fastest with.
constexpr const char* kGoodTiles[] = {"q128-kv128", "q128-kv64", "q192-kv128", "q192-kv80", "q256-kv64"};
constexpr const char* kGoodSchemes[] = {"2stage-ppgemm-lazy-dynamic-fused", "2stage-ppgemm-lazy-dynamic-split",
                                        "2stage-ppgemm-lazy-fixed-fused",   "2stage-ppgemm-rare-fixed-fused",
                                        "2stage-ppgemm-rare-single-split",  "2stage-ppgemm-lazy-single-split",
                                        "2stage-ppoff-lazy-dynamic-fused",  "2stage-ppoff-rare-single-split"};
// The same for few queries, where a lone warpgroup computes.
constexpr const char* kLowTiles[] = {"q64-kv128", "q64-kv64"};
constexpr const char* kLowSchemes[] = {"2stage-ppoff-lazy-dynamic-split", "2stage-ppoff-rare-dynamic-fused",
                                       "2stage-ppoff-rare-single-split", "2stage-ppoff-rare-dynamic-split-splitkv"};
// For even fewer, whose rows warps share.
constexpr const char* kSharedTiles[] = {"q16-kv64-s3", "q16-kv64-s2", "q16-kv128-s3", "q16-kv128-s2"};
// Of products of e4m3.
constexpr const char* kTilesOf8Bits[] = {"q192-kv96",  "q192-kv128", "q128-kv128", "q256-kv64",
                                         "q128-kv160", "q128-kv32",  "q64-kv32"};
constexpr const char* kSchemesOf8Bits[] = {"2stage-ppoff-lazy-dynamic-fused", "2stage-ppoff-rare-dynamic-fused",
                                           "2stage-ppoff-lazy-dynamic-split", "2stage-ppoff-rare-dynamic-split"};
constexpr const char* kSharedTilesOf8Bits[] = {"q16-kv64-s4", "q16-kv128-s3", "q16-kv128-s4"};
constexpr const char* kSharedScheme = "qs1-whole-serial-ppoff-rare-fixed-split-splitkv";
// Deep rings, where they fit.
constexpr const char* kDeepTiles[] = {"q128-kv64-s4-qs2-whole", "q256-kv64-s4-qs2-whole"};
constexpr const char* kDeepSchemes[] = {"2stage-ppgemm-rare-dynamic-fused", "2stage-ppgemm-lazy-dynamic-fused",
                                        "2stage-ppgemm-lazy-fixed-fused", "2stage-ppoff-lazy-fixed-fused"};
// One choice at a time, on a tile that leaves room for it.
constexpr const char* kRoomyTile = "q128-kv64-2stage-ppgemm-split";
constexpr const char* kChoices[] = {
    "always",     "lazy",  "nows-ppoff-fixed", "nows-ppoff-single", "psmem",   "cl2-fixed",    "cl2-lazy-fixed",
    "cl2-single", "fixed", "single",           "natural",           "longest", "serial-ppoff", "kv32-3stage"};
// Other uses of shared memory, on a tile that is small whatever the head dims.
constexpr const char* kSmallTile = "q64-kv32-2stage-ppoff-split";
constexpr const char* kOtherStorages[] = {"s1-qs1-oquery", "s3-qs2-whole", "s4-qs1-whole"};

HopperVariant change(const HopperVariant& variant, std::string_view parts) {
  return std::get<HopperVariant>(parse_variant(parts, variant));
}

class Candidates {
 public:
  Candidates(const Problem& problem, const Architecture& architecture)
      : problem_(problem), architecture_(architecture) {
    plain_.order = order_for(problem);
  }

  void add(std::string_view tile, std::string_view scheme) { list.push_back({made_of(tile, scheme), {}}); }

  // With the first storage that fits.
  void add_stored(std::string_view tile, std::string_view scheme) {
    std::optional<Variant> taken;
    for (const char* storage : kStorages) {
      const HopperVariant variant = change(made_of(tile, scheme), storage);
      list.push_back({variant, taken});
      if (!taken && why_illegal(problem_, variant, architecture_).empty()) taken = variant;
    }
  }

  std::vector<Candidate> list;

 private:
  HopperVariant made_of(std::string_view tile, std::string_view scheme) const {
    return change(change(plain_, tile), scheme);
  }

  const Problem& problem_;
  const Architecture& architecture_;
  HopperVariant plain_;
};

// --- The source ------------------------------------------------------------------------------------------------------

constexpr std::string_view kScoreType = "ScoreMatrix", kNextScoreType = "NextScoreMatrix",
                           kProbabilityType = "ProbabilityMatrix", kOutputType = "OutputMatrix";
constexpr int kWgmmaBytes = 32;  // of a step

// What probabilities are of.
DType of_probabilities(const Problem& problem) { return problem.e4m3_queries ? DType::e4m3 : problem.dtype; }

std::string render_matrices(const Problem& problem, const HopperVariant& variant) {
  if (shares_rows(variant)) return {};
  const bool p_in_registers = variant.probabilities == ProbabilitySource::registers;
  const bool ahead = variant.overlap == GemmSoftmax::three_stage;
  const bool drops = has_part(Slot::probability, problem);
  const DType dtype = of_probabilities(problem);
  const int depth = kWgmmaBytes / static_cast<int>(size_of(dtype));
  ScoreMatrix scores{.type = kScoreType,
                     .registers = "s",
                     .dtype = q_dtype(problem),
                     .keys = variant.block_kv,
                     .steps = (problem.head_dim + depth - 1) / depth,
                     .key_row_bytes = q_panels_of(problem).columns * kElementBytes,
                     .packs = !p_in_registers,
                     .takes = ahead ? "n" : "",
                     .transforms = has_part(Slot::score, problem),
                     .probabilities = drops ? "p" : ""};
  std::string text = render(scores);
  if (ahead) {
    scores.type = kNextScoreType;
    scores.registers = "n";
    scores.takes = "";
    text += render(scores);
  }
  if (p_in_registers)
    text += render(ProbabilityMatrix{.type = kProbabilityType,
                                     .registers = "p",
                                     .dtype = dtype,
                                     .keys = variant.block_kv,
                                     .scores = drops ? "" : "s",
                                     .in_order_of_keys = problem.values_transposed});
  return text + render(OutputMatrix{.type = kOutputType,
                                    .registers = "o",
                                    .dtype = dtype,
                                    .columns = problem.head_dim_v,
                                    .steps = variant.block_kv / depth,
                                    .probabilities = p_in_registers ? "p" : "",
                                    .reads = variant.split_kv,
                                    .packed = out_dtype(problem),
                                    .values = problem.e4m3_queries ? kv_dtype(problem) : dtype,
                                    .apart = sums_apart(problem) ? "t" : "",
                                    .columns_apart = columns_apart(problem),
                                    .weighs = problem.block_scales});
}

// Of one SM: so many have registers, and shared memory where the rings are short.
int blocks_at_once(const Problem& problem, const HopperVariant& variant, const Plan& plan) {
  constexpr int kSmemOfSm = 228 * 1024, kReserved = 1024, kMostColumns = 128, kRegistersOfTwo = 168;
  const bool has_registers =
      uses_tensor_cores(variant) ? problem.head_dim_v <= kMostColumns : plan.registers <= kRegistersOfTwo;
  const bool fits = 2 * (plan.smem_bytes + kReserved) <= kSmemOfSm && has_registers;
  return shares_rows(variant) && fits ? 2 : 1;
}

ConfigText config_of(const Problem& problem, const HopperVariant& variant) {
  ConfigText config(problem, can_fetch(problem, variant));
  add_to(config, kTunables, variant);
  return config;
}

std::string render_config(const Problem& problem, const HopperVariant& variant) {
  ConfigText config = config_of(problem, variant);
  if (shares_rows(variant)) return config.text();
  config.use("Scores", kScoreType);
  if (variant.overlap == GemmSoftmax::three_stage) config.use("NextScores", kNextScoreType);
  if (variant.probabilities == ProbabilitySource::registers) config.use("Probabilities", kProbabilityType);
  config.use("Output", kOutputType);
  return config.text();
}

}  // namespace

std::string spell_variant(const HopperVariant& variant) {
  return spell_variant(kTunables, family_name(variant), variant);
}
const void* read_part(std::string_view part, HopperVariant& variant) { return read_part(kTunables, part, variant); }
VariantKey::Words key_of(const HopperVariant& variant) noexcept { return key_of(kTunables, variant); }

int Panels::row_bytes() const { return count * columns * kElementBytes; }

Panels panels_of(int head_dim) {
  const int columns = head_dim > 32 ? 64 : head_dim > 16 ? 32 : 16;
  return {columns, (head_dim + columns - 1) / columns};
}

int q_elements_of_word(const Problem& problem) { return static_cast<int>(kElementBytes / size_of(q_dtype(problem))); }
int kv_elements_of_word(const Problem& problem) { return static_cast<int>(kElementBytes / size_of(kv_dtype(problem))); }
DType out_dtype(const Problem& problem) noexcept { return problem.out_e4m3 ? DType::e4m3 : problem.dtype; }
int out_elements_of_word(const Problem& problem) {
  return static_cast<int>(kElementBytes / size_of(out_dtype(problem)));
}

Panels q_panels_of(const Problem& problem) {
  const int of_word = q_elements_of_word(problem);
  return panels_of((problem.head_dim + of_word - 1) / of_word);
}
Panels kv_panels_of(const Problem& problem, int head_dim) {
  const int of_word = kv_elements_of_word(problem);
  return panels_of((head_dim + of_word - 1) / of_word);
}
Panels out_panels_of(const Problem& problem) {
  const int of_word = out_elements_of_word(problem);
  return panels_of((problem.head_dim_v + of_word - 1) / of_word);
}

// After setmaxnreg the consumers have what the producer gives up; without a producer, what the launch gives to each. A
// lone consumer has as many from the start, of which ptxas spares some.
int available_registers(const HopperVariant& variant) {
  constexpr int kSpecialized[] = {228, 232, 160, 112};
  constexpr int kUniform[] = {255, 255, 168, 128};
  constexpr int kOfSharedRows = 255;
  if (shares_rows(variant)) return kOfSharedRows;
  const int at = warpgroups(variant) - 1;
  return variant.warp_specialized ? kSpecialized[at] : kUniform[at];
}

// In the order of memory: Q tiles, K ring, V ring, transposed V, output slot, P, what parts fetch, barriers.
Plan make_plan(const Problem& problem, const HopperVariant& variant) {
  if (is_large(problem)) return make_large_plan(problem, variant);
  const Panels panels = q_panels_of(problem);
  const Panels panels_k = kv_panels_of(problem, problem.head_dim), panels_v = kv_panels_of(problem, problem.head_dim_v);
  const int q_tiles = round_up(variant.q_stages * variant.block_q * panels.row_bytes(), kSwizzleBytes);
  const int transposed = problem.e4m3_queries ? variant.stages * variant.block_kv * problem.head_dim_v : 0;
  const bool turns = problem.e4m3_queries && !problem.values_transposed;
  const int loaded = panels_k.row_bytes() + (problem.values_transposed ? 0 : panels_v.row_bytes());
  const int rings = variant.stages * variant.block_kv * loaded + round_up(transposed, kSwizzleBytes);
  const int probabilities =
      variant.probabilities == ProbabilitySource::shared ? variant.block_q * variant.block_kv * kElementBytes : 0;
  const int fetched_row = variant.block_kv * kElementBytes + kChunkBytes;  // no two in the same banks
  const int fetched = is_fetched(problem) && can_fetch(problem, variant) ? variant.block_q * fetched_row : 0;
  Plan plan{};
  plan.threads = kWarpgroupThreads * warpgroups(variant) + producer_threads(problem, variant);
  plan.smem_bytes = q_tiles + std::max(rings, parts_bytes(problem, variant)) + output_bytes(problem, variant) +
                    probabilities + fetched + kBarrierBytes + (turns ? kTransposedBarrierBytes : 0) +
                    (problem.block_mask ? kNoteBytes : 0) + (problem.ragged ? kPlaceBytes : 0) +
                    (variant.split_kv ? kSplitBytes : 0);
  plan.registers = estimate_registers(problem, variant);
  plan.argument_bytes = argument_bytes(
      problem, sizeof(HopperArguments) + (variant.split_kv ? sizeof(SplitArguments) : 0), alignof(HopperArguments));
  const int of_word = kv_elements_of_word(problem);
  plan.box_columns = {panels.columns * q_elements_of_word(problem), panels_k.columns * of_word,
                      problem.values_transposed ? keys_of_panel(variant) : panels_v.columns * of_word,
                      out_panels_of(problem).columns * out_elements_of_word(problem)};
  return plan;
}

bool shares_rows(const Variant& variant) noexcept {
  const auto* hopper = std::get_if<HopperVariant>(&variant);
  return hopper && shares_rows(*hopper);
}

bool serves_ablation(const HopperVariant& v) noexcept {
  return !v.warp_specialized || v.probabilities == ProbabilitySource::shared || v.output == OutputSlot::query ||
         v.overlap == GemmSoftmax::three_stage;
}

bool has_hopper_kernels(const Architecture& architecture) noexcept { return architecture.name == kArchitecture; }

std::string why_illegal(const Problem& problem, const HopperVariant& variant, const Architecture& architecture) {
  if (!has_hopper_kernels(architecture))
    return must("architecture of the hopper family", kArchitecture, architecture.name);
  if (is_large(problem)) return why_illegal_large(problem, variant);
  if (std::string why = why_no_block_q(variant); !why.empty()) return why;
  if (std::string why = why_out_of_range(kTunables, variant); !why.empty()) return why;
  if (shares_rows(variant)) {
    if (std::string why = why_not_shared(problem, variant); !why.empty()) return why;
  }
  if (std::string why = why_incompatible(variant); !why.empty()) return why;
  if (std::string why = why_not_served(problem, variant); !why.empty()) return why;
  if (std::string why = why_not_stored(problem, variant); !why.empty()) return why;
  if (std::string why = why_not_listed(problem, variant); !why.empty()) return why;
  if (std::string why = why_no_output_slot(problem, variant); !why.empty()) return why;
  return why_too_large(problem, variant, architecture);
}

std::span<const DefaultRule> hopper_default_rules() { return kRules; }
std::span<const DefaultRule> hopper_invariant_rules() { return kInvariantRules; }

std::vector<Candidate> hopper_candidates(const Problem& problem, const Architecture& architecture) {
  if (!has_hopper_kernels(architecture)) return {};
  if (is_large(problem)) return large_candidates(problem);
  Candidates candidates(problem, architecture);
  for (const char* tile : kTiles)
    for (const char* scheme : kSchemes) candidates.add_stored(tile, scheme);
  for (const char* choice : kChoices) candidates.add_stored(kRoomyTile, choice);
  for (const char* storage : kOtherStorages) candidates.add(kSmallTile, storage);
  for (const char* tile : kGoodTiles)
    for (const char* scheme : kGoodSchemes) candidates.add_stored(tile, scheme);
  for (const char* tile : kLowTiles)
    for (const char* scheme : kLowSchemes) candidates.add_stored(tile, scheme);
  for (const char* tile : kSharedTiles) candidates.add(tile, kSharedScheme);
  if (is_of_8_bits(problem))
    for (const char* tile : kTilesOf8Bits)
      for (const char* scheme : kSchemesOf8Bits) candidates.add_stored(tile, scheme);
  if (is_stored_in_8_bits(problem))
    for (const char* tile : kSharedTilesOf8Bits) candidates.add(tile, kSharedScheme);
  for (const char* tile : kDeepTiles)
    for (const char* scheme : kDeepSchemes) candidates.add(tile, scheme);
  return std::move(candidates.list);
}

const char* template_of(const Problem& problem, const HopperVariant& variant) {
  if (is_large(problem)) return "kernels/hopper_large.cuh";
  return serves_ablation(variant) ? "kernels/hopper_ablation.cuh"
         : shares_rows(variant)   ? "kernels/hopper_decode.cuh"
                                  : "kernels/hopper_forward.cuh";
}

std::string render_kernel(const KernelSpec& spec, const HopperVariant& variant, std::string_view entry) {
  if (is_large(spec.problem())) return render_large_kernel(spec, variant, entry, config_of(spec.problem(), variant));
  const Plan& plan = spec.plan();
  const std::string cluster = variant.cluster == 1 ? "" : fmt::format(" __cluster_dims__({}, 1, 1)", variant.cluster);
  return render_arguments("HopperArguments", spec.problem(), variant.split_kv) +
         render_matrices(spec.problem(), variant) + render_config(spec.problem(), variant) +
         render({"HopperShape", plan.smem_bytes, plan.threads, plan.argument_bytes}) +
         fmt::format(
             "extern \"C\" __global__ void __launch_bounds__({}, {}){}\n"
             "    {}(const __grid_constant__ Arguments args) {{\n"
             "  extern __shared__ __align__(1024) char smem[];\n"  // a swizzle repeats after 1024 bytes
             "  {}<Config>(args, ptx::cvta_to_shared(smem));\n"
             "}}\n",
             plan.threads, blocks_at_once(spec.problem(), variant, plan), cluster, entry,
             serves_ablation(variant) ? "forward_hopper_ablation"
             : shares_rows(variant)   ? "forward_hopper_decode"
                                      : "forward_hopper");
}

}  // namespace generator

bool operator==(const HopperVariant& a, const HopperVariant& b) noexcept {
  return generator::equal(generator::kTunables, a, b);
}
bool operator<(const HopperVariant& a, const HopperVariant& b) noexcept {
  return generator::less(generator::kTunables, a, b);
}

}  // namespace flashjit
