// SPDX-License-Identifier: Apache-2.0
// Which variants of backward kernels are considered and kept.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "generator/backward.h"
#include "generator/backward_space.h"

namespace {

using namespace flashjit;
using Verdict = VariantVerdict;

Problem wide(int head_dim, bool softcap = false) {
  Problem problem;
  problem.head_dim = problem.head_dim_v = head_dim;
  problem.softcap = softcap;
  return problem;
}

bool contains(const std::vector<BackwardVariant>& list, const BackwardVariant& variant) {
  return std::find(list.begin(), list.end(), variant) != list.end();
}

}  // namespace

TEST_CASE("what is kept of backward variants is legal, each once, the defaults first") {
  for (const Architecture& architecture : architectures())
    for (int head_dim = 8; head_dim <= 256; head_dim += 8)
      for (const bool softcap : {false, true}) {
        CAPTURE(std::string(architecture.name));
        CAPTURE(head_dim);
        const Problem problem = wide(head_dim, softcap);
        const std::vector<BackwardVariant> kept = generator::legal_backward_variants(problem, architecture),
                                           defaults = generator::default_backward_variants(problem, architecture);
        REQUIRE(kept.size() >= defaults.size());
        CHECK(std::equal(defaults.begin(), defaults.end(), kept.begin()));
        for (std::size_t i = 0; i < kept.size(); ++i) {
          CHECK(generator::why_illegal(problem, kept[i], architecture) == "");
          CHECK(std::count(kept.begin(), kept.end(), kept[i]) == 1);
        }
        CHECK(kept.size() <= 60);
      }
}

TEST_CASE("every backward variant that is considered has a verdict, and all but the kept ones a reason") {
  const Problem problem = wide(128);
  for (const Architecture& architecture : architectures()) {
    bool still_kept = true;
    for (const auto& each : generator::explain_backward_variants(problem, architecture)) {
      CAPTURE(to_string(each.variant));
      CHECK((each.verdict == Verdict::kept) == each.reason.empty());
      CHECK((each.verdict == Verdict::illegal) == !generator::why_illegal(problem, each.variant, architecture).empty());
      CHECK(each.smem_bytes > 0);
      CHECK((still_kept || each.verdict != Verdict::kept));
      still_kept = each.verdict == Verdict::kept;
      const bool is_mma = std::holds_alternative<MmaBackwardVariant>(each.variant);
      CHECK((each.smem_bytes_per_kflop > 0) == is_mma);
      CHECK((each.attainable_rate > 0) == (std::string(architecture.name) == "sm_90a"));
    }
  }
}

TEST_CASE("backward variants that were among the fastest of a measurement are kept where it was made") {
  const Architecture& h100 = find_architecture("sm_90a");
  struct Row {
    int head_dim;
    const char* variant;
  };
  for (const auto& [head_dim, variant] : {Row{64, "q128-kv128-w8-r1-s1"},
                                          {64, "q64-kv128-w4-r2-s2"},
                                          {64, "q64-kv64-w4-r1-s2"},
                                          {128, "q64-kv128-w8-r1-s1"},
                                          {128, "q64-kv128-w8-r2-s1"},
                                          {128, "q64-kv64-w4-r1-s2"},
                                          {256, "q64-kv64-w8-r1-s1"},
                                          {256, "q64-kv64-w8-r2-s1"}}) {
    CAPTURE(head_dim);
    CAPTURE(std::string(variant));
    CHECK(contains(generator::legal_backward_variants(wide(head_dim, true), h100), parse_backward_variant(variant)));
  }
}

TEST_CASE("where the Hopper family has backward kernels, of mma there are the default and tiles of few queries") {
  const std::vector<BackwardVariant> kept = generator::legal_backward_variants(wide(128), find_architecture("sm_90a"));
  CHECK(kept[0] == parse_backward_variant("hopper-q80-kv128"));
  CHECK(kept[1] == parse_backward_variant("hopper-q64-kv128"));
  CHECK(kept[2] == parse_backward_variant("q64-kv128-w8-r1-s1"));
  for (std::size_t i = 3; i < kept.size(); ++i) {
    CHECK(std::holds_alternative<MmaBackwardVariant>(kept[i]));
    CHECK(generator::block_q(kept[i]) <= 32);
  }
}

TEST_CASE("steps of 80 queries are for head dims of two panels, and the default of many queries there") {
  const Architecture& h100 = find_architecture("sm_90a");
  const BackwardVariant steps = parse_backward_variant("hopper-q80-kv128");
  for (int head_dim = 8; head_dim <= 256; head_dim += 8)
    for (const int head_dim_v : {8, 64, 128, 136}) {
      CAPTURE(head_dim);
      CAPTURE(head_dim_v);
      Problem problem = wide(head_dim);
      problem.head_dim_v = head_dim_v;
      const bool is_legal = head_dim > 64 && head_dim <= 128 && head_dim_v <= 128;
      CHECK(contains(generator::legal_backward_variants(problem, h100), steps) == is_legal);
      CHECK((generator::default_backward_variant(problem, h100) == steps) == is_legal);
    }
  CHECK_FALSE(contains(generator::legal_backward_variants(wide(128, true), h100), steps));
}

TEST_CASE("equal head dims above 256 have one variant of the Hopper family, which is the default there") {
  const Architecture& h100 = find_architecture("sm_90a");
  const BackwardVariant hopper = parse_backward_variant("hopper-q64-kv64");
  for (int head_dim = 264; head_dim <= kLargestHeadDimV; head_dim += 8) {
    CAPTURE(head_dim);
    const Problem problem = wide(head_dim);
    CHECK(generator::default_backward_variants(problem, h100) == std::vector<BackwardVariant>{hopper});
    for (const std::int64_t seqlen_q : {1, 64, 4096})
      CHECK(generator::default_backward_variant(problem, h100, seqlen_q) == hopper);
    CHECK(std::holds_alternative<MmaBackwardVariant>(generator::default_backward_variant(problem, h100, 4096, false)));
    for (const generator::KernelGradients& pass : generator::shared_out(problem, {.of_keys = DType::f32})) {
      const generator::PlainKernel kernel = generator::render_backward(problem, hopper, pass, h100);
      CHECK(kernel.smem_bytes <= h100.smem_per_block);
      CHECK(kernel.smem_bytes > h100.smem_per_block - 2 * 8192);  // there is no room for another piece of each ring
      const bool of_queries = pass.pass == generator::GradientPass::queries;
      CHECK(pass.of_keys == (of_queries ? problem.dtype : DType::f32));
    }
  }
  Problem unequal = wide(512);
  unequal.head_dim = 576;
  for (const Problem& problem : {unequal, wide(512, true)})
    CHECK(std::holds_alternative<MmaBackwardVariant>(generator::default_backward_variant(problem, h100)));
}

TEST_CASE("head dims above 256 have backward kernels of mma on every architecture, each gradient one that fits") {
  for (const Architecture& architecture : architectures())
    for (const auto& [head_dim, head_dim_v] :
         {std::pair{264, 264}, {512, 512}, {576, 512}, {576, 8}, {8, 512}, {328, 264}, {264, 136}}) {
      CAPTURE(std::string(architecture.name));
      CAPTURE(head_dim);
      Problem problem = wide(head_dim, true);
      problem.head_dim_v = head_dim_v;
      const std::vector<BackwardVariant> kept = generator::legal_backward_variants(problem, architecture);
      REQUIRE(kept.size() >= 1);
      CHECK(kept.front() == generator::default_backward_variant(problem, architecture));
      for (const BackwardVariant& variant : kept)
        for (const generator::KernelGradients& pass :
             generator::shared_out(problem, {.of_keys = DType::bf16, .slopes = true})) {
          const generator::PlainKernel kernel = generator::render_backward(problem, variant, pass, architecture);
          CHECK(kernel.smem_bytes <= architecture.smem_per_block);
          CHECK(pass.slopes == (pass.pass == generator::GradientPass::keys));
        }
    }
}

TEST_CASE("how many queries a call has decides which backward variant is its default") {
  const Architecture& h100 = find_architecture("sm_90a");
  const auto chosen = [&](const Problem& problem, std::int64_t seqlen_q, bool has_tensor_maps = true) {
    return to_string(generator::default_backward_variant(problem, h100, seqlen_q, has_tensor_maps));
  };
  Problem problem = wide(128);
  const std::string mma = "mma-q64-kv128-w8-r1-s1";
  CHECK(chosen(problem, 63) == mma);
  CHECK(chosen(problem, 64) == "hopper-q64-kv128");
  CHECK(chosen(problem, 1023) == "hopper-q64-kv128");
  CHECK(chosen(problem, 1024) == "hopper-q80-kv128");
  CHECK(chosen(problem, 1024, false) == mma);
  problem.causal = true;
  CHECK(chosen(problem, 2047) == "hopper-q64-kv128");
  CHECK(chosen(problem, 2048) == "hopper-q80-kv128");
  problem.ragged = true;
  CHECK(chosen(problem, 1 << 20) == "hopper-q64-kv128");
  CHECK(chosen(wide(64), 1 << 20) == "hopper-q128-kv128");
}
