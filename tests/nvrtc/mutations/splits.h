// SPDX-License-Identifier: Apache-2.0
// Faults of split keys: of spans, of partial results and of what combines them.
#pragma once

#include "tests/nvrtc/mutations/ragged.h"

namespace flashjit::tests {

// Five splits of a tile that sees sinks, the last one short, and a sequence of its own for each of three batch entries.
inline constexpr Setting split_of(const char* architecture, const char* variant) {
  return {.architecture = architecture,
          .variant = variant,
          .causal = true,
          .seqlen_q = 5,
          .seqlen_kv = 570,
          .batch = 3,
          .sinks = true};
}
inline constexpr Setting kHopperSplit = split_of("sm_90a", "hopper-q64-kv64-ppoff-whole-splitkv");
// A split behind all keys that the rows of the first warpgroup see.
inline constexpr Setting kHopperSplitBehind{
    .variant = "hopper-q128-kv64-whole-splitkv", .causal = true, .seqlen_q = 150, .seqlen_kv = 570, .num_heads_kv = 4};
inline constexpr Setting kMmaSplit = [] {
  Setting setting = split_of("sm_80", "mma-q64-kv32-splitkv");
  setting.seqlen_q = 30;  // for several warps, where two heads share a tile
  return setting;
}();
inline constexpr Setting kHopperSplitWindow = [] {
  Setting setting = kHopperSplit;
  setting.window = {.left = 200, .right = -1};
  return setting;
}();
inline constexpr Setting with_long_sequences(Setting setting) {
  setting.seqlen_q = 60, setting.seqlen_kv = 900;
  setting.ragged = setting.long_sequences = true;
  setting.batch = 1, setting.causal = false, setting.sinks = false;
  return setting;
}
inline constexpr Setting kHopperSplitRagged = with_long_sequences(kHopperSplit);
inline constexpr Setting kMmaSplitRagged = with_long_sequences(kMmaSplit);

inline const std::vector<Mutation> kSplitFaults = {
    // --- Spans
    {.name = "a split has keys of the next one",
     .setting = kHopperSplit,
     .file = "attention/splits.cuh",
     .original = "{first, first + keys}",
     .replacement = "{first, first + keys + 1}"},
    {.name = "a split lacks its last key",
     .setting = kMmaSplit,
     .file = "attention/splits.cuh",
     .original = "{first, first + keys}",
     .replacement = "{first, first + keys - 1}"},
    {.name = "splits are counted from the first key, whatever the window",
     .setting = kHopperSplitWindow,
     .file = "attention/splits.cuh",
     .original = "(first_key / keys + tile.split) * keys",
     .replacement = "tile.split * keys"},
    {.name = "spans have no begin",
     .setting = kHopperSplit,
     .file = "attention/mask.cuh",
     .original = "return max(key, first);",
     .replacement = "return key;"},
    {.name = "a warpgroup visits blocks before its split",
     .setting = kHopperSplitBehind,
     .file = "kernels/hopper_forward.cuh",
     .original = "      blocks.end = max(blocks.end, tile.first_block + 1);\n",
     .replacement = "",
     .kinds = {deadlock, mbarrier_phase}},
    {.name = "a split is told late",
     .setting = kHopperSplit,
     .file = "hopper/tiles.cuh",
     .original = "    Split::write(slot + kSplitAt);\n",
     .replacement = "",
     .kinds = {unwritten_shared}},
    // --- Partial results
    {.name = "splits of all batch entries are those of the first",
     .setting = kHopperSplit,
     .file = "attention/splits.cuh",
     .original = "      tile.batch %= args.splits.batch;\n",
     .replacement = "      tile.batch = 0;\n"},
    {.name = "each split adds the sink",
     .setting = kHopperSplit,
     .file = "attention/row_end.cuh",
     .original = "adds ? additions.term(place) : -infinity()",
     .replacement = "additions.term(place)"},
    {.name = "rows that a tile does not have are written",
     .setting = kHopperSplit,
     .file = "hopper/store.cuh",
     .original = " || row_of_slot >= splits.rows) continue;",
     .replacement = ") (void)0;",
     .kinds = {global_out_of_bounds, race}},
    {.name = "mma: splits write where the call wants the result",
     .setting = kMmaSplit,
     .file = "mma/forward_tile.cuh",
     .original = "return tile.slot < 0 ?",
     .replacement = "return tile.slot < 1 << 30 ?"},
    {.name = "mma: the rows of a warp have the slots of the first one's",
     .setting = kMmaSplit,
     .file = "mma/forward_tile.cuh",
     .original = "const int of_tile = row - tile.index * Config::kBlockQ;",
     .replacement = "const int of_tile = ptx::tid_x() / kWarpSize;"},
    // --- Heads that share a tile
    {.name = "mma: the queries of a pack are those of its first head",
     .setting = kMmaSplit,
     .file = "mma/forward_tile.cuh",
     .original = "heads().head(tile.head, row) * strides.head",
     .replacement = "heads().first(tile.head) * strides.head"},
    {.name = "mma: rows of a pack add the sink of its first head",
     .setting = kMmaSplit,
     .file = "mma/forward_tile.cuh",
     .original = "return {tile.batch, heads().head(tile.head, row),",
     .replacement = "return {tile.batch, heads().first(tile.head),"},
    {.name = "mma: packed rows see what as many queries see",
     .setting = kMmaSplit,
     .file = "attention/mask.cuh",
     .original = "Mask<Config>::last_key(heads.query(row))",
     .replacement = "Mask<Config>::last_key(row)"},
    {.name = "mma: a warp beyond the queries of one head has no rows",
     .setting = kMmaSplit,
     .file = "mma/forward_tile.cuh",
     .original = "warp_row() < rows_of_sequence()",
     .replacement = "warp_row() < sequence().queries"},
    // --- The list
    {.name = "splits of a sequence are not in the list",
     .setting = kHopperSplitRagged,
     .file = "kernels/batch_plan.cuh",
     .original = "index < places; index += kWarpSize)",
     .replacement = "index < tiles; index += kWarpSize)",
     .kinds = {global_out_of_bounds}},
    {.name = "sequences share their slots",
     .setting = kMmaSplitRagged,
     .file = "kernels/batch_plan.cuh",
     .original = "return ptx::atom_add_shared(ptx::cvta_to_shared(&shared.slots), count);",
     .replacement = "return 0;"},
    {.name = "the length of splits is not told",
     .setting = kHopperSplitRagged,
     .file = "kernels/batch_plan.cuh",
     .original = "args.head->split_keys = shared.split_keys;",
     .replacement = "args.head->split_keys = args.block_keys;"},
    // --- What combines
    {.name = "splits weigh the same",
     .setting = kMmaSplit,
     .file = "attention/split_rows.cuh",
     .original = "return ptx::ex2(own.high - shift.high + (own.low - shift.low));",
     .replacement = "return 1.0f;"},
    {.name = "a warp's splits are lost",
     .setting = kHopperSplit,
     .file = "kernels/combine.cuh",
     .original = "for (int warp = 0; warp < kCombineWarps; ++warp)",
     .replacement = "for (int warp = 1; warp < kCombineWarps; ++warp)"},
    {.name = "the sums of warps are read before they are there",
     .setting = kHopperSplit,
     .file = "kernels/combine.cuh",
     .original = "    add_up_own(row.from, sum);\n    ptx::bar_sync();\n",
     .replacement = "    add_up_own(row.from, sum);\n",
     .kinds = {race, unwritten_shared}},
    {.name = "rows of the list's first sequence alone",
     .setting = kHopperSplitRagged,
     .file = "kernels/combine.cuh",
     .original = "const int index = at - planned.first;",
     .replacement = "const int index = at;"},
};

}  // namespace flashjit::tests
