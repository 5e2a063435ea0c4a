// SPDX-License-Identifier: Apache-2.0
// Faults of dropout.
#pragma once

#include "tests/nvrtc/mutations/mutation.h"

namespace flashjit::tests {

inline constexpr Setting with_dropout(Setting setting, double probability) {
  setting.dropout = probability;
  return setting;
}
inline constexpr Setting kHopperDropout = with_dropout(of_scores("hopper-kv32-whole-lazy"), 0.3);
inline constexpr Setting kHopperDropoutRare = with_dropout(of_scores("hopper-kv32-whole-rare"), 0.3);
inline constexpr Setting kMmaDropout = with_dropout(of_mma_scores("mma-kv32-k2-v2"), 0.3);
inline constexpr Setting kMmaDropoutOfMost = with_dropout(of_mma_scores("mma-kv64-k2-v2"), 0.8);
inline constexpr Setting kHopperDropoutState = [] {
  Setting setting = kHopperDropout;
  setting.dropout_state = true;
  return setting;
}();
inline constexpr Setting kMmaDropoutState = [] {
  Setting setting = kMmaDropout;
  setting.dropout_state = true;
  return setting;
}();
inline constexpr Setting kHopperDropoutMask = [] {
  Setting setting = kHopperDropout;
  setting.dropout_mask = true;
  return setting;
}();
inline constexpr Setting kMmaDropoutMask = [] {
  Setting setting = kMmaDropout;
  setting.dropout_mask = true;
  return setting;
}();

inline const std::vector<Mutation> kDropoutFaults = {
    {.name = "dropout: one round less",
     .setting = kHopperDropout,
     .file = "attention/philox.cuh",
     .original = "constexpr int kRounds = 7;",
     .replacement = "constexpr int kRounds = 6;"},
    {.name = "dropout: a key that stays",
     .setting = kMmaDropout,
     .file = "attention/philox.cuh",
     .original = "return key.x[word] + round * kWeyl[word];",
     .replacement = "return key.x[word];"},
    {.name = "dropout: the words of the key change places",
     .setting = kHopperDropout,
     .file = "attention/philox.cuh",
     .original = "block.x[1] ^ key_word(key, round, 0)",
     .replacement = "block.x[1] ^ key_word(key, round, 1)"},
    {.name = "dropout: the second round has the first one's key",
     .setting = kMmaDropout,
     .file = "attention/philox.cuh",
     .original = "x0.low ^ key_word(key, 1, 1)",
     .replacement = "x0.low ^ key_word(key, 0, 1)"},
    {.name = "dropout: the third round lacks what does not change",
     .setting = kHopperDropout,
     .file = "attention/philox.cuh",
     .original = "x0_of_2.low ^ x2_after_3",
     .replacement = "x0_of_2.low"},
    {.name = "dropout: the query is that of the key beside it",
     .setting = kHopperDropout,
     .file = "parts/probability/dropout.cuh",
     .original = "const int from_position = place.sequence.queries - place.sequence.keys;",
     .replacement = "const int from_position = 0;"},
    {.name = "dropout: the same for all heads",
     .setting = kMmaDropout,
     .file = "parts/probability/dropout.cuh",
     .original = "dropout.num_heads_q + place.head;",
     .replacement = "dropout.num_heads_q;"},
    {.name = "dropout: the same for all batch entries",
     .setting = kHopperDropout,
     .file = "parts/probability/dropout.cuh",
     .original = "place.batch * dropout.num_heads_q",
     .replacement = "0"},
    {.name = "dropout: the same for all keys of a row",
     .setting = kMmaDropout,
     .file = "parts/probability/dropout.cuh",
     .original = "bits.block(first)",
     .replacement = "bits.block(0)"},
    {.name = "dropout: rows of the head's first query",
     .setting = kMmaDropout,
     .file = "parts/probability/dropout.cuh",
     .original = "const uint32 query = position + from_position;",
     .replacement = "const uint32 query = from_position;"},
    {.name = "dropout: the lower half of the seed alone",
     .setting = kHopperDropout,
     .file = "parts/probability/dropout.cuh",
     .original = "static_cast<uint32>(seed >> 32) ^",
     .replacement = "0u ^"},
    {.name = "dropout: the lower half of the offset alone",
     .setting = kMmaDropout,
     .file = "parts/probability/dropout.cuh",
     .original = " ^ static_cast<uint32>(offset >> 32)",
     .replacement = ""},
    {.name = "dropout: the offset is left out",
     .setting = kHopperDropout,
     .file = "parts/probability/dropout.cuh",
     .original = "row_of_heads, static_cast<uint32>(offset), {key}",
     .replacement = "row_of_heads, 0u, {key}"},
    {.name = "dropout: keeps what is to go",
     .setting = kHopperDropout,
     .file = "parts/probability/dropout.cuh",
     .original = "return dropout.kept_below;",
     .replacement = "return 0;"},
    {.name = "dropout: keeps what is to go, of many",
     .setting = kMmaDropoutOfMost,
     .file = "parts/probability/dropout.cuh",
     .original = "return dropout.kept_below;",
     .replacement = "return 0xffffffffu;"},
    {.name = "dropout: without the scale",
     .setting = kHopperDropout,
     .file = "hopper/store.cuh",
     .original = "factor *= typename Config::Dropouts(tiles.args).scale();",
     .replacement = ""},
    {.name = "dropout: without the scale",
     .setting = kMmaDropout,
     .file = "mma/store.cuh",
     .original = "inverse *= dropouts.scale();",
     .replacement = ""},
    {.name = "dropout: seed and offset of memory are not read",
     .setting = kHopperDropoutState,
     .file = "parts/probability/dropout.cuh",
     .original = "const bool on_device = dropout.state != nullptr;",
     .replacement = "const bool on_device = false;"},
    {.name = "dropout: the offset of memory is its seed",
     .setting = kMmaDropoutState,
     .file = "parts/probability/dropout.cuh",
     .original = "dropout.state[1]",
     .replacement = "dropout.state[0]"},
    {.name = "dropout: the upper row's bits for the lower one",
     .setting = kHopperDropout,
     .file = "attention/probability.cuh",
     .original = "return rows.lower.kept(",
     .replacement = "return rows.upper.kept("},
    {.name = "dropout: blocks have the first one's bits",
     .setting = kHopperDropout,
     .file = "kernels/hopper_forward.cuh",
     .original = "return SomeStay(visit.drops, Dropouts(tiles.args).flips(), first_key, lane());",
     .replacement = "return SomeStay(visit.drops, Dropouts(tiles.args).flips(), 0, lane());"},
    {.name = "dropout: P V of the block before is not waited for",
     .setting = kHopperDropout,
     .file = "hopper/shape.cuh",
     .original = "Config::Dropouts::kAny ||",
     .replacement = "",
     .kinds = {register_in_flight}},
    {.name = "dropout: P V is waited for early where the maximum is lazy",
     .setting = kHopperDropoutRare,
     .file = "hopper/shape.cuh",
     .original = "Config::Dropouts::kAny ||",
     .replacement = "(Config::Dropouts::kAny && Config::kRescale == Rescale::lazy) ||",
     .kinds = {register_in_flight}},
    {.name = "dropout: lanes have the columns of the first one",
     .setting = kHopperDropout,
     .file = "attention/probability.cuh",
     .original = "first_column(first_key + lane % 4 * 2)",
     .replacement = "first_column(first_key)"},
    {.name = "dropout: keys 16 to 31 have the bits of 0 to 15",
     .setting = kMmaDropout,
     .file = "mma/warp_attention.cuh",
     .original = ".x[j % 2 * 2 + r / 2]",
     .replacement = ".x[r / 2]"},
    {.name = "dropout: the mask of the neighbours",
     .setting = kMmaDropoutMask,
     .file = "parts/probability/dropout_mask.cuh",
     .original = "text.sees(first, 8 * t) ?",
     .replacement = "text.sees(first, 8 * t + 1) ?"},
    {.name = "dropout: the mask of the first keys",
     .setting = kHopperDropoutMask,
     .file = "parts/probability/dropout_mask.cuh",
     .original = "text.sees(first, 8 * t + 1)",
     .replacement = "text.sees(0, 8 * t + 1)"},
};

}  // namespace flashjit::tests
