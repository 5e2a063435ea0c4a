// SPDX-License-Identifier: Apache-2.0
// Faults of warpgroups: matrix instructions, and what orders them.
#pragma once

#include "tests/nvrtc/mutations/mutation.h"

namespace flashjit::tests {

// --- wgmma: fences, groups, descriptors ---------------------------------------------------------------------------

inline const std::vector<Mutation> kWgmmaFaults = {
    {.name = "no fence before the scores",
     .setting = kHopper,
     .file = "hopper/warpgroup_attention.cuh",
     .original = "    ptx::wgmma_fence();\n"
                 "    const uint64 first = KTile",
     .replacement = "    const uint64 first = KTile",
     .kinds = {missing_wgmma_fence},
     .found_at = "self.issue_scores("},
    {.name = "no fence before the output",
     .setting = kHopper,
     .file = "hopper/warpgroup_attention.cuh",
     .original = "    ptx::wgmma_fence();\n"
                 "    uint64 b[kPSteps];\n"
                 "    describe_values(b, stage);\n"
                 "    Output::issue(",
     .replacement = "    uint64 b[kPSteps];\n"
                    "    describe_values(b, stage);\n"
                    "    Output::issue(",
     .kinds = {missing_wgmma_fence},
     .found_at = "self.issue_output("},
    {.name = "scores: not committed",
     .setting = kHopper,
     .file = "hopper/warpgroup_attention.cuh",
     .original = "    Matrix::issue(a, b);\n"
                 "    ptx::wgmma_commit_group();",
     .replacement = "    Matrix::issue(a, b);",
     .kinds = {register_in_flight},
     .found_at = "finish_scores<true>(visit, rows_now(visit, kept), at)"},
    {.name = "output: not committed",
     .setting = kHopper,
     .file = "hopper/warpgroup_attention.cuh",
     .original = "    begun = 1;\n"
                 "    ptx::wgmma_commit_group();",
     .replacement = "    begun = 1;",
     .kinds = {register_in_flight},
     .found_at = "raise_maximum(shift, common)"},
    {.name = "output: waited for with one group too many",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "    ptx::wgmma_wait_group<0>();\n"
                 "    take_output();\n"
                 "  }\n"
                 "  // The same of what",
     .replacement = "    ptx::wgmma_wait_group<1>();\n"
                    "    take_output();\n"
                    "  }\n"
                    "  // The same of what",
     .kinds = {register_in_flight},
     .found_at = "Probabilities::keep("},
    {.name = "first scores: waited for with one group too many",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "      ptx::wgmma_wait_group<0>();\n"
                 "    }\n"
                 "  }",
     .replacement = "      ptx::wgmma_wait_group<1>();\n"
                    "    }\n"
                    "  }",
     .kinds = {register_in_flight},
     .found_at = "finish_scores<true>(visit, rows_now(visit, kept), at)"},
    {.name = "scores: waited for with one group too many",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "    ptx::wgmma_wait_group<1>();\n"
                 "    if constexpr (kSumsApart) {",
     .replacement = "    ptx::wgmma_wait_group<2>();\n"
                    "    if constexpr (kSumsApart) {",
     .kinds = {register_in_flight},
     .found_at = "raise_maximum(shift, common)"},
    {.name = "three stages: the next scores are not waited for",
     .setting = kHopperThreeStage,
     .file = "kernels/hopper_ablation.cuh",
     .original = "    ptx::wgmma_wait_group<0>();\n"
                 "    release_key(--block);",
     .replacement = "    release_key(--block);",
     .kinds = {register_in_flight, race}},
    {.name = "output: P V is not waited for under the softmax",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "    ptx::wgmma_wait_group<0>();\n"
                 "    take_output();\n"
                 "  }\n"
                 "  // The same of what",
     .replacement = "    take_output();\n"
                    "  }\n"
                    "  // The same of what",
     .kinds = {register_in_flight},
     .found_at = "Probabilities::keep("},
    {.name = "output: a warp that takes a block exactly waits by another instruction",
     .setting = kHopperLazy,
     .file = "kernels/hopper_forward.cuh",
     .original = "        if constexpr (!kOutputEarly) ptx::wgmma_wait_group<0>();\n"
                 "        if (!taken) return true;\n"
                 "        if constexpr (!kOutputEarly) take_output();",
     .replacement = "        if (!taken) {\n"
                    "          if constexpr (!kOutputEarly) ptx::wgmma_wait_group<0>();\n"
                    "          return true;\n"
                    "        }\n"
                    "        if constexpr (!kOutputEarly) finish_output();",
     .kinds = {unequal_participation},
     .found_at = "ptx::wgmma_wait_group<0>();"},
    {.name = "output: the last product is not waited for",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "    if (next.more()) gemm_turn.hand_over();\n"
                 "    finish_lone_output();",
     .replacement = "    if (next.more()) gemm_turn.hand_over();\n"
                    "    release_value();",
     .kinds = {register_in_flight},
     .found_at = "multiply(factors"},
    {.name = "output: what the tile before left is added to",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "    self.begun = 0;\n",
     .replacement = ""},
    {.name = "descriptor: swizzle of 64 bytes for rows of 128",
     .setting = kHopper,
     .file = "tile/panel_tile.cuh",
     .original = "kRowBytes == 128 ? 1 :",
     .replacement = "kRowBytes == 128 ? 2 :",
     .kinds = {race, unwritten_shared},
     .found_at = "self.issue_output("},
    {.name = "descriptor: strides swapped",
     .setting = kHopperPanels,
     .file = "tile/panel_tile.cuh",
     .original = "static_cast<uint64>(leading_bytes >> kUnitBits) << 16 |\n"
                 "           static_cast<uint64>(kEightRows >> kUnitBits) << 32",
     .replacement = "static_cast<uint64>(leading_bytes >> kUnitBits) << 32 |\n"
                    "           static_cast<uint64>(kEightRows >> kUnitBits) << 16",
     .kinds = {race, unwritten_shared},
     .found_at = "stage(pairs, panel, slab)"},
    {.name = "descriptor: eight rows are nine",
     .setting = kHopper,
     .file = "tile/panel_tile.cuh",
     .original = "kEightRows = 8 * kRowBytes;",
     .replacement = "kEightRows = 9 * kRowBytes;",
     .kinds = {unwritten_shared, race},
     .found_at = "self.issue_scores("},
    {.name = "descriptor: a step of K of 64 bytes",
     .setting = kHopper,
     .file = "tile/panel_tile.cuh",
     .original = "16 * k16 % kPanelColumns * 2) >> kUnitBits",
     .replacement = "16 * k16 % kPanelColumns * 4) >> kUnitBits",
     .kinds = {unwritten_shared, race},
     .found_at = "self.issue_scores("},
    {.name = "descriptor: V in panels twice as far apart",
     .setting = kHopperPanels,
     .file = "tile/panel_tile.cuh",
     .original = "return descriptor(tile, kPanelBytes);",
     .replacement = "return descriptor(tile, 2 * kPanelBytes);",
     .kinds = {race, unwritten_shared},
     .found_at = "self.issue_output("},
    {.name = "descriptor: a slot is a chunk longer",
     .setting = kHopper,
     .file = "tile/panel_tile.cuh",
     .original = "stage * (kBytes >> kUnitBits)",
     .replacement = "stage * ((kBytes >> kUnitBits) + 1)",
     .kinds = {race},
     .found_at = "self.issue_scores("},
    {.name = "descriptor: rows of another warpgroup",
     .setting = kHopperInQuery,
     .file = "hopper/warpgroup_attention.cuh",
     .original = "+ warpgroup * kWarpgroupRows * QTile::kRowBytes",
     .replacement = "",
     .kinds = {race},
     .found_at = "stage(pairs, panel, slab)"},
    {.name = "descriptor: the address of the cluster",
     .setting = kHopperCluster,
     .file = "hopper/warpgroup_attention.cuh",
     .original = "return Config::kCluster == 1 ? address : address & QTile::kAddressMask;",
     .replacement = "return address;",
     .kinds = {race, unwritten_shared},
     .found_at = "self.issue_output("},
    {.name = "values beyond the ring",
     .setting = kHopperInQuery,
     .file = "hopper/warpgroup_attention.cuh",
     .original = "const uint64 first = ValueTile::slot(v, stage);",
     .replacement = "const uint64 first = ValueTile::slot(v, stage + 2);",
     .kinds = {shared_out_of_bounds},
     .found_at = "self.issue_output("},
};

// --- Fences, barriers, turns and registers ------------------------------------------------------------------------

inline const std::vector<Mutation> kFenceFaults = {
    {.name = "no fence between the output and its store",
     .setting = kHopper,
     .file = "hopper/store.cuh",
     .original = "      ptx::fence_proxy_async();\n",
     .replacement = "",
     .kinds = {missing_proxy_fence},
     .found_at = "send(tile"},
    {.name = "the fence stands before the output is written",
     .setting = kHopper,
     .file = "hopper/store.cuh",
     .original = "      stage(pairs, panel, slab);\n"
                 "      ptx::fence_proxy_async();",
     .replacement = "      ptx::fence_proxy_async();\n"
                    "      stage(pairs, panel, slab);",
     .kinds = {missing_proxy_fence},
     .found_at = "send(tile"},
    {.name = "no fence between P and the product",
     .setting = kHopperSharedP,
     .file = "kernels/hopper_ablation.cuh",
     .original = "    ptx::fence_proxy_async();\n"
                 "    ptx::bar_sync",
     .replacement = "    ptx::bar_sync",
     .kinds = {missing_proxy_fence},
     .found_at = "self.issue_output("},
    {.name = "no fence after the query is flipped",
     .setting = kHopperNegative,
     .file = "hopper/warpgroup_attention.cuh",
     .original = "    ptx::fence_proxy_async();\n"
                 "    ptx::bar_sync",
     .replacement = "    ptx::bar_sync",
     .kinds = {missing_proxy_fence},
     .found_at = "self.issue_scores("},
    {.name = "no fence after the barriers are initialised",
     .setting = kHopper,
     .file = "hopper/block.cuh",
     .original = "    ptx::fence_mbarrier_init();\n",
     .replacement = "",
     .kinds = {missing_proxy_fence},
     .found_at = "loader.request_key("},
    {.name = "no barrier after the barriers are initialised",
     .setting = kHopper,
     .file = "hopper/block.cuh",
     .original = "  ptx::bar_sync();\n"
                 "  if constexpr (Config::kCluster > 1) ptx::cluster_sync();",
     .replacement = "  if constexpr (Config::kCluster > 1) ptx::cluster_sync();",
     .kinds = {mbarrier_not_initialised}},
    {.name = "no cluster barrier after the barriers are initialised",
     .setting = kHopperCluster,
     .file = "hopper/block.cuh",
     .original = "  ptx::bar_sync();\n"
                 "  if constexpr (Config::kCluster > 1) ptx::cluster_sync();",
     .replacement = "  ptx::bar_sync();",
     .kinds = {mbarrier_not_initialised},
     .found_at = "loader.request_key("},
    {.name = "no cluster barrier at the end",
     .setting = kHopperCluster,
     .file = "hopper/block.cuh",
     .original = "void close_block() {\n"
                 "  if constexpr (Config::kCluster > 1) ptx::cluster_sync();",
     .replacement = "void close_block() {",
     .kinds = {left_in_flight}},
    {.name = "no barrier after the query is flipped",
     .setting = kHopperNegative,
     .file = "hopper/warpgroup_attention.cuh",
     .original = "    ptx::fence_proxy_async();\n"
                 "    ptx::bar_sync<kWarpgroupSize>(warpgroup_barrier());\n"
                 "  }\n"
                 "\n"
                 "  // The first",
     .replacement = "    ptx::fence_proxy_async();\n"
                    "  }\n"
                    "\n"
                    "  // The first",
     .kinds = {race},
     .found_at = "take_query();"},
    {.name = "turns: nobody begins",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "    gemm_turn.begin();\n",
     .replacement = "",
     .kinds = {deadlock},
     .found_at = "gemm_turn.take()"},
    {.name = "turns: not handed over",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "    issue_products(true);\n"
                 "    gemm_turn.hand_over();\n",
     .replacement = "    issue_products(true);\n",
     .kinds = {deadlock},
     .found_at = "gemm_turn.take()"},
    {.name = "turns: handed over to oneself",
     .setting = kHopper,
     .file = "hopper/turn.cuh",
     .original = "of(warpgroup + 1 == kCount ? 0 : warpgroup + 1)",
     .replacement = "of(warpgroup)",
     .kinds = {barrier_mismatch},
     .found_at = "gemm_turn.take()"},
    {.name = "turns: arrivals for half of the threads",
     .setting = kHopper,
     .file = "hopper/turn.cuh",
     .original = "ptx::bar_arrive<kThreads>(of(warpgroup + 1",
     .replacement = "ptx::bar_arrive<kThreads / 2>(of(warpgroup + 1",
     .kinds = {barrier_mismatch}},
    {.name = "turns: not passed on in blocks that are passed over",
     .setting = kHopperCausal,
     .file = "kernels/hopper_forward.cuh",
     .original = "      gemm_turn.pass();\n",
     .replacement = "",
     .kinds = {deadlock},
     .found_at = "gemm_turn.take()"},
    {.name = "turns of the softmax: not handed over",
     .setting = kHopperSerial,
     .file = "kernels/hopper_forward.cuh",
     .original = "      softmax_turn.hand_over();\n"
                 "      release_key();",
     .replacement = "      release_key();",
     .kinds = {deadlock},
     .found_at = "softmax_turn.take()"},
    {.name = "registers: the producer gives none back",
     .setting = kHopper,
     .file = "hopper/block.cuh",
     .original = "ptx::setmaxnreg_dec<Shape::kProducerRegisters>();",
     .replacement = ";",
     .kinds = {deadlock},
     .found_at = "ptx::setmaxnreg_inc"},
    {.name = "registers: consumers ask for more than there are",
     .setting = kHopper,
     .file = "hopper/shape.cuh",
     .original = "kWarpgroups == 2 ? 232 :",
     .replacement = "kWarpgroups == 2 ? 248 :",
     .kinds = {deadlock},
     .found_at = "ptx::setmaxnreg_inc"},
    {.name = "registers: one warp of each warpgroup asks",
     .setting = kHopper,
     .file = "hopper/block.cuh",
     .original = "ptx::setmaxnreg_inc<Shape::kConsumerRegisters>();",
     .replacement = "if (ptx::tid_x() % kWarpgroupSize < kWarpSize) ptx::setmaxnreg_inc<Shape::kConsumerRegisters>();",
     .kinds = {unequal_participation, deadlock}},
};

}  // namespace flashjit::tests
