// SPDX-License-Identifier: Apache-2.0
// Gradients of head dims above 256 by mma.sync in the emulator, against the reference, and what is wrong with kernels
// that were changed for it.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "flashjit/flashjit.h"
#include "generator/backward.h"
#include "generator/backward_space.h"
#include "tests/nvrtc/kernel_requests.h"
#include "tests/support/backward_case.h"
#include "tests/support/backward_fault.h"
#include "tests/support/emulating_engine.h"
#include "tests/support/ragged_backward_case.h"
#include "tests/support/sample.h"

namespace {

using namespace flashjit;
using tests::engine_for;

using Case = tests::BackwardCase;
using Sizes = tests::BackwardSizes;
using O = AttentionOptions;

// For much shared memory and for little; on sm_90a by the variant's name.
constexpr const char* kTargets[] = {"sm_80", "sm_90a", "sm_120a"};
const BackwardVariant kPlain = parse_backward_variant("mma-q64-kv64-w8-r2-s2");

struct HeadDims {
  int q, v;
};
constexpr HeadDims kHeadDims[] = {{512, 512}, {264, 264}, {576, 512}, {320, 40}, {72, 328}, {392, 456}};

Sizes sizes_of(const HeadDims& dims, int seqlen_q, int seqlen_kv) {
  return {.batch = 1,
          .seqlen_q = seqlen_q,
          .seqlen_kv = seqlen_kv,
          .num_heads_q = 2,
          .num_heads_kv = 1,
          .head_dim = dims.q,
          .head_dim_v = dims.v};
}

// A case in which the second of two query heads, queries and keys behind the first block, and a mask's end matter.
Case small_case(std::size_t i) {
  Case c({.batch = 1,
          .seqlen_q = 70,
          .seqlen_kv = 100,
          .num_heads_q = 4,
          .num_heads_kv = 2,
          .head_dim = i % 2 == 0 ? 264 : 272,
          .head_dim_v = i % 2 == 0 ? 264 : 40});
  c.variant = kPlain;
  return c;
}

std::vector<double> values_of(const Case::Made& made) {
  std::vector<double> all;
  for (const HostTensor* each : {&made.dq, &made.dk, &made.dv}) {
    const std::vector<double> more = each->to_doubles();
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

}  // namespace

TEST_CASE("gradients of large heads by mma.sync, of everything that changes scores and probabilities") {
  const auto changes = tests::changes_of_scores();
  tests::Sampler sampler;
  for (std::size_t round = 0; round < 3; ++round)
    for (std::size_t i = 0; i < changes.size(); ++i) {
      if (!sampler.takes_next()) continue;
      const HeadDims& dims = kHeadDims[(i + 2 * round) % std::size(kHeadDims)];
      const char* const target = kTargets[(i + round) % std::size(kTargets)];
      CAPTURE(i);
      CAPTURE(dims.q);
      CAPTURE(std::string(target));
      Case c({.head_dim = dims.q, .head_dim_v = dims.v}, i % 2 == round % 2 ? DType::bf16 : DType::f16);
      changes[i](c);
      if (target == kTargets[1]) c.variant = kPlain;
      c.check(engine_for(target), i % 4 == round);
    }
}

TEST_CASE("gradients of large heads by mma.sync, of lengths that end anywhere in a block, below masks that are spans") {
  tests::Sampler sampler;
  int i = 0;
  for (const HeadDims& dims : kHeadDims)
    for (const auto& [seqlen_q, seqlen_kv] : {std::pair{150, 200}, {1, 129}, {64, 64}, {65, 5}, {130, 63}})
      for (int mask = 0; mask < 4; ++mask, ++i) {
        if (!sampler.takes_next()) continue;
        CAPTURE(dims.q);
        CAPTURE(seqlen_q);
        CAPTURE(seqlen_kv);
        CAPTURE(mask);
        Case c(sizes_of(dims, seqlen_q, seqlen_kv));
        c.options.causal = mask == 1;
        if (mask == 2) c.options.window = {70, 20};
        if (mask == 3) c.options.chunk = 50;
        if (i % 3 == 1) c.dlse = HostTensor::random_normal(DType::f32, c.lse_shape(), 8);
        if (i % 5 == 4) c.options.softmax_scale = -0.1f;
        c.variant = kPlain;
        c.check(engine_for(kTargets[i % 3]), i % 4 == 3);
      }
}

TEST_CASE("gradients of large heads' sinks, slopes and bias") {
  tests::Sampler sampler;
  for (std::size_t i = 0; i < 12; ++i) {
    if (!sampler.takes_next()) continue;
    CAPTURE(i);
    Case c = small_case(i);
    c.of_options = true;
    if (i % 3 != 1)
      c.values(&O::bias, i % 2 == 0 ? DType::f32 : DType::bf16, {1, i % 4 < 2 ? 4 : 1, i % 3 == 0 ? 70 : 1, 100},
               [](std::int64_t at) { return at * 5 % 11 * .1; });
    if (i % 3 != 2) c.values(&O::alibi_slopes, DType::f32, {4}, [](std::int64_t head) { return 0.03 * head; });
    if (i % 5 == 0) c.values(&O::sinks, DType::f32, {4}, [](std::int64_t head) { return 1. - head; });
    if (i % 2 == 0) c.options.softcap = 2, c.options.causal = true;
    if (i % 4 == 3) c.options.dropout = {0.3, 99, 7};
    if (i % 6 == 5) c.options.score = Score("score * sigmoid(score)");
    c.check(engine_for(kTargets[i % 3]), i % 3 == 0);
  }
}

TEST_CASE("gradients of large heads by mma.sync, of packed sequences, with everything that masks leave open") {
  tests::Sampler sampler;
  for (int i = 0; i < 8; ++i) {
    if (!sampler.takes_next()) continue;
    CAPTURE(i);
    const bool has_slopes = i % 3 == 0;  // few sums, of which in bf16 luck decides how far roundings lead them astray
    Case c = tests::packed_case(i % 2 == 0 ? 264 : 512, i % 2 == 0 ? 328 : 512,
                                has_slopes || i % 4 >= 2 ? DType::f16 : DType::bf16);
    c.options.causal = i % 2 == 1;
    c.of_options = true;
    c.values(&O::sinks, DType::f32, {5, 4}, [](std::int64_t at) { return 1. - at % 4; });
    if (has_slopes) c.values(&O::alibi_slopes, DType::f32, {4}, [](std::int64_t at) { return 0.02 * at; });
    if (i % 4 == 2) c.options.softcap = 3, c.options.dropout = {0.2, 5, 6};
    if (i % 3 == 1) c.options.window = {100, 10};
    c.variant = kPlain;
    c.check(engine_for(kTargets[i % 3]), i % 3 == 0);
  }
}

TEST_CASE("gradients of large heads by every kind of tile") {
  tests::Sampler sampler;
  int i = 0;
  for (const char* target : kTargets) {
    Problem problem;
    problem.head_dim = 264, problem.head_dim_v = 328;
    problem.softcap = true;
    for (const BackwardVariant& variant : generator::legal_backward_variants(problem, find_architecture(target))) {
      if (!sampler.takes_next()) continue;
      CAPTURE(to_string(variant));
      Case c(sizes_of({264, 328}, 150, 140));
      c.variant = variant;
      c.options.softcap = 2;
      if (i % 2 == 0) c.options.causal = true;
      if (i % 3 == 0) c.options.dropout = {0.3, 1, 2};
      if (i % 3 == 1) c.values(&O::documents, DType::i32, {1, 140}, [](std::int64_t at) { return at / 30 % 2; });
      c.check(engine_for(target), i++ % 2 == 1);
    }
  }
}

TEST_CASE("gradients of large heads by mma.sync under many schedules, and their bits") {
  tests::Sampler sampler;
  for (const char* target : {"sm_90a", "sm_120a"}) {
    std::vector<double> first;
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      if (!sampler.takes_next()) continue;
      CAPTURE(std::string(target));
      CAPTURE(seed);
      Case c(sizes_of({280, 344}, 140, 200), DType::f16);  // whose last bits tell more
      c.options.causal = true;
      c.variant = kPlain;
      c.deterministic = seed % 2 == 1;
      EngineOptions options = tests::emulating(target);
      options.emulation.seed = seed;
      options.emulation.resident_blocks = seed % 3 == 0 ? 1 : 7;
      Engine engine(options);
      const std::vector<double> all = values_of(c.make(engine));
      if (first.empty()) first = all, c.check(engine);
      CHECK(all == first);
    }
  }
}

TEST_CASE("where Hopper's kernels of large heads have no gradients the others make them by default") {
  const Architecture& hopper = find_architecture("sm_90a");
  Problem problem;
  problem.head_dim = problem.head_dim_v = 512;
  const auto family = [&](bool has_tensor_maps = true) {
    return to_string(generator::default_backward_variant(problem, hopper, 1, has_tensor_maps)).substr(0, 3);
  };
  CHECK(family() == "hop");
  CHECK(family(false) == "mma");
  problem.softcap = true;
  CHECK(family() == "mma");
  problem.softcap = false, problem.head_dim = 576;
  CHECK(family() == "mma");
  Case c(sizes_of({576, 512}, 70, 90));
  c.options.softcap = 3;
  c.check(engine_for("sm_90a"));
}

TEST_CASE(
    "gradients of large heads without queries or keys are 0, by mma.sync too, and those of options alone are made") {
  Engine& engine = engine_for("sm_80");
  for (const auto& [queries, keys] : {std::pair{0, 70}, {70, 0}}) {
    CAPTURE(queries);
    Case c(sizes_of({264, 512}, queries, keys));
    c.of_options = true;
    c.values(&O::alibi_slopes, DType::f32, {2}, [](std::int64_t) { return 0.1; });
    c.check(engine);
  }
  Case c = small_case(0);
  c.of_options = true;
  c.values(&O::alibi_slopes, DType::f32, {4}, [](std::int64_t head) { return 0.03 * head; });
  const std::vector<double> wanted = c.make(engine).of_options.front().to_doubles();
  HostTensor out(DType::bf16, c.dout.shape()), lse(DType::f32, c.lse_shape()), dslopes(DType::f32, {4});
  AttentionOptions options = c.options, forward = options;
  forward.lse = lse.view();
  engine.attention(c.q.view(), c.k.view(), c.v.view(), out.view(), forward);
  GradientTensors into;
  into.dslopes = dslopes.view();
  engine.attention_backward(c.dout.view(), c.q.view(), c.k.view(), c.v.view(), out.view(), lse.view(), into, options,
                            {{}, kPlain});
  CHECK(dslopes.to_doubles() == wanted);
}

// Targets take turns: each has every kind of kernel, and all head dims, of some kind.
TEST_CASE("backward kernels of large heads by mma.sync compile for every target without spills") {
  constexpr std::size_t kTurns = 4;
  std::vector<runtime::KernelRequest> all;
  const HostTensor bias(DType::bf16, {1, 1, 1, 1}), slopes(DType::f32, {1}), offsets(DType::i32, {2});
  for (std::size_t target = 0; target < architectures().size(); ++target)
    for (std::size_t of_dims = 0; of_dims < std::size(kHeadDims); ++of_dims)
      for (std::size_t kind = 0; kind < 7; ++kind) {
        if ((target + of_dims + kind) % kTurns != 0) continue;
        const Architecture& architecture = architectures()[target];
        const HeadDims& dims = kHeadDims[of_dims];
        AttentionOptions options;
        options.causal = kind > 0;
        if (kind == 2) options.softcap = 3, options.dropout.probability = 0.2;
        if (kind == 3) options.bias = bias.view();
        if (kind == 4) options.alibi_slopes = slopes.view();
        if (kind == 5)
          options.score = Score("key % 64 == 3 ? -infinity : score * sigmoid(score) - slope(head) * abs(query - key)",
                                {{"slope", slopes.view()}});
        if (kind == 6) options.window = {100, 10}, options.cu_seqlens_q = options.cu_seqlens_kv = offsets.view();
        const Problem problem = problem_of(DType::bf16, dims.q, dims.v, options);
        const BackwardVariant variant =
            generator::default_backward_variant(problem, architecture, generator::kManyQueries, false);
        for (const generator::KernelGradients& pass :
             generator::shared_out(problem, {.of_keys = DType::bf16, .slopes = kind == 4, .bias = kind == 3}))
          all.emplace_back(generator::render_backward(problem, variant, pass, architecture).source, architecture.name,
                           cache::Facts{});
      }
  tests::expect_no_spills(all);
}

TEST_CASE("planted faults of the backward kernels of large heads by mma.sync are found") {
  constexpr const char *kMain = "kernels/mma_large_backward.cuh", *kShape = "mma/large_backward_shape.cuh",
                       *kWork = "attention/large_backward_work.cuh", *kMath = "mma/backward_scores.cuh",
                       *kPieces = "mma/piece_ring.cuh";
  const std::vector<tests::BackwardFault> faults{
      {"pieces are read before they have come", kPieces, "    ptx::cp_async_wait_group<kLead - 1>();\n", ""},
      {"pieces are waited for one too late", kPieces, "cp_async_wait_group<kLead - 1>", "cp_async_wait_group<kLead>"},
      {"pieces are read before the other warps' have come, and come while they are read", kPieces,
       "    ptx::bar_sync();\n    request(past);", "    request(past);"},
      {"a piece comes in the place of the next one", kPieces, "request(past);", "request(next);"},
      {"pieces behind the last block are not counted", kMain, "    }\n    ptx::cp_async_commit_group();",
       "      ptx::cp_async_commit_group();\n    }"},
      {"pieces are those of this block for ever", kMain, "    i += kPiece / Shape::kPieces;\n", ""},
      {"what pads a piece is not cleared", kMain,
       "    Tile::template clear_padding<kWidth, Shape::kThreads>(to, thread);\n", ""},
      {"every piece is of the first columns", kShape,
       "(is_of_keys(piece) ? piece : piece - kKeyPieces) * pieces_of(columns_of(piece)).width", "0"},
      {"rows that are added up are the block's first ones", kMain, "rows.first += first * rows.stride, ", ""},
      {"rows beyond the last are read", kMain, "rows.count -= first;", "rows.count -= 0;"},
      {"P is sent in place of dS", kMain, "Shape::kDifferentiates ? ds : p", "p"},
      {"P or dS is that of the first rows", kMain, "first / 16 + k, self.lane());", "k, self.lane());"},
      {"P or dS is not transposed", kMain, "    if constexpr (kOfQueries)\n      Operands<STile>",
       "    if constexpr (true)\n      Operands<STile>"},
      {"warps add up columns that they do not have", kMain, "        if (!self.has_tile(n)) continue;\n", ""},
      {"all warps have the first columns", kMain, "2 * self.dim_part() + self.lane() / 16", "self.lane() / 16"},
      {"columns beyond the last are stored", kMain, "        if (column >= Shape::kColumns) break;\n", ""},
      {"rows beyond the last are stored", kMain, "row >= (kOfQueries ? sequence.queries : sequence.keys)", "row < 0"},
      {"dK and dQ lack the scale", kMain, "half % 2 * 2] * args.scale,", "half % 2 * 2],"},
      {"the gradient goes on from what registers held", kMain, "    sum.clear();\n", ""},
      {"the second head of a group is left out", kWork, "head + i / blocks.count()", "head"},
      {"keys before the last are left out", kWork, "+ Config::kBlockKv) / Config::kBlockKv}", ") / Config::kBlockKv}"},
      {"keys before the window are left out", kWork, "seen.first = max(", "seen.first = 1 + max("},
      {"heads of a group end together", kMain, "if ((i + 1) % work.blocks.count() == 0) end_head",
       "if (i + 1 == work.steps) end_head"},
      {"the row sum is passed over", kMath, "(gradient - of.sum)", "(gradient)"},
  };
  const std::vector<tests::BackwardFault> faults_of_rows_that_stay{
      {"the second rows that stay are the first", kMain, "Shape::is_of_keys(kPiece) ? 0 : Shape::kOwnKeyBytes", "0"},
      {"every piece meets the first columns that stay", kMain, "Config::kStays ? Shape::first_column(kPiece) / 16 : 0",
       "0"},
      {"the rows that stay are not asked for", kMain, "if constexpr (Config::kStays) request_rows_that_stay();", ""},
  };
  const auto check = [](const tests::BackwardFault& fault, const char* target) {
    tests::check_found(fault, target, 4, [](int i, EngineOptions options) {
      options.emulation.seed = static_cast<std::uint64_t>(i);
      Engine engine(options);
      Case c(sizes_of({280, 264}, 150, 200));
      c.variant = kPlain;
      c.of_options = true;
      c.values(&O::alibi_slopes, DType::f32, {2}, [](std::int64_t head) { return 0.05 * (head + 1); });
      if (i % 2 == 1) c.options.window = {70, 20};
      return c.what_is_wrong(engine) == "";
    });
  };
  for (const tests::BackwardFault& fault : tests::sample(faults)) check(fault, "sm_120a");
  for (const tests::BackwardFault& fault : tests::sample(faults_of_rows_that_stay)) check(fault, "sm_90a");
}
