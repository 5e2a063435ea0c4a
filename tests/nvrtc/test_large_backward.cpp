// SPDX-License-Identifier: Apache-2.0
// Gradients of head dims above 256 in the emulator, against the reference, and what is wrong with kernels that were
// changed for it.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "flashjit/flashjit.h"
#include "generator/backward.h"
#include "tests/nvrtc/kernel_requests.h"
#include "tests/support/backward_case.h"
#include "tests/support/backward_fault.h"
#include "tests/support/emulating_engine.h"
#include "tests/support/error_code.h"
#include "tests/support/ragged_backward_case.h"
#include "tests/support/sample.h"

namespace {

using namespace flashjit;
using tests::code_of;
using tests::engine_for;

using Case = tests::BackwardCase;
using Sizes = tests::BackwardSizes;
using O = AttentionOptions;

Sizes sizes_of(int head_dim, int seqlen_q, int seqlen_kv) {
  return {.batch = 1,
          .seqlen_q = seqlen_q,
          .seqlen_kv = seqlen_kv,
          .num_heads_q = 2,
          .num_heads_kv = 1,
          .head_dim = head_dim,
          .head_dim_v = head_dim};
}

// A mask that is a span of keys, each another one.
constexpr int kMasks = 6;
void set_mask(Case& c, int mask) {
  if (mask == 1) c.options.causal = true;
  if (mask == 2) c.options.window = {70, 20};
  if (mask == 3) c.options.causal = true, c.options.window.left = 33;
  if (mask == 4) c.options.chunk = 50;
  if (mask == 5) c.values(&O::prefix, DType::i32, {c.sizes.batch}, [](std::int64_t i) { return 20. + 90. * i; });
}

EngineOptions scheduled(std::uint64_t seed) {
  EngineOptions options = tests::emulating("sm_90a");
  options.emulation.seed = seed;
  options.emulation.most_instructions = 100'000'000;  // where streams would wait for each other for ever
  return options;
}

}  // namespace

TEST_CASE("gradients of large heads, of lengths that end anywhere in a block, below every mask that is a span") {
  tests::Sampler sampler;
  int i = 0;
  for (const int head_dim : {512, 264, 320, 392, 456, 504})
    for (const auto& [seqlen_q, seqlen_kv] : {std::pair{150, 200}, {1, 129}, {64, 64}, {65, 5}, {130, 63}, {257, 191}})
      for (int mask = 0; mask < kMasks; ++mask, ++i) {
        if (!sampler.takes_next()) continue;
        CAPTURE(head_dim);
        CAPTURE(seqlen_q);
        CAPTURE(seqlen_kv);
        CAPTURE(mask);
        Case c(sizes_of(head_dim, seqlen_q, seqlen_kv), i % 2 == 0 ? DType::bf16 : DType::f16);
        set_mask(c, mask);
        if (i % 3 == 1) c.dlse = HostTensor::random_normal(DType::f32, c.lse_shape(), 8);
        if (i % 5 == 4) c.options.softmax_scale = -0.1f;
        c.check(engine_for("sm_90a"), i % 4 == 3);
      }
}

TEST_CASE("gradients of large heads under many schedules, and their bits") {
  tests::Sampler sampler;
  for (const int head_dim : {512, 344}) {
    Case c({.batch = 2,
            .seqlen_q = 200,
            .seqlen_kv = 270,
            .num_heads_q = 4,
            .num_heads_kv = 2,
            .head_dim = head_dim,
            .head_dim_v = head_dim},
           DType::f16);  // whose last bits tell more
    c.options.causal = true;
    std::vector<double> first;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      if (!sampler.takes_next()) continue;
      CAPTURE(head_dim);
      CAPTURE(seed);
      c.deterministic = seed % 2 == 1;
      EngineOptions options = scheduled(seed);
      options.emulation.resident_blocks = seed % 3 == 0 ? 1 : 7;
      Engine engine(options);
      if (first.empty()) c.check(engine);
      const Case::Made made = c.make(engine);
      std::vector<double> all = made.dq.to_doubles();
      for (const HostTensor* each : {&made.dk, &made.dv}) {
        const std::vector<double> more = each->to_doubles();
        all.insert(all.end(), more.begin(), more.end());
      }
      if (first.empty()) first = all;
      CHECK(all == first);
    }
  }
}

TEST_CASE("gradients of large heads of packed sequences, with those of sinks") {
  tests::Sampler sampler;
  for (const int head_dim : {512, 280})
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      if (!sampler.takes_next()) continue;
      CAPTURE(head_dim);
      CAPTURE(seed);
      Engine engine(scheduled(seed));
      Case c = tests::packed_case(head_dim, head_dim, seed % 2 == 0 ? DType::bf16 : DType::f16);
      c.options.causal = seed % 2 == 1;
      if (seed % 4 == 3) c.options.window = {100, 10};
      c.of_options = true;
      c.values(&O::sinks, DType::f32, seed % 2 == 0 ? Dims{4} : Dims{5, 4}, [](std::int64_t i) { return 1. - i % 4; });
      if (seed % 3 == 1) c.dlse = HostTensor::random_normal(DType::f32, c.lse_shape(), 8);
      c.check(engine, seed % 3 == 0);
    }
}

TEST_CASE("gradients of large heads without queries or keys are 0") {
  for (const auto& [queries, keys] : {std::pair{0, 70}, {70, 0}}) {
    CAPTURE(queries);
    Case c(sizes_of(512, queries, keys));
    c.check(engine_for("sm_90a"));
  }
}

TEST_CASE("of large heads what gradients are not wanted are not made, and strides are any") {
  Engine& engine = engine_for("sm_90a");
  Case c(sizes_of(264, 100, 130));
  HostTensor out(DType::bf16, c.dout.shape()), lse(DType::f32, c.lse_shape()), dq(DType::bf16, c.q.shape()),
      dk(DType::bf16, c.k.shape()), dv(DType::bf16, c.v.shape());
  AttentionOptions options;
  options.lse = lse.view();
  engine.attention(c.q.view(), c.k.view(), c.v.view(), out.view(), options);
  const Case::Made made = c.make(engine);
  const auto gradients = [&](const GradientTensors& into, const Tensor& dout) {
    engine.attention_backward(dout, c.q.view(), c.k.view(), c.v.view(), out.view(), lse.view(), into);
  };
  gradients({dq.view(), {}, {}}, c.dout.view());
  CHECK(dq.to_doubles() == made.dq.to_doubles());
  gradients({{}, dk.view(), {}}, c.dout.view());
  CHECK(dk.to_doubles() == made.dk.to_doubles());
  gradients({{}, {}, dv.view()}, c.dout.view());
  CHECK(dv.to_doubles() == made.dv.to_doubles());
  Tensor expanded = c.dout.view();  // which has no tensor map, and so goes to the mma family
  expanded.strides[1] = 0;
  CHECK_NOTHROW(gradients({dq.view(), {}, {}}, expanded));
}

TEST_CASE("gradients of large heads that Hopper's kernels do not have are refused by name where these are asked for") {
  const auto refusal = [](Case c, const char* variant = "hopper-q64-kv64", const char* architecture = "sm_90a") {
    c.variant = parse_backward_variant(variant);
    std::string message;
    CHECK(code_of([&] { c.make(engine_for(architecture)); }, &message) == ErrorCode::invalid_argument);
    return message;
  };
  const Case plain(sizes_of(264, 70, 70));
  CHECK(refusal(plain, "hopper-q64-kv64", "sm_80") ==
        "variant: architecture of the hopper family must be sm_90a, was sm_80");
  CHECK(refusal(plain, "hopper-q64-kv128") == "variant: block_kv must be 64 for head dims above 256, was 128");
  CHECK(refusal(plain, "mma-q64-kv128-w8-r1-s1") ==
        "variant: block_kv must be at most 64 for head dims above 256, was 128");
  CHECK(refusal(plain, "mma-q64-kv64-w4-r1-s1") ==
        "variant: warps must be such that each has scores of 16 or 32 keys, not of 64, for head dims above 256, was 4");
  Sizes unequal = sizes_of(320, 70, 70);
  unequal.head_dim_v = 264;
  CHECK(refusal(Case(unequal)) ==
        "variant: head_dim_v must be that of q, 320, for hopper and head dims above 256, was 264");
  Case capped = plain;
  capped.options.softcap = 5;
  CHECK(refusal(capped) == "variant: family must be mma for fwd-bf16-d264-softcap, was hopper");
}

TEST_CASE("backward kernels of large heads compile without spills") {
  const Architecture& hopper = find_architecture("sm_90a");
  std::vector<runtime::KernelRequest> all;
  for (const int head_dim : {264, 320, 384, 448, 512})
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const bool causal : {false, true})
        for (const bool ragged : {false, true}) {
          if (causal && ragged && head_dim > 448) continue;  // docs/kernels/large_heads.md: some bytes of dK's
          Problem problem;
          problem.dtype = dtype;
          problem.head_dim = problem.head_dim_v = head_dim;
          problem.causal = causal, problem.ragged = ragged;
          const BackwardVariant variant = generator::default_backward_variant(problem, hopper);
          for (const generator::KernelGradients& pass : generator::shared_out(problem, {.of_keys = dtype}))
            all.emplace_back(generator::render_backward(problem, variant, pass, hopper).source, hopper.name,
                             cache::Facts{});
        }
  tests::expect_no_spills(all);
}

TEST_CASE("planted faults of the backward kernels of large heads are found") {
  constexpr const char *kMain = "kernels/hopper_large_backward.cuh", *kLoader = "hopper/large_backward_loader.cuh",
                       *kWork = "attention/large_backward_work.cuh", *kScores = "hopper/backward_scores.cuh",
                       *kStore = "hopper/backward_store.cuh", *kOrigins = "hopper/backward_origins.cuh";
  const std::vector<tests::BackwardFault> faults{
      {"P or dS is read before it was sent", kMain, "    ptx::mbarrier_wait(from.full(0), parity_of(visited));\n", ""},
      {"P or dS is written while it is read", kMain, "    ptx::mbarrier_wait(exchange.empty(0), parity ^ 1);\n", ""},
      {"P or dS without a fence", kMain, "    ptx::fence_proxy_async();\n    ptx::bar_warp_sync();\n",
       "    ptx::bar_warp_sync();\n"},
      {"the other stream's place is given back before its product is complete", kMain,
       "      send(block, parity_of(visited));\n      finish(follows);\n      if (follows) release(visited - 1);",
       "      if (follows) release(visited - 1);\n      send(block, parity_of(visited));\n      finish(follows);"},
      {"a piece is given back while it is multiplied", kMain, "kLast = 1, kOneBefore = 2;",
       "kLast = 1, kOneBefore = 1;"},
      {"pieces are given back late by one", kMain, "kLast = 1, kOneBefore = 2;", "kLast = 2, kOneBefore = 2;"},
      {"the rows that stay are read before they have come", kMain, "ptx::mbarrier_wait(shape.own(i).full(0), 0);", ";"},
      {"LSE and row sums are read before they have come", kMain, "    ptx::cp_async_wait_all();\n", ""},
      {"LSE and row sums are read before the other warps' have come", kMain, "    ptx::bar_sync<kWarpgroupSize>(",
       "    if (false) ptx::bar_sync<kWarpgroupSize>("},
      {"the last block of the other stream is left out", kMain, "if (visited == work.steps)",
       "if (visited > work.steps)"},
      {"both streams have the first columns", kMain, "stream() * Shape::kColumns, args.scale", "0, args.scale"},
      {"rows sums stand for the LSE", kMain, "(is_sum ? args.row_sums : args.lse_log2)", "args.row_sums"},
      {"the gradient goes on from what registers held", kMain, "    Gradient::clear();\n", ""},
      {"scores are those of the block before", kLoader, "request_scores(work.step(visited));",
       "request_scores(work.step(max(visited - 1, 0)));"},
      {"a piece comes while it is read", kLoader,
       "      pieces.wait_empty();\n      ptx::mbarrier_arrive_expect_tx(pieces.full(), Shape::ScorePiece::kBytes);",
       "      ptx::mbarrier_arrive_expect_tx(pieces.full(), Shape::ScorePiece::kBytes);"},
      {"what is added comes while it is read", kLoader,
       "      pieces.wait_empty();\n      ptx::mbarrier_arrive_expect_tx(pieces.full(), AddedPiece::kBytes);",
       "      ptx::mbarrier_arrive_expect_tx(pieces.full(), AddedPiece::kBytes);"},
      {"both streams add up the first columns", kLoader, "column_of(stream * Shape::kColumns + panel",
       "column_of(panel"},
      {"the second head of a group is left out", kWork, "head + i / blocks.count()", "head"},
      {"keys before the last are left out", kWork, "+ Config::kBlockKv) / Config::kBlockKv}", ") / Config::kBlockKv}"},
      {"keys before the window are left out", kWork, "seen.first = max(", "seen.first = 1 + max("},
      {"what masks hide is seen", kScores, "    if (hides) hide(", "    if (false) hide("},
      {"rows of queries are stored where keys lie", kStore, "{tile.query_batch, head, tile.first_query,",
       "{tile.query_batch, head, tile.first_key,"},
      {"rows beyond the last are stored", kStore, "of_sequence < rows.count ? ", "of_sequence >= 0 ? "},
      {"boxes of keys do not end with their sequence", kOrigins,
       "tile.first_key + keys,\n                               tile",
       "tile.first_key + keys + 20,\n                               tile"},
  };
  for (const tests::BackwardFault& fault : tests::sample(faults))
    tests::check_found(fault, "sm_90a", 6, [](int i, EngineOptions options) {
      options.emulation.seed = static_cast<std::uint64_t>(i);
      Engine engine(options);
      if (i % 3 == 2) {
        Case packed = tests::packed_case(264, 264);
        packed.options.causal = true;
        return packed.what_is_wrong(engine) == "";
      }
      Case c({.batch = 2,
              .seqlen_q = 150,
              .seqlen_kv = 330,
              .num_heads_q = 2,
              .num_heads_kv = 1,
              .head_dim = 264,
              .head_dim_v = 264});
      if (i % 3 == 1) c.options.window = {70, 20};
      return c.what_is_wrong(engine) == "";
    });
}
