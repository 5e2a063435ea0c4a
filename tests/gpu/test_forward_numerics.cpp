// SPDX-License-Identifier: Apache-2.0
// The forward kernels against the reference, by the rule of FlashAttention's tests.
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "cli/verify/cases.h"
#include "tests/gpu/attention_case.h"
#include "tests/support/large_scores.h"
#include "tests/support/surrounded_by_nan.h"

using namespace flashjit;
using tests::AttentionCase;
using tests::shared_engine;
using tests::Sizes;

namespace {

void check(const AttentionCase& c, const AttentionOptions& given = {}) {
  const DeviceTensor out = c.poisoned_out(), lse = c.poisoned_lse();
  AttentionOptions opts = given;
  opts.lse = lse.view();
  shared_engine().attention(c.q, c.k, c.v, out, opts);
  c.check_out_and_lse(out, lse, opts);
}

std::string architecture() { return shared_engine().system().devices.at(0).architecture; }

// Also those that the model prunes here: they may be defaults elsewhere.
std::vector<Variant> every_variant(const Problem& problem) {
  using Verdict = VariantExplanation::Verdict;
  std::vector<Variant> variants;
  for (const VariantExplanation& each : shared_engine().explain_variants(problem, architecture()))
    if (each.verdict == Verdict::kept || each.verdict == Verdict::pruned) variants.push_back(each.variant);
  return variants;
}

}  // namespace

TEST_SUITE_BEGIN("sanitizer");

TEST_CASE("each pipeline, layout and source of Q, on lengths that end within a block") {
  for (const std::string variant :
       {"v1", "v3", "v5", "q128-kv64-w4-k1-v1-c2-overlap-qsmem-rare", "q256-kv48-w8-k2-v3-c1-rotate-qsmem-rare",
        "q64-kv32-w4-k3-v2-c1-overlap-qregs-rare", "q64-kv32-w4-k1-v3-c1-overlap-qsmem-always-longest"})
    for (const bool causal : {false, true}) {
      CAPTURE(variant);
      CAPTURE(causal);
      AttentionOptions opts;
      opts.causal = causal;
      opts.variant = parse_variant(variant);
      check(AttentionCase(Sizes{1, 70, 200, 2, 1, 72, 40}), opts);
    }
}

TEST_CASE("a softcap and slopes, in the default's family and in that of mma") {
  for (const bool causal : {false, true}) {
    const Problem problem{
        .dtype = DType::bf16, .head_dim = 64, .head_dim_v = 64, .causal = causal, .softcap = true, .alibi = true};
    AttentionOptions options;
    options.softcap = 2;
    const cli::VerifyCase c(problem, {2, 33, 77, 4, 2}, 0, options);
    for (const Variant& variant :
         {shared_engine().default_variant(problem, architecture()), parse_variant("mma-q64-kv32-k2-v2")}) {
      CAPTURE(causal);
      CAPTURE(to_string(variant));
      CHECK(c.problem_with(shared_engine(), variant) == "");
    }
  }
}

TEST_SUITE_END();
TEST_SUITE_BEGIN("forward numerics");

TEST_CASE("every head dim, in both dtypes, with and without the causal mask") {
  for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
    CAPTURE(head_dim);
    AttentionOptions opts;
    opts.causal = head_dim % 16 == 0;
    check(AttentionCase(Sizes{1, 150, 170, 2, 1, head_dim, head_dim}, head_dim % 24 == 0 ? DType::f16 : DType::bf16,
                        static_cast<std::uint64_t>(head_dim)),
          opts);
  }
}

TEST_CASE("head dims of v that differ") {
  for (const auto& [head_dim, head_dim_v] : {std::pair{192, 128}, {128, 192}, {64, 256}, {256, 64}, {8, 256}, {40, 24}})
    for (const bool causal : {false, true}) {
      CAPTURE(head_dim);
      CAPTURE(head_dim_v);
      AttentionOptions opts;
      opts.causal = causal;
      check(AttentionCase(Sizes{1, 90, 300, 2, 2, head_dim, head_dim_v}), opts);
    }
}

TEST_CASE("all the lengths around a block's edge, and those that leave rows without a key") {
  for (const std::int64_t seqlen_q : {1, 2, 63, 64, 65, 129, 257})
    for (const std::int64_t seqlen_kv : {1, 31, 64, 65, 128, 300}) {
      CAPTURE(seqlen_q);
      CAPTURE(seqlen_kv);
      AttentionOptions opts;
      opts.causal = true;
      check(AttentionCase(Sizes{1, seqlen_q, seqlen_kv, 2, 1, 64, 64}), opts);
      opts.causal = false;
      check(AttentionCase(Sizes{1, seqlen_q, seqlen_kv, 1, 1, 128, 128}), opts);
    }
}

TEST_CASE("no key at all gives zeros and an LSE of minus infinity") {
  for (const int head_dim : {64, 256}) check(AttentionCase(Sizes{2, 70, 0, 2, 1, head_dim, head_dim}));
}

TEST_CASE("long sequences in every length range") {
  for (const bool causal : {false, true})
    for (const int head_dim : {64, 128, 256})
      for (const std::int64_t seqlen_kv : {1100, 2300, 8200}) {
        CAPTURE(head_dim);
        CAPTURE(seqlen_kv);
        AttentionOptions opts;
        opts.causal = causal;
        check(AttentionCase(Sizes{1, 200, seqlen_kv, 2, 1, head_dim, head_dim}), opts);
      }
}

TEST_CASE("maxima that grow from block to block, outliers and large scales") {
  const Sizes sizes{1, 130, 500, 2, 1, 128, 128};
  AttentionCase c(sizes);
  // Later keys first: with growing keys the maximum of a row is met in the first block, with shrinking ones in the
  // last.
  for (const bool growing : {true, false}) {
    CAPTURE(growing);
    for (std::int64_t key = 0; key < sizes.seqlen_kv; ++key)
      for (std::int64_t d = 0; d < sizes.head_dim; ++d) {
        const std::int64_t index = key * sizes.head_dim + d;
        const double size = static_cast<double>(growing ? key : sizes.seqlen_kv - key) / 50.0;
        store_element(c.k_host.data(), c.k_host.dtype(), index,
                      size * (d % 2 == 0 ? 1.0 : -1.0) + 0.01 * load_element(c.q_host.data(), c.q_host.dtype(), d));
      }
    c.k = c.k_host.to_device();
    for (const float scale : {0.02f, 1.0f, 30.0f, -1.0f}) {
      CAPTURE(scale);
      AttentionOptions opts;
      opts.softmax_scale = scale;
      check(c, opts);
      opts.variant = parse_variant("v5");
      check(c, opts);
    }
  }
}

TEST_CASE("scores as large as f32 holds") {
  for (const DType dtype : {DType::f16, DType::bf16})
    for (const tests::LargeScores& problem : tests::problems_with_large_scores(dtype)) {
      const AttentionCase c(problem.q, problem.k, problem.v);
      for (const std::string variant :
           {"", "mma-rare", "mma-always", "q256-kv48-w8-k2-v3-c1-rotate-qsmem-rare", "hopper-kv64-lazy",
            "hopper-kv64-rare", "hopper-kv64-always", "hopper-q256-kv64-s2-qs2-whole-lazy-dynamic-fused",
            "hopper-q128-kv64-serial-ppsoftmax", "hopper-kv64-3stage"}) {
        if (variant.starts_with("hopper") && architecture() != "sm_90a") continue;
        CAPTURE(problem.name);
        CAPTURE(std::string(to_string(dtype)));
        CAPTURE(variant);
        AttentionOptions opts = problem.options;
        if (!variant.empty()) opts.variant = parse_variant(variant);
        check(c, opts);
      }
    }
}

TEST_CASE("NaN in memory around the tensors reaches nothing") {
  for (const int head_dim : {40, 72, 128})
    for (const bool causal : {false, true})
      for (const std::string variant : {"", "mma-rare"}) {
        CAPTURE(head_dim);
        CAPTURE(causal);
        CAPTURE(variant);
        const AttentionCase c(Sizes{2, 70, 333, 4, 2, head_dim, head_dim});
        const DeviceTensor q = tests::surrounded_by_nan(c.q_host).to_device(),
                           k = tests::surrounded_by_nan(c.k_host).to_device(),
                           v = tests::surrounded_by_nan(c.v_host).to_device(), out = c.poisoned_out();
        AttentionOptions opts;
        opts.causal = causal;
        if (!variant.empty()) opts.variant = parse_variant(variant);
        shared_engine().attention(tests::view_inside(q.view()), tests::view_inside(k.view()),
                                  tests::view_inside(v.view()), out, opts);
        c.check_out(out, opts);
      }
}

TEST_CASE("a key far above the others decides alone") {
  // The score of the first key is 2.9e10, its value 1; the other's is 4.8e5, its value 5.
  AttentionCase c(Sizes{1, 1, 2, 1, 1, 64, 64}, DType::f16);
  for (std::int64_t i = 0; i < 64; ++i) {
    for (HostTensor* tensor : {&c.q_host, &c.k_host}) store_element(tensor->data(), DType::f16, i, 60000);
    store_element(c.k_host.data(), DType::f16, 64 + i, 1);
    store_element(c.v_host.data(), DType::f16, i, 1);
    store_element(c.v_host.data(), DType::f16, 64 + i, 5);
  }
  const AttentionCase given(c.q_host, c.k_host, c.v_host);
  for (const double value : HostTensor::from_device(shared_engine().attention(given.q, given.k, given.v)).to_doubles())
    CHECK(value == 1);
}

TEST_CASE("more heads and batches than a section holds") {
  AttentionOptions opts;
  opts.causal = true;
  opts.variant = parse_variant("q128-kv64-w4-k1-v1-c2-overlap-longest");
  check(AttentionCase(Sizes{3, 260, 260, 6, 2, 64, 64}), opts);
}

TEST_CASE("every legal variant agrees with the reference under a window, one-sided and two-sided") {
  for (const auto& [head_dim, causal] : {std::pair{64, false}, {128, true}}) {
    const Problem problem{
        .dtype = DType::bf16, .head_dim = head_dim, .head_dim_v = head_dim, .causal = causal, .window = true};
    const std::vector<Variant> variants = every_variant(problem);
    tests::compile_all(problem, variants, architecture());
    const Window windows[] = {{150, causal ? -1 : 9}, {3, causal ? -1 : 40}};
    for (const Window& window : windows) {
      CAPTURE(window.left);
      AttentionOptions masks;
      masks.window = window;
      const cli::VerifyCase c(problem, {1, 400, 733, 2, 1}, 0, masks);
      for (const Variant& variant : variants) {
        CAPTURE(to_string(variant));
        CHECK(c.problem_with(shared_engine(), variant) == "");
      }
    }
  }
}

TEST_CASE("every legal variant agrees with the reference under a softcap and slopes") {
  for (const auto& [softcap, alibi] : {std::pair{true, false}, {false, true}, {true, true}}) {
    for (const auto& [head_dim, causal] : {std::pair{64, false}, {128, true}}) {
      Problem problem{.dtype = DType::bf16, .head_dim = head_dim, .head_dim_v = head_dim, .causal = causal};
      problem.softcap = softcap, problem.alibi = alibi;
      const std::vector<Variant> variants = every_variant(problem);
      tests::compile_all(problem, variants, architecture());
      // Some scores reach the cap; with the other one none does.
      for (const float cap : softcap ? std::vector<float>{2, 1000} : std::vector<float>{0}) {
        CAPTURE(to_string(problem));
        CAPTURE(cap);
        AttentionOptions options;
        options.softcap = cap;
        const cli::VerifyCase c(problem, {2, 200, 333, 4, 1}, 0, options);
        for (const Variant& variant : variants) {
          CAPTURE(to_string(variant));
          CHECK(c.problem_with(shared_engine(), variant) == "");
        }
      }
    }
  }
}

TEST_CASE("the defaults are right in every case of verify under windows of many sizes") {
  const Window windows[] = {{0, 1}, {1, 0}, {64, 64}, {-1, 30}, {200, -1}, {127, 0}, {1 << 30, 5}, {5, 1 << 30}};
  for (const Window& window : windows) {
    AttentionOptions masks;
    masks.window = window;
    const Problem problem = problem_of(DType::f16, 64, 64, masks);
    const std::vector<Variant> variants = shared_engine().default_variants(problem, architecture());
    tests::compile_all(problem, variants, architecture());
    for (const cli::CaseShape& shape : cli::verify_shapes()) {
      if (shape.seqlen_kv == 0) continue;
      const cli::VerifyCase c(problem, shape, 0, masks);
      for (const Variant& variant : variants) {
        CAPTURE(window.left);
        CAPTURE(window.right);
        CAPTURE(to_string(shape));
        CAPTURE(to_string(variant));
        CHECK(c.problem_with(shared_engine(), variant) == "");
      }
    }
  }
}

TEST_CASE("every legal variant agrees with the reference") {
  for (const int head_dim : {64, 128, 256})
    for (const bool causal : {false, true}) {
      const Problem problem{DType::bf16, head_dim, head_dim, causal};
      const std::vector<Variant> variants = every_variant(problem);
      tests::compile_all(problem, variants, architecture());
      const cli::VerifyCase c(problem, {1, 200, 333, 2, 1}, 0);
      for (const Variant& variant : variants) {
        CAPTURE(to_string(variant));
        CHECK(c.problem_with(shared_engine(), variant) == "");
      }
    }
}

TEST_SUITE_END();
