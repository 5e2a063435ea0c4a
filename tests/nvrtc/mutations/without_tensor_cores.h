// SPDX-License-Identifier: Apache-2.0
// Faults of tiles of 4 and of 8 rows, which FFMA multiplies: of how lanes share rows, keys and dims.
#pragma once

#include "tests/nvrtc/mutations/decode.h"

namespace flashjit::tests {

inline constexpr Setting by_fma(const char* variant, int head_dim) {
  Setting setting = split_of("sm_90a", variant);
  setting.batch = 1, setting.head_dim = head_dim;
  return setting;
}
inline constexpr const char* kFourRows = "hopper-q4-kv64-s2-qs1-whole-serial-ppoff-fixed-splitkv";
inline constexpr const char* kEightRows = "hopper-q8-kv64-s2-qs1-whole-serial-ppoff-fixed-splitkv";
// A warp has one, two and four keys at once; and lanes without dims.
inline constexpr Setting kFmaOneKey = by_fma(kFourRows, 256);
inline constexpr Setting kFmaTwoKeys = by_fma(kFourRows, 128);
inline constexpr Setting kFmaFourKeys = by_fma(kFourRows, 64);
inline constexpr Setting kFmaEightRows = by_fma(kEightRows, 128);
inline constexpr Setting kFmaIdleLanes = by_fma(kEightRows, 32);
// Each block raises the maxima.
inline constexpr Setting kFmaAlways = by_fma("hopper-q4-kv64-s2-qs1-whole-serial-ppoff-always-fixed-splitkv", 128);
inline constexpr Setting kFmaDropout = [] {
  Setting setting = by_fma("hopper-q8-kv128-s2-qs1-whole-serial-ppoff-fixed-splitkv", 64);
  setting.dropout = 0.3;
  return setting;
}();

inline const std::vector<Mutation> kFmaFaults = {
    // --- Sums over lanes
    {.name = "the nearest lanes are not added up",
     .setting = kFmaTwoKeys,
     .file = "hopper/fma_attention.cuh",
     .original = "for (int step = kCount / 2; step > 0; step /= 2)",
     .replacement = "for (int step = kCount / 2; step > 1; step /= 2)"},
    {.name = "steps are added up by lanes of the same dims",
     .setting = kFmaOneKey,
     .file = "hopper/fma_attention.cuh",
     .original = "return sum_of_lanes<kRows>(of_step);",
     .replacement = "return sum_of_lanes<kRows / 2>(of_step);"},
    {.name = "lanes without dims count those of another",
     .setting = kFmaIdleLanes,
     .file = "hopper/fma_attention.cuh",
     .original = "if (has_dims(lane)) chunk",
     .replacement = "chunk"},
    // --- Who has what
    {.name = "all lanes have the query's rows in the same order",
     .setting = kFmaEightRows,
     .file = "hopper/fma_attention.cuh",
     .original = "QTile::offset(KeyLanes::owned_row(r ^ lane),",
     .replacement = "QTile::offset(KeyLanes::owned_row(r),"},
    {.name = "all lanes read the same key in a step",
     .setting = kFmaTwoKeys,
     .file = "hopper/fma_attention.cuh",
     .original = "return Tile::offset(owned_key(lane), chunk(lane));",
     .replacement = "return Tile::offset(0, chunk(lane));"},
    {.name = "both keys of a lane are the first one",
     .setting = kFmaEightRows,
     .file = "hopper/fma_attention.cuh",
     .original = "owned_key(step * kRows) + parity, 0)",
     .replacement = "owned_key(step * kRows), 0)"},
    {.name = "a panel of four rows begins where its swizzle does",
     .setting = kFmaTwoKeys,
     .file = "tile/panel_tile.cuh",
     .original = "swizzled(row + panel * (kRows % 8), chunk)",
     .replacement = "swizzled(row, chunk)"},
    {.name = "odd keys have the scores of even ones",
     .setting = kFmaFourKeys,
     .file = "hopper/fma_attention.cuh",
     .original = "ptx::shfl_from(owner + 4 * e, owned[0])",
     .replacement = "ptx::shfl_from(owner, owned[0])"},
    // --- Probabilities and the output
    {.name = "all rows take the probabilities of a lane's own",
     .setting = kFmaFourKeys,
     .file = "hopper/fma_attention.cuh",
     .original = "const int distance = step * kRows + r;",
     .replacement = "const int distance = step * kRows;"},
    {.name = "odd keys have the probabilities of even ones",
     .setting = kFmaTwoKeys,
     .file = "hopper/fma_attention.cuh",
     .original = "lane / 4 % 2 == 0 ? first : second",
     .replacement = "first"},
    {.name = "lanes of the same dims add up the same rows",
     .setting = kFmaFourKeys,
     .file = "hopper/fma_attention.cuh",
     .original = "owned_row(r ^ lane ^ lane / Lanes::kLanes)",
     .replacement = "owned_row(r ^ lane)"},
    {.name = "the keys of one group are the output",
     .setting = kFmaTwoKeys,
     .file = "hopper/fma_attention.cuh",
     .original = "    of_all.add_groups();\n",
     .replacement = ""},
    {.name = "the output is not rescaled",
     .setting = kFmaAlways,
     .file = "hopper/fma_attention.cuh",
     .original = "      for (float& of_dim : x[r]) of_dim *= of_row;\n",
     .replacement = "      (void)of_row;\n"},
    {.name = "a row's output is rescaled as the next lane's row",
     .setting = kFmaAlways,
     .file = "hopper/fma_attention.cuh",
     .original = "ptx::shfl_from(4 * row(r), factor)",
     .replacement = "ptx::shfl_from(row(r), factor)"},
    {.name = "odd keys stay where even ones do",
     .setting = kFmaDropout,
     .file = "hopper/fma_attention.cuh",
     .original = "p[1] = (kept >> 16) != 0",
     .replacement = "p[1] = (kept & 0xffff) != 0"},
    {.name = "keys stay where those before them do",
     .setting = kFmaDropout,
     .file = "hopper/fma_attention.cuh",
     .original = "kept_pairs.x[n % 4]",
     .replacement = "kept_pairs.x[0]"},
};

}  // namespace flashjit::tests
