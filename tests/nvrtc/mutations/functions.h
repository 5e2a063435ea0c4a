// SPDX-License-Identifier: Apache-2.0
// Faults of texts, predicates and block masks.
#pragma once

#include "tests/nvrtc/mutations/mutation.h"

namespace flashjit::tests {

// Softcap where the lazy softmax takes products near 0 by a shorter way.
inline constexpr Setting with_cap(Setting setting, float cap) {
  setting.softcap = cap;
  return setting;
}
inline constexpr Setting of_near_scores(bool causal) {
  Setting setting = of_scores("hopper-kv32-whole-lazy");
  setting.seqlen_q = 75, setting.seqlen_kv = 149, setting.causal = causal;
  setting.num_heads_kv = setting.num_heads_q;  // a warpgroup's rows have several blocks on the diagonal
  return setting;
}
inline constexpr Setting kHopperNear = with_cap(of_near_scores(false), 6.0f);
// Keys that are hidden at the begin, in blocks after the first.
inline constexpr Setting kHopperNearWindow = [] {
  Setting setting = with_cap(of_near_scores(true), 20.0f);
  setting.window = {40, -1};
  return setting;
}();
inline constexpr Setting kHopperNearAndFar = with_cap(of_near_scores(false), 1.5f);

inline constexpr const char* kScoreText = "score * 0.5f + weight(batch, head, query, key) - 0.125f * (query - key)";
inline constexpr const char* kMaskText = "(query / 7 + key / 5) % 3 != 0";
inline constexpr Setting with_score(Setting setting, const char* text) {
  setting.score = text;
  return setting;
}
inline constexpr Setting with_mask(Setting setting, const char* text) {
  setting.mask = text;
  return setting;
}
inline constexpr Setting with_documents(Setting setting) {
  setting.documents = true;
  return setting;
}
inline constexpr Setting kHopperScoreText = with_score(of_scores("hopper-kv32-whole"), kScoreText);
inline constexpr Setting kHopperMaskText = with_mask(of_scores("hopper-kv32-whole"), kMaskText);
inline constexpr Setting kHopperBothMasks = with_documents(kHopperMaskText);
inline constexpr Setting kHopperDocuments = with_documents(of_scores("hopper-kv32-whole"));
// Biases whose rows begin at multiples of 16 bytes, and such that do not.
inline constexpr Setting with_bias(Setting setting, std::int64_t pitch) {
  setting.bias_pitch = pitch;
  return setting;
}
inline constexpr Setting kHopperBias = with_bias(of_scores("hopper-kv32-whole"), 96);
inline constexpr Setting kHopperOddBias = with_bias(of_scores("hopper-kv32-whole"), 91);
inline constexpr Setting kHopperOffsets = [] {
  Setting setting = with_score(of_scores("hopper-kv32-whole"), "score + 0.01f * float(query) * float(key)");
  setting.offsets = true;
  return setting;
}();
inline constexpr Setting kMmaScoreText = with_score(of_mma_scores("mma-kv32-k2-v2"), kScoreText);
inline constexpr Setting kMmaMaskText = with_mask(of_mma_scores("mma-kv32-k2-v2"), kMaskText);
// Formulas. Rows have rests of their own, keys begin at an offset.
inline constexpr const char* kSlopingText =
    "score - 0.125f * (head + 1) * (query - key) + weight(batch, head, query, 0)";
inline constexpr Setting with_sloping(Setting setting) {
  setting.score = kSlopingText, setting.offsets = true;
  return setting;
}
inline constexpr Setting kHopperSloping = with_sloping(of_scores("hopper-kv32-whole"));
inline constexpr Setting kHopperSlopingCausal = with_causal(kHopperSloping);
inline constexpr Setting kMmaSloping = with_sloping(of_mma_scores("mma-kv32-k2-v2"));
inline constexpr Setting kHopperCapping = with_score(of_scores("hopper-kv32-whole"), "-1.5f * tanh(-0.75f * score)");
// Scores that jump, in the one loop.
inline constexpr Setting kHopperTextLazy = with_mask(kHopperLazy, kMaskText);
inline constexpr Setting kHopperTextJumps = with_mask(kHopperJumps, kMaskText);
// The rows of a warp see nothing of the first block that it takes.
inline constexpr Setting kMmaLateKeys = with_mask(of_mma_scores("mma-kv32-k2-v2"), "key < 40");

inline constexpr Setting with_blocks(Setting setting, const char* mask) {
  setting.mask = mask, setting.blocks = true;
  setting.seqlen_q = 200, setting.seqlen_kv = 600, setting.num_heads_q = 2, setting.num_heads_kv = 2;
  return setting;
}
inline constexpr const char* kBlocksText = "key / 100 == query / 70 || key >= 590";
inline constexpr Setting kHopperBlocks = with_blocks(of_scores("hopper-q128-kv32-whole-qs2-lazy-fused"), kBlocksText);
inline constexpr Setting kHopperWideBlocks =
    with_blocks(of_scores("hopper-q128-kv64-whole-qs2-lazy-fused"), kBlocksText);
// More than a warp looks at together.
inline constexpr Setting kHopperManyBlocks =
    with_blocks(of_scores("hopper-q128-kv16-whole-qs2-lazy-fused"), kBlocksText);
inline constexpr Setting kHopperNoBlocks =
    with_blocks(of_scores("hopper-q64-kv64-whole-ppoff"), "query < 100 && key < 50");
inline constexpr Setting kMmaBlocks = with_blocks(of_mma_scores("mma-kv32-k2-v2"), kBlocksText);

inline constexpr Setting with_prefix(Setting setting) {
  setting.prefix = true, setting.seqlen_q = 75, setting.seqlen_kv = 149;
  return setting;
}
inline constexpr Setting kHopperPrefix = with_prefix(of_scores("hopper-kv32-whole"));

inline const std::vector<Mutation> kTextFaults = {
    {.name = "near: nothing is far",
     .setting = kHopperNearAndFar,
     .file = "hopper/deferred_softmax.cuh",
     .original = "const bool far = static_cast<int>(signs) >= 0;",
     .replacement = "const bool far = false;"},
    {.name = "near: another coefficient",
     .setting = kHopperNear,
     .file = "parts/score/softcap.cuh",
     .original = "-0.192871967f",
     .replacement = "-0.292871967f"},
    {.name = "near: the last coefficient is left out",
     .setting = kHopperNear,
     .file = "parts/score/softcap.cuh",
     .original = "0.0897885824f",
     .replacement = "0.0f"},
    {.name = "near: coefficients without the unit",
     .setting = kHopperNear,
     .file = "parts/score/softcap.cuh",
     .original = "float factor = caps * unit;",
     .replacement = "float factor = caps;"},
    {.name = "near: blocks that hide keys, too",
     .setting = kHopperNearWindow,
     .file = "kernels/hopper_forward.cuh",
     .original = "if (is_near && !hides<false>(visit, at.block))",
     .replacement = "if (is_near)"},
    {.name = "near: the lower row with the upper one's shift",
     .setting = kHopperNear,
     .file = "hopper/deferred_softmax.cuh",
     .original = "probability(x, -shift.x[0][1], sums[1][column % 2])",
     .replacement = "probability(x, -shift.x[0][0], sums[1][column % 2])"},
    {.name = "near: half of a row's sum",
     .setting = kHopperNear,
     .file = "hopper/deferred_softmax.cuh",
     .original = "{sums[0][0] + sums[0][1], sums[1][0] + sums[1][1]}",
     .replacement = "{sums[0][0] + sums[0][1], sums[1][0]}"},
    {.name = "text: takes products without their scale",
     .setting = kHopperScoreText,
     .file = "parts/score/function.cuh",
     .original = "text.score(score * taken,",
     .replacement = "text.score(score,"},
    {.name = "text: scores in binary logarithms",
     .setting = kHopperScoreText,
     .file = "parts/score/function.cuh",
     .original = "unit(float) const { return kLog2E; }",
     .replacement = "unit(float) const { return 1.0f; }"},
    {.name = "text: queries are counted from the diagonal",
     .setting = kHopperScoreText,
     .file = "function/text.cuh",
     .original = " : of_queries[place.batch]) - diagonal;",
     .replacement = " : of_queries[place.batch]);"},
    {.name = "text: all rows have the first one's query",
     .setting = kMmaScoreText,
     .file = "function/text.cuh",
     .original = "sequence, position + from_position, from_position,",
     .replacement = "sequence, query, from_position,"},
    {.name = "text: queries of all batch entries begin alike",
     .setting = kHopperOffsets,
     .file = "function/text.cuh",
     .original = "of_queries[place.batch]",
     .replacement = "of_queries[0]"},
    {.name = "text: keys begin at 0",
     .setting = kHopperOffsets,
     .file = "function/text.cuh",
     .original = "return {first_key + first, offset};",
     .replacement = "return {first, offset};"},
    {.name = "text: a difference of positions has the sum of offsets",
     .setting = kHopperScoreText,
     .file = "function/position.cuh",
     .original = "{a.first - b.first, a.offset - b.offset}",
     .replacement = "{a.first - b.first, a.offset + b.offset}"},
    {.name = "text: a tensor is packed",
     .setting = kMmaScoreText,
     .file = "function/tensor.cuh",
     .original = "return kPacked ? static_cast<long long>(sizeof(Bits)) : strides[kRank - 1];",
     .replacement = "return static_cast<long long>(sizeof(Bits));"},
    {.name = "text: what is beside the last index is read",
     .setting = kHopperScoreText,
     .file = "function/tensor.cuh",
     .original = "load_below(sizes[kRank - 1] & -static_cast<unsigned>(inside),",
     .replacement = "load_below(~0u,",
     .kinds = {global_out_of_bounds}},
    {.name = "text: what is beside another index is read",
     .setting = kHopperScoreText,
     .file = "function/tensor.cuh",
     .original = "load_below(sizes[kRank - 1] & -static_cast<unsigned>(inside),",
     .replacement = "load_below(sizes[kRank - 1],",
     .kinds = {global_out_of_bounds}},
    {.name = "text: an index that is the same for all columns is beside the tensor",
     .setting = kHopperDocuments,
     .file = "function/tensor.cuh",
     .original = "const long long mask = -static_cast<long long>(inside);",
     .replacement = "const long long mask = -1;",
     .kinds = {global_out_of_bounds}},
    {.name = "text: a column has its lane's first element",
     .setting = kHopperScoreText,
     .file = "function/tensor.cuh",
     .original = " + index.offset * stride())",
     .replacement = ")"},
    {.name = "sloping: from the key by which kernels know it",
     .setting = kHopperSloping,
     .file = "parts/score/sloping_function.cuh",
     .original = "static_cast<float>(key.first + from)",
     .replacement = "static_cast<float>(key.first)"},
    {.name = "sloping: no rest",
     .setting = kHopperSloping,
     .file = "parts/score/sloping_function.cuh",
     .original = "Function::kFormulaHasRest ? score + rest : score",
     .replacement = "score"},
    {.name = "sloping: slopes of natural logarithms",
     .setting = kHopperSloping,
     .file = "parts/score/sloping_function.cuh",
     .original = "kLog2E * ptx::rcp(taken)",
     .replacement = "ptx::rcp(taken)"},
    {.name = "sloping: keys begin at 0",
     .setting = kHopperSlopingCausal,
     .file = "parts/score/sloping_function.cuh",
     .original = "return text.first_key +",
     .replacement = "return 0 +"},
    {.name = "sloping, causal: what the scores have in common begins with the block",
     .setting = kHopperSlopingCausal,
     .file = "parts/score/sloping_function.cuh",
     .original = "static_cast<float>(first + from)",
     .replacement = "static_cast<float>(first)"},
    {.name = "sloping, causal: no rest in what the scores have in common",
     .setting = kHopperSlopingCausal,
     .file = "parts/score/sloping_function.cuh",
     .original = "static_cast<float>(first + from), rest)",
     .replacement = "static_cast<float>(first + from), 0.0f)"},
    {.name = "sloping, mma: all rows begin where the first one does",
     .setting = kMmaSloping,
     .file = "parts/score/sloping_function.cuh",
     .original = "other.from = other.find_from();",
     .replacement = "other.from = from;"},
    {.name = "sloping, mma: all rows have the first one's rest",
     .setting = kMmaSloping,
     .file = "parts/score/sloping_function.cuh",
     .original = "if constexpr (Function::kFormulaOfQuery)",
     .replacement = "if constexpr (false)"},
    {.name = "capping: the sign of the cap",
     .setting = kHopperCapping,
     .file = "parts/score/capping_function.cuh",
     .original = "text.formula_outer() < 0.0f ? -caps : caps",
     .replacement = "caps"},
    {.name = "capping: no factor inside",
     .setting = kHopperCapping,
     .file = "parts/score/capping_function.cuh",
     .original = " * text.formula_inner()",
     .replacement = ""},
    {.name = "capping: no factor outside",
     .setting = kHopperCapping,
     .file = "parts/score/capping_function.cuh",
     .original = "fabsf(text.formula_outer()) * kLog2E",
     .replacement = "kLog2E"},
    {.name = "one loop: scores that are lost are not computed again",
     .setting = kHopperTextLazy,
     .file = "kernels/hopper_forward.cuh",
     .original = "          self.recompute_scores(keys.stage());\n"
                 "          rows = rows_now(visit, kept);",
     .replacement = "          rows = rows_now(visit, kept);"},
    {.name = "one loop: P V is not waited for",
     .setting = kHopperMaskText,
     .file = "kernels/hopper_forward.cuh",
     .original = "      release_key();\n"
                 "      if (first) doubt_maxima(visit, at);\n"
                 "      if constexpr (!kOutputEarly) {\n"
                 "        ptx::wgmma_wait_group<0>();\n",
     .replacement = "      release_key();\n"
                    "      if constexpr (!kOutputEarly) {\n",
     .kinds = {register_in_flight, race}},
    {.name = "one loop: the next scores are not waited for",
     .setting = kHopperMaskText,
     .file = "kernels/hopper_forward.cuh",
     .original = "      wait_for_scores();\n"
                 "      if constexpr (kOutputEarly) finish_output();\n"
                 "      first = false",
     .replacement = "      if constexpr (kOutputEarly) finish_output();\n"
                    "      first = false",
     .kinds = {register_in_flight, race}},
    {.name = "one loop: the output keeps its scale where a maximum rises",
     .setting = kHopperTextJumps,
     .file = "kernels/hopper_forward.cuh",
     .original = "        if (raised) Output::multiply(self.softmax.factor);\n"
                 "      } else if constexpr (!kOutputEarly) {\n"
                 "        if (fused) store(before);\n"
                 "      }\n"
                 "      if (!at.go_on(",
     .replacement = "      } else if constexpr (!kOutputEarly) {\n"
                    "        if (fused) store(before);\n"
                    "      }\n"
                    "      if (!at.go_on("},
    {.name = "one loop: each lane decides by itself",
     .setting = kHopperTextLazy,
     .file = "hopper/deferred_softmax.cuh",
     .original = "if (ptx::vote_any(too_low)) return leave(block_sum);",
     .replacement = "if (too_low) return leave(block_sum);",
     .kinds = {unequal_participation}},
    {.name = "one loop: sums are as before a maximum rose",
     .setting = kHopperTextJumps,
     .file = "hopper/deferred_softmax.cuh",
     .original = "      raised = raise_maximum(shift, common);\n"
                 "      if (raised) sum[0][0] *= factor[0], sum[0][1] *= factor[1];",
     .replacement = "      raised = raise_maximum(shift, common);"},
    {.name = "bias: all queries have the first one's",
     .setting = kHopperBias,
     .file = "parts/score/fetched_bias.cuh",
     .original = "query * bias.strides[2]",
     .replacement = "0"},
    {.name = "bias: without a row's last elements",
     .setting = kHopperBias,
     .file = "parts/score/fetched_bias.cuh",
     .original = "min(max(left - at, 0), kChunkBytes)",
     .replacement = "left - at < kChunkBytes ? 0 : kChunkBytes"},
    {.name = "bias: chunks of other lanes",
     .setting = kHopperBias,
     .file = "parts/score/fetched_bias.cuh",
     .original = "ptx::cp_async_16(slot + i * kChunkBytes,",
     .replacement = "ptx::cp_async_16((slot ^ kChunkBytes) + i * kChunkBytes,"},
    {.name = "bias: of keys before the block",
     .setting = kHopperOddBias,
     .file = "parts/score/fetched_bias.cuh",
     .original = "source + (static_cast<int64>(first_key) * kElementBytes + byte)",
     .replacement = "source + (static_cast<int64>(first_key / 2) * kElementBytes + byte)"},
    {.name = "bias: elements behind a row's end",
     .setting = kHopperOddBias,
     .file = "parts/score/fetched_bias.cuh",
     .original = "text::load_below(left, byte,",
     .replacement = "text::load_below(~0u, byte,",
     .kinds = {global_out_of_bounds}},
    {.name = "bias: rows behind the last one",
     .setting = kHopperBias,
     .file = "parts/score/fetched_bias.cuh",
     .original = "static_cast<int>(bias.sizes[2]) - 1)",
     .replacement = "static_cast<int>(bias.sizes[2]) + 1000)",
     .kinds = {global_out_of_bounds}},
    {.name = "bias: copies are not waited for",
     .setting = kHopperBias,
     .file = "kernels/hopper_forward.cuh",
     .original = "ptx::cp_async_wait_all();",
     .replacement = "",
     .kinds = {race, unwritten_shared}},
    {.name = "predicates: one is enough",
     .setting = kHopperBothMasks,
     .file = "attention/predicate.cuh",
     .original = "part.sees(key) && others.sees(key)",
     .replacement = "part.sees(key) || others.sees(key)"},
    {.name = "predicates: only the first",
     .setting = kHopperBothMasks,
     .file = "attention/predicate.cuh",
     .original = "part.sees(key) && others.sees(key)",
     .replacement = "part.sees(key)"},
    {.name = "predicates: pairs of bits overlap",
     .setting = kHopperMaskText,
     .file = "attention/scores.cuh",
     .original = "__funnelshift_r(hidden_bits[0], by_upper, kBits)",
     .replacement = "__funnelshift_r(hidden_bits[0], by_upper, kBits - 1)"},
    {.name = "predicates: what is seen is hidden",
     .setting = kHopperMaskText,
     .file = "attention/scores.cuh",
     .original = "hidden[h][word] |= hidden_bits[h] >> (32 - 2 * tiles);",
     .replacement = "hidden[h][word] |= ~(hidden_bits[h] >> (32 - 2 * tiles));"},
    {.name = "predicates: blocks with a span's end are not asked",
     .setting = kHopperMaskText,
     .file = "kernels/hopper_forward.cuh",
     .original = "if (by_predicates) add",
     .replacement = "if (by_predicates && !by_spans) add"},
    {.name = "predicates: where they are asked, spans do not end",
     .setting = kHopperMaskText,
     .file = "kernels/hopper_forward.cuh",
     .original = "if (by_spans)\n",
     .replacement = "if (by_spans && !by_predicates)\n"},
    {.name = "predicates: the lower row sees what the upper one sees",
     .setting = kHopperMaskText,
     .file = "attention/scores.cuh",
     .original = "static_cast<uint32>(!lower.sees(key))",
     .replacement = "static_cast<uint32>(!upper.sees(key))"},
    {.name = "predicates of mma: a pair has the first one's bit",
     .setting = kMmaMaskText,
     .file = "attention/scores.cuh",
     .original = "(2 * (n % kTilesOfWord) + e % 2)",
     .replacement = "(2 * (n % kTilesOfWord))"},
    {.name = "predicates of mma: not asked",
     .setting = kMmaMaskText,
     .file = "mma/forward_tile.cuh",
     .original = "if (!whole) hide(",
     .replacement = "if (false) hide("},
    {.name = "block mask: a granule that only some keys of are seen is empty",
     .setting = kHopperBlocks,
     .file = "kernels/block_mask.cuh",
     .original = "(seen.by_some & keys) != 0",
     .replacement = "(seen.by_some & keys) == keys"},
    {.name = "block mask: what some see is whole",
     .setting = kHopperBlocks,
     .file = "kernels/block_mask.cuh",
     .original = "(~seen.by_all & keys) == 0",
     .replacement = "(~seen.by_some & keys) == 0"},
    {.name = "block mask: of the first query of each granule",
     .setting = kHopperBlocks,
     .file = "kernels/block_mask.cuh",
     .original = "query < end; ++query",
     .replacement = "query <= first; ++query"},
    {.name = "block mask: the granules of a word's begin",
     .setting = kHopperBlocks,
     .file = "parts/blocks/block_mask.cuh",
     .original = "first_key / kGranuleKeys % static_cast<uint32>(kGranulesOfWord)",
     .replacement = "0"},
    {.name = "block mask: a warpgroup's granules of the first queries",
     .setting = kHopperBlocks,
     .file = "parts/blocks/block_mask.cuh",
     .original = "words_of<kKeys>(batch, head, query, first_key)",
     .replacement = "words_of<kKeys>(batch, head, 0, first_key)"},
    {.name = "block mask: what some queries of a granule see, all do",
     .setting = kHopperBlocks,
     .file = "parts/blocks/block_mask.cuh",
     .original = "return among<kKeys>({some, at(words)});",
     .replacement = "return among<kKeys>({some, some});"},
    {.name = "block mask: without the tile's last queries",
     .setting = kHopperBlocks,
     .file = "parts/blocks/block_mask.cuh",
     .original = "query <= last_query / kGranuleQueries",
     .replacement = "query < last_query / kGranuleQueries"},
    {.name = "listed: all blocks are whole",
     .setting = kHopperBlocks,
     .file = "hopper/block_walk.cuh",
     .original = "whole = ptx::vote_ballot(seen.whole);",
     .replacement = "whole = ~0u;"},
    {.name = "listed: only the first blocks are looked at",
     .setting = kHopperManyBlocks,
     .file = "hopper/block_walk.cuh",
     .original = "window = ceil_div(tile.end_block, kWarpSize), to_visit = 0;",
     .replacement = "window = 1, to_visit = 0;"},
    {.name = "listed: only the first blocks are counted",
     .setting = kHopperManyBlocks,
     .file = "hopper/block_walk.cuh",
     .original = "first < tile.end_block; first += kWarpSize)",
     .replacement = "first < min(tile.end_block, kWarpSize); first += kWarpSize)"},
    {.name = "listed: the first block of those that are left is taken",
     .setting = kHopperManyBlocks,
     .file = "hopper/block_walk.cuh",
     .original = "const int bit = kWarpSize - 1 - __clz(static_cast<int>(to_visit));",
     .replacement = "const int bit = kWarpSize - 2 - __clz(static_cast<int>(to_visit) / 2);"},
    {.name = "granules: of the first warpgroup's rows",
     .setting = kHopperBlocks,
     .file = "kernels/hopper_forward.cuh",
     .original = "tile.first_row + warpgroup * kWarpgroupRows, block)",
     .replacement = "tile.first_row, block)"},
    {.name = "granules: the first ones of a block are those of all of it",
     .setting = kHopperWideBlocks,
     .file = "attention/scores.cuh",
     .original = "known.some >>= kGranules, known.whole >>= kGranules;",
     .replacement = ""},
    {.name = "granules: what some keys of are seen is whole",
     .setting = kHopperBlocks,
     .file = "attention/scores.cuh",
     .original = "if ((known.some & kAll) != 0 && (known.whole & kAll) != kAll)",
     .replacement = "if (known.some == ~0u)"},
    {.name = "granules: what nobody sees is seen",
     .setting = kHopperBlocks,
     .file = "attention/scores.cuh",
     .original = "(known.some & kAll) != 0 ? 0 : ~0u, by_lower",
     .replacement = "0, by_lower"},
    {.name = "listed: another lane reads the note than the one that tells it",
     .setting = kHopperBlocks,
     .file = "hopper/block_walk.cuh",
     .original = "ptx::shfl_from(reader, noted)",
     .replacement = "ptx::shfl_from(reader ^ 1, noted)"},
    {.name = "listed: whole blocks are the others",
     .setting = kHopperBlocks,
     .file = "hopper/block_walk.cuh",
     .original = "whole = (noted & 1) == 0;",
     .replacement = "whole = (noted & 1) != 0;"},
    {.name = "listed: a block too many",
     .setting = kHopperBlocks,
     .file = "hopper/block_walk.cuh",
     .original = "int listed = 0;",
     .replacement = "int listed = 1;"},
    {.name = "listed: consumers expect a block less",
     .setting = kHopperBlocks,
     .file = "hopper/block_walk.cuh",
     .original = "return --left > 0;",
     .replacement = "return --left > 1;",
     .kinds = {race, deadlock, mbarrier_phase, unequal_participation}},
    {.name = "listed: a tile of hidden keys visits the first block that there is",
     .setting = kHopperNoBlocks,
     .file = "hopper/block_walk.cuh",
     .original = "found = static_cast<uint32>(tile.end_block - 1) << 1 | 1;",
     .replacement = "found = static_cast<uint32>(tile.first_block) << 1;"},
    {.name = "listed: the note comes when the keys are on their way",
     .setting = kHopperBlocks,
     .file = "hopper/loader.cuh",
     .original = "    ring.wait_empty();\n"
                 "    take_note();\n"
                 "    ptx::mbarrier_arrive_expect_tx(ring.full(), KvTile::kBytes);",
     .replacement = "    ring.wait_empty();\n"
                    "    ptx::mbarrier_arrive_expect_tx(ring.full(), KvTile::kBytes);\n"
                    "    take_note();",
     .kinds = {race, unwritten_shared}},
    {.name = "listed, mma: all blocks are whole",
     .setting = kMmaBlocks,
     .file = "kernels/mma_forward.cuh",
     .original = "if (sees) shift = finish_scores<false>(s, i, 0, seen.whole);",
     .replacement = "if (sees) shift = finish_scores<false>(s, i, 0, true);"},
    {.name = "prefix: a causal mask",
     .setting = kHopperPrefix,
     .file = "parts/mask/prefix.cuh",
     .original = "return max(position, last_of_prefix);",
     .replacement = "return position;"},
    {.name = "prefix: all batch entries have the first one's",
     .setting = kHopperPrefix,
     .file = "parts/mask/prefix.cuh",
     .original = "args.prefix.keys[batch()]",
     .replacement = "args.prefix.keys[0]"},
    {.name = "prefix: one key too many",
     .setting = kHopperPrefix,
     .file = "parts/mask/prefix.cuh",
     .original = "max(args.prefix.keys[batch()], 0) - 1",
     .replacement = "max(args.prefix.keys[batch()], 0)"},
};

}  // namespace flashjit::tests
