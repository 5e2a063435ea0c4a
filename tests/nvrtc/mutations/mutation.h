// SPDX-License-Identifier: Apache-2.0
// A fault for test_emulator_mutations.cpp to plant in the device code, what the emulator must find, and the kernels and
// calls in which it is looked for.
#pragma once

#include <cstdint>
#include <vector>

#include "flashjit/attention.h"
#include "flashjit/emulator.h"
#include "flashjit/tensor.h"

namespace flashjit::tests {

// A kernel and a call of it. Lengths leave rests, query heads share keys and values, and on two resident blocks there
// are several tiles for each.
struct Setting {
  const char* architecture = "sm_90a";
  const char* variant = "";
  int head_dim = 64;
  bool causal = false;
  float softmax_scale = 0.125f;
  DType dtype = DType::f16;
  std::int64_t seqlen_q = 149, seqlen_kv = 203, num_heads_q = 4, num_heads_kv = 2;
  Window window = {};
  std::int64_t batch = 1;
  float softcap = 0;
  bool slopes = false;  // of ALiBi, for each batch entry and head its own
  bool sinks = false;   // likewise
  std::int64_t chunk = 0;
  // Users' texts, which may use "weight", f16 [batch, query head, query, key] without a contiguous dimension, and "id",
  // i32 [batch, key].
  const char* score = nullptr;
  const char* mask = nullptr;
  bool offsets = false;         // of queries and keys
  bool documents = false;       // as id
  bool blocks = false;          // a block mask of mask and documents
  bool prefix = false;          // of each batch entry its own
  std::int64_t bias_pitch = 0;  // elements from row to row of a bias, f16; 0: there is none
  double dropout = 0;
  bool dropout_state = false;  // seed and offset in memory
  bool dropout_mask = false;
  // Four sequences, one without queries and one without keys, with NaN before the keys of the first.
  bool ragged = false;
  bool long_sequences = false;  // so many keys that these are split
  bool paged = false;           // their keys in pages of 16, with NaN in all else
  bool planned = false;         // called with a plan
  bool e4m3 = false;            // keys and values, with a scale for each head
  bool token_scales = false;    // and for each token
  int latent_columns = 0;       // of v, which is the first columns of k; 0: it has memory of its own
  int rotary_dim = 0;           // columns of keys in a tensor of their own, beside head_dim of k and v
};

inline constexpr Setting kHopper{.variant = "hopper-kv64-whole"};
inline constexpr Setting kHopperCausal{
    .variant = "hopper-kv64-whole", .causal = true, .dtype = DType::bf16, .seqlen_kv = 179};
// Outputs that wait in the place of the query.
inline constexpr Setting kHopperInQuery{.variant = "hopper-kv64"};
inline constexpr Setting kHopperPanels{.variant = "hopper-kv64", .head_dim = 80};
inline constexpr Setting kHopperNegative{.variant = "hopper-kv64-whole", .softmax_scale = -0.125f};
inline constexpr Setting kHopperThreeSlots{.variant = "hopper-kv64-s3-whole"};
inline constexpr Setting kHopperFused{.variant = "hopper-kv64-qs2-whole-fused"};
inline constexpr Setting kHopperHalf{.variant = "hopper-kv64-half", .head_dim = 80};
inline constexpr Setting kHopperSharedP{.variant = "hopper-kv64-psmem"};
inline constexpr Setting kHopperSerial{.variant = "hopper-kv64-serial-ppsoftmax-whole"};
inline constexpr Setting kHopperThreeStage{.variant = "hopper-kv64-3stage"};
// Scores that jump, so that blocks are computed again.
inline constexpr Setting kHopperLazy{.variant = "hopper-kv64-lazy-whole", .softmax_scale = 4.0f};
inline constexpr Setting kHopperJumps{.variant = "hopper-kv64-whole", .softmax_scale = 4.0f};
inline constexpr Setting kHopperFixed{.variant = "hopper-kv64-fixed-whole"};
inline constexpr Setting kHopperCluster{.variant = "hopper-kv64-fixed-cl2-whole", .head_dim = 80};
inline constexpr Setting kHopperNoProducer{.variant = "hopper-kv64-fixed-nows-whole-ppoff", .seqlen_kv = 61};

// To both sides: each warpgroup has a clean block between those that are masked, and a first block of its own.
inline constexpr Setting of_window(const char* variant, const Window& window) {
  return {.variant = variant, .seqlen_kv = 190, .num_heads_q = 2, .num_heads_kv = 2, .window = window};
}
inline constexpr Setting kHopperWindow = of_window("hopper-kv32-whole", {70, 60});
inline constexpr Setting kHopperSerialWindow = of_window("hopper-kv32-serial-ppsoftmax-whole", {70, 60});
inline constexpr Setting kHopperOneSlot = of_window("hopper-kv32-s1-qs1-serial-ppsoftmax-whole-split", {20, 20});
inline constexpr Setting kHopperFusedWindow = of_window("hopper-kv32-qs2-whole-fused", {70, 60});
// Ends before the rows of the last warpgroup begin, which do not exist.
inline constexpr Setting kHopperNarrow = of_window("hopper-kv32-whole", {3, 1});

// What becomes of scores. Four heads share the one tile of a batch entry; a batch entry has slopes of its own.
inline constexpr Setting of_scores(const char* variant) {
  return {.variant = variant, .seqlen_q = 30, .seqlen_kv = 90, .num_heads_kv = 1, .batch = 2};
}
inline constexpr Setting with_alibi(Setting setting) {
  setting.slopes = true;
  return setting;
}
// Bends usual scores.
inline constexpr Setting with_softcap(Setting setting) {
  setting.softcap = 1.5f;
  return setting;
}
inline constexpr Setting with_causal(Setting setting) {
  setting.causal = true;
  return setting;
}
// Of absolute distances, and with a causal mask of such that the softmax takes in part for all keys at once.
inline constexpr Setting kHopperAlibi = with_alibi(of_scores("hopper-kv64-whole-rare"));
inline constexpr Setting kHopperAlibiCausal = with_causal(kHopperAlibi);
// Each warp's rows are of one head.
inline constexpr Setting kHopperAlibiLazy = [] {
  Setting setting = with_causal(with_alibi(of_scores("hopper-kv64-whole-lazy")));
  setting.num_heads_kv = setting.num_heads_q;
  return setting;
}();
inline constexpr Setting kHopperSoftcap = with_softcap(of_scores("hopper-kv64-whole"));
inline constexpr Setting kHopperBoth = with_softcap(kHopperAlibi);
inline constexpr Setting kHopperAlibiWindow = with_alibi(of_window("hopper-kv32-whole", {70, 60}));

inline constexpr Setting of_mma(const char* variant) {
  return {.architecture = "sm_80",
          .variant = variant,
          .seqlen_q = 75,
          .seqlen_kv = 149,
          .num_heads_q = 4,
          .num_heads_kv = 2};
}
inline constexpr Setting kMma = of_mma("mma-kv32-k2-v2");
inline constexpr Setting kMmaDeep = of_mma("mma-kv32-k3-v3");
inline constexpr Setting kMmaSerial = of_mma("mma-kv32-serial");
inline constexpr Setting kMmaOneKey = of_mma("mma-kv32-k1-v2");
inline constexpr Setting kMmaOneValue = of_mma("mma-kv32-k2-v1");
inline constexpr Setting kMmaRotate = of_mma("mma-kv32-k2-v3-rotate");
inline constexpr Setting kMmaQueryInRegisters = of_mma("mma-kv32-k2-v2-qregs");
inline constexpr Setting kMmaCausal = [] {
  Setting setting = kMma;
  setting.causal = true, setting.dtype = DType::bf16;
  setting.seqlen_kv = 156;  // the first warp sees one key of the block on its diagonal
  return setting;
}();
inline constexpr Setting of_mma_window(const char* variant) {
  Setting setting = of_mma(variant);
  setting.window = {70, 60};  // clean blocks between those that are masked at the end and at the begin
  return setting;
}
inline constexpr Setting kMmaWindow = of_mma_window("mma-kv32-k2-v2");
inline constexpr Setting kMmaOneValueWindow = of_mma_window("mma-kv32-k2-v1");
inline constexpr Setting kMmaRotateWindow = of_mma_window("mma-kv32-k2-v3-rotate");
inline constexpr Setting kMmaPadded = [] {
  Setting setting = kMma;
  setting.head_dim = 72;
  return setting;
}();
inline constexpr Setting kMmaJumps = [] {
  Setting setting = kMma;
  setting.softmax_scale = 4.0f;
  return setting;
}();
inline constexpr Setting kMmaNegative = [] {
  Setting setting = kMma;
  setting.softmax_scale = -0.125f;
  return setting;
}();

inline constexpr Setting of_mma_scores(const char* variant) {
  Setting setting = of_mma(variant);
  setting.batch = 2;
  return setting;
}
inline constexpr Setting kMmaAlibi = with_alibi(of_mma_scores("mma-kv32-k2-v2"));
inline constexpr Setting kMmaAlibiCausal = with_causal(kMmaAlibi);
inline constexpr Setting kMmaSoftcap = with_softcap(of_mma_scores("mma-kv32-k2-v2"));
inline constexpr Setting kMmaBoth = with_causal(with_softcap(kMmaAlibi));

// Terms of the sums, about every other one larger than any score. 16 heads share the one tile of a batch entry.
inline constexpr Setting with_sinks(Setting setting) {
  setting.sinks = true;
  return setting;
}
inline constexpr Setting kHopperSinks = [] {
  Setting setting = with_sinks(of_scores("hopper-kv64-whole"));
  setting.seqlen_q = 7, setting.num_heads_q = 16;
  return setting;
}();
inline constexpr Setting kMmaSinks = with_sinks(of_mma_scores("mma-kv32-k2-v2"));
// Some rows see no key.
inline constexpr Setting with_few_keys(Setting setting) {
  setting.seqlen_kv = setting.seqlen_q / 2;
  return setting;
}
inline constexpr Setting kHopperSinksFewKeys = with_few_keys(with_causal(with_sinks(of_scores("hopper-kv64-whole"))));
inline constexpr Setting kMmaSinksFewKeys = with_few_keys(with_causal(kMmaSinks));

// Begin and end within blocks.
inline constexpr Setting with_chunk(Setting setting, std::int64_t keys) {
  setting.chunk = keys;
  return setting;
}
inline constexpr Setting kHopperChunk = with_chunk(of_window("hopper-kv32-whole", {}), 70);
inline constexpr Setting kMmaChunk = with_chunk(of_mma("mma-kv32-k2-v2"), 52);
inline constexpr Setting kMmaChunkAlibi = with_alibi(kMmaChunk);
inline constexpr Setting kHopperChunkFewKeys = with_few_keys(kHopperChunk);
inline constexpr Setting kMmaChunkFewKeys = with_few_keys(kMmaChunk);

struct Mutation {
  const char* name;
  const Setting& setting;
  const char* file;      // of templates/
  const char* original;  // stands in it once
  const char* replacement;
  // What the first finding may be. None: the emulator has nothing to object to, but the result is wrong.
  std::vector<emulator::FindingKind> kinds = {};
  // Of the line in the device code that such a finding's place, or one that it is inlined at, must name; null: any.
  const char* found_at = nullptr;
  const char* fault = nullptr;  // in place of findings, an Error(kernel_fault) with these words
};

using enum emulator::FindingKind;

}  // namespace flashjit::tests
