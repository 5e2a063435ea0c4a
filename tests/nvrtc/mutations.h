// SPDX-License-Identifier: Apache-2.0
// Faults for test_emulator_mutations.cpp to plant in the device code, and what the emulator must find.
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
  bool offsets = false;    // of queries and keys
  bool documents = false;  // as id
  bool blocks = false;     // a block mask of mask and documents
  bool prefix = false;     // of each batch entry its own
  double dropout = 0;
  bool dropout_state = false;  // seed and offset in memory
  bool dropout_mask = false;
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

// --- Rings and their barriers -------------------------------------------------------------------------------------

inline const std::vector<Mutation> kRingFaults = {
    {.name = "readers wait for the other parity",
     .setting = kHopper,
     .file = "pipeline/ring.cuh",
     .original = "ptx::mbarrier_wait(place.full(cursor.stage()), cursor.parity());",
     .replacement = "ptx::mbarrier_wait(place.full(cursor.stage()), cursor.parity() ^ 1);",
     .kinds = {unwritten_shared, race, deadlock}},
    {.name = "writers wait for the other parity",
     .setting = kHopper,
     .file = "pipeline/ring.cuh",
     .original = "ptx::mbarrier_wait(place.empty(cursor.stage()), cursor.parity() ^ 1);",
     .replacement = "ptx::mbarrier_wait(place.empty(cursor.stage()), cursor.parity());",
     .kinds = {deadlock},
     .found_at = "announced.wait_empty()"},
    {.name = "a reader does not advance when it releases",
     .setting = kHopper,
     .file = "pipeline/ring.cuh",
     .original = "    if (signs) arrive(place.empty(cursor.stage()));\n"
                 "    cursor.advance();",
     .replacement = "    if (signs) arrive(place.empty(cursor.stage()));",
     .kinds = {deadlock, race, mbarrier_phase},
     .found_at = "keys.wait_full"},
    {.name = "a reader does not advance when it takes",
     .setting = kHopper,
     .file = "pipeline/ring.cuh",
     .original = "    const int stage = cursor.stage();\n"
                 "    cursor.advance();",
     .replacement = "    const int stage = cursor.stage();",
     .kinds = {race}},
    {.name = "a writer does not advance",
     .setting = kHopper,
     .file = "pipeline/ring.cuh",
     .original = "void advance() { cursor.advance(); }",
     .replacement = "void advance() {}",
     .kinds = {mbarrier_phase, race}},
    {.name = "the parity flips every other round",
     .setting = kHopper,
     .file = "pipeline/ring.cuh",
     .original = "return count_ / kStages % 2;",
     .replacement = "return count_ / kStages / 2 % 2;",
     .kinds = {race, mbarrier_phase}},
    {.name = "ring of three: the parity never flips",
     .setting = kHopperThreeSlots,
     .file = "pipeline/ring.cuh",
     .original = "stage_ = 0, parity_ ^= 1;",
     .replacement = "stage_ = 0;",
     .kinds = {race, mbarrier_phase},
     .found_at = "loader.request_key("},
    {.name = "full barriers expect two arrivals",
     .setting = kHopper,
     .file = "pipeline/ring.cuh",
     .original = "ptx::mbarrier_init(full(stage), 1);",
     .replacement = "ptx::mbarrier_init(full(stage), 2);",
     .kinds = {deadlock},
     .found_at = "visit.stage = announced.take()"},
    {.name = "empty barriers expect one arrival too few",
     .setting = kHopper,
     .file = "pipeline/ring.cuh",
     .original = "ptx::mbarrier_init(empty(stage), users);",
     .replacement = "ptx::mbarrier_init(empty(stage), users - 1);",
     .kinds = {race},
     .found_at = "loader.request_key("},
    {.name = "empty barriers expect one arrival too many",
     .setting = kHopper,
     .file = "pipeline/ring.cuh",
     .original = "ptx::mbarrier_init(empty(stage), users);",
     .replacement = "ptx::mbarrier_init(empty(stage), users + 1);",
     .kinds = {deadlock},
     .found_at = "ring.wait_empty()"},
    {.name = "the second empty barrier is not initialised",
     .setting = kHopper,
     .file = "pipeline/ring.cuh",
     .original = "ptx::mbarrier_init(empty(stage), users);",
     .replacement = "if (stage == 0) ptx::mbarrier_init(empty(stage), users);",
     .kinds = {mbarrier_not_initialised},
     .found_at = "place.empty(cursor.stage())"},
    {.name = "barriers of 4 bytes",
     .setting = kHopper,
     .file = "pipeline/ring.cuh",
     .original = "constexpr int kMbarrierBytes = 8;",
     .replacement = "constexpr int kMbarrierBytes = 4;",
     .kinds = {misaligned},
     .found_at = "queries().init"},
    {.name = "slots one further on",
     .setting = kHopper,
     .file = "pipeline/ring.cuh",
     .original = "return slots + stage * kSlotBytes;",
     .replacement = "return slots + (stage + 1) * kSlotBytes;",
     .kinds = {race},
     .found_at = "loader.request_query("},
    {.name = "a release counts twice",
     .setting = kHopper,
     .file = "pipeline/ring.cuh",
     .original = "    if (signs) arrive(place.empty(cursor.stage()));",
     .replacement = "    if (signs) arrive(place.empty(cursor.stage())), arrive(place.empty(cursor.stage()));",
     .kinds = {race},
     .found_at = "loader.request_key("},
    {.name = "a release reaches only the first block of the cluster",
     .setting = kHopperCluster,
     .file = "pipeline/ring.cuh",
     .original = "rank < kCluster; ++rank",
     .replacement = "rank < 1; ++rank",
     .kinds = {deadlock},
     .found_at = "ring.wait_empty()"},
    {.name = "keys: every lane signs the release",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "keys.release(signs());",
     .replacement = "keys.release(true);",
     .kinds = {mbarrier_phase, race},
     .found_at = "loader.request_key("},
    {.name = "values: nobody signs the release",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "values.release(signs());",
     .replacement = "values.release(false);",
     .kinds = {deadlock},
     .found_at = "loader.request_value(tile, last)"},
    {.name = "keys: empty barriers forget the other block of the cluster",
     .setting = kHopperCluster,
     .file = "hopper/block.cuh",
     .original = "shape.keys().init(Shape::kConsumerWarps * Config::kCluster);",
     .replacement = "shape.keys().init(Shape::kConsumerWarps);",
     .kinds = {race},
     .found_at = "loader.request_key("},
    {.name = "tiles: empty barriers forget the loader",
     .setting = kHopper,
     .file = "hopper/block.cuh",
     .original = "shape.tiles().init(Shape::kConsumerWarps + producers);",
     .replacement = "shape.tiles().init(Shape::kConsumerWarps);",
     .kinds = {race},
     .found_at = "tile.write(announced"},
    {.name = "tiles: consumers do not give the slot back",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "announced.give_back(visit.stage, signs());",
     .replacement = "",
     .kinds = {deadlock},
     .found_at = "announced.wait_empty()"},
    {.name = "tiles: the loader does not give the slot back",
     .setting = kHopper,
     .file = "hopper/producer.cuh",
     .original = "announced.give_back(stage, true);",
     .replacement = "",
     .kinds = {deadlock},
     .found_at = "announced.wait_empty()"},
    {.name = "queries: no barrier initialised",
     .setting = kHopper,
     .file = "hopper/block.cuh",
     .original = "shape.queries().init(Shape::kConsumerWarps);",
     .replacement = "",
     .kinds = {mbarrier_not_initialised}},
    {.name = "K ring: three slots in the place of two",
     .setting = kHopper,
     .file = "hopper/shape.cuh",
     .original = "using KRing = RingPlace<Config::kStages, KTile::kBytes>;",
     .replacement = "using KRing = RingPlace<Config::kStages + 1, KTile::kBytes>;",
     .kinds = {race},
     .found_at = "loader.request_key("},
};

// --- Waits for the copy engine, and releases ----------------------------------------------------------------------

inline const std::vector<Mutation> kWaitFaults = {
    {.name = "keys: the first block is not waited for",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "    wait_for_keys(at);\n"
                 "    if (fused) gemm_turn.take();",
     .replacement = "    if (fused) gemm_turn.take();",
     .kinds = {race, unwritten_shared},
     .found_at = "self.issue_scores("},
    {.name = "keys: further blocks are not waited for",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "    wait_for_keys(at);\n"
                 "    gemm_turn.take();\n"
                 "    self.issue_scores(keys.stage());\n"
                 "    issue_output();",
     .replacement = "    gemm_turn.take();\n"
                    "    self.issue_scores(keys.stage());\n"
                    "    issue_output();",
     .kinds = {race, unwritten_shared},
     .found_at = "self.issue_scores("},
    {.name = "values: not waited for",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "    values.wait_full();\n"
                 "    self.issue_output(values.stage());",
     .replacement = "    self.issue_output(values.stage());",
     .kinds = {race, unwritten_shared},
     .found_at = "self.issue_output("},
    {.name = "values: waited for after their use",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "    values.wait_full();\n"
                 "    self.issue_output(values.stage());",
     .replacement = "    self.issue_output(values.stage());\n"
                    "    values.wait_full();",
     .kinds = {race, unwritten_shared},
     .found_at = "self.issue_output("},
    {.name = "query: not waited for",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "    queries.wait_full();\n",
     .replacement = "",
     .kinds = {race, unwritten_shared},
     .found_at = "self.issue_scores("},
    {.name = "serial: keys are not waited for",
     .setting = kHopperSerial,
     .file = "kernels/hopper_forward.cuh",
     .original = "      wait_for_keys(at);\n"
                 "      gemm_turn.take();",
     .replacement = "      gemm_turn.take();",
     .kinds = {race, unwritten_shared},
     .found_at = "self.issue_scores("},
    {.name = "serial: values are not waited for",
     .setting = kHopperSerial,
     .file = "kernels/hopper_forward.cuh",
     .original = "    values.wait_full();\n"
                 "    self.issue_output(values.stage());",
     .replacement = "    self.issue_output(values.stage());",
     .kinds = {race, unwritten_shared},
     .found_at = "self.issue_output("},
    {.name = "three stages: the first values are not waited for",
     .setting = kHopperThreeStage,
     .file = "kernels/hopper_ablation.cuh",
     .original = "    values.wait_full();\n"
                 "    self.issue_output(values.stage());\n"
                 "    gemm_turn.hand_over();\n"
                 "    if constexpr (kMasked)",
     .replacement = "    self.issue_output(values.stage());\n"
                    "    gemm_turn.hand_over();\n"
                    "    if constexpr (kMasked)",
     .kinds = {race, unwritten_shared},
     .found_at = "self.issue_output("},
    {.name = "loader: no wait for an empty slot of keys and values",
     .setting = kHopper,
     .file = "hopper/loader.cuh",
     .original = "    ring.wait_empty();\n",
     .replacement = "",
     .kinds = {race, mbarrier_phase},
     .found_at = "loader.request_key("},
    {.name = "loader: no wait for the empty slot of the query",
     .setting = kHopper,
     .file = "hopper/loader.cuh",
     .original = "    queries.wait_empty();\n",
     .replacement = "",
     .kinds = {race},
     .found_at = "loader.request_query("},
    {.name = "without a producer: no wait for an empty slot of tiles",
     .setting = kHopperNoProducer,
     .file = "hopper/loader.cuh",
     .original = "    announced.wait_empty();\n"
                 "    if (leads()) {",
     .replacement = "    if (leads()) {",
     .kinds = {race},
     .found_at = "tile.write(announced"},
    {.name = "a tile is announced before it is written",
     .setting = kHopper,
     .file = "hopper/loader.cuh",
     .original = "      tile.write(announced.slot());\n"
                 "      ptx::mbarrier_arrive(announced.full());",
     .replacement = "      ptx::mbarrier_arrive(announced.full());\n"
                    "      tile.write(announced.slot());",
     .kinds = {race, unwritten_shared},
     .found_at = "ptx::ld_shared(slot)"},
    {.name = "a tile is written and not announced",
     .setting = kHopper,
     .file = "hopper/loader.cuh",
     .original = "    ptx::mbarrier_arrive(announced.full());\n",
     .replacement = "",
     .kinds = {deadlock},
     .found_at = "visit.stage = announced.take()"},
    {.name = "keys: released before the first scores are there, and again",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "      ptx::wgmma_wait_group<0>();\n"
                 "    }\n"
                 "  }",
     .replacement = "      keys.give_back(keys.stage(), signs());\n"
                    "      ptx::wgmma_wait_group<0>();\n"
                    "    }\n"
                    "  }",
     .kinds = {race},
     .found_at = "loader.request_key("},
    {.name = "values: released before the product is done",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "    ptx::wgmma_wait_group<0>();\n"
                 "    release_value();\n"
                 "  }",
     .replacement = "    release_value();\n"
                    "    ptx::wgmma_wait_group<0>();\n"
                    "  }",
     .kinds = {race},
     .found_at = "loader.request_value("},
    {.name = "lazy: keys released before the sums are known, and again",
     .setting = kHopperLazy,
     .file = "kernels/hopper_forward.cuh",
     .original = "        if (!take_lazily(visit, rows, at, is_near)) return true;\n"
                 "        release_key();",
     .replacement = "        release_key();\n"
                    "        if (!take_lazily(visit, rows, at, is_near)) return true;",
     .kinds = {race},
     .found_at = "self.recompute_scores(keys.stage())"},
};

// --- Bytes that are announced, boxes and where they go ------------------------------------------------------------

inline const std::vector<Mutation> kCopyFaults = {
    {.name = "a panel of the tile is not expected",
     .setting = kHopperPanels,
     .file = "hopper/loader.cuh",
     .original = "ptx::mbarrier_arrive_expect_tx(ring.full(), KvTile::kBytes);",
     .replacement = "ptx::mbarrier_arrive_expect_tx(ring.full(), KvTile::kBytes - KvTile::kPanelBytes);",
     .kinds = {mbarrier_transaction},
     .found_at = "ptx::tma_load(dst, map, at,"},
    {.name = "query: 16 bytes too many expected",
     .setting = kHopper,
     .file = "hopper/loader.cuh",
     .original = "ptx::mbarrier_arrive_expect_tx(queries.full(), QTile::kBytes);",
     .replacement = "ptx::mbarrier_arrive_expect_tx(queries.full(), QTile::kBytes + 16);",
     .kinds = {deadlock},
     .found_at = "queries.wait_full()"},
    {.name = "query: 16 bytes too few expected",
     .setting = kHopper,
     .file = "hopper/loader.cuh",
     .original = "ptx::mbarrier_arrive_expect_tx(queries.full(), QTile::kBytes);",
     .replacement = "ptx::mbarrier_arrive_expect_tx(queries.full(), QTile::kBytes - 16);",
     .kinds = {mbarrier_transaction},
     .found_at = "loader.request_query("},
    {.name = "query: no bytes expected",
     .setting = kHopper,
     .file = "hopper/loader.cuh",
     .original = "ptx::mbarrier_arrive_expect_tx(queries.full(), QTile::kBytes);",
     .replacement = "ptx::mbarrier_arrive(queries.full());",
     .kinds = {race, unwritten_shared},
     .found_at = "self.issue_scores("},
    {.name = "the second panel is not requested",
     .setting = kHopperPanels,
     .file = "hopper/loader.cuh",
     .original = "for (int panel = 0; panel < KvTile::kPanels; ++panel) {",
     .replacement = "for (int panel = 0; panel < KvTile::kPanels - 1; ++panel) {",
     .kinds = {deadlock},
     .found_at = "keys.wait_full()"},
    {.name = "multicast: only to the first block",
     .setting = kHopperCluster,
     .file = "hopper/loader.cuh",
     .original = "(1 << Config::kCluster) - 1",
     .replacement = "1",
     .kinds = {deadlock},
     .found_at = "keys.wait_full()"},
    {.name = "multicast: each block brings the same rows",
     .setting = kHopperCluster,
     .file = "hopper/loader.cuh",
     .original = "block * Config::kBlockKv + rank * kShare;",
     .replacement = "block * Config::kBlockKv;"},
    {.name = "multicast: the share lies at rows of one byte",
     .setting = kHopperCluster,
     .file = "hopper/loader.cuh",
     .original = "rank * kShare * KvTile::kRowBytes;",
     .replacement = "rank * kShare;",
     .kinds = {misaligned},
     .found_at = "loader.request_key("},
    {.name = "a tile lies 64 bytes off",
     .setting = kHopper,
     .file = "hopper/loader.cuh",
     .original = "ring.slot() + panel * KvTile::kPanelBytes",
     .replacement = "ring.slot() + 64 + panel * KvTile::kPanelBytes",
     .kinds = {misaligned},
     .found_at = "loader.request_key("},
    {.name = "the second panel of the query lies on the first of the keys",
     .setting = kHopperPanels,
     .file = "hopper/loader.cuh",
     .original = "queries.slot() + panel * QTile::kPanelBytes",
     .replacement = "queries.slot() + 2 * panel * QTile::kPanelBytes",
     .kinds = {race},
     .found_at = "loader.request_query("},
    {.name = "heads of the query are not unpacked",
     .setting = kHopper,
     .file = "hopper/loader.cuh",
     .original = "{panel * QTile::kPanelColumns, tile.head << args.packed_heads_log2,",
     .replacement = "{panel * QTile::kPanelColumns, tile.head,"},
    {.name = "keys of the next row",
     .setting = kHopper,
     .file = "hopper/loader.cuh",
     .original = "tile.kv_head, first_key, tile.batch}",
     .replacement = "tile.kv_head, first_key + 1, tile.batch}"},
};

// --- wgmma: fences, groups, descriptors ---------------------------------------------------------------------------

inline const std::vector<Mutation> kWgmmaFaults = {
    {.name = "no fence before the scores",
     .setting = kHopper,
     .file = "hopper/warpgroup_attention.cuh",
     .original = "    ptx::wgmma_fence();\n"
                 "    const uint64 first = KTile",
     .replacement = "    const uint64 first = KTile",
     .kinds = {missing_wgmma_fence},
     .found_at = "self.issue_scores("},
    {.name = "no fence before the output",
     .setting = kHopper,
     .file = "hopper/warpgroup_attention.cuh",
     .original = "    ptx::wgmma_fence();\n"
                 "    uint64 b[kPSteps];",
     .replacement = "    uint64 b[kPSteps];",
     .kinds = {missing_wgmma_fence},
     .found_at = "self.issue_output("},
    {.name = "scores: not committed",
     .setting = kHopper,
     .file = "hopper/warpgroup_attention.cuh",
     .original = "    Matrix::issue(a, b);\n"
                 "    ptx::wgmma_commit_group();",
     .replacement = "    Matrix::issue(a, b);",
     .kinds = {register_in_flight},
     .found_at = "finish_scores<true>(visit, rows, at)"},
    {.name = "output: not committed",
     .setting = kHopper,
     .file = "hopper/warpgroup_attention.cuh",
     .original = "    begun = 1;\n"
                 "    ptx::wgmma_commit_group();",
     .replacement = "    begun = 1;",
     .kinds = {register_in_flight},
     .found_at = "raise_maximum(shift, common)"},
    {.name = "output: waited for with one group too many",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "    ptx::wgmma_wait_group<0>();\n"
                 "    release_value();\n"
                 "  }",
     .replacement = "    ptx::wgmma_wait_group<1>();\n"
                    "    release_value();\n"
                    "  }",
     .kinds = {register_in_flight},
     .found_at = "Probabilities::keep("},
    {.name = "first scores: waited for with one group too many",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "      ptx::wgmma_wait_group<0>();\n"
                 "    }\n"
                 "  }",
     .replacement = "      ptx::wgmma_wait_group<1>();\n"
                    "    }\n"
                    "  }",
     .kinds = {register_in_flight},
     .found_at = "finish_scores<true>(visit, rows, at)"},
    {.name = "scores: waited for with one group too many",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "    gemm_turn.hand_over();\n"
                 "    ptx::wgmma_wait_group<1>();\n"
                 "  }",
     .replacement = "    gemm_turn.hand_over();\n"
                    "    ptx::wgmma_wait_group<2>();\n"
                    "  }",
     .kinds = {register_in_flight},
     .found_at = "raise_maximum(shift, common)"},
    {.name = "three stages: the next scores are not waited for",
     .setting = kHopperThreeStage,
     .file = "kernels/hopper_ablation.cuh",
     .original = "    ptx::wgmma_wait_group<0>();\n"
                 "    release_key(--block);",
     .replacement = "    release_key(--block);",
     .kinds = {register_in_flight, race}},
    {.name = "output: P V is not waited for under the softmax",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "    ptx::wgmma_wait_group<0>();\n"
                 "    release_value();\n"
                 "  }",
     .replacement = "    release_value();\n"
                    "  }",
     .kinds = {register_in_flight},
     .found_at = "Probabilities::keep("},
    {.name = "output: the last product is not waited for",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "    if (next.more()) gemm_turn.hand_over();\n"
                 "    finish_output();",
     .replacement = "    if (next.more()) gemm_turn.hand_over();\n"
                    "    release_value();",
     .kinds = {register_in_flight},
     .found_at = "multiply({factor_of("},
    {.name = "output: what the tile before left is added to",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "    self.begun = 0;\n",
     .replacement = ""},
    {.name = "descriptor: swizzle of 64 bytes for rows of 128",
     .setting = kHopper,
     .file = "tile/panel_tile.cuh",
     .original = "kRowBytes == 128 ? 1 :",
     .replacement = "kRowBytes == 128 ? 2 :",
     .kinds = {race, unwritten_shared},
     .found_at = "self.issue_output("},
    {.name = "descriptor: strides swapped",
     .setting = kHopperPanels,
     .file = "tile/panel_tile.cuh",
     .original = "static_cast<uint64>(leading_bytes >> kUnitBits) << 16 |\n"
                 "           static_cast<uint64>(kEightRows >> kUnitBits) << 32",
     .replacement = "static_cast<uint64>(leading_bytes >> kUnitBits) << 32 |\n"
                    "           static_cast<uint64>(kEightRows >> kUnitBits) << 16",
     .kinds = {race, unwritten_shared},
     .found_at = "stage(pairs, panel, slab)"},
    {.name = "descriptor: eight rows are nine",
     .setting = kHopper,
     .file = "tile/panel_tile.cuh",
     .original = "kEightRows = 8 * kRowBytes;",
     .replacement = "kEightRows = 9 * kRowBytes;",
     .kinds = {unwritten_shared, race},
     .found_at = "self.issue_scores("},
    {.name = "descriptor: a step of K of 64 bytes",
     .setting = kHopper,
     .file = "tile/panel_tile.cuh",
     .original = "16 * k16 % kPanelColumns * 2) >> kUnitBits",
     .replacement = "16 * k16 % kPanelColumns * 4) >> kUnitBits",
     .kinds = {unwritten_shared, race},
     .found_at = "self.issue_scores("},
    {.name = "descriptor: V in panels twice as far apart",
     .setting = kHopperPanels,
     .file = "tile/panel_tile.cuh",
     .original = "return descriptor(tile, kPanelBytes);",
     .replacement = "return descriptor(tile, 2 * kPanelBytes);",
     .kinds = {race, unwritten_shared},
     .found_at = "self.issue_output("},
    {.name = "descriptor: a slot is a chunk longer",
     .setting = kHopper,
     .file = "tile/panel_tile.cuh",
     .original = "stage * (kBytes >> kUnitBits)",
     .replacement = "stage * ((kBytes >> kUnitBits) + 1)",
     .kinds = {race},
     .found_at = "self.issue_scores("},
    {.name = "descriptor: rows of another warpgroup",
     .setting = kHopperInQuery,
     .file = "hopper/warpgroup_attention.cuh",
     .original = "+ warpgroup * kWarpgroupRows * QTile::kRowBytes",
     .replacement = "",
     .kinds = {race},
     .found_at = "stage(pairs, panel, slab)"},
    {.name = "descriptor: the address of the cluster",
     .setting = kHopperCluster,
     .file = "hopper/warpgroup_attention.cuh",
     .original = "return Config::kCluster == 1 ? address : address & QTile::kAddressMask;",
     .replacement = "return address;",
     .kinds = {race, unwritten_shared},
     .found_at = "self.issue_output("},
    {.name = "values beyond the ring",
     .setting = kHopperInQuery,
     .file = "hopper/warpgroup_attention.cuh",
     .original = "const uint64 first = VTile::slot(v, stage);",
     .replacement = "const uint64 first = VTile::slot(v, stage + 2);",
     .kinds = {shared_out_of_bounds},
     .found_at = "self.issue_output("},
};

// --- Fences, barriers, turns and registers ------------------------------------------------------------------------

inline const std::vector<Mutation> kFenceFaults = {
    {.name = "no fence between the output and its store",
     .setting = kHopper,
     .file = "hopper/store.cuh",
     .original = "      ptx::fence_proxy_async();\n",
     .replacement = "",
     .kinds = {missing_proxy_fence},
     .found_at = "send(tile"},
    {.name = "the fence stands before the output is written",
     .setting = kHopper,
     .file = "hopper/store.cuh",
     .original = "      stage(pairs, panel, slab);\n"
                 "      ptx::fence_proxy_async();",
     .replacement = "      ptx::fence_proxy_async();\n"
                    "      stage(pairs, panel, slab);",
     .kinds = {missing_proxy_fence},
     .found_at = "send(tile"},
    {.name = "no fence between P and the product",
     .setting = kHopperSharedP,
     .file = "kernels/hopper_ablation.cuh",
     .original = "    ptx::fence_proxy_async();\n"
                 "    ptx::bar_sync",
     .replacement = "    ptx::bar_sync",
     .kinds = {missing_proxy_fence},
     .found_at = "self.issue_output("},
    {.name = "no fence after the query is flipped",
     .setting = kHopperNegative,
     .file = "hopper/warpgroup_attention.cuh",
     .original = "    ptx::fence_proxy_async();\n"
                 "    ptx::bar_sync",
     .replacement = "    ptx::bar_sync",
     .kinds = {missing_proxy_fence},
     .found_at = "self.issue_scores("},
    {.name = "no fence after the barriers are initialised",
     .setting = kHopper,
     .file = "hopper/block.cuh",
     .original = "    ptx::fence_mbarrier_init();\n",
     .replacement = "",
     .kinds = {missing_proxy_fence},
     .found_at = "loader.request_key("},
    {.name = "no barrier after the barriers are initialised",
     .setting = kHopper,
     .file = "hopper/block.cuh",
     .original = "  ptx::bar_sync();\n"
                 "  if constexpr (Config::kCluster > 1) ptx::cluster_sync();",
     .replacement = "  if constexpr (Config::kCluster > 1) ptx::cluster_sync();",
     .kinds = {mbarrier_not_initialised}},
    {.name = "no cluster barrier after the barriers are initialised",
     .setting = kHopperCluster,
     .file = "hopper/block.cuh",
     .original = "  ptx::bar_sync();\n"
                 "  if constexpr (Config::kCluster > 1) ptx::cluster_sync();",
     .replacement = "  ptx::bar_sync();",
     .kinds = {mbarrier_not_initialised},
     .found_at = "loader.request_key("},
    {.name = "no cluster barrier at the end",
     .setting = kHopperCluster,
     .file = "hopper/block.cuh",
     .original = "void close_block() {\n"
                 "  if constexpr (Config::kCluster > 1) ptx::cluster_sync();",
     .replacement = "void close_block() {",
     .kinds = {left_in_flight}},
    {.name = "no barrier after the query is flipped",
     .setting = kHopperNegative,
     .file = "hopper/warpgroup_attention.cuh",
     .original = "    ptx::fence_proxy_async();\n"
                 "    ptx::bar_sync<kWarpgroupSize>(warpgroup_barrier());\n"
                 "  }\n"
                 "\n"
                 "  // The first",
     .replacement = "    ptx::fence_proxy_async();\n"
                    "  }\n"
                    "\n"
                    "  // The first",
     .kinds = {race},
     .found_at = "take_query();"},
    {.name = "turns: nobody begins",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "    gemm_turn.begin();\n",
     .replacement = "",
     .kinds = {deadlock},
     .found_at = "gemm_turn.take()"},
    {.name = "turns: not handed over",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "    gemm_turn.hand_over();\n"
                 "    ptx::wgmma_wait_group<1>();",
     .replacement = "    ptx::wgmma_wait_group<1>();",
     .kinds = {deadlock},
     .found_at = "gemm_turn.take()"},
    {.name = "turns: handed over to oneself",
     .setting = kHopper,
     .file = "hopper/turn.cuh",
     .original = "of(warpgroup + 1 == kCount ? 0 : warpgroup + 1)",
     .replacement = "of(warpgroup)",
     .kinds = {barrier_mismatch},
     .found_at = "gemm_turn.take()"},
    {.name = "turns: arrivals for half of the threads",
     .setting = kHopper,
     .file = "hopper/turn.cuh",
     .original = "ptx::bar_arrive<kThreads>(of(warpgroup + 1",
     .replacement = "ptx::bar_arrive<kThreads / 2>(of(warpgroup + 1",
     .kinds = {barrier_mismatch}},
    {.name = "turns: not passed on in blocks that are passed over",
     .setting = kHopperCausal,
     .file = "kernels/hopper_forward.cuh",
     .original = "      gemm_turn.pass();\n",
     .replacement = "",
     .kinds = {deadlock},
     .found_at = "gemm_turn.take()"},
    {.name = "turns of the softmax: not handed over",
     .setting = kHopperSerial,
     .file = "kernels/hopper_forward.cuh",
     .original = "      softmax_turn.hand_over();\n"
                 "      release_key();",
     .replacement = "      release_key();",
     .kinds = {deadlock},
     .found_at = "softmax_turn.take()"},
    {.name = "registers: the producer gives none back",
     .setting = kHopper,
     .file = "hopper/block.cuh",
     .original = "ptx::setmaxnreg_dec<Shape::kProducerRegisters>();",
     .replacement = ";",
     .kinds = {deadlock},
     .found_at = "ptx::setmaxnreg_inc"},
    {.name = "registers: consumers ask for more than there are",
     .setting = kHopper,
     .file = "hopper/shape.cuh",
     .original = "kWarpgroups == 2 ? 232 :",
     .replacement = "kWarpgroups == 2 ? 248 :",
     .kinds = {deadlock},
     .found_at = "ptx::setmaxnreg_inc"},
    {.name = "registers: one warp of each warpgroup asks",
     .setting = kHopper,
     .file = "hopper/block.cuh",
     .original = "ptx::setmaxnreg_inc<Shape::kConsumerRegisters>();",
     .replacement = "if (ptx::tid_x() % kWarpgroupSize < kWarpSize) ptx::setmaxnreg_inc<Shape::kConsumerRegisters>();",
     .kinds = {unequal_participation, deadlock}},
};

// --- Roles, votes and tiles ---------------------------------------------------------------------------------------

inline const std::vector<Mutation> kRoleFaults = {
    {.name = "two threads produce",
     .setting = kHopper,
     .file = "hopper/block.cuh",
     .original = "if (ptx::tid_x() == 0) produce",
     .replacement = "if (ptx::tid_x() < 2) produce",
     .kinds = {mbarrier_phase},
     .found_at = "loader.request_key("},
    {.name = "a whole warp announces",
     .setting = kHopper,
     .file = "hopper/loader.cuh",
     .original = "kListed ? thread / kWarpSize == 1 : thread == kWarpSize",
     .replacement = "thread / kWarpSize == 1",
     .kinds = {mbarrier_phase}},
    {.name = "nobody announces",
     .setting = kHopper,
     .file = "hopper/loader.cuh",
     .original = "kListed ? thread / kWarpSize == 1 : thread == kWarpSize",
     .replacement = "thread < 0",
     .kinds = {deadlock},
     .found_at = "visit.stage = announced.take()"},
    {.name = "no lane is elected",
     .setting = kHopper,
     .file = "ptx/barrier.cuh",
     .original = "elect.sync _|p, 0xffffffff;\\n\\t",
     .replacement = "",
     .kinds = {unwritten_register},
     .found_at = "keys.release("},
    {.name = "every lane sends the output",
     .setting = kHopperInQuery,
     .file = "hopper/store.cuh",
     .original = "if (ptx::elect()) send(",
     .replacement = "send(",
     .kinds = {race},
     .found_at = "loader.request_query("},
    {.name = "the producer does not see the last tile",
     .setting = kHopper,
     .file = "hopper/producer.cuh",
     .original = "    if (next_end == 0) return;\n",
     .replacement = "",
     .kinds = {deadlock},
     .found_at = "stage = announced.take()"},
    {.name = "consumers stop at a tile that follows",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "if (!next.more()) break;",
     .replacement = "if (next.more()) break;",
     .kinds = {deadlock},
     .found_at = "ring.wait_empty()"},
    {.name = "the announcer does not see the last tile",
     .setting = kHopper,
     .file = "hopper/loader.cuh",
     .original = "      if (tile.end_block == 0) return;\n",
     .replacement = "",
     .kinds = {deadlock},
     .found_at = "announced.wait_empty()"},
    {.name = "fused: the output of the tile before is lost",
     .setting = kHopperFused,
     .file = "kernels/hopper_forward.cuh",
     .original = "        if (fused) store(before);\n",
     .replacement = "        if (fused) self.begun = 0;\n"},
    {.name = "fused: probabilities are packed before P V is done",
     .setting = kHopperFused,
     .file = "kernels/hopper_forward.cuh",
     .original = "        ptx::wgmma_wait_group<0>();\n"
                 "        if (!first || fused) release_value();\n"
                 "      }\n"
                 "      Probabilities::keep();",
     .replacement = "        Probabilities::keep();\n"
                    "        ptx::wgmma_wait_group<0>();\n"
                    "        if (!first || fused) release_value();\n"
                    "      }",
     .kinds = {register_in_flight},
     .found_at = "Probabilities::keep("},
    {.name = "fused: an output is divided by the next tile's sums",
     .setting = kHopperFused,
     .file = "kernels/hopper_forward.cuh",
     .original = "write(finished.softmax, tile,",
     .replacement = "write(self.softmax, tile,"},
    {.name = "a tile's description is given back before it is read",
     .setting = kHopperFused,
     .file = "kernels/hopper_forward.cuh",
     .original = "      before = {self.softmax, tile_of(visit)};\n"
                 "      // Read by now, so that its slot is free for the tile after the next.\n"
                 "      announced.give_back(visit.stage, signs());\n",
     .replacement = "      // Read by now, so that its slot is free for the tile after the next.\n"
                    "      announced.give_back(visit.stage, signs());\n"
                    "      before = {self.softmax, tile_of(visit)};\n",
     .kinds = {race}},
    {.name = "each lane decides on the maximum by itself",
     .setting = kHopperJumps,
     .file = "hopper/deferred_softmax.cuh",
     .original = "!ptx::vote_any(grew)",
     .replacement = "!grew",
     .kinds = {unequal_participation},
     .found_at = "self.softmax.take_block("},
    {.name = "lazy: each lane decides by itself",
     .setting = kHopperLazy,
     .file = "hopper/deferred_softmax.cuh",
     .original = "if (ptx::vote_any(!within)) return false;",
     .replacement = "if (!within) return false;",
     .kinds = {unequal_participation},
     .found_at = "self.recompute_scores(keys.stage())"},
    {.name = "the counter of tiles is not cleared",
     .setting = kHopper,
     .file = "hopper/loader.cuh",
     .original = "    if (drawn == tiles.count() - 1) *counter = 0;\n",
     .replacement = "",
     .fault = "must leave its tile counter 0"},
    {.name = "one tile too many",
     .setting = kHopper,
     .file = "hopper/tiles.cuh",
     .original = "if (index >= count())",
     .replacement = "if (index > count())"},
    {.name = "one tile too few",
     .setting = kHopper,
     .file = "hopper/tiles.cuh",
     .original = "(sizes.num_q_tiles / Config::kCluster);\n"
                 "  }",
     .replacement = "(sizes.num_q_tiles / Config::kCluster) - 1;\n"
                    "  }"},
    {.name = "the next tile is drawn without those that all begin with",
     .setting = kHopperFixed,
     .file = "hopper/loader.cuh",
     .original = "return index + HopperTiles<Config>::stride();",
     .replacement = "return index + HopperTiles<Config>::stride() + 1;"},
};

// --- Masks and the output -----------------------------------------------------------------------------------------

inline const std::vector<Mutation> kOutputFaults = {
    {.name = "output: its place is not waited for",
     .setting = kHopperFused,
     .file = "hopper/store.cuh",
     .original = "      if (ptx::elect()) ptx::tma_wait_read();\n",
     .replacement = "",
     .kinds = {race},
     .found_at = "stage(pairs, panel, slab)"},
    {.name = "output: the block does not wait for its last store",
     .setting = kHopperFused,
     .file = "hopper/store.cuh",
     .original = "    if (ptx::elect()) ptx::tma_wait();\n",
     .replacement = "",
     .kinds = {left_in_flight},
     .found_at = "send(tile"},
    {.name = "output in the query: released before it is read",
     .setting = kHopperInQuery,
     .file = "hopper/store.cuh",
     .original = "  __device__ __forceinline__ void wait_read() const {\n"
                 "    if (ptx::elect()) ptx::tma_wait_read();",
     .replacement = "  __device__ __forceinline__ void wait_read() const {",
     .kinds = {race},
     .found_at = "loader.request_query("},
    {.name = "output: stores are not committed",
     .setting = kHopperInQuery,
     .file = "hopper/store.cuh",
     .original = "    ptx::tma_commit_group();\n",
     .replacement = "",
     .kinds = {race},
     .found_at = "loader.request_query("},
    {.name = "output in the query: released before it is written",
     .setting = kHopperInQuery,
     .file = "kernels/hopper_ablation.cuh",
     .original = "if constexpr (!Shape::kOutputInQuery) queries.release(signs());",
     .replacement = "queries.release(signs());",
     .kinds = {race}},
    {.name = "output: a row further on",
     .setting = kHopperInQuery,
     .file = "hopper/store.cuh",
     .original = "row * VTile::kRowBytes +",
     .replacement = "(row + 1) * VTile::kRowBytes +",
     .kinds = {race},
     .found_at = "store.write("},
    {.name = "output: the swizzle of the next row",
     .setting = kHopper,
     .file = "tile/panel_tile.cuh",
     .original = "(row / (8 / kChunksOfRow) % kChunksOfRow)",
     .replacement = "((row + 1) / (8 / kChunksOfRow) % kChunksOfRow)"},
    {.name = "P: a swizzle of half of the chunks",
     .setting = kHopperSharedP,
     .file = "tile/panel_tile.cuh",
     .original = "(row / (8 / kChunksOfRow) % kChunksOfRow)",
     .replacement = "(row / (8 / kChunksOfRow) % (kChunksOfRow / 2))"},
    {.name = "output: sent a row further on",
     .setting = kHopper,
     .file = "hopper/store.cuh",
     .original = "first_row >> args.packed_heads_log2, tile.batch},",
     .replacement = "(first_row >> args.packed_heads_log2) + 1, tile.batch},"},
    {.name = "output: 8 bytes off",
     .setting = kHopper,
     .file = "hopper/store.cuh",
     .original = "slab + i * Shape::kOutputPanelBytes);",
     .replacement = "slab + 8 + i * Shape::kOutputPanelBytes);",
     .kinds = {misaligned},
     .found_at = "send(tile"},
    {.name = "output: in the slab of the next warp",
     .setting = kHopperFused,
     .file = "kernels/hopper_forward.cuh",
     .original = "+ consumer_warp() * Shape::kWarpOutputBytes",
     .replacement = "+ (consumer_warp() + 1) * Shape::kWarpOutputBytes",
     .kinds = {shared_out_of_bounds},
     .found_at = "stage(pairs, panel, slab)"},
    {.name = "output: stmatrix addresses 8 bytes off",
     .setting = kHopper,
     .file = "hopper/store.cuh",
     .original = "ptx::stmatrix_x4(place, pairs",
     .replacement = "ptx::stmatrix_x4(8 + place, pairs",
     .kinds = {misaligned},
     .found_at = "stage(pairs, panel, slab)"},
    {.name = "half: the second panel is not written",
     .setting = kHopperHalf,
     .file = "hopper/store.cuh",
     .original = "panel < VTile::kPanels; panel += Shape::kOutputPanels",
     .replacement = "panel < 1; panel += Shape::kOutputPanels"},
    {.name = "LSE: a row past the end",
     .setting = kHopper,
     .file = "hopper/store.cuh",
     .original = "if (position < args.sizes.seqlen_q)",
     .replacement = "if (position <= args.sizes.seqlen_q)",
     .kinds = {global_out_of_bounds},
     .found_at = "write_lse("},
    {.name = "mask: the first block beyond the clean ones is not masked",
     .setting = kHopper,
     .file = "kernels/hopper_forward.cuh",
     .original = "block >= visit.blocks.clean_end;",
     .replacement = "block > visit.blocks.clean_end;"},
    {.name = "mask: the last block of the diagonal is not masked",
     .setting = kHopperCausal,
     .file = "kernels/hopper_forward.cuh",
     .original = "block >= visit.blocks.clean_end;",
     .replacement = "block > visit.blocks.clean_end;"},
    {.name = "mask: of the diagonal the first block only",
     .setting = kHopperCausal,
     .file = "kernels/hopper_forward.cuh",
     .original = "(kFirst || Config::Masks::kEnds)",
     .replacement = "kFirst"},
    {.name = "mask: blocks that the first row sees",
     .setting = kHopperCausal,
     .file = "kernels/hopper_forward.cuh",
     .original = "first_row, first_row + kWarpgroupRows - 1);",
     .replacement = "first_row, first_row);"},
    {.name = "mask: odd columns as the even ones before them",
     .setting = kHopper,
     .file = "attention/scores.cuh",
     .original = "min(inside % 8, 2)",
     .replacement = "2 * min(inside % 8, 1)"},
    {.name = "mask: inverted",
     .setting = kHopperCausal,
     .file = "attention/scores.cuh",
     .original = "hidden[h][word] = ~columns_below(",
     .replacement = "hidden[h][word] = columns_below("},
    {.name = "mask: the diagonal one key too far",
     .setting = kHopperCausal,
     .file = "parts/mask/causal.cuh",
     .original = "return position;",
     .replacement = "return position + 1;"},
    {.name = "query: lanes of another row exchange maxima",
     .setting = kHopper,
     .file = "attention/softmax.cuh",
     .original = "ptx::shfl_xor(seen, 1)",
     .replacement = "ptx::shfl_xor(seen, 4)"},
};

// --- The window ---------------------------------------------------------------------------------------------------

inline const std::vector<Mutation> kWindowFaults = {
    {.name = "window: it begins a key too late",
     .setting = kHopperWindow,
     .file = "parts/mask/window.cuh",
     .original = "return position - window.left;",
     .replacement = "return position - window.left + 1;"},
    {.name = "window: it begins a key too early",
     .setting = kMmaWindow,
     .file = "parts/mask/window.cuh",
     .original = "return position - window.left;",
     .replacement = "return position - window.left - 1;"},
    {.name = "window: it ends a key too late",
     .setting = kHopperWindow,
     .file = "parts/mask/window.cuh",
     .original = "return position + window.right;",
     .replacement = "return position + window.right + 1;"},
    {.name = "window: it ends a key too early",
     .setting = kMmaWindow,
     .file = "parts/mask/window.cuh",
     .original = "return position + window.right;",
     .replacement = "return position + window.right - 1;"},
    {.name = "window: the first block is not visited",
     .setting = kHopperWindow,
     .file = "attention/blocks.cuh",
     .original = "min(mask.first_key(first_row) / kBlockKv, runs.end - kLeast)",
     .replacement = "min(mask.first_key(first_row) / kBlockKv + 1, runs.end - kLeast)"},
    {.name = "window of mma: the first block is not visited",
     .setting = kMmaWindow,
     .file = "attention/blocks.cuh",
     .original = "min(mask.first_key(first_row) / kBlockKv, runs.end - kLeast)",
     .replacement = "min(mask.first_key(first_row) / kBlockKv + 1, runs.end - kLeast)"},
    {.name = "window: rows that do not exist have no first block",
     .setting = kHopperNarrow,
     .file = "attention/blocks.cuh",
     .original = "min(mask.first_key(first_row) / kBlockKv, runs.end - kLeast)",
     .replacement = "mask.first_key(first_row) / kBlockKv",
     .kinds = {deadlock, mbarrier_phase, race}},
    {.name = "window: the clean run is a block too long",
     .setting = kHopperWindow,
     .file = "attention/blocks.cuh",
     .original = "ceil_div(mask.first_key(last_row), kBlockKv)",
     .replacement = "(mask.first_key(last_row) / kBlockKv)"},
    {.name = "window of mma: the clean run is a block too long",
     .setting = kMmaWindow,
     .file = "attention/blocks.cuh",
     .original = "ceil_div(mask.first_key(last_row), kBlockKv)",
     .replacement = "(mask.first_key(last_row) / kBlockKv)"},
    {.name = "window: the scores of the first keys are hidden a key too far",
     .setting = kHopperWindow,
     .file = "attention/scores.cuh",
     .original = "columns_below(begin - before)",
     .replacement = "columns_below(begin + 1 - before)"},
    {.name = "window: its begin is not masked in the blocks at its end",
     .setting = kHopperNarrow,
     .file = "attention/scores.cuh",
     .original = "if constexpr (Mask::kBegins) hidden",
     .replacement = "if (Mask::kBegins && end >= Scores::kColumns) hidden"},
    {.name = "window: its begin is not masked in the blocks before its end",
     .setting = kHopperSerialWindow,
     .file = "kernels/hopper_forward.cuh",
     .original = "return at_end || (kBegins && block < visit.blocks.clean_first);",
     .replacement = "return at_end;"},
    {.name = "window: blocks before the first one of a warpgroup are not passed over",
     .setting = kHopperWindow,
     .file = "kernels/hopper_forward.cuh",
     .original = "        if constexpr (!kListed) pass_over(visit.blocks.first, visit.loaded_first);\n",
     .replacement = "",
     .kinds = {race, deadlock, mbarrier_phase}},
    {.name = "window, serial: blocks before the first one of a warpgroup are not passed over",
     .setting = kHopperSerialWindow,
     .file = "kernels/hopper_forward.cuh",
     .original = "        if constexpr (!kListed) pass_over(visit.blocks.first, visit.loaded_first);\n",
     .replacement = "",
     .kinds = {race, deadlock, mbarrier_phase}},
    {.name = "window, fused: the next tile's keys come before those that are passed over",
     .setting = kHopperFusedWindow,
     .file = "kernels/hopper_forward.cuh",
     .original = "next.begins_at_once() && visit.ends_at_once()",
     .replacement = "next.begins_at_once()",
     .kinds = {race, deadlock, mbarrier_phase}},
    {.name = "window: nobody tells the first block of a tile",
     .setting = kHopperWindow,
     .file = "hopper/tiles.cuh",
     .original = "    if constexpr (Config::Masks::kBegins) ptx::st_shared(slot + kFirstBlockAt, "
                 "static_cast<uint32>(first_block));\n",
     .replacement = "",
     .kinds = {unwritten_shared}},
    {.name = "window: all blocks down to the first key are loaded",
     .setting = kHopperWindow,
     .file = "hopper/block_walk.cuh",
     .original = "block > tile.first_block; --block)",
     .replacement = "block > 0; --block)",
     .kinds = {race, deadlock, mbarrier_phase}},
    {.name = "window of mma: the first piece is left out",
     .setting = kMmaWindow,
     .file = "kernels/mma_forward.cuh",
     .original = "/ Shape::kMaskedKeys * Shape::kMaskedKeys;",
     .replacement = "/ Shape::kMaskedKeys * Shape::kMaskedKeys + Shape::kMaskedKeys;"},
    {.name = "window of mma: its begin is not masked",
     .setting = kMmaOneValueWindow,
     .file = "kernels/mma_forward.cuh",
     .original = "first_key(i) < blocks.clean_first * Config::kBlockKv)",
     .replacement = "first_key(i) < (blocks.clean_first - 1) * Config::kBlockKv)"},
    {.name = "window, rotate: the blocks at its begin are not visited",
     .setting = kMmaRotateWindow,
     .file = "kernels/mma_forward.cuh",
     .original = "for (int i = end_clean; i < blocks.count(); ++i) masked_step(i);",
     .replacement = "",
     .kinds = {left_in_flight}},
};

// --- What becomes of scores ---------------------------------------------------------------------------------------

inline const std::vector<Mutation> kScoreFaults = {
    {.name = "softcap: multiplied by the cap in place of divided",
     .setting = kHopperSoftcap,
     .file = "parts/score/softcap.cuh",
     .original = "taken * softcap.inverse_log2",
     .replacement = "taken * softcap.cap_log2"},
    {.name = "softcap: scores keep the unit of products",
     .setting = kMmaSoftcap,
     .file = "parts/score/softcap.cuh",
     .original = "unit(float) const { return softcap.cap_log2; }",
     .replacement = "unit(float taken) const { return taken; }"},
    {.name = "scores: what masks hide is not hidden",
     .setting = kHopperSoftcap,
     .file = "kernels/hopper_forward.cuh",
     .original = "    mask<kFirst>(visit, at.block);\n"
                 "    return common;",
     .replacement = "    return common;"},
    {.name = "ALiBi: scores grow with the distance",
     .setting = kHopperAlibi,
     .file = "parts/score/alibi.cuh",
     .original = "__fmaf_rn(-slope, fabsf",
     .replacement = "__fmaf_rn(slope, fabsf"},
    {.name = "ALiBi: the distance has a sign",
     .setting = kMmaAlibi,
     .file = "parts/score/alibi.cuh",
     .original = "fabsf(key.distance_from(position))",
     .replacement = "key.distance_from(position)"},
    {.name = "ALiBi, causal: scores fall towards the position",
     .setting = kMmaAlibiCausal,
     .file = "parts/score/alibi.cuh",
     .original = "__fmaf_rn(slope, static_cast<float>(key.offset), score)",
     .replacement = "__fmaf_rn(-slope, static_cast<float>(key.offset), score)"},
    {.name = "ALiBi: slopes of natural logarithms",
     .setting = kHopperAlibiCausal,
     .file = "parts/score/alibi.cuh",
     .original = " * kLog2E * ",
     .replacement = " * "},
    {.name = "ALiBi: slopes in the unit of binary logarithms",
     .setting = kMmaAlibi,
     .file = "parts/score/alibi.cuh",
     .original = " * ptx::rcp(taken)",
     .replacement = ""},
    {.name = "ALiBi: all batch entries have the first one's slopes",
     .setting = kHopperAlibiCausal,
     .file = "attention/row_place.cuh",
     .original = "place.batch * values.batch_stride + ",
     .replacement = ""},
    {.name = "ALiBi behind softcap: slopes in the unit of products",
     .setting = kHopperBoth,
     .file = "attention/score.cuh",
     .original = "row<kDefers>(place, part.unit(taken))",
     .replacement = "row<kDefers>(place, taken)"},
    {.name = "ALiBi behind softcap, mma: slopes in the unit of products",
     .setting = kMmaBoth,
     .file = "attention/score.cuh",
     .original = "row<kDefers>(place, part.unit(taken))",
     .replacement = "row<kDefers>(place, taken)"},
    {.name = "ALiBi under a window to both sides: taken for causal",
     .setting = kHopperAlibiWindow,
     .file = "parts/mask/window.cuh",
     .original = "kEndsAtPosition = false",
     .replacement = "kEndsAtPosition = true"},
    {.name = "keys: columns are counted backwards",
     .setting = kHopperAlibi,
     .file = "attention/key.cuh",
     .original = "static_cast<float>(first - position) + static_cast<float>(offset)",
     .replacement = "static_cast<float>(first - position) - static_cast<float>(offset)"},
    {.name = "rows: the lower one's place is the upper one's",
     .setting = kHopperAlibi,
     .file = "attention/scores.cuh",
     .original = "place_of(first_row + 8 + lane / 4)",
     .replacement = "place_of(first_row + lane / 4)"},
    {.name = "rows: the upper one's scores are changed as the lower one's",
     .setting = kHopperAlibi,
     .file = "attention/scores.cuh",
     .original = "return rows.upper.apply(x,",
     .replacement = "return rows.lower.apply(x,"},
    {.name = "rows: what the upper one's scores have in common is the lower one's",
     .setting = kHopperAlibiCausal,
     .file = "attention/scores.cuh",
     .original = "common.x[0][0] = rows.upper.common(first_column)",
     .replacement = "common.x[0][0] = rows.lower.common(first_column)"},
    {.name = "rows: all warps have the first one's",
     .setting = kHopperAlibi,
     .file = "kernels/hopper_forward.cuh",
     .original = "rows_of_lane(score(), warp_row(tile), lane(),",
     .replacement = "rows_of_lane(score(), tile.first_row, lane(),"},
    {.name = "rows of mma: the lower one's position is the upper one's",
     .setting = kMmaAlibi,
     .file = "attention/scores.cuh",
     .original = "const Row row = of_head.at(position_of(first_row + 16 * m + 8 * h + lane / 4));",
     .replacement = "const Row row = of_head.at(position_of(first_row + 16 * m + lane / 4));"},
    {.name = "columns of mma: a pair has the first one's offset",
     .setting = kMmaAlibiCausal,
     .file = "attention/scores.cuh",
     .original = "{first_column, 8 * n + e}",
     .replacement = "{first_column, 8 * n}"},
    {.name = "packed heads: all have the first one's slope",
     .setting = kHopperAlibi,
     .file = "hopper/tiles.cuh",
     .original = "(tile.head << packed_heads_log2) + (row & ((1 << packed_heads_log2) - 1))",
     .replacement = "tile.head << packed_heads_log2"},
    {.name = "packed heads: each row has a position of its own",
     .setting = kHopperAlibiCausal,
     .file = "hopper/tiles.cuh",
     .original = "position(row >> packed_heads_log2)",
     .replacement = "position(row)"},
    {.name = "heads of mma: slopes are of the heads of keys",
     .setting = kMmaAlibi,
     .file = "kernels/mma_forward.cuh",
     .original = "return {tile.batch, tile.head, ",
     .replacement = "return {tile.batch, tile.head / args.sizes.heads_per_group, "},
    {.name = "positions of mma: aligned with the first key",
     .setting = kMmaAlibiCausal,
     .file = "kernels/mma_forward.cuh",
     .original = "mask.position(query)",
     .replacement = "query"},
    {.name = "in common: left out of the maximum",
     .setting = kHopperAlibiCausal,
     .file = "hopper/deferred_softmax.cuh",
     .original = "    if constexpr (kAny) seen[0] += common.x[0][0], seen[1] += common.x[0][1];\n",
     .replacement = ""},
    {.name = "in common: left out of the maximum of mma",
     .setting = kMmaAlibiCausal,
     .file = "mma/online_softmax.cuh",
     .original = "        if constexpr (kAny) seen[m][h] += common.x[m][h];\n",
     .replacement = ""},
    {.name = "in common: the other sign in the exponent",
     .setting = kMmaAlibiCausal,
     .file = "attention/softmax.cuh",
     .original = "__fmaf_rn(-common.x[m][h], scale_log2, shift.x[m][h])",
     .replacement = "__fmaf_rn(common.x[m][h], scale_log2, shift.x[m][h])"},
    {.name = "in common: left out of the exponent",
     .setting = kHopperAlibiCausal,
     .file = "hopper/deferred_softmax.cuh",
     .original = "    add_common(shift, common);\n"
                 "    limit = ",
     .replacement = "    limit = "},
    {.name = "in common: left out where the maximum stays",
     .setting = kHopperAlibiLazy,
     .file = "hopper/deferred_softmax.cuh",
     .original = "    Shift shift = shift_by_maxima();\n"
                 "    add_common(shift, common);\n",
     .replacement = "    Shift shift = shift_by_maxima();\n"},
};

// --- Sinks and chunks --------------------------------------------------------------------------------------------

inline const std::vector<Mutation> kSinkFaults = {
    {.name = "sinks: natural logarithms",
     .setting = kHopperSinks,
     .file = "parts/softmax/sinks.cuh",
     .original = " * kLog2E",
     .replacement = ""},
    {.name = "sinks: the term is scaled as scores are",
     .setting = kMmaSinks,
     .file = "attention/row_end.cuh",
     .original = "softmax.reference_above(end.term, m, h)",
     .replacement = "softmax.reference_above(end.term * softmax.scale_log2, m, h)"},
    {.name = "sinks: the sum keeps its reference",
     .setting = kMmaSinks,
     .file = "attention/row_end.cuh",
     .original = "__fmaf_rn(end.total, end.kept, ",
     .replacement = "__fmaf_rn(end.total, 1.0f, "},
    {.name = "sinks: the output keeps its reference",
     .setting = kHopperSinks,
     .file = "hopper/store.cuh",
     .original = "if constexpr (Additions::kAny) factor *= end.kept;",
     .replacement = ""},
    {.name = "sinks of mma: the output keeps its reference",
     .setting = kMmaSinks,
     .file = "mma/store.cuh",
     .original = "if constexpr (Additions::kAny) inverse *= end.kept;",
     .replacement = ""},
    {.name = "sinks: the LSE is relative to the smaller one",
     .setting = kHopperSinks,
     .file = "attention/row_end.cuh",
     .original = "return leads ? (term",
     .replacement = "return !leads ? (term"},
    {.name = "sinks of mma: the LSE is relative to the smaller one",
     .setting = kMmaSinks,
     .file = "attention/row_end.cuh",
     .original = "return leads ? (term",
     .replacement = "return !leads ? (term"},
    {.name = "sinks: the term never leads, where a row sees no key",
     .setting = kHopperSinksFewKeys,
     .file = "attention/row_end.cuh",
     .original = "saw_none || !(above >= 0.0f)",
     .replacement = "false"},
    {.name = "sinks of mma: the term never leads, where a row sees no key",
     .setting = kMmaSinksFewKeys,
     .file = "attention/row_end.cuh",
     .original = "saw_none || !(above >= 0.0f)",
     .replacement = "false"},
    {.name = "sinks: the lower row of a lane has the upper one's head",
     .setting = kHopperSinks,
     .file = "hopper/store.cuh",
     .original = "first_row + 8 * h + ptx::tid_x() % kWarpSize / 4",
     .replacement = "first_row + ptx::tid_x() % kWarpSize / 4"},
    {.name = "sinks: all rows of a warp have the first one's head",
     .setting = kHopperSinks,
     .file = "hopper/store.cuh",
     .original = "first_row + 8 * h + ptx::tid_x() % kWarpSize / 4",
     .replacement = "first_row"},
    {.name = "sinks of mma: those of the heads of keys",
     .setting = kMmaSinks,
     .file = "kernels/mma_forward.cuh",
     .original = "return {tile.batch, tile.head, ",
     .replacement = "return {tile.batch, tile.head / args.sizes.heads_per_group, "},
};

inline const std::vector<Mutation> kChunkFaults = {
    {.name = "chunks: the last key is hidden",
     .setting = kHopperChunk,
     .file = "parts/mask/chunk.cuh",
     .original = "chunk.keys - 1",
     .replacement = "chunk.keys - 2"},
    {.name = "chunks: the next one's first key is seen",
     .setting = kHopperChunk,
     .file = "parts/mask/chunk.cuh",
     .original = "chunk.keys - 1",
     .replacement = "chunk.keys"},
    {.name = "chunks: the last query sees the next one",
     .setting = kHopperChunk,
     .file = "parts/mask/chunk.cuh",
     .original = ": position - position % chunk.keys",
     .replacement = ": position + 1 - (position + 1) % chunk.keys"},
    {.name = "chunks: negative positions near 0 are in the first one",
     .setting = kHopperChunkFewKeys,
     .file = "parts/mask/chunk.cuh",
     .original = "return position < 0 ? -chunk.keys : position",
     .replacement = "return position"},
    {.name = "chunks: that of negative positions reaches the first key",
     .setting = kHopperChunkFewKeys,
     .file = "parts/mask/chunk.cuh",
     .original = "? -chunk.keys",
     .replacement = "? 1 - chunk.keys"},
    {.name = "chunks: a tile visits no blocks before its last row's",
     .setting = kHopperChunk,
     .file = "attention/blocks.cuh",
     .original = "min(mask.first_key(first_row) / kBlockKv",
     .replacement = "min(mask.first_key(last_row) / kBlockKv",
     .kinds = {deadlock}},
    {.name = "chunks: blocks are clean up to the end of the last row's",
     .setting = kHopperChunk,
     .file = "attention/blocks.cuh",
     .original = "max(mask.last_key(first_row) + 1, 0)",
     .replacement = "max(mask.last_key(last_row) + 1, 0)"},
    {.name = "chunks of mma: the last key is hidden",
     .setting = kMmaChunk,
     .file = "parts/mask/chunk.cuh",
     .original = "chunk.keys - 1",
     .replacement = "chunk.keys - 2"},
    {.name = "chunks of mma: the next one's first key is seen",
     .setting = kMmaChunk,
     .file = "parts/mask/chunk.cuh",
     .original = "chunk.keys - 1",
     .replacement = "chunk.keys"},
    {.name = "chunks of mma: the last query sees the next one",
     .setting = kMmaChunk,
     .file = "parts/mask/chunk.cuh",
     .original = ": position - position % chunk.keys",
     .replacement = ": position + 1 - (position + 1) % chunk.keys"},
    {.name = "chunks of mma: negative positions near 0 are in the first one",
     .setting = kMmaChunkFewKeys,
     .file = "parts/mask/chunk.cuh",
     .original = "return position < 0 ? -chunk.keys : position",
     .replacement = "return position"},
    {.name = "chunks of mma: that of negative positions reaches the first key",
     .setting = kMmaChunkFewKeys,
     .file = "parts/mask/chunk.cuh",
     .original = "? -chunk.keys",
     .replacement = "? 1 - chunk.keys"},
    {.name = "chunks of mma: a tile visits no blocks before its last row's",
     .setting = kMmaChunk,
     .file = "attention/blocks.cuh",
     .original = "min(mask.first_key(first_row) / kBlockKv",
     .replacement = "min(mask.first_key(last_row) / kBlockKv"},
    {.name = "chunks of mma: blocks are clean up to the end of the last row's",
     .setting = kMmaChunk,
     .file = "attention/blocks.cuh",
     .original = "max(mask.last_key(first_row) + 1, 0)",
     .replacement = "max(mask.last_key(last_row) + 1, 0)"},
    {.name = "chunks with ALiBi: taken for causal",
     .setting = kMmaChunkAlibi,
     .file = "parts/mask/chunk.cuh",
     .original = "kEndsAtPosition = false",
     .replacement = "kEndsAtPosition = true"},
};

// --- Texts, predicates and block masks -------------------------------------------------------------------------------

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
inline constexpr Setting kHopperOffsets = [] {
  Setting setting = with_score(of_scores("hopper-kv32-whole"), "score + 0.01f * float(query) * float(key)");
  setting.offsets = true;
  return setting;
}();
inline constexpr Setting kMmaScoreText = with_score(of_mma_scores("mma-kv32-k2-v2"), kScoreText);
inline constexpr Setting kMmaMaskText = with_mask(of_mma_scores("mma-kv32-k2-v2"), kMaskText);
// The rows of a warp see nothing of the first block that it takes.
inline constexpr Setting kMmaLateKeys = with_mask(of_mma_scores("mma-kv32-k2-v2"), "key < 40");

inline constexpr Setting with_blocks(Setting setting, const char* mask) {
  setting.mask = mask, setting.blocks = true;
  setting.seqlen_q = 200, setting.seqlen_kv = 600, setting.num_heads_q = 2, setting.num_heads_kv = 2;
  return setting;
}
inline constexpr const char* kBlocksText = "key / 100 == query / 70 || key >= 590";
inline constexpr Setting kHopperBlocks = with_blocks(of_scores("hopper-q128-kv32-whole-qs2-lazy-fused"), kBlocksText);
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
     .original = "constexpr bool kNeighbours = kPacked && kDim == kRank - 1;",
     .replacement = "constexpr bool kNeighbours = kDim == kRank - 1;"},
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
     .original = "seen |= pair << 2 * tile;",
     .replacement = "seen |= pair << tile;"},
    {.name = "predicates: what is seen is hidden",
     .setting = kHopperMaskText,
     .file = "attention/scores.cuh",
     .original = "hidden[word] = ~seen;",
     .replacement = "hidden[word] = seen;"},
    {.name = "predicates: the lower row sees what the upper one sees",
     .setting = kHopperMaskText,
     .file = "attention/scores.cuh",
     .original = "hidden_by_predicates<kTiles>(rows.lower,",
     .replacement = "hidden_by_predicates<kTiles>(rows.upper,"},
    {.name = "predicates of mma: a pair has the first one's bit",
     .setting = kMmaMaskText,
     .file = "attention/scores.cuh",
     .original = "(2 * (n % kTilesOfWord) + e)",
     .replacement = "(2 * (n % kTilesOfWord))"},
    {.name = "predicates of mma: not asked",
     .setting = kMmaMaskText,
     .file = "kernels/mma_forward.cuh",
     .original = "      if (!whole)\n",
     .replacement = "      if (false)\n"},
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
     .original = "first_key / kGranuleKeys % kGranulesOfWord;",
     .replacement = "0;"},
    {.name = "block mask: without the tile's last queries",
     .setting = kHopperBlocks,
     .file = "parts/blocks/block_mask.cuh",
     .original = "query <= last_query / kGranuleQueries",
     .replacement = "query < last_query / kGranuleQueries"},
    {.name = "listed: all blocks are whole",
     .setting = kHopperBlocks,
     .file = "hopper/block_walk.cuh",
     .original = "whole = seen.whole;",
     .replacement = "whole = true;"},
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
     .kinds = {race, deadlock, mbarrier_phase}},
    {.name = "listed: a tile of hidden keys visits the first block that there is",
     .setting = kHopperNoBlocks,
     .file = "hopper/block_walk.cuh",
     .original = "return block = tile.end_block - 1;",
     .replacement = "whole = true;\n"
                    "    return block = tile.first_block;"},
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

// --- The mma.sync family ------------------------------------------------------------------------------------------

inline const std::vector<Mutation> kMmaFaults = {
    {.name = "masked step: no barrier",
     .setting = kMma,
     .file = "kernels/mma_forward.cuh",
     .original = "    ptx::cp_async_wait_group<0>();\n"
                 "    ptx::bar_sync();\n"
                 "    if constexpr (Config::kVStages > 1) request_value<false>(i + kValueLead);",
     .replacement = "    ptx::cp_async_wait_group<0>();\n"
                    "    if constexpr (Config::kVStages > 1) request_value<false>(i + kValueLead);",
     .kinds = {race, unwritten_shared},
     .found_at = "load_query"},
    {.name = "masked step: copies are not waited for",
     .setting = kMma,
     .file = "kernels/mma_forward.cuh",
     .original = "    ptx::cp_async_wait_group<0>();\n"
                 "    ptx::bar_sync();\n"
                 "    if constexpr (Config::kVStages > 1) request_value<false>(i + kValueLead);",
     .replacement = "    ptx::bar_sync();\n"
                    "    if constexpr (Config::kVStages > 1) request_value<false>(i + kValueLead);",
     .kinds = {race, unwritten_shared},
     .found_at = "load_query"},
    {.name = "masked step: the wait stands after the barrier",
     .setting = kMma,
     .file = "kernels/mma_forward.cuh",
     .original = "    ptx::cp_async_wait_group<0>();\n"
                 "    ptx::bar_sync();\n"
                 "    if constexpr (Config::kVStages > 1) request_value<false>(i + kValueLead);",
     .replacement = "    ptx::bar_sync();\n"
                    "    ptx::cp_async_wait_group<0>();\n"
                    "    if constexpr (Config::kVStages > 1) request_value<false>(i + kValueLead);",
     .kinds = {race, unwritten_shared},
     .found_at = "load_query"},
    {.name = "clean step: no barrier",
     .setting = kMma,
     .file = "kernels/mma_forward.cuh",
     .original = "    ptx::cp_async_wait_group<kPending>();\n"
                 "    ptx::bar_sync();",
     .replacement = "    ptx::cp_async_wait_group<kPending>();",
     .kinds = {race},
     .found_at = "request_key<"},
    {.name = "clean step: one group too many may be pending",
     .setting = kMma,
     .file = "kernels/mma_forward.cuh",
     .original = "ptx::cp_async_wait_group<kPending>();",
     .replacement = "ptx::cp_async_wait_group<kPending + 1>();",
     .kinds = {race, unwritten_shared},
     .found_at = "self.template compute_scores"},
    {.name = "deep rings: one group too many may be pending",
     .setting = kMmaDeep,
     .file = "kernels/mma_forward.cuh",
     .original = "ptx::cp_async_wait_group<kPending>();",
     .replacement = "ptx::cp_async_wait_group<kPending + 1>();",
     .kinds = {race, unwritten_shared},
     .found_at = "self.template compute_scores"},
    {.name = "serial: no barrier between keys and scores",
     .setting = kMmaSerial,
     .file = "kernels/mma_forward.cuh",
     .original = "    request_key<false>(i);\n"
                 "    ptx::cp_async_wait_group<0>();\n"
                 "    ptx::bar_sync();",
     .replacement = "    request_key<false>(i);\n"
                    "    ptx::cp_async_wait_group<0>();",
     .kinds = {race},
     .found_at = "self.template compute_scores"},
    {.name = "serial mma: values are not waited for",
     .setting = kMmaSerial,
     .file = "kernels/mma_forward.cuh",
     .original = "    request_value<false>(i);\n"
                 "    ptx::cp_async_wait_group<0>();\n"
                 "    ptx::bar_sync();",
     .replacement = "    request_value<false>(i);\n"
                    "    ptx::bar_sync();",
     .kinds = {race, unwritten_shared},
     .found_at = "self.template accumulate_output"},
    {.name = "serial: no barrier between values and output",
     .setting = kMmaSerial,
     .file = "kernels/mma_forward.cuh",
     .original = "    request_value<false>(i);\n"
                 "    ptx::cp_async_wait_group<0>();\n"
                 "    ptx::bar_sync();",
     .replacement = "    request_value<false>(i);\n"
                    "    ptx::cp_async_wait_group<0>();",
     .kinds = {race},
     .found_at = "self.template accumulate_output"},
    {.name = "K ring of one: requested while others still read it",
     .setting = kMmaOneKey,
     .file = "kernels/mma_forward.cuh",
     .original = "      ptx::bar_sync();\n"
                 "      request_key<false>(i + 1);",
     .replacement = "      request_key<false>(i + 1);",
     .kinds = {race}},
    {.name = "V ring of one: waited for with one group too many",
     .setting = kMmaOneValue,
     .file = "kernels/mma_forward.cuh",
     .original = "      ptx::cp_async_wait_group<1>();\n"
                 "      ptx::bar_sync();",
     .replacement = "      ptx::cp_async_wait_group<2>();\n"
                    "      ptx::bar_sync();",
     .kinds = {race, unwritten_shared},
     .found_at = "self.template accumulate_output"},
    {.name = "V ring of one: no barrier before the output",
     .setting = kMmaOneValue,
     .file = "kernels/mma_forward.cuh",
     .original = "      ptx::cp_async_wait_group<1>();\n"
                 "      ptx::bar_sync();",
     .replacement = "      ptx::cp_async_wait_group<1>();",
     .kinds = {race, unwritten_shared},
     .found_at = "self.template accumulate_output"},
    {.name = "V ring of one: masked blocks do not wait for their readers",
     .setting = kMmaOneValue,
     .file = "kernels/mma_forward.cuh",
     .original = "    if constexpr (Config::kVStages == 1 || Config::kKStages == 1) ptx::bar_sync();\n",
     .replacement = "",
     .kinds = {race}},
    {.name = "rotate: one V tile too few",
     .setting = kMmaRotate,
     .file = "kernels/mma_forward.cuh",
     .original = "kRotate ? Config::kVStages - 2",
     .replacement = "kRotate ? Config::kVStages - 1",
     .kinds = {race},
     .found_at = "self.template accumulate_output"},
    {.name = "rotate: early warps do not arrive",
     .setting = kMmaRotate,
     .file = "kernels/mma_forward.cuh",
     .original = "    ptx::bar_arrive<Shape::kThreads>(NamedBarrier::early_arrived);\n",
     .replacement = "",
     .kinds = {deadlock},
     .found_at = "ptx::bar_sync<Shape::kThreads>(NamedBarrier::early_arrived)"},
    {.name = "rotate: late warps arrive at the other barrier",
     .setting = kMmaRotate,
     .file = "kernels/mma_forward.cuh",
     .original = "ptx::bar_arrive<Shape::kThreads>(NamedBarrier::late_arrived);",
     .replacement = "ptx::bar_arrive<Shape::kThreads>(NamedBarrier::early_arrived);",
     .kinds = {barrier_mismatch}},
    {.name = "rotate: late warps do not wait",
     .setting = kMmaRotate,
     .file = "kernels/mma_forward.cuh",
     .original = "    ptx::bar_sync<Shape::kThreads>(NamedBarrier::early_arrived);",
     .replacement = "    ptx::bar_arrive<Shape::kThreads>(NamedBarrier::early_arrived);",
     .kinds = {race},
     .found_at = "request_value<"},
    {.name = "rotate: the first barrier is a warp too small",
     .setting = kMmaRotate,
     .file = "kernels/mma_forward.cuh",
     .original = "ptx::bar_sync<Shape::kThreads>(NamedBarrier::late_arrived);",
     .replacement = "ptx::bar_sync<Shape::kThreads - kWarpSize>(NamedBarrier::late_arrived);",
     .kinds = {barrier_mismatch},
     .found_at = "meet()"},
    {.name = "values: their group is not committed",
     .setting = kMmaDeep,
     .file = "kernels/mma_forward.cuh",
     .original = "      next_value -= Config::kBlockKv * args.v_strides.row;\n"
                 "    }\n"
                 "    ptx::cp_async_commit_group();",
     .replacement = "      next_value -= Config::kBlockKv * args.v_strides.row;\n"
                    "    }",
     .kinds = {race, unwritten_shared},
     .found_at = "self.template compute_scores"},
    {.name = "K ring: one tile too few",
     .setting = kMma,
     .file = "kernels/mma_forward.cuh",
     .original = "kKeyLead = Config::kKStages > 1 ? Config::kKStages - 1 : 1;",
     .replacement = "kKeyLead = Config::kKStages > 1 ? Config::kKStages : 1;",
     .kinds = {race},
     .found_at = "self.template compute_scores"},
    {.name = "K ring: one slot more than there is memory",
     .setting = kMma,
     .file = "kernels/mma_forward.cuh",
     .original = "% Config::kKStages * KTile::kBytes",
     .replacement = "% (Config::kKStages + 1) * KTile::kBytes",
     .kinds = {race},
     .found_at = "request_"},
    {.name = "V ring: beyond the end",
     .setting = kMma,
     .file = "kernels/mma_forward.cuh",
     .original = "% Config::kVStages * VTile::kBytes",
     .replacement = "% (Config::kVStages + 1) * VTile::kBytes",
     .kinds = {shared_out_of_bounds},
     .found_at = "request_"},
    {.name = "query: rows past the end are read",
     .setting = kMma,
     .file = "kernels/mma_forward.cuh",
     .original = "QTile::template request<Config::kHeadDim, Shape::kThreads, true>",
     .replacement = "QTile::template request<Config::kHeadDim, Shape::kThreads, false>",
     .kinds = {global_out_of_bounds},
     .found_at = "ptx::cp_async_16(dst"},
    {.name = "keys: rows past the end are read",
     .setting = kMma,
     .file = "kernels/mma_forward.cuh",
     .original = "request_key<kKey == 0>(kKey);",
     .replacement = "request_key<false>(kKey);",
     .kinds = {global_out_of_bounds},
     .found_at = "ptx::cp_async_16(dst"},
    {.name = "zero fill: inverted",
     .setting = kMma,
     .file = "tile/shared_tile.cuh",
     .original = "row + i < valid_rows ? kChunkBytes : 0",
     .replacement = "row + i < valid_rows ? 0 : kChunkBytes",
     .kinds = {global_out_of_bounds},
     .found_at = "ptx::cp_async_16_zero_fill("},
    {.name = "zero fill: one row too late",
     .setting = kMma,
     .file = "tile/shared_tile.cuh",
     .original = "row + i < valid_rows ? kChunkBytes : 0",
     .replacement = "row + i <= valid_rows ? kChunkBytes : 0",
     .kinds = {global_out_of_bounds},
     .found_at = "ptx::cp_async_16_zero_fill("},
    {.name = "zero fill: half of each chunk",
     .setting = kMma,
     .file = "tile/shared_tile.cuh",
     .original = "row + i < valid_rows ? kChunkBytes : 0",
     .replacement = "row + i < valid_rows ? kChunkBytes / 2 : 0"},
    {.name = "copies: a row further on",
     .setting = kMma,
     .file = "tile/shared_tile.cuh",
     .original = "const SmemAddress dst = tile + offset(row, chunk);",
     .replacement = "const SmemAddress dst = tile + kRowBytes + offset(row, chunk);",
     .kinds = {race, shared_out_of_bounds, unwritten_shared}},
    {.name = "copies: the swizzle of the next row",
     .setting = kMma,
     .file = "tile/shared_tile.cuh",
     .original = "const SmemAddress dst = tile + offset(row, chunk);",
     .replacement = "const SmemAddress dst = tile + (offset(row + 1, chunk) - kRowBytes);"},
    {.name = "copies: 8 bytes off",
     .setting = kMma,
     .file = "tile/shared_tile.cuh",
     .original = "const SmemAddress dst = tile + offset(row, chunk);",
     .replacement = "const SmemAddress dst = tile + 8 + offset(row, chunk);",
     .kinds = {misaligned},
     .found_at = "ptx::cp_async_16_zero_fill("},
    {.name = "fragments: chunks added instead of permuted",
     .setting = kMma,
     .file = "tile/shared_tile.cuh",
     .original = "(lane_offset ^ (moved_chunks % kSpan * kChunkBytes))",
     .replacement = "(lane_offset + (moved_chunks % kSpan * kChunkBytes))",
     .kinds = {unwritten_shared, race},
     .found_at = "self.template compute_scores"},
    {.name = "padding is not cleared",
     .setting = kMmaPadded,
     .file = "tile/shared_tile.cuh",
     .original = "if (row + thread < kRows) ptx::st_shared",
     .replacement = "if (row + thread < 0) ptx::st_shared",
     .kinds = {unwritten_shared},
     .found_at = "load_query"},
    {.name = "keys: halves of a fragment swapped",
     .setting = kMma,
     .file = "mma/warp_attention.cuh",
     .original = "KTile::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);",
     .replacement = "KTile::offset(lane % 8 + lane / 16 * 8, 1 - lane / 8 % 2);"},
    {.name = "query: ldmatrix 8 bytes off",
     .setting = kMma,
     .file = "mma/warp_attention.cuh",
     .original = "q_rows + QTile::move(at, 16 * m, 2 * k)",
     .replacement = "q_rows + 8 + QTile::move(at, 16 * m, 2 * k)",
     .kinds = {misaligned},
     .found_at = "load_query"},
    {.name = "values: not transposed",
     .setting = kMma,
     .file = "mma/warp_attention.cuh",
     .original = "ptx::ldmatrix_x4_trans(b,",
     .replacement = "ptx::ldmatrix_x4(b,"},
    {.name = "query in registers: not waited for",
     .setting = kMmaQueryInRegisters,
     .file = "kernels/mma_forward.cuh",
     .original = "      ptx::cp_async_wait_group<0>();\n"
                 "      ptx::bar_sync();\n"
                 "      self.keep_query();",
     .replacement = "      ptx::bar_sync();\n"
                    "      self.keep_query();",
     .kinds = {race, unwritten_shared},
     .found_at = "load_query"},
    {.name = "query in registers: keys are requested while others read it",
     .setting = kMmaQueryInRegisters,
     .file = "kernels/mma_forward.cuh",
     .original = "      self.keep_query();\n"
                 "      ptx::bar_sync();",
     .replacement = "      self.keep_query();",
     .kinds = {race}},
    {.name = "output: it does not wait for the last readers",
     .setting = kMmaQueryInRegisters,
     .file = "kernels/mma_forward.cuh",
     .original = "ptx::vote_any(ptx::bar_sync_any(self.softmax.went_far()))",
     .replacement = "ptx::vote_any(self.softmax.went_far())",
     .kinds = {race},
     .found_at = "store_rows<"},
    {.name = "negative scale: the query is flipped before it is there",
     .setting = kMmaNegative,
     .file = "kernels/mma_forward.cuh",
     .original = "    ptx::cp_async_wait_group<0>();\n"
                 "    for_each_band",
     .replacement = "    for_each_band",
     .kinds = {race, unwritten_shared},
     .found_at = "ptx::Chunk c = ptx::ld_shared(at)"},
    {.name = "maximum: each lane decides by itself",
     .setting = kMmaJumps,
     .file = "mma/online_softmax.cuh",
     .original = "|| ptx::vote_any(grew)",
     .replacement = "|| grew",
     .kinds = {unequal_participation},
     .found_at = "rescale<kAnywhere>(seen, o)"},
    {.name = "output: a row past the end",
     .setting = kMma,
     .file = "mma/store.cuh",
     .original = "if (row + i < valid_rows && row + i < Tile::kRows)",
     .replacement = "if (row + i <= valid_rows && row + i < Tile::kRows)",
     .kinds = {global_out_of_bounds},
     .found_at = "store_rows<"},
    {.name = "LSE of mma: a row past the end",
     .setting = kMma,
     .file = "mma/store.cuh",
     .original = "lane % 4 == 0 && row < valid_rows",
     .replacement = "lane % 4 == 0 && row <= valid_rows",
     .kinds = {global_out_of_bounds},
     .found_at = "normalize("},
    {.name = "output: all warps pass it through one place",
     .setting = kMma,
     .file = "kernels/mma_forward.cuh",
     .original = "slab = smem + warp * OTile::kBytes;",
     .replacement = "slab = smem;",
     .kinds = {race},
     .found_at = "store_rows<"},
    {.name = "heads of keys are those of the query",
     .setting = kMma,
     .file = "kernels/mma_forward.cuh",
     .original = "const int kv_head = tile.head / args.sizes.heads_per_group;",
     .replacement = "const int kv_head = tile.head;",
     .kinds = {global_out_of_bounds},
     .found_at = "ptx::cp_async_16_zero_fill("},
    {.name = "clean blocks: one too many",
     .setting = kMma,
     .file = "attention/blocks.cuh",
     .original = "runs.clean_end = max(mask.last_key(first_row) + 1, 0) / kBlockKv;",
     .replacement = "runs.clean_end = max(mask.last_key(first_row) + kBlockKv, 0) / kBlockKv;"},
    {.name = "causal: the piece on the diagonal is left out",
     .setting = kMmaCausal,
     .file = "kernels/mma_forward.cuh",
     .original = "first_key(i) + piece > last_visible_key()) break;",
     .replacement = "first_key(i) + piece + 1 > last_visible_key()) break;"},
    {.name = "causal: tiles in the other order, one off",
     .setting = kMmaCausal,
     .file = "attention/tile_scheduler.cuh",
     .original = "index = tiles - 1 - index;",
     .replacement = "index = tiles - index;"},
    {.name = "blocks: the last one is not visited",
     .setting = kMma,
     .file = "attention/blocks.cuh",
     .original = "kLeast == 0 ? max(reach, 0) / kBlockKv",
     .replacement = "kLeast == 0 ? max(reach - kBlockKv, 0) / kBlockKv"},
};

// --- Dropout -----------------------------------------------------------------------------------------------------

inline constexpr Setting with_dropout(Setting setting, double probability) {
  setting.dropout = probability;
  return setting;
}
inline constexpr Setting kHopperDropout = with_dropout(of_scores("hopper-kv32-whole-lazy"), 0.3);
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
     .original = "(key.x[0] + round * kWeyl[0])",
     .replacement = "key.x[0]"},
    {.name = "dropout: the words of the key change places",
     .setting = kHopperDropout,
     .file = "attention/philox.cuh",
     .original = "counter.x[1] ^ (key.x[0]",
     .replacement = "counter.x[1] ^ (key.x[1]"},
    {.name = "dropout: the query is that of the key beside it",
     .setting = kHopperDropout,
     .file = "parts/probability/dropout.cuh",
     .original = "const int from_position = place.sequence.queries - place.sequence.keys;",
     .replacement = "const int from_position = 0;"},
    {.name = "dropout: the same for all heads",
     .setting = kMmaDropout,
     .file = "parts/probability/dropout.cuh",
     .original = "dropout.num_heads_q + place.head,",
     .replacement = "dropout.num_heads_q,"},
    {.name = "dropout: the same for all batch entries",
     .setting = kHopperDropout,
     .file = "parts/probability/dropout.cuh",
     .original = "static_cast<uint32>(place.batch) * dropout.num_heads_q",
     .replacement = "0u"},
    {.name = "dropout: the same for all keys of a row",
     .setting = kMmaDropout,
     .file = "parts/probability/dropout.cuh",
     .original = "static_cast<uint32>(first), row_of_heads",
     .replacement = "0u, row_of_heads"},
    {.name = "dropout: rows of the head's first query",
     .setting = kMmaDropout,
     .file = "parts/probability/dropout.cuh",
     .original = "return {dropout, position + from_position, from_position,",
     .replacement = "return {dropout, query, from_position,"},
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
     .original = "static_cast<uint32>(offset),",
     .replacement = "0u,"},
    {.name = "dropout: keeps what is to go",
     .setting = kHopperDropout,
     .file = "parts/probability/dropout.cuh",
     .original = " ^ dropout.kept_below",
     .replacement = ""},
    {.name = "dropout: keeps what is to go, of many",
     .setting = kMmaDropoutOfMost,
     .file = "parts/probability/dropout.cuh",
     .original = " ^ dropout.kept_below",
     .replacement = " ^ 0xffffffffu"},
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
     .original = "          at.block * Config::kBlockKv, lane());\n    }\n  }\n\n  // Whether masks that are spans",
     .replacement = "          0, lane());\n    }\n  }\n\n  // Whether masks that are spans"},
    {.name = "dropout: the first block keeps all",
     .setting = kHopperDropout,
     .file = "kernels/hopper_forward.cuh",
     .original = "      const bool raised = self.softmax.take_block(finish_scores<true>(visit, rows, at));\n      "
                 "drop(visit, at);",
     .replacement = "      const bool raised = self.softmax.take_block(finish_scores<true>(visit, rows, at));\n      "
                    "if (!first) drop(visit, at);"},
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

inline const std::vector<Mutation>* const kAllMutations[] = {
    &kRingFaults,   &kWaitFaults,  &kCopyFaults, &kWgmmaFaults, &kFenceFaults, &kRoleFaults, &kOutputFaults,
    &kWindowFaults, &kScoreFaults, &kSinkFaults, &kChunkFaults, &kMmaFaults,   &kTextFaults, &kDropoutFaults};

}  // namespace flashjit::tests
