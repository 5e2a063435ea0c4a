// SPDX-License-Identifier: Apache-2.0
// Faults of large heads: of the pieces that keys and values come in, of the two streams, and of what they send each
// other.
#pragma once

#include "tests/nvrtc/mutations/mutation.h"

namespace flashjit::tests {

// Four blocks of keys, so that each stream has two; scores that jump, so that maxima rise from block to block.
inline constexpr Setting kLarge{.variant = "hopper-q64-kv64-s1-ppoff-rare-fixed",
                                .head_dim = 264,
                                .softmax_scale = 0.5f,
                                .dtype = DType::bf16,
                                .seqlen_kv = 240};
inline constexpr Setting kLargeCausal = with_causal(kLarge);
inline constexpr Setting kLargeNegative = [] {
  Setting setting = kLarge;
  setting.softmax_scale = -0.5f;
  return setting;
}();
inline constexpr Setting kLargeCluster = [] {
  Setting setting = kLarge;
  setting.variant = "hopper-q64-kv64-s1-ppoff-cl2-rare-fixed";
  return setting;
}();
inline constexpr Setting kLargeRagged = [] {
  Setting setting = kLarge;
  setting.ragged = true;
  return setting;
}();

// Of one query, whose 128 heads are the rows of a pair of blocks, in three splits.
inline constexpr Setting kLargeDecode{.variant = "hopper-q64-kv64-s1-ppoff-cl2-rare-single-splitkv",
                                      .head_dim = 264,
                                      .dtype = DType::bf16,
                                      .seqlen_q = 1,
                                      .seqlen_kv = 330,
                                      .num_heads_q = 128,
                                      .num_heads_kv = 1};
inline constexpr Setting kLargePairRagged = [] {
  Setting setting = kLargeCluster;
  setting.ragged = true;
  return setting;
}();
inline constexpr Setting kLargePaged = [] {
  Setting setting = kLarge;
  setting.ragged = setting.paged = true;
  return setting;
}();
inline constexpr Setting kLargePairPaged = [] {
  Setting setting = kLargeCluster;
  setting.ragged = setting.paged = true;
  return setting;
}();

inline constexpr Setting kLargeLatent = [] {
  Setting setting = kLarge;
  setting.latent_columns = 256;
  return setting;
}();

inline const std::vector<Mutation> kLargeHeadFaults = {
    // --- What streams send each other
    {.name = "P is sent without a fence",
     .setting = kLarge,
     .file = "kernels/hopper_large.cuh",
     .original = "    ptx::fence_proxy_async();\n    end_sending();",
     .replacement = "    end_sending();",
     .kinds = {missing_proxy_fence, race}},
    {.name = "sums are written before the other stream has read P",
     .setting = kLarge,
     .file = "kernels/hopper_large.cuh",
     .original = "    outgoing.wait_empty();\n    ptx::st_shared(",
     .replacement = "    ptx::st_shared(",
     .kinds = {race}},
    {.name = "P is used before it is there",
     .setting = kLarge,
     .file = "kernels/hopper_large.cuh",
     .original = "    incoming.wait_full();\n    take_maxima();",
     .replacement = "    take_maxima();",
     .kinds = {race, unwritten_shared, mbarrier_phase}},
    {.name = "P is given back while it is multiplied",
     .setting = kLarge,
     .file = "kernels/hopper_large.cuh",
     .original = "    ptx::wgmma_wait_group<0>();\n    if (!issued) return;",
     .replacement = "    if (!issued) return;",
     .kinds = {race, register_in_flight, mbarrier_phase}},
    {.name = "P is never given back",
     .setting = kLarge,
     .file = "kernels/hopper_large.cuh",
     .original = "    pieces.give_back(Shape::kValuePieces);\n    incoming.release(ptx::elect());",
     .replacement = "    pieces.give_back(Shape::kValuePieces);",
     .kinds = {race, mbarrier_phase, deadlock}},
    {.name = "a stream multiplies its own P for the other's",
     .setting = kLarge,
     .file = "kernels/hopper_large.cuh",
     .original = "p(PTile::k_major(in_block(incoming.slot())))",
     .replacement = "p(PTile::k_major(in_block(outgoing.slot())))",
     .kinds = {race, unwritten_shared}},
    {.name = "maxima do not go with P",
     .setting = kLarge,
     .file = "kernels/hopper_large.cuh",
     .original = "softmax.maximum[0][h], raised ? softmax.factor[h] : 1.0f);",
     .replacement = "0.0f, raised ? softmax.factor[h] : 1.0f);"},
    {.name = "what maxima rose by does not go with P",
     .setting = kLarge,
     .file = "kernels/hopper_large.cuh",
     .original = "raised ? softmax.factor[h] : 1.0f",
     .replacement = "1.0f"},
    {.name = "the output does not follow the other stream's maxima",
     .setting = kLarge,
     .file = "kernels/hopper_large.cuh",
     .original = "    if (begun != 0 && ptx::vote_any(",
     .replacement = "    if (false && ptx::vote_any("},
    {.name = "sums do not follow the other stream's maxima",
     .setting = kLarge,
     .file = "hopper/deferred_softmax.cuh",
     .original = "    sum[0][0] *= by[0], sum[0][1] *= by[1];\n",
     .replacement = ""},
    {.name = "sums are not joined",
     .setting = kLarge,
     .file = "kernels/hopper_large.cuh",
     .original = "    softmax.add(of_other);\n",
     .replacement = ""},
    {.name = "the output is written before the other stream has read its last keys",
     .setting = kLarge,
     .file = "kernels/hopper_large.cuh",
     .original = "    incoming.wait_full();\n    float of_other[2];",
     .replacement = "    float of_other[2];",
     .kinds = {race, unwritten_shared, mbarrier_phase}},

    // --- Streams and their blocks
    {.name = "the last block is the other stream's, and its values are left out",
     .setting = kLargeCausal,
     .file = "kernels/hopper_large.cuh",
     .original = "    if (visited == visit.count) {",
     .replacement = "    if (false) {",
     .kinds = {unwritten_shared, race, deadlock}},
    {.name = "a stream masks the block of the other one",
     .setting = kLargeCausal,
     .file = "kernels/hopper_large.cuh",
     .original = "    Cursor at(0, visit.end - visited);",
     .replacement = "    Cursor at(0, visit.end);"},
    {.name = "both streams have the first columns",
     .setting = kLarge,
     .file = "hopper/large_loader.cuh",
     .original = "column_of(stream * Shape::kOutputColumns + panel",
     .replacement = "column_of(panel"},

    // --- Pieces
    {.name = "keys are multiplied before they are there",
     .setting = kLarge,
     .file = "pipeline/ring.cuh",
     .original = "  __device__ __forceinline__ int take() {\n    wait_full();",
     .replacement = "  __device__ __forceinline__ int take() {",
     .kinds = {race, unwritten_shared, mbarrier_phase}},
    {.name = "a piece of keys is given back while it is multiplied",
     .setting = kLarge,
     .file = "kernels/hopper_large.cuh",
     .original = "    ptx::wgmma_commit_group();\n    ptx::wgmma_wait_group<1>();",
     .replacement = "    ptx::wgmma_commit_group();",
     .kinds = {race, register_in_flight, mbarrier_phase}},
    {.name = "values are not given back",
     .setting = kLarge,
     .file = "kernels/hopper_large.cuh",
     .original = "    else if constexpr (kPiece == 0 && kBehind)\n      give_back_own_values();",
     .replacement = "",
     .kinds = {deadlock, race, mbarrier_phase}},
    {.name = "a block of a cluster brings its own half of the keys to the first place",
     .setting = kLargeCluster,
     .file = "hopper/large_loader.cuh",
     .original = "(rank * kKeysOfShare + first) * KeyPiece",
     .replacement = "first * KeyPiece",
     .kinds = {race, unwritten_shared}},
    {.name = "pieces behind a sequence are read where they would be",
     .setting = kLargeRagged,
     .file = "hopper/large_loader.cuh",
     .original = "return min(key, max(tile.of.keys, 1) - 1);",
     .replacement = "return key;",
     .kinds = {global_out_of_bounds}},

    {.name = "a block of a cluster brings keys behind a sequence",
     .setting = kLargePairRagged,
     .file = "hopper/large_loader.cuh",
     .original = "    if constexpr (Config::kCluster > 1) return first_of_piece(tile, first);\n",
     .replacement = "",
     .kinds = {global_out_of_bounds}},
    {.name = "all boxes of a block come from its first pages",
     .setting = kLargePaged,
     .file = "hopper/large_loader.cuh",
     .original = "ptx::shfl_from(key >> keys_of_lane_log2(), block.page_of_lane)",
     .replacement = "ptx::shfl_from(0, block.page_of_lane)"},
    {.name = "pages of a cluster go to where those of its first block do",
     .setting = kLargePairPaged,
     .file = "hopper/large_loader.cuh",
     .original = "(rank * kKeysOfShare + first) * KeyPiece",
     .replacement = "first * KeyPiece",
     .kinds = {race, unwritten_shared}},

    // --- Values that are where keys were
    {.name = "columns of keys that are values are given back as others are",
     .setting = kLargeLatent,
     .file = "kernels/hopper_large.cuh",
     .original = "      stage = own_pieces.take();\n",
     .replacement = "      stage = own_pieces.take(), own_pieces.give_back(1);\n",
     .kinds = {race, mbarrier_phase, deadlock}},
    {.name = "each stream keeps the other one's columns",
     .setting = kLargeLatent,
     .file = "hopper/large_shape.cuh",
     .original = "return stream * kOwnPieces + i;",
     .replacement = "return (1 - stream) * kOwnPieces + i;"},
    {.name = "all steps of P V have the first keys",
     .setting = kLargeLatent,
     .file = "kernels/hopper_large.cuh",
     .original = "n_major_step(kPiece * Shape::kStepsOfValuePiece + step)",
     .replacement = "n_major_step(step)"},
    {.name = "values of a stream's own blocks are requested, too",
     .setting = kLargeLatent,
     .file = "hopper/large_loader.cuh",
     .original = "    if (Shape::kOwnPieces != 0 && visited % Shape::kStreams == stream) return;",
     .replacement = "",
     .kinds = {race, unwritten_shared, deadlock, mbarrier_phase}},
    {.name = "columns that stay are multiplied with those of the query that pass",
     .setting = kLargeLatent,
     .file = "kernels/hopper_large.cuh",
     .original = "kOwn ? Shape::own_panel(stream, kPiece - Shape::kPassingPieces)",
     .replacement = "kOwn ? Shape::passing_panel(stream, kPiece - Shape::kPassingPieces)"},

    // --- Partial results
    {.name = "partial results of both streams go to the first columns",
     .setting = kLargeDecode,
     .file = "hopper/store.cuh",
     .original = "const int column = first_column + 8 * n;",
     .replacement = "const int column = 8 * n;"},
    {.name = "partial results go on behind the last column",
     .setting = kLargeDecode,
     .file = "hopper/store.cuh",
     .original = "        if (column < Config::kHeadDimV)\n",
     .replacement = ""},
    {.name = "both blocks of a cluster have the first rows of a partial result",
     .setting = kLargeDecode,
     .file = "hopper/tiles.cuh",
     .original = "row - tile.first_row + cluster_rank<Config>() * Config::kBlockQ",
     .replacement = "row - tile.first_row"},

    // --- The query
    {.name = "both blocks of a cluster have the first heads of a pack",
     .setting = kLargeDecode,
     .file = "hopper/tiles.cuh",
     .original = "    if constexpr (kPacksAreWide<Config>) return heads().head(tile.head, first_row);\n",
     .replacement = ""},
    {.name = "a block of a cluster without rows reads behind its sequence",
     .setting = kLargePairRagged,
     .file = "hopper/large_loader.cuh",
     .original = "tile.first_row < tiles.heads().rows(tile.of.queries) ? tile.first_row : 0",
     .replacement = "tile.first_row",
     .kinds = {global_out_of_bounds}},
    {.name = "the query is flipped by one stream alone",
     .setting = kLargeNegative,
     .file = "kernels/hopper_large.cuh",
     .original = "i < kChunks; i += Shape::kConsumerThreads",
     .replacement = "stream == 0 && i < kChunks; i += Shape::kConsumerThreads"},
    {.name = "a flipped query is multiplied before the other stream has flipped its part",
     .setting = kLargeNegative,
     .file = "kernels/hopper_large.cuh",
     .original = "    ptx::bar_sync<Shape::kConsumerThreads>(NamedBarrier::query_flipped);\n",
     .replacement = "",
     .kinds = {race}},
    {.name = "the query is loaded while the output before it leaves",
     .setting = kLarge,
     .file = "kernels/hopper_large.cuh",
     .original = "      store.wait_read();\n",
     .replacement = "",
     .kinds = {race}},
};

}  // namespace flashjit::tests
