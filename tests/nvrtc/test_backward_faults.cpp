// SPDX-License-Identifier: Apache-2.0
// Whether the emulator and the reference find what is wrong with backward kernels that were changed for it.
#include <doctest/doctest.h>

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "flashjit/flashjit.h"
#include "tests/support/backward_case.h"
#include "tests/support/backward_fault.h"
#include "tests/support/emulating_engine.h"
#include "tests/support/ragged_backward_case.h"
#include "tests/support/sample.h"

namespace {

using namespace flashjit;
using Case = tests::BackwardCase;
using O = AttentionOptions;

constexpr const char* kMath = "mma/backward_scores.cuh";

using Fault = tests::BackwardFault;
using tests::check_found;

// By one engine for all. what_is_wrong(i, engine): empty where case i is right.
void check_found(const Fault& fault, const char* architecture, int cases,
                 const std::function<std::string(int, Engine&)>& what_is_wrong) {
  std::optional<Engine> engine;
  check_found(fault, architecture, cases, [&](int i, const EngineOptions& options) {
    if (!engine) engine.emplace(options);
    return what_is_wrong(i, *engine) == "";
  });
}

}  // namespace

TEST_CASE("planted faults of the backward kernels are found") {
  constexpr const char *kMain = "kernels/mma_backward.cuh", *kRows = "kernels/backward_rows.cuh";
  const std::vector<Fault> faults{
      {"queries are read before they have come", kMain, "    ptx::cp_async_wait_group<0>();\n", ""},
      {"a step does not wait for the warps of the one before", kMain, "cp_async_wait_group<0>();\n    ptx::bar_sync();",
       "cp_async_wait_group<0>();"},
      {"dS is read before all warps have written theirs", kMain, "+ piece);\n    ptx::bar_sync();", "+ piece);"},
      {"the next queries come while these are read", kMain,
       "ptx::bar_sync();  // the next queries come where these were, while dQ is computed", ""},
      {"hidden keys have their gradients", kMath, "if (p[e] == 0.0f) ds[e] = 0.0f;", "if (p[e] == 0.0f) ds[e] = 1.0f;"},
      {"the row sum is passed over", kMath, "(gradient - of.sum)", "(gradient)"},
      {"the derivative of the cap is passed over", kMath, "ds[e] *= derivatives.x[m][n][first + e];", ""},
      {"both tiles of a warp's keys are the first", kMain, "* Shape::kRowTiles + m, 16 * k,",
       "* Shape::kRowTiles, 16 * k,"},
      {"dropped probabilities keep their gradients", kMath, "? gradient * dropout_scale() : 0.0f;",
       "? gradient : gradient;"},
      {"dropped probabilities reach dV", kMath, "pair &= stays;", ";"},
      {"of a group the first head alone is seen", kMain, "+ i / tiles.count();", ";"},
      {"tiles before the diagonal are left out", "attention/key_tile.cuh", ">= first_key;", "> first_key + 64;"},
      {"rows beyond the last query are added to", kMain, "lane() / 4 < tile.sequence.queries)", "lane() / 4 >= 0)"},
      {"keys beyond the last are written", kMain, "if (key >= tile.sequence.keys) continue;", ""},
      {"dK lacks the scale", kMain, "args.dk_strides, args.scale);", "args.dk_strides, 1.0f);"},
      {"dQ is not cleared", kRows, "    if (is_row) clear(row);\n", ""},
      {"dQ lacks the scale", kRows, "x *= args.scale;\n      Octets", "x *= 1.0f;\n      Octets"},
      {"the gradient of the LSE is added", kRows, "sum -= ptx::ld", "sum += ptx::ld"},
      {"lanes of a row do not share their sums", kRows, "sum += ptx::shfl_xor(sum, lanes / 2);", ";"},
  };
  for (const Fault& fault : tests::sample(faults))
    check_found(fault, "sm_80", 4, [](int i, Engine& engine) {
      Case c({.seqlen_q = 150, .seqlen_kv = 200, .head_dim = 32, .head_dim_v = 32});
      if (i % 2 == 1) {
        c.variant = parse_backward_variant("q128-kv128-w8-r2-s1");
        c.options.causal = true, c.options.softcap = 1, c.options.dropout = {0.4, 1, 2};
      }
      if (i >= 2)
        c.values(&O::boolean_mask, DType::boolean, {1, 1, 150, 200}, [](std::int64_t at) { return at / 200 != 7; });
      c.dlse = HostTensor::random_normal(DType::f32, c.lse_shape(), 5);
      return c.what_is_wrong(engine);
    });
}

TEST_CASE("planted faults of Hopper's backward kernels are found") {
  constexpr const char *kNarrow = "kernels/hopper_backward.cuh", *kWide = "kernels/hopper_backward_wide.cuh",
                       *kScores = "hopper/backward_scores.cuh", *kLoader = "hopper/backward_loader.cuh",
                       *kTickets = "hopper/backward_jobs.cuh", *kWork = "hopper/backward_work.cuh",
                       *kStore = "hopper/backward_store.cuh", *kJobs = "hopper/backward_rows.cuh";
  const std::vector<Fault> faults{
      {"dS is read before the other warpgroup has written its keys", kNarrow,
       "    if constexpr (!kIsFirst) {\n      read().wait_full();", "    if constexpr (!kIsFirst) {"},
      {"dS is written while it is read", kNarrow, "    written.wait_empty();\n", ""},
      {"dS without a fence", kNarrow, "gradients().slot());\n    ptx::fence_proxy_async();", "gradients().slot());"},
      {"the place of dQ is written before it was read", kNarrow, "    part.wait_empty();\n", ""},
      {"dQ without a fence", kNarrow, "* kChunkBytes);\n    ptx::fence_proxy_async();", "* kChunkBytes);"},
      {"dQ leaves before it has come", kNarrow, "      parts.wait_full();\n", ""},
      {"the place of dQ is given back before it was read", kNarrow, "    ptx::tma_wait_read();\n", ""},
      {"dQ lacks the last step of a tile", kNarrow,
       "      multiply_queries(read().slot());\n      ptx::wgmma_wait_group<0>();",
       "      ptx::wgmma_wait_group<0>();"},
      {"queries are given back before dK was computed", kNarrow,
       "    ptx::wgmma_wait_group<0>();\n    queries.release(true);", "    queries.release(true);"},
      {"values are given back before dP was computed", kNarrow,
       "    ptx::wgmma_wait_group<0>();\n    if (is_last) values().release(signs());",
       "    if (is_last) values().release(signs());\n    ptx::wgmma_wait_group<0>();"},
      {"gradients go on from the tile before", kNarrow, "    Base::clear_gradients();\n", ""},
      {"probabilities are made of products that are not there", kNarrow,
       "    ptx::wgmma_wait_group<1>();\n    const bool", "    const bool"},
      {"the other warpgroup's keys are stored", kNarrow, "* Config::kBlockKv + own_keys()", "* Config::kBlockKv"},
      {"dQ of all steps goes to the first", kNarrow, "      work.advance(step);\n", ""},
      {"what masks hide is seen", kScores, "    if (hides) hide(", "    if (false) hide("},
      {"what masks hide has gradients", kScores, "if (kHides && p[e] == 0.0f) ds[e] = 0.0f;",
       "if (kHides && p[e] == 0.0f) ds[e] = 1.0f;"},
      {"the row sum is passed over", kScores, "(dp[e] - of[e])", "dp[e]"},
      {"masks are those of the queries before", kScores, "first_query + lane() % 4 * 2;",
       "first_query + lane() % 4 * 2 - 8;"},
      {"a job is announced before the one before the last was read", kLoader, "      jobs.wait_empty();\n", ""},
      {"keys come while others are used", kLoader,
       "    RingWriter<typename Shape::KRing>(shape.keys(), tile).wait_empty();\n", ""},
      {"LSE is that of the first tile", kLoader, "args.lse_log2 + first", "args.lse_log2"},
      {"the second head of a group begins where the first has ended", kWork,
       "    step.index += args.sizes.num_q_tiles - queries.count();\n", ""},
      {"queries come while others are used", kLoader,
       "    RingWriter<typename Shape::QRing>(shape.queries(), step).wait_empty();\n", ""},
      {"keys do not wait for what is prepared for them", kLoader, "if (needs_rows) await(", "if (false) await("},
      {"dQ is rounded before all have added to it", kLoader, "if (job.kind == Kind::finish) await(",
       "if (false) await("},
      {"the row sums are those of the tile before", kJobs, "(rows.first_tile_of_all() + tile) * kTileRows + row]",
       "(rows.first_tile_of_all() + max(tile - 1, 0)) * kTileRows + row]"},
      {"dQ is added to what was there", kJobs, "    if (args.dq != nullptr) clear();\n", ""},
      {"jobs of rows leave out the last head", kTickets, "* sizes.heads_per_group) {}", "* 1) {}"},
      {"keys beyond the last are written", kStore, "of_sequence < rows.count ? ", "of_sequence >= 0 ? "},
      {"lanes exchange the wrong pairs", kStore, "is_upper ? pairs[i] : pairs[i + bit]",
       "is_upper ? pairs[i + bit] : pairs[i]"},
      {"dQ lacks the scale", kJobs, "x *= args.scale;", "x *= 1.0f;"},
      {"parts of dQ are read the wrong way round", kJobs, "kAreRows ? 0 : part % Shape::kWarpgroups * kChunks;",
       "kAreRows ? 0 : (part + 1) % Shape::kWarpgroups * kChunks;", true},
      {"P and dS are read before both warpgroups have written theirs", kWide,
       "    ptx::bar_sync<Shape::kConsumerThreads>(NamedBarrier::derivatives);\n", "", true},
      {"P and dS without a fence", kWide, "    ptx::fence_proxy_async();\n", "", true},
      {"dQ leaves before it was computed", kWide, "    ptx::wgmma_wait_group<2>();\n", "", true},
      {"both warpgroups have the first queries", kWide, "const int own = warpgroup() *", "const int own = 0 *", true},
      {"queries are given back before dK and dV were computed", kWide,
       "    ptx::wgmma_wait_group<0>();\n    queries.release", "    queries.release", true},
      {"both warpgroups have the first dims of dQ", kWide, "* Shape::kWarpgroups + warpgroup()) * kFloats",
       "* Shape::kWarpgroups) * kFloats", true},
  };
  for (const Fault& fault : tests::sample(faults))
    check_found(fault, "sm_90a", 4, [&fault](int i, const EngineOptions& planted) {
      EngineOptions options = planted;
      if (i == 3) options.emulation.resident_blocks = 4;  // two draw the jobs one after the other and hardly race
      Engine engine(options);
      const int head_dim = fault.is_wide ? 256 : i == 1 ? 128 : 64;
      Case c({.batch = 1,
              .seqlen_q = 330,
              .seqlen_kv = 300,
              .num_heads_q = 2,
              .num_heads_kv = 1,
              .head_dim = head_dim,
              .head_dim_v = head_dim});
      if (i != 1) c.options.causal = true;
      if (i == 2) c.options.window = {60, 0};
      return c.what_is_wrong(engine).empty();
    });
}

TEST_CASE("planted faults of steps of 80 queries are found") {
  constexpr const char *kMain = "kernels/hopper_backward.cuh", *kRows = "hopper/backward_rows.cuh",
                       *kLoader = "hopper/backward_loader.cuh";
  const std::vector<Fault> faults{
      {"dQ is multiplied the other way round", kMain, "QueryGradient::issue(b, a, 0);",
       "QueryGradient::issue(a, b, 0);"},
      {"both warpgroups have the first dims of dQ", kMain, "(kRows ? 0 : warpgroup() * KTile::kPanelBytes)", "0"},
      {"dims are those of neighbouring threads", kRows, "dim * kThreadsOfRow * kChunkBytes", "dim * kChunkBytes"},
      {"dims of a chunk and queries are taken for each other", kRows, "chunk % 2 * 2 + row % 2",
       "row % 2 * 2 + chunk % 2"},
      {"of eight queries the first two are seen", kRows, "row % kColumnsOfRow / 2,", "0,"},
      {"of a tile the first eight queries are seen", kRows, "(row / kColumnsOfRow * kWarpgroupSize + of_thread)",
       "of_thread"},
      {"parts of dQ are read the wrong way round", kRows, "first_chunk = part % Shape::kWarpgroups * kChunks;",
       "first_chunk = (part + 1) % Shape::kWarpgroups * kChunks;"},
      {"tiles of dQ begin every 64 rows", kRows, "part / Shape::kWarpgroups * kTileRows;",
       "part / Shape::kWarpgroups * 64;"},
      {"dQ goes on behind the last query", kRows, "if (row >= rows.beside.sequence.queries) return;", ""},
      {"a dQ of fewer dims than two panels is written over its end", kRows,
       "      const int row = i / kChunks, chunk = i % kChunks;\n"
       "      if ((first_chunk + chunk) * kChunkElements >= Config::kHeadDim) continue;\n",
       "      const int row = i / kChunks, chunk = i % kChunks;\n"},
      {"a tile has row sums of the next one", kRows, "if (lane != 0 || row >= kTileRows) continue;",
       "if (lane != 0) continue;"},
      {"steps begin every 64 queries", kLoader, "at.head, at.tile * Config::kBlockQ);", "at.head, at.tile * 64);"},
      {"masks are those of steps of 64 queries", kMain, "step<false>(work, tile * Config::kBlockQ,",
       "step<false>(work, tile * 64,"},
  };
  for (const Fault& fault : tests::sample(faults))
    check_found(fault, "sm_90a", 3, [](int i, Engine& engine) {
      Case c({.batch = 2,
              .seqlen_q = 330,
              .seqlen_kv = 300,
              .num_heads_q = 2,
              .num_heads_kv = 1,
              .head_dim = i == 0 ? 128 : 104,
              .head_dim_v = i == 0 ? 128 : 40});
      c.variant = parse_backward_variant("hopper-q80-kv128");
      if (i == 1) c.options.causal = true;
      if (i == 2) c.options.window = {60, 0};
      return c.what_is_wrong(engine);
    });
}

TEST_CASE("planted faults of the gradients of options are found") {
  constexpr const char *kMain = "kernels/mma_backward.cuh", *kHeads = "kernels/head_gradients.cuh",
                       *kRows = "kernels/bias_gradient.cuh", *kSlopes = "parts/score_gradient/slopes.cuh",
                       *kBias = "parts/score_gradient/bias.cuh", *kClear = "kernels/backward_rows.cuh",
                       *kSlot = "attention/score_gradient.cuh";
  const std::vector<Fault> faults{
      {"derivatives are those in front of the cap", kMath, "behind_of(ds[e], behind, m, n, first + e)",
       "ds[e] * derivatives.x[m][n][first + e]"},
      {"all columns of a lane are the first", kMath, "{at.first_key + at.column + lane % 4 * 2, 8 * n + e}",
       "{at.first_key + at.column + lane % 4 * 2, 0}"},
      {"heads of a group end together", kMain, "if ((i + 1) % tiles.count() == 0) end_head",
       "if (i + 1 == steps) end_head"},
      {"of two gradients the first alone is made", kSlot, "    others.add(derivative, place, key);\n", ""},
      {"slopes add to scores", kSlopes, "__fmaf_rn(-derivative", "__fmaf_rn(derivative"},
      {"lanes do not share their sums of slopes", kSlopes, "sum += ptx::shfl_xor(sum, lanes / 2);", ";"},
      {"the next head has this one's sum, too", kSlopes, "    sum = 0.0f;\n", ""},
      {"all warps store to one place", kSlopes, "of.index * of.warps + of.warp", "of.index * of.warps"},
      {"rows of a bias are those of keys", kBias, "place.position - (place.sequence.keys - place.sequence.queries)",
       "place.position"},
      {"a bias is all heads'", kBias, "place.head * args.head_stride", "0"},
      {"a bias is not cleared", kClear, "args.counters[index] = 0;", "args.counters[index] = 0x40000000;"},
      {"the rounded bias is all heads'", kRows, "head * args.strides.head", "0"},
      {"the end of a row is left as it was", kRows, "key < args.keys)", "key + 1 < args.keys)"},
      {"a row goes on behind its last key", kRows, "key < args.keys)", "key >= 0)"},
      {"sinks have the gradient's other sign", kHeads, "-p * ptx::ld", "p * ptx::ld"},
      {"sinks are in natural logarithms", kHeads, "{batch, head, 0, {}}) * kLog2E", "{batch, head, 0, {}})"},
      {"sinks have the first batch entry's alone", kHeads, "batch), entry, batch, head)", "batch), 0, batch, head)"},
      {"heads lie side by side without what pads them", kHeads, "* args.padded_queries", "* args.sum.rows.rows"},
      {"warps do not wait for each other's sums", kHeads, "    ptx::bar_sync();\n", ""},
  };
  for (const Fault& fault : tests::sample(faults))
    check_found(fault, "sm_90a", 3, [](int i, Engine& engine) {
      Case c({.seqlen_q = 150, .seqlen_kv = 200, .head_dim = 64, .head_dim_v = 64});
      c.of_options = true;
      c.dlse = HostTensor::random_normal(DType::f32, c.lse_shape(), 5);
      c.values(&O::sinks, DType::f32, {4}, [](std::int64_t head) { return 2. - head; });
      if (i == 2) return c.what_is_wrong(engine);  // by the Hopper family, whose rows are padded
      const Dims of_heads = i == 0 ? Dims{4} : Dims{2, 4};
      c.options.softcap = 1;
      c.values(&O::alibi_slopes, DType::f32, of_heads, [](std::int64_t at) { return 0.02 * at; });
      c.values(&O::bias, DType::bf16, {2, 4, i == 0 ? 150 : 1, 200}, [](std::int64_t at) { return at * 5 % 11 * .1; });
      return c.what_is_wrong(engine);
    });
}

TEST_CASE("planted faults of gradients of ragged batches are found") {
  constexpr const char *kMain = "kernels/mma_backward.cuh", *kTile = "attention/key_tile.cuh",
                       *kRows = "attention/sequence_rows.cuh", *kHeads = "kernels/head_gradients.cuh";
  const std::vector<Fault> faults{
      {"keys are those of the first sequence", kMain, "(tile.first_key + key) * strides.row", "key * strides.row"},
      {"queries are those of the first sequence", kMain, "(tile.first_query + first_query(i)) *", "first_query(i) *"},
      {"dQ and LSE are those of the first sequence", kMath, "+ tile.first_query + query;", "+ query;"},
      {"queries go on behind their sequence", kMain, "rows = tile.sequence.queries - first_query(i)",
       "rows = args.sizes.seqlen_q - first_query(i)"},
      {"keys go on behind their sequence", kMain, "rows = tile.sequence.keys - first_key", "rows = Config::kBlockKv"},
      {"what is not used has gradients", kRows, "count = min(count, max(all.used[sequence], 0));", ";"},
      {"rows of no sequence are left as they were", "kernels/backward_rows.cuh", "args.to + row.in(args.strides)",
       "args.to"},
      {"sequences share the places of tiles", kTile, "first + (batch - entry)", "first"},
      {"sequences share the places of sums of slopes", kHeads, "args.block_kv + (batch - entry)", "args.block_kv"},
      {"keys and queries of a sequence are not exchanged", kTile, "return {of.queries, of.keys};", "return of;"},
      {"blocks without a tile go on", kTile, "!Sequences::kRagged || index <", "index + 1 > 0 || index <"},
  };
  constexpr const char *kLoader = "hopper/backward_loader.cuh", *kJobs = "hopper/backward_jobs.cuh",
                       *kHopperRows = "hopper/backward_rows.cuh", *kOrigins = "hopper/backward_origins.cuh",
                       *kStore = "hopper/backward_store.cuh";
  const std::vector<Fault> faults_of_hopper{
      {"rows of a sequence without keys are finished before they are prepared", kLoader,
       "(Config::Sequences::kRagged && job.kind == Kind::finish)", "false"},
      {"dQ is rounded before all have added to it", kLoader, "if (job.kind == Kind::finish) await(",
       "if (false) await("},
      {"boxes of queries do not end with their sequence", kOrigins,
       "tile.first_query + queries,\n                               tile",
       "tile.first_query + queries + 20,\n                               tile"},
      {"keys are those of the first sequence", kOrigins, "tile.first_key + keys,", "keys,"},
      {"the second query head of a group has the first one's rows", kJobs,
       "tile.head % group * jobs_of(tile.of.queries) + tile.index", "tile.index"},
      {"a sequence's place is not exchanged", kJobs, "tile.exchanged()}", "tile}"},
      {"rows of q are those of the first sequence", kHopperRows, "(beside.first_query + row) *", "row *"},
      {"dK goes to the first sequence", kStore, "(rows.first + of_sequence) *", "of_sequence *"},
  };
  for (const Fault& fault : tests::sample(faults_of_hopper))
    check_found(fault, "sm_90a", 12, [](int i, const EngineOptions& planted) {
      Case c = tests::packed_case(64, 64);
      c.variant = parse_backward_variant("hopper-q128-kv128");
      EngineOptions options = planted;
      options.emulation.seed = i, options.emulation.resident_blocks = 24;
      Engine engine(options);
      return c.what_is_wrong(engine).empty();
    });
  for (const Fault& fault : tests::sample(faults))
    check_found(fault, "sm_80", 2, [](int i, Engine& engine) {
      Case c = tests::packed_case(40, 24);
      c.deterministic = i == 1;
      c.of_options = true;
      c.options.causal = true;
      c.values(&O::sinks, DType::f32, {5, 4}, [](std::int64_t at) { return 2. - at % 4; });
      c.values(&O::alibi_slopes, DType::f32, {4}, [](std::int64_t at) { return 0.02 * at; });
      return c.what_is_wrong(engine);
    });
}

TEST_CASE("planted faults of gradients through users' scores are found") {
  constexpr const char *kText = "parts/score/curved_function.cuh", *kSlot = "attention/score.cuh";
  const std::vector<Fault> faults{
      {"the derivative of the text is passed over", kText, "return made.derivative;", "return 1.0f;"},
      {"the text takes scores in the unit of products", kText, "{score * taken, 1.0f}", "{score, 1.0f}"},
      {"rows that do not exist are as the text has them", kText, "exists ? made.value : -text::infinity", "made.value"},
      {"rows that do not exist are found for the first row alone", kText, "taken, position < text.sequence.keys};",
       "taken, exists};"},
      {"the derivative of the cap before the text is passed over", kSlot, "return derivative * others.",
       "return others."},
      {"the derivative by the bias is that behind the text", kMath, "return ds * behind.x[m][n][i];", "return ds;"},
  };
  for (const Fault& fault : tests::sample(faults))
    check_found(fault, "sm_90a", 2, [](int i, Engine& engine) {
      Case c({.batch = 1, .seqlen_q = 70, .seqlen_kv = 100, .head_dim = 32, .head_dim_v = 32});
      c.of_options = true;
      if (i == 1) {
        c.options.softcap = 1;
        c.values(&O::bias, DType::f32, {1, 4, 70, 100}, [](std::int64_t at) { return at * 5 % 11 * .1; });
      }
      c.options.score = Score("query < seqlen_q ? score * score : infinity");
      return c.what_is_wrong(engine);
    });
}

TEST_CASE("rows and keys that do not exist write no gradient of a bias") {
  const auto make = [](Engine& engine) {
    Case c({.batch = 1, .seqlen_q = 70, .seqlen_kv = 100, .head_dim = 32, .head_dim_v = 32});
    c.of_options = true;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(c.k.element_count()); ++i)
      store_element(c.k.data(), c.k.dtype(), i, std::numeric_limits<double>::quiet_NaN());  // so that nothing is 0
    c.values(&O::bias, DType::f32, {1, 4, 70, 100}, [](std::int64_t) { return 0.5; });
    c.make(engine);
  };
  CHECK_NOTHROW(make(tests::engine_for("sm_80")));
  const Fault faults[] = {
      {"keys that do not exist are written", "parts/score_gradient/bias.cuh", "|| at >= place.sequence.keys", ""},
      {"rows that do not exist are seen", kMath, "hide_missing_rows(s, row);\n", ";\n"}};
  for (const Fault& fault : faults)
    check_found(fault, "sm_80", 1, [&](int, const EngineOptions& options) {
      Engine engine(options);
      make(engine);
      return true;
    });
}

TEST_CASE("planted faults of deterministic gradients are found") {
  struct FaultOfTurns {
    Fault fault;
    const char *architecture, *variant;
    int head_dim;
    bool is_causal = false;
  };
  constexpr const char *kTurns = "attention/turns.cuh", *kTile = "attention/key_tile.cuh",
                       *kNarrow = "kernels/hopper_backward.cuh", *kWide = "kernels/hopper_backward_wide.cuh",
                       *kMma = "kernels/mma_backward.cuh", *kTickets = "hopper/backward_jobs.cuh";
  constexpr const char *kOfNarrow = "hopper-q64-kv128", *kOfSteps = "hopper-q80-kv128", *kOfWide = "hopper-q64-kv64",
                       *kOfMma = "q64-kv64-w8-r1-s1";
  const char* const await = "while (!has_come(keys, index, tile, mask))";
  const std::vector<FaultOfTurns> faults{
      {{"nobody waits for a turn", kTurns, await, "while (false)"}, "sm_80", kOfMma, 64},
      {{"nobody waits for a turn", kTurns, await, "while (false)"}, "sm_90a", kOfSteps, 72},
      {{"nobody waits for a turn", kTurns, await, "while (false)"}, "sm_90a", kOfWide, 200},
      {{"a turn is passed before the sum has landed", kNarrow,
        "        ptx::tma_wait();\n        turns(work).pass(added);", "        turns(work).pass(added);"},
       "sm_90a",
       kOfNarrow,
       72},
      {{"the next turn is taken for this block's", kNarrow, "turns(work).has_come(", "!turns(work).has_come("},
       "sm_90a",
       kOfNarrow,
       72},
      {{"a turn is passed before all warps have added", kWide, "      turn.wait_empty();\n", ""},
       "sm_90a",
       kOfWide,
       200},
      {{"a turn is passed before all warps have added", kMma,
        "    ptx::bar_sync();\n    if constexpr (Config::kDeterministic)\n      if (i > 0) pass_turn(i - 1);",
        "    if constexpr (Config::kDeterministic)\n      if (i > 0) pass_turn(i - 1);\n    ptx::bar_sync();"},
       "sm_80",
       kOfMma,
       64},
      {{"the last tile of keys comes last", kTile, "tile<Config::kDeterministic,", "tile<false,"}, "sm_80", kOfMma, 64},
      {{"the last tile of keys comes last", kTickets, "Config::kDeterministic ? tiles - 1 - tile : tile", "tile"},
       "sm_90a",
       kOfNarrow,
       72},
      {{"a turn is that of a tile which sees no key of the last", kTurns, "last_beside(tile, mask) - keys.index",
        "(ceil_div(330, Config::kBlockKv) - 1) - keys.index"},
       "sm_90a",
       kOfNarrow,
       72,
       true},
  };
  for (const FaultOfTurns& each : tests::sample(faults)) {
    std::vector<double> first;
    check_found(each.fault, each.architecture, 20, [&](int i, const EngineOptions& planted) {
      Case c({.batch = 1,
              .seqlen_q = 290,
              .seqlen_kv = 330,
              .num_heads_q = 4,
              .num_heads_kv = 2,
              .head_dim = each.head_dim,
              .head_dim_v = each.head_dim},
             DType::f16);  // whose last bits tell more
      c.variant = parse_backward_variant(each.variant);
      c.deterministic = true;
      c.options.causal = each.is_causal;
      EngineOptions options = planted;
      options.emulation.seed = i, options.emulation.resident_blocks = i % 2 == 0 ? 12 : 2;
      Engine engine(options);
      const std::vector<double> dq = c.make(engine).dq.to_doubles();
      if (first.empty()) first = dq;
      return dq == first;
    });
  }
}
