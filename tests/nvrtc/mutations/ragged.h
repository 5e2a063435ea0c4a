// SPDX-License-Identifier: Apache-2.0
// Faults of ragged batches: of the list of tiles, and of kernels that follow it.
#pragma once

#include "tests/nvrtc/mutations/mutation.h"

namespace flashjit::tests {

inline constexpr Setting with_sequences(Setting setting) {
  setting.ragged = true;
  return setting;
}
inline constexpr Setting kHopperRagged = with_sequences(kHopper);
inline constexpr Setting kHopperRaggedCausal = with_causal(kHopperRagged);
// A block for each tile that there may be.
inline constexpr Setting kHopperRaggedSingle = with_sequences(Setting{.variant = "hopper-kv64-single-whole"});
inline constexpr Setting kMmaRagged = with_sequences(kMma);

inline const std::vector<Mutation> kRaggedFaults = {
    // --- The list
    {.name = "slots of sequences overlap",
     .setting = kMmaRagged,
     .file = "kernels/batch_plan.cuh",
     .original = "return sequence + packed(first) / args.block_rows;",
     .replacement = "return packed(first) / args.block_rows;"},
    {.name = "a tile behind the last row",
     .setting = kHopperRagged,
     .file = "kernels/batch_plan.cuh",
     .original = "if (index * args.block_rows >= packed(rows.count)) continue;",
     .replacement = "if (index * args.block_rows > packed(rows.count)) continue;",
     .kinds = {global_out_of_bounds, bad_operand}},
    {.name = "lengths in use are not asked for",
     .setting = kMmaRagged,
     .file = "kernels/batch_plan.cuh",
     .original = "if (used != nullptr) count",
     .replacement = "if (false) count"},
    {.name = "padding counts as keys",
     .setting = kMmaRagged,
     .file = "kernels/batch_plan.cuh",
     .original = "span.first += padding, span.count -= padding;",
     .replacement = "span.count -= padding;"},
    {.name = "places before all tiles are counted",
     .setting = kMmaRagged,
     .file = "kernels/batch_plan.cuh",
     .original = "    ptx::bar_sync();\n    const uint32 tiles = add_up();",
     .replacement = "    const uint32 tiles = add_up();",
     .kinds = {race}},
    {.name = "the sums of warps are not waited for",
     .setting = kMmaRagged,
     .file = "kernels/batch_plan.cuh",
     .original = "shared.of_warp[warp] = up_to;\n    ptx::bar_sync();",
     .replacement = "shared.of_warp[warp] = up_to;",
     .kinds = {race}},
    {.name = "tiles of the second sequence are in the place of the first",
     .setting = kMmaRagged,
     .file = "kernels/batch_plan.cuh",
     .original = "if (place < args.most_tiles) args.tiles[place] = tile;",
     .replacement = "if (place < args.most_tiles) args.tiles[place / 2] = tile;",
     .kinds = {global_out_of_bounds}},
    // --- Who follows it
    {.name = "a sequence without keys is loaded from behind its end",
     .setting = kHopperRagged,
     .file = "hopper/tiles.cuh",
     .original = "const int keys = max(tile.of.keys, 1);",
     .replacement = "const int keys = tile.of.keys;",
     .kinds = {global_out_of_bounds},
     .found_at = "ptx::tma_load("},
    {.name = "rows without keys are what was read in place of values",
     .setting = kHopperRagged,
     .file = "hopper/store.cuh",
     .original = "if (tiles.sequence_of(tile).keys == 0) clear(pairs);",
     .replacement = ""},
    {.name = "queries of the sequence before",
     .setting = kHopperRagged,
     .file = "hopper/tiles.cuh",
     .original = "const int end = tile.query_row + tile.of.queries;",
     .replacement = "const int end = tile.of.queries;"},
    {.name = "keys of the next sequence",
     .setting = kHopperRagged,
     .file = "hopper/tiles.cuh",
     .original = "args.ragged.key_rows - keys + first_key, tile.key_row + keys,",
     .replacement = "args.ragged.key_rows - keys + first_key, tile.key_row + keys + 1,"},
    {.name = "lengths change places on the way",
     .setting = kHopperRaggedCausal,
     .file = "parts/sequences/ragged.cuh",
     .original = "of = {static_cast<int>(lengths.x), static_cast<int>(lengths.y)};",
     .replacement = "of = {static_cast<int>(lengths.y), static_cast<int>(lengths.x)};",
     .kinds = {global_out_of_bounds}},
    {.name = "a place is told late",
     .setting = kHopperRagged,
     .file = "hopper/tiles.cuh",
     .original = "    Place::write(slot + kPlaceAt);\n",
     .replacement = "",
     .kinds = {unwritten_shared}},
    {.name = "a block without a tile goes on",
     .setting = kHopperRaggedSingle,
     .file = "kernels/hopper_forward.cuh",
     .original = "    if (HopperTiles<Config>::first() >= HopperTiles<Config>{args}.count()) return;\n",
     .replacement = "    ;\n",
     .kinds = {global_out_of_bounds, bad_operand, deadlock}},
    {.name = "mma: a block without a tile goes on",
     .setting = kMmaRagged,
     .file = "kernels/mma_forward.cuh",
     .original = "return !Sequences::kRagged || ptx::ctaid_x()",
     .replacement = "return true || ptx::ctaid_x()",
     .kinds = {global_out_of_bounds}},
    {.name = "mma: queries of the first sequence",
     .setting = kMmaRagged,
     .file = "kernels/mma_forward.cuh",
     .original = "Sequences::first_query(tile) * args.q_strides.row;",
     .replacement = "0;"},
    {.name = "mma: keys of the first sequence",
     .setting = kMmaRagged,
     .file = "kernels/mma_forward.cuh",
     .original = "row = Sequences::first_key(tile);",
     .replacement = "row = 0;"},
    {.name = "mma: rows of the first sequence",
     .setting = kMmaRagged,
     .file = "kernels/mma_forward.cuh",
     .original = "before = Sequences::first_query(tile);",
     .replacement = "before = 0;"},
};

}  // namespace flashjit::tests
