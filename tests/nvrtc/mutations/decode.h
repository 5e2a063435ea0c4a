// SPDX-License-Identifier: Apache-2.0
// Faults of tiles of few rows: of warps that share them, of clusters, and of what joins both.
#pragma once

#include "tests/nvrtc/mutations/ragged.h"
#include "tests/nvrtc/mutations/splits.h"

namespace flashjit::tests {

inline constexpr const char* kSharedRowsVariant = "hopper-q16-kv64-s2-qs1-whole-serial-ppoff-fixed-splitkv";

inline constexpr Setting kSharedRows = [] {
  Setting setting = split_of("sm_90a", kSharedRowsVariant);
  setting.batch = 1;
  return setting;
}();
// Tiles of which clusters of four blocks have one each.
inline constexpr Setting kSharedRowsCluster = [] {
  Setting setting = kSharedRows;
  setting.seqlen_kv = 1100;
  return setting;
}();
// More tiles than blocks that run at once.
inline constexpr Setting kManySharedRows = [] {
  Setting setting = kSharedRows;
  setting.seqlen_q = 200, setting.seqlen_kv = 250, setting.batch = 3;
  return setting;
}();
// Each block raises the maxima.
inline constexpr Setting kSharedRowsAlways = [] {
  Setting setting = kSharedRows;
  setting.variant = "hopper-q16-kv64-s2-qs1-whole-serial-ppoff-always-fixed-splitkv";
  return setting;
}();

// Tiles of several splits each, of sequences that might be too long for clusters.
inline constexpr Setting kSharedRowsRagged = [] {
  Setting setting = with_long_sequences(kSharedRows);
  setting.seqlen_kv = 2100;
  return setting;
}();

// Where two warps fill each ring.
inline constexpr Setting kSharedRowsPaged = with_pages(kSharedRowsRagged);

// Likewise, of a batch that is not ragged: with a plan.
inline constexpr Setting kSharedRowsPlanned = [] {
  Setting setting = kSharedRows;
  setting.batch = 2, setting.seqlen_kv = 8300;  // fewer are split by clusters
  setting.planned = true;
  return setting;
}();

inline const std::vector<Mutation> kDecodeFaults = {
    // --- A warp's keys
    {.name = "warps take the keys of the first one",
     .setting = kSharedRows,
     .file = "kernels/hopper_decode.cuh",
     .original = "rings.keys.slot() + warp * kKeys * KTile::kRowBytes",
     .replacement = "rings.keys.slot()"},
    {.name = "warps take the values of the first one",
     .setting = kSharedRows,
     .file = "kernels/hopper_decode.cuh",
     .original = "rings.values.slot() + warp * kKeys * VTile::kRowBytes",
     .replacement = "rings.values.slot()"},
    {.name = "keys are given back before they are read",
     .setting = kSharedRows,
     .file = "kernels/hopper_decode.cuh",
     .original = "      Scores s;\n",
     .replacement = "      Scores s;\n      rings.keys.release(ptx::elect());\n",
     .kinds = {race, mbarrier_phase, deadlock, unwritten_shared}},
    {.name = "the mask of a warp's keys begins with the block",
     .setting = kSharedRows,
     .file = "kernels/hopper_decode.cuh",
     .original = "return block * Config::kBlockKv + warp * kKeys;",
     .replacement = "return block * Config::kBlockKv;"},
    {.name = "the end of what rows see is not masked",
     .setting = kSharedRows,
     .file = "kernels/hopper_decode.cuh",
     .original = "if (at.block >= blocks.clean_end) mask_end(",
     .replacement = "if (at.block < 0) mask_end("},
    {.name = "sums are not rescaled",
     .setting = kSharedRowsAlways,
     .file = "hopper/warp_softmax.cuh",
     .original = "      sum[0][h] *= factor;\n",
     .replacement = ""},
    // --- What joins warps
    {.name = "parts are written while keys are read",
     .setting = kSharedRows,
     .file = "kernels/hopper_decode.cuh",
     .original = "    meet_warps();  // nobody reads keys and values any more\n",
     .replacement = "",
     .kinds = {race}},
    {.name = "parts are read before they are written",
     .setting = kSharedRows,
     .file = "kernels/hopper_decode.cuh",
     .original = "    shape.part(warp).template write<typename Fragments::Columns>(self.softmax, self.o, lane);\n    "
                 "meet_warps();\n",
     .replacement = "    shape.part(warp).template write<typename Fragments::Columns>(self.softmax, self.o, lane);\n",
     .kinds = {race, unwritten_shared}},
    {.name = "a warp's part is not joined",
     .setting = kSharedRows,
     .file = "kernels/hopper_decode.cuh",
     .original = "row.template join<kMostParts>(parts,",
     .replacement = "row.template join<kMostParts>(parts - 1,"},
    {.name = "parts weigh the same",
     .setting = kSharedRows,
     .file = "hopper/joined_row.cuh",
     .original = "const float factor = factor_between(of_part, largest);",
     .replacement = "const float factor = 1.0f;"},
    {.name = "parts are joined by the first one's weight",
     .setting = kSharedRows,
     .file = "hopper/joined_row.cuh",
     .original = "of_lane(part, lane, factor)",
     .replacement = "of_lane(0, lane, factor)"},
    // --- Clusters
    {.name = "blocks of a cluster take the same keys",
     .setting = kSharedRowsCluster,
     .file = "hopper/tiles.cuh",
     .original = "runs.first + static_cast<int>(ptx::cluster_ctarank()) * share",
     .replacement = "runs.first"},
    {.name = "a block's share has no end",
     .setting = kSharedRowsCluster,
     .file = "hopper/tiles.cuh",
     .original = "min(span.end, min(first + share, runs.end) * Config::kBlockKv)",
     .replacement = "span.end"},
    {.name = "the cluster's rows are read before they are there",
     .setting = kSharedRowsCluster,
     .file = "kernels/hopper_decode.cuh",
     .original = "    cluster.wait_for_rows();\n",
     .replacement = "",
     .kinds = {race, unwritten_shared, deadlock, mbarrier_transaction, left_in_flight}},
    {.name = "rows are sent while keys are read",
     .setting = kSharedRowsCluster,
     .file = "hopper/cluster_join.cuh",
     .original = "    ptx::mbarrier_wait_cluster(room(), parity);\n",
     .replacement = "",
     .kinds = {race}},
    {.name = "all blocks of a cluster send to the same place",
     .setting = kSharedRowsCluster,
     .file = "hopper/cluster_join.cuh",
     .original = "Shape::kConsumerWarps + rank() - 1",
     .replacement = "Shape::kConsumerWarps",
     .kinds = {race, unwritten_shared}},
    {.name = "the first block awaits one row of each",
     .setting = kSharedRowsCluster,
     .file = "hopper/cluster_join.cuh",
     .original = "(blocks() - 1) * rows * Part::kSentBytes",
     .replacement = "(blocks() - 1) * Part::kSentBytes",
     .kinds = {race, unwritten_shared, mbarrier_transaction, deadlock}},
    {.name = "the last blocks' rows are not joined",
     .setting = kSharedRowsCluster,
     .file = "kernels/hopper_decode.cuh",
     .original = "join<Shape::kMostParts>(Shape::kConsumerWarps + Join::blocks() - 1,",
     .replacement = "join<Shape::kMostParts>(Shape::kConsumerWarps + max(Join::blocks() - 4, 0),"},
    {.name = "blocks do not await that all have begun",
     .setting = kSharedRowsCluster,
     .file = "hopper/cluster_join.cuh",
     .original = "    if (blocks() > 1 && !met) ptx::cluster_wait();\n",
     .replacement = "",
     .kinds = {mbarrier_not_initialised, missing_proxy_fence, barrier_mismatch, deadlock}},
    // --- Feeders that take turns
    {.name = "both feeders fill all slots of a ring",
     .setting = kSharedRowsPaged,
     .file = "hopper/loader.cuh",
     .original = "return whose == feeder;",
     .replacement = "return true;",
     .kinds = {mbarrier_phase, race, deadlock}},
    {.name = "a slot is nobody's",
     .setting = kSharedRowsPaged,
     .file = "hopper/loader.cuh",
     .original = "return whose == feeder;",
     .replacement = "return whose == feeder && turn != Config::kStages + 1;",
     .kinds = {deadlock}},
    {.name = "a feeder counts its own turns alone",
     .setting = kSharedRowsPaged,
     .file = "hopper/loader.cuh",
     .original = "    ++turn;\n    return whose == feeder;",
     .replacement = "    turn += whose == feeder;\n    return whose == feeder;",
     .kinds = {deadlock, race, barrier_mismatch}},
    // --- What joins splits
    {.name = "nobody comes last",
     .setting = kSharedRowsRagged,
     .file = "kernels/hopper_decode.cuh",
     .original = "ptx::atom_increment_acq_rel(counter) + 1 ==",
     .replacement = "ptx::atom_increment_acq_rel(counter) =="},
    {.name = "all tiles count with the first one's counter",
     .setting = kSharedRowsRagged,
     .file = "kernels/hopper_decode.cuh",
     .original = "args.splits.counters + tile.first_slot()",
     .replacement = "args.splits.counters"},
    {.name = "counters have any contents",
     .setting = kSharedRowsRagged,
     .file = "kernels/batch_plan.cuh",
     .original = "args.counters[first_slot + index] = 0;",
     .replacement = ";"},
    {.name = "who comes last is read before it is said",
     .setting = kSharedRowsRagged,
     .file = "kernels/hopper_decode.cuh",
     .original = "    meet_warps();\n    return ptx::ld_shared_word(answer) != 0;\n",
     .replacement = "    return ptx::ld_shared_word(answer) != 0;\n",
     .kinds = {race}},
    {.name = "the last split is not joined",
     .setting = kSharedRowsRagged,
     .file = "hopper/joined_row.cuh",
     .original = "split < min(first + kLanes, from.splits)",
     .replacement = "split < min(first + kLanes, from.splits - 1)"},
    {.name = "the slots of a tile's splits are neighbours",
     .setting = kSharedRowsRagged,
     .file = "attention/splits.cuh",
     .original = "static_cast<int64>(tile.stride) * splits.rows",
     .replacement = "splits.rows"},
    {.name = "the first split is taken for all of a planned tile",
     .setting = kSharedRowsPlanned,
     .file = "attention/splits.cuh",
     .original = "      tile.splits = sizes.batch / args.splits.batch;\n",
     .replacement = "      tile.splits = 1;\n"},
    {.name = "splits of a planned tile have the slots of other batch entries",
     .setting = kSharedRowsPlanned,
     .file = "attention/splits.cuh",
     .original = "args.splits.batch * sizes.num_heads_q * sizes.num_q_tiles;",
     .replacement = "sizes.num_heads_q * sizes.num_q_tiles;"},
    // --- One tile after the other
    {.name = "the next keys come while rows are joined",
     .setting = kManySharedRows,
     .file = "kernels/hopper_decode.cuh",
     .original = "ptx::bar_sync<HopperShape<Config>::kThreads>(NamedBarrier::tile_done);",
     .replacement = "",
     .kinds = {race, missing_proxy_fence, mbarrier_phase}},
    {.name = "the next keys come without a fence",
     .setting = kManySharedRows,
     .file = "kernels/hopper_decode.cuh",
     .original = "      ptx::fence_proxy_async();  // what was joined lies where the next keys go\n",
     .replacement = "",
     .kinds = {missing_proxy_fence}},
    {.name = "the query's slot is not given back",
     .setting = kManySharedRows,
     .file = "kernels/hopper_decode.cuh",
     .original = "    rings.queries.release(ptx::elect());\n",
     .replacement = "    rings.queries.release(false);\n",
     .kinds = {deadlock, unequal_participation}},
    {.name = "every tile is a block's first one",
     .setting = kManySharedRows,
     .file = "kernels/hopper_decode.cuh",
     .original = "    tile = tiles.find(index);",
     .replacement = "    tile = tiles.find(HopperTiles<Config>::first());"},
};

}  // namespace flashjit::tests
