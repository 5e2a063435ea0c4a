// SPDX-License-Identifier: Apache-2.0
// Faults of keys and values that are stored as e4m3: of what becomes of them in registers, and of their scales.
#pragma once

#include "tests/nvrtc/mutations/decode.h"

namespace flashjit::tests {

// Panels of keys and values are two, the second of them in part. Each block of keys is of a cluster of four.
inline constexpr Setting kE4m3 = [] {
  Setting setting = kSharedRows;
  setting.e4m3 = true, setting.head_dim = 160;
  return setting;
}();
inline constexpr Setting with_token_scales(Setting setting) {
  setting.e4m3 = setting.token_scales = true;
  return setting;
}
// Several blocks of keys for each block of threads, the last one with an odd number of keys.
inline constexpr Setting kTokenScales = [] {
  Setting setting = with_token_scales(kManySharedRows);
  setting.seqlen_kv = 251;
  return setting;
}();
inline constexpr Setting kTokenScalesRagged =
    with_sequences(with_token_scales({.variant = "hopper-q16-kv64-s2-qs1-whole-serial-ppoff-fixed-splitkv"}));
inline constexpr Setting kTokenScalesPaged = with_pages(kTokenScalesRagged);

inline const std::vector<Mutation> kStoredFaults = {
    // --- In registers
    {.name = "the query's dims are not those of the keys",
     .setting = kE4m3,
     .file = "parts/stored/e4m3.cuh",
     .original = "QTile::offset(lane / 4, lane % 4 / 2) + lane % 2 * 8",
     .replacement = "QTile::offset(lane / 4, lane % 2) + lane % 4 / 2 * 8"},
    {.name = "pairs of values are of neighbouring dims",
     .setting = kE4m3,
     .file = "parts/stored/e4m3.cuh",
     .original = "kEvenThenOdd = 0x3120",
     .replacement = "kEvenThenOdd = 0x3210"},
    {.name = "odd dims of the output are taken for even ones",
     .setting = kE4m3,
     .file = "mma/columns.cuh",
     .original = "__float_as_uint(o[n + 1][2 * h]), ",
     .replacement = "__float_as_uint(o[n][2 * h]), "},
    {.name = "the second panel is that of 16-bit elements",
     .setting = kE4m3,
     .file = "hopper/loader.cuh",
     .original = "KvTile::kPanelColumns * Shape::kElementsOfWord",
     .replacement = "KvTile::kPanelColumns"},
    // --- A scale for each head
    {.name = "keys have no scale",
     .setting = kE4m3,
     .file = "kernels/hopper_decode.cuh",
     .original = "      scales.apply_to_scores(s);\n",
     .replacement = ""},
    {.name = "values have no scale",
     .setting = kE4m3,
     .file = "kernels/hopper_decode.cuh",
     .original = "    scales.apply_to_output(self.o);\n",
     .replacement = ""},
    {.name = "all heads have the scale of the first one",
     .setting = kE4m3,
     .file = "parts/stored/e4m3.cuh",
     .original = "scales.first + head * scales.strides.head",
     .replacement = "scales.first"},
    // --- A scale for each token and head
    {.name = "values have the scales of the block before",
     .setting = kTokenScales,
     .file = "parts/stored/token_scales.cuh",
     .original = "load(of_values, scales().values, found);",
     .replacement = "load(of_values, scales().values, found + Config::kBlockKv);"},
    {.name = "scales that were not asked for are taken",
     .setting = kTokenScales,
     .file = "parts/stored/token_scales.cuh",
     .original = "      if (first_key != found) {",
     .replacement = "      if (false) {",
     .kinds = {unwritten_register}},
    {.name = "values' scales of the next block are not asked for",
     .setting = kTokenScales,
     .file = "kernels/hopper_decode.cuh",
     .original = "      scales.look_ahead();\n",
     .replacement = ""},
    {.name = "probabilities do not meet the values' scales",
     .setting = kTokenScales,
     .file = "parts/stored/token_scales.cuh",
     .original = "      p0 *= of_values[n][0], p1 *= of_values[n][1];",
     .replacement = ""},
    {.name = "the output is not rescaled where the reference rises",
     .setting = kTokenScales,
     .file = "parts/stored/token_scales.cuh",
     .original = "        o.multiply(reference.raise(fmaxf(largest, ptx::shfl_xor(largest, 2))));\n",
     .replacement = "        reference.raise(fmaxf(largest, ptx::shfl_xor(largest, 2)));\n"},
    {.name = "the reference is what one lane's keys have",
     .setting = kTokenScales,
     .file = "parts/stored/token_scales.cuh",
     .original = "        largest = fmaxf(largest, ptx::shfl_xor(largest, 1));\n",
     .replacement = ""},
    {.name = "scales behind the last key are read",
     .setting = kTokenScales,
     .file = "parts/stored/token_scales.cuh",
     .original = "if (key + 1 < keys) pairs",
     .replacement = "pairs",
     .kinds = {global_out_of_bounds}},
    {.name = "scales of other sequences are taken",
     .setting = kTokenScalesRagged,
     .file = "hopper/tiles.cuh",
     .original = "Sequences::first_key(tile) + key, 0}",
     .replacement = "key, 0}"},
    {.name = "scales of pages are taken from rows",
     .setting = kTokenScalesPaged,
     .file = "hopper/tiles.cuh",
     .original = "      return keys.place(keys.row(tile.batch_of_keys, tile.of.keys), key);",
     .replacement = "      return {0, key, 0};"},
};

}  // namespace flashjit::tests
