// SPDX-License-Identifier: Apache-2.0
// Faults of large heads in the mma.sync family: of the pieces that keys and values come in, and of what the warps that
// share rows send each other.
#pragma once

#include "tests/nvrtc/mutations/mutation.h"

namespace flashjit::tests {

// Scores that jump, so that maxima rise from block to block; values of a block come in four pieces.
inline constexpr Setting of_large_mma(const char* variant) {
  Setting setting = of_mma(variant);
  setting.head_dim = 264, setting.softmax_scale = 0.5f;
  return setting;
}
inline constexpr Setting kLargeMma = of_large_mma("mma-q32-kv64-w4-k2-v1");
inline constexpr Setting kLargeMmaTwoGroups = of_large_mma("mma-q64-kv64-w8-k2-v1");
inline constexpr Setting kLargeMmaCausal = with_causal(kLargeMma);
inline constexpr Setting kLargeMmaSplit = [] {
  Setting setting = of_large_mma("mma-q16-kv64-w4-k2-v2-splitkv");
  setting.seqlen_q = 5, setting.seqlen_kv = 700;
  return setting;
}();
inline constexpr Setting kLargeMmaPages = [] {
  Setting setting = kLargeMma;
  setting.ragged = setting.paged = true;
  return setting;
}();
inline constexpr Setting kLargeMmaDropout = [] {
  Setting setting = of_large_mma("mma-q32-kv128-w4-k2-v1");
  setting.dropout = 0.3;
  return setting;
}();

inline const std::vector<Mutation> kLargeMmaFaults = {
    // --- What warps send each other
    {.name = "maxima are taken before all are there",
     .setting = kLargeMma,
     .file = "kernels/mma_large.cuh",
     .original = "    ptx::bar_sync();\n    if (sees) send_probabilities(",
     .replacement = "    if (sees) send_probabilities(",
     .kinds = {race, unwritten_shared}},
    {.name = "warps take maxima of different keys",
     .setting = kLargeMma,
     .file = "mma/shared_rows.cuh",
     .original = "fmaxf(fmaxf(sent.x[0], sent.x[1]), fmaxf(sent.x[2], sent.x[3]))",
     .replacement = "Shape::part() % 2 == 0 ? sent.x[0] : sent.x[1]"},
    {.name = "the maxima of the four lanes of a row are those of one",
     .setting = kLargeMma,
     .file = "mma/shared_rows.cuh",
     .original = "seen.x[m][h] = fmaxf(of_two, ptx::shfl_xor(of_two, 2));",
     .replacement = "seen.x[m][h] = of_two;"},
    {.name = "P of all pieces is that of the first",
     .setting = kLargeMma,
     .file = "mma/shared_rows.cuh",
     .original = "first / 16 + j, lane);",
     .replacement = "j, lane);"},
    {.name = "P of all warps goes to the keys of the first",
     .setting = kLargeMma,
     .file = "mma/shared_rows.cuh",
     .original = "Shape::part() * Shape::kWarpKeys / 8 + n)",
     .replacement = "n)",
     .kinds = {race, unwritten_shared}},
    {.name = "both groups of warps send P to one place",
     .setting = kLargeMmaTwoGroups,
     .file = "kernels/mma_large.cuh",
     .original = "    return smem + Shape::kProbabilities + Shape::group() * Shape::PTile::kBytes;",
     .replacement = "    return smem + Shape::kProbabilities;",
     .kinds = {race}},
    {.name = "both groups of warps send maxima to one place",
     .setting = kLargeMmaTwoGroups,
     .file = "kernels/mma_large.cuh",
     .original = "    return smem + Shape::kMaxima + Shape::group() * Shape::kWarpRows * Shape::kMaximaOfRow;",
     .replacement = "    return smem + Shape::kMaxima;",
     .kinds = {race}},
    {.name = "sums are taken before all are there",
     .setting = kLargeMma,
     .file = "kernels/mma_large.cuh",
     .original = "      self.send_sums(maxima());\n      ptx::bar_sync();\n",
     .replacement = "      self.send_sums(maxima());\n",
     .kinds = {race}},
    {.name = "the sums of two warps are left out",
     .setting = kLargeMma,
     .file = "mma/shared_rows.cuh",
     .original = "sent.x[0] + sent.x[1] + sent.x[2] + sent.x[3]",
     .replacement = "sent.x[0] + sent.x[1]"},
    {.name = "sums are added once for each lane of a row",
     .setting = kLargeMma,
     .file = "mma/shared_rows.cuh",
     .original = "sum[m][h] = lane % 4 == 0 ? total : 0.0f;",
     .replacement = "sum[m][h] = total;"},
    {.name = "rows leave before all columns are there",
     .setting = kLargeMma,
     .file = "mma/shared_rows.cuh",
     .original = "    ptx::bar_sync();\n",
     .replacement = "",
     .kinds = {race, unwritten_shared}},
    {.name = "no warp says what the sums of a row are",
     .setting = kLargeMma,
     .file = "mma/shared_rows.cuh",
     .original = "tells() { return Shape::part() == 0; }",
     .replacement = "tells() { return false; }"},

    // --- Whose keys and columns
    {.name = "all warps make the scores of the first keys",
     .setting = kLargeMma,
     .file = "mma/shared_rows.cuh",
     .original = "piece + Shape::part() * Shape::kWarpKeys * Shape::template KeyPiece<kPiece>::kRowBytes",
     .replacement = "piece"},
    {.name = "all warps mask the first keys",
     .setting = kLargeMmaCausal,
     .file = "kernels/mma_large.cuh",
     .original = "this->change_scores(s, i, first_own_key(i),",
     .replacement = "this->change_scores(s, i, first_key(i),"},
    {.name = "all warps drop as of the first keys",
     .setting = kLargeMmaDropout,
     .file = "kernels/mma_large.cuh",
     .original = ".kept(first_own_key(i) + lane % 4 * 2 + column)",
     .replacement = ".kept(first_key(i) + lane % 4 * 2 + column)"},
    {.name = "all warps multiply the first columns",
     .setting = kLargeMma,
     .file = "mma/shared_rows.cuh",
     .original = "place_of_values(lane, Shape::part())",
     .replacement = "place_of_values(lane, 0)"},
    {.name = "columns of a split lie side by side",
     .setting = kLargeMmaSplit,
     .file = "mma/shared_rows.cuh",
     .original = "2 * (n / 2 * Shape::kWarpsOfRows + Shape::part()) + n % 2",
     .replacement = "2 * (n / 2 + Shape::part() * Shape::kTilesOfWarp) + n % 2"},
    {.name = "warps multiply columns that they do not have",
     .setting = kLargeMma,
     .file = "mma/large_shape.cuh",
     .original = "return kWarpsOfRows * n + part() < kOutputTiles;",
     .replacement = "return n >= 0;",
     .kinds = {race, unwritten_shared, shared_out_of_bounds}},

    // --- Pieces
    {.name = "pieces are not waited for",
     .setting = kLargeMma,
     .file = "mma/piece_ring.cuh",
     .original = "    ptx::cp_async_wait_group<kLead - 1>();\n    ptx::bar_sync();",
     .replacement = "    ptx::bar_sync();",
     .kinds = {race, unwritten_shared}},
    {.name = "one piece too many may be pending",
     .setting = kLargeMma,
     .file = "mma/piece_ring.cuh",
     .original = "ptx::cp_async_wait_group<kLead - 1>();",
     .replacement = "ptx::cp_async_wait_group<kLead>();",
     .kinds = {race, unwritten_shared}},
    {.name = "pieces: no barrier",
     .setting = kLargeMma,
     .file = "mma/piece_ring.cuh",
     .original = "    ptx::cp_async_wait_group<kLead - 1>();\n    ptx::bar_sync();",
     .replacement = "    ptx::cp_async_wait_group<kLead - 1>();",
     .kinds = {race, unwritten_shared}},
    {.name = "a piece is requested where the one at hand lies",
     .setting = kLargeMma,
     .file = "mma/piece_ring.cuh",
     .original = "request(past);",
     .replacement = "request(next);",
     .kinds = {race, unwritten_shared}},
    {.name = "what pads a piece is left as it was",
     .setting = kLargeMma,
     .file = "kernels/mma_large.cuh",
     .original = "    Piece::template clear_padding<kValidWords, Shape::kThreads>(slot, thread);\n",
     .replacement = "",
     .kinds = {unwritten_shared}},
    {.name = "keys behind the last one are read",
     .setting = kLargeMma,
     .file = "kernels/mma_large.cuh",
     .original = "mask.last_existing_key + 1 - first;",
     .replacement = "Config::kBlockKv;",
     .kinds = {global_out_of_bounds}},
    {.name = "values of all pieces are the first ones of their block",
     .setting = kLargeMma,
     .file = "kernels/mma_large.cuh",
     .original = "first_key(i) + (kOfBlock - Shape::kKeyPieces) * Shape::kKeysOfPiece",
     .replacement = "first_key(i)"},
    {.name = "pages: every piece is of the first page's rows",
     .setting = kLargeMmaPages,
     .file = "kernels/mma_large.cuh",
     .original = "Keys(launch).place(key_row, first + row)",
     .replacement = "Keys(launch).place(key_row, row)"},
};

// Keys in two tensors, the first of e4m3. Two pieces of it come before two rotary ones; scales fall from block to
// block, so that their reference rises.
inline constexpr Setting of_latent_cache(const char* variant, bool token_scales) {
  return {.architecture = "sm_89",
          .variant = variant,
          .head_dim = 256,
          .seqlen_q = 5,
          .seqlen_kv = 251,
          .num_heads_q = 4,
          .num_heads_kv = 2,
          .e4m3 = true,
          .token_scales = token_scales,
          .rotary_dim = 136};
}
inline constexpr Setting kLatent = of_latent_cache("mma-q32-kv64-w8-k2-v1-splitkv", false);
inline constexpr Setting kLatentWhole = of_latent_cache("mma-q32-kv64-w8-k2-v1", false);
inline constexpr Setting kLatentTokens = of_latent_cache("mma-q32-kv64-w8-k2-v1-splitkv", true);
inline constexpr Setting kLatentManyKeys = of_latent_cache("mma-q16-kv128-w4-k2-v1-splitkv", true);
inline constexpr Setting kLatentPages = [] {
  Setting setting = kLatentTokens;
  setting.seqlen_q = 75, setting.ragged = setting.paged = true;
  return setting;
}();

inline const std::vector<Mutation> kLatentFaults = {
    // --- Where columns lie
    {.name = "the query's rotary columns are its first ones",
     .setting = kLatent,
     .file = "mma/large_shape.cuh",
     .original = "(is_rotary(piece) ? kColumns - kRotaryColumns : 0) + first_word(piece)",
     .replacement = "first_word(piece)"},
    {.name = "every rotary piece is the first one",
     .setting = kLatent,
     .file = "mma/large_shape.cuh",
     .original = "(piece - kStoredPieces) * kColumnsOfRotaryPiece",
     .replacement = "0 * kColumnsOfRotaryPiece"},
    {.name = "pages: rotary rows begin with those of the sequence's batch entry",
     .setting = kLatentPages,
     .file = "kernels/mma_large.cuh",
     .original = "rotary = Keys::kPaged ? rows.first(of.first, of.strides) : rows.of_key(of.first, of.strides, 0);",
     .replacement = "rotary = rows.of_key(of.first, of.strides, 0);",
     .kinds = {global_out_of_bounds}},
    {.name = "all warps multiply the first columns of e4m3",
     .setting = kLatent,
     .file = "parts/stored/e4m3.cuh",
     .original = "return VTile::offset(lane % 16, first);",
     .replacement = "return VTile::offset(lane % 16, 0);"},
    {.name = "columns of a split are those of 16-bit values",
     .setting = kLatent,
     .file = "mma/shared_rows.cuh",
     .original = "8 * chunk_of(n) + Columns::first(lane)",
     .replacement = "8 * chunk_of(n) + lane % 4 * 2",
     .kinds = {misaligned}},
    {.name = "the output's columns are those of 16-bit values",
     .setting = kLatentWhole,
     .file = "mma/shared_rows.cuh",
     .original = "Columns::of_chunk(lane) * 2;",
     .replacement = "lane % 4 * 4;",
     .kinds = {misaligned}},
    // --- Scales of heads
    {.name = "rotary columns have the scale of the others",
     .setting = kLatent,
     .file = "kernels/mma_large.cuh",
     .original = "kPiece + 1 == Shape::kStoredPieces",
     .replacement = "kPiece + 1 == Shape::kKeyPieces"},
    {.name = "keys in two tensors have no scale",
     .setting = kLatent,
     .file = "kernels/mma_large.cuh",
     .original = "      if (sees && kPiece + 1 == Shape::kStoredPieces) scales.apply_to_scores(s);\n",
     .replacement = ""},
    {.name = "values beside keys in two tensors have no scale",
     .setting = kLatent,
     .file = "kernels/mma_large.cuh",
     .original = "      scales.apply_to_output(self.o);\n",
     .replacement = ""},
    // --- Scales of tokens
    {.name = "all warps have the scales of the first keys",
     .setting = kLatentTokens,
     .file = "mma/shared_rows_scales.cuh",
     .original = "const int first = Shape::part() * Shape::kWarpKeys;",
     .replacement = "const int first = 0;"},
    {.name = "of 128 keys the scales of the first 32 are taken",
     .setting = kLatentManyKeys,
     .file = "mma/shared_rows_scales.cuh",
     .original = "first / kWarpSize == i ?",
     .replacement = "i == 0 ?"},
    {.name = "probabilities in shared memory do not meet the values' scales",
     .setting = kLatentTokens,
     .file = "mma/shared_rows_scales.cuh",
     .original = "    p0 *= weights.x[n][0], p1 *= weights.x[n][1];\n",
     .replacement = ""},
    {.name = "the output of warps that share rows is not rescaled where the reference rises",
     .setting = kLatentTokens,
     .file = "mma/shared_rows_scales.cuh",
     .original = "      o.multiply(reference.raise(largest));\n",
     .replacement = "      reference.raise(largest);\n"},
    {.name = "the reference is what one lane has of a block",
     .setting = kLatentTokens,
     .file = "mma/shared_rows_scales.cuh",
     .original = "        largest = fmaxf(largest, ptx::shfl_xor(largest, distance));\n",
     .replacement = "        ;\n"},
    {.name = "scales of tokens behind the last key are read",
     .setting = kLatentTokens,
     .file = "mma/shared_rows_scales.cuh",
     .original = "      if (key >= keys) continue;\n",
     .replacement = "",
     .kinds = {global_out_of_bounds}},
    {.name = "pages: scales are those of rows",
     .setting = kLatentPages,
     .file = "mma/key_rows.cuh",
     .original = "first(tensor, strides) + place.batch * strides.batch + place.row * strides.row",
     .replacement = "first(tensor, strides) + key * strides.row"},
};

}  // namespace flashjit::tests
