// SPDX-License-Identifier: Apache-2.0
// Head dims above 256: which variants there are, what is refused, and the plan.
#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flashjit/backward.h"
#include "flashjit/error.h"
#include "generator/family.h"
#include "generator/plan.h"
#include "generator/variant_space.h"
#include "runtime/call/validate.h"

using namespace flashjit;
using namespace flashjit::generator;

namespace {

const Architecture& sm_90a() { return find_architecture("sm_90a"); }

constexpr const char* kPlain = "hopper-q64-kv64-s1-qs1-oquery-2stage-ppoff-ws-pregs-cl1-rare-dynamic-natural-split";

Problem problem_of(int head_dim, int head_dim_v, bool causal = false) {
  return {.dtype = DType::bf16, .head_dim = head_dim, .head_dim_v = head_dim_v, .causal = causal};
}

template <class Call>
std::string refusal(Call call, ErrorCode code = ErrorCode::unsupported) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "";
}

std::string why_no_default(const Problem& problem, const char* architecture = "sm_90a") {
  return refusal([&] { default_variant(problem, find_architecture(architecture), ShapeBucket{}); });
}

}  // namespace

// Architectures take turns, so that each has every head dim beside one in eight of the others.
TEST_CASE("every pair of large head dims has defaults that fit, and some without TMA") {
  const std::vector<Architecture>& all = architectures();
  for (int head_dim = 8; head_dim <= kLargestHeadDim; head_dim += 8)
    for (int head_dim_v = 8; head_dim_v <= kLargestHeadDimV; head_dim_v += 8) {
      const Architecture& architecture = all[(head_dim + head_dim_v) / 8 % all.size()];
      const Problem problem = problem_of(head_dim, head_dim_v, head_dim % 16 == 0);
      if (!is_large(problem)) continue;
      for (const Variant& variant : default_variants(problem, architecture)) {
        const Plan plan = make_plan(problem, variant);
        const bool is_of_hopper = std::holds_alternative<HopperVariant>(variant);
        CHECK(why_illegal(problem, variant, architecture) == "");
        CHECK(plan.smem_bytes <= architecture.smem_per_block);
        CHECK(plan.threads <= 384);
        CHECK(plan.registers <= (is_of_hopper ? 232 : 255));
        CHECK((!is_of_hopper || architecture.name == std::string("sm_90a")));
      }
      CHECK(std::holds_alternative<MmaVariant>(default_without_tma(problem, architecture)));
    }
}

TEST_CASE("on sm_90a large heads have the Hopper family's kernel, and the mma family's for what that lacks") {
  const auto family_of = [](const Problem& problem, const char* bucket) {
    return std::string(family(default_variant(problem, sm_90a(), parse_shape_bucket(bucket))));
  };
  Problem problem = problem_of(576, 512, true);
  for (const char* bucket : {"q16-kvmore-w05", "qmore-kv8k-w4"}) CHECK(family_of(problem, bucket) == "hopper");
  problem.ragged = true;
  CHECK(family_of(problem, "qmore-kv8k-w4") == "hopper");
  problem.paged = true;
  for (const char* bucket : {"q16-kvmore-w05", "qmore-kv8k-w4"}) CHECK(family_of(problem, bucket) == "hopper");
  const Variant invariant = invariant_variant(problem, sm_90a(), ShapeBucket{}, true);
  CHECK(std::string(family(invariant)) == "mma");
  CHECK(why_not_invariant(invariant) == "");
}

TEST_CASE("few keys have blocks alone, many have pairs that share them, and those of latent caches never") {
  const auto cluster_of = [](const Problem& problem, const char* bucket) {
    return std::get<HopperVariant>(default_variant(problem, sm_90a(), parse_shape_bucket(bucket))).cluster;
  };
  Problem problem = problem_of(512, 512);
  CHECK(cluster_of(problem, "q16-kvmore-w4") == 1);
  CHECK(cluster_of(problem, "qmore-kv1k-wmore") == 1);
  CHECK(cluster_of(problem, "qmore-kv2k-w4") == 2);
  problem.ragged = true;
  CHECK(cluster_of(problem, "qmore-kv2k-w4") == 2);
  problem.latent = true;
  CHECK(cluster_of(problem, "qmore-kv2k-w4") == 1);
  problem = problem_of(512, 512);
  problem.block_mask = true;  // which blocks of a cluster would have to share
  CHECK(cluster_of(problem, "qmore-kv2k-w4") == 1);
}

TEST_CASE("keys of few queries are split, and those of batches in pages") {
  const auto splits = [](const Problem& problem, const char* bucket) {
    return splits_kv(default_variant(problem, sm_90a(), parse_shape_bucket(bucket)));
  };
  Problem problem = problem_of(512, 512);
  CHECK(splits(problem, "q16-kvmore-w4"));
  CHECK(splits(problem, "q64-kv1k-w05"));
  CHECK_FALSE(splits(problem, "qmore-kv2k-w4"));
  problem.ragged = problem.paged = true;
  CHECK(splits(problem, "qmore-kv2k-w4"));
  CHECK(splits(problem, "qmore-kv1k-w4"));
}

TEST_CASE("most choices are made on Hopper") {
  const Problem problem = problem_of(512, 512);
  CHECK(why_illegal(problem, parse_variant(kPlain), sm_90a()) == "");
  for (const auto& [part, message] : {std::pair{"q128", "block_q must be 64"},
                                      {"kv128", "block_kv must be 64"},
                                      {"s2", "stages must be 1"},
                                      {"qs2", "q_stages must be 1"},
                                      {"whole", "output must be oquery"},
                                      {"serial", "overlap must be 2stage"},
                                      {"ppgemm", "ping_pong must be ppoff"},
                                      {"nows", "warp_specialized must be ws"},
                                      {"psmem", "probabilities must be pregs"},
                                      {"cl4", "cluster must be 1 or 2"},
                                      {"lazy", "rescale must be always or rare"},
                                      {"fused", "boundary must be split"}}) {
    CAPTURE(part);
    const std::string why = why_illegal(problem, parse_variant(part, parse_variant(kPlain)), sm_90a());
    CHECK(why.starts_with("variant: " + std::string(message) + " for head dims above 256, was "));
  }
  CHECK(why_illegal(problem, parse_variant("cl2", parse_variant(kPlain)), sm_90a()) ==
        "variant: scheduler must be single or fixed with cl2, was dynamic");
  CHECK(!why_illegal(problem_of(256, 256), parse_variant(kPlain), sm_90a()).empty() ==
        why_illegal(problem_of(256, 256), parse_variant(kPlain), sm_90a()).starts_with("variant: "));
}

TEST_CASE("so are some in the mma family") {
  constexpr const char* kPlainMma = "mma-q32-kv64-w4-k2-v1";
  const Problem problem = problem_of(512, 512);
  const auto why = [&](const char* part) {
    return why_illegal(problem, parse_variant(part, parse_variant(kPlainMma)), sm_90a());
  };
  CHECK(why("q32") == "");
  for (const auto& [part, message] : {std::pair{"q64", "block_q must be 16 or 32 rows for each four warps"},
                                      {"splitkv", "block_q must be 16 rows for each four warps with splitkv"},
                                      {"kv96", "block_kv must be 64 or 128"},
                                      {"k3", "v_stages must be as k_stages, 3, or one less"},
                                      {"k2-v3", "v_stages must be as k_stages, 2, or one less"},
                                      {"serial", "pipeline must be overlap"},
                                      {"rotate", "pipeline must be overlap"},
                                      {"x2", "ldmatrix must be x4"},
                                      {"qregs", "query must be qsmem"}}) {
    CHECK_MESSAGE(why(part).starts_with("variant: " + std::string(message) + " for head dims above 256, was "),
                  why(part));
  }
  CHECK(why("lazy") == "variant: rescale must be always or rare in the mma family, was lazy");
  Problem drops = problem;
  drops.dropout = true;
  CHECK(why_illegal(drops, parse_variant(kPlainMma), sm_90a()) ==
        "variant: block_kv must be 128 with dropout for head dims above 256, was 64");
}

TEST_CASE("the shared memory of the mma family's kernel: Q, P, maxima, and pieces of at most 16 KB") {
  const auto bytes = [](int head_dim, int head_dim_v, const char* variant) {
    return make_plan(problem_of(head_dim, head_dim_v), parse_variant(variant)).smem_bytes;
  };
  CHECK(bytes(512, 512, "mma-q32-kv64-w4-k2-v1") == 32 * 1024 + 32 * 128 + 32 * 16 + 3 * 16384);
  CHECK(bytes(576, 512, "mma-q64-kv128-w8-k3-v2") == 64 * 1152 + 64 * 256 + 64 * 16 + 5 * 16384);
  // Three pieces of 96 columns, and values of 16 keys.
  CHECK(bytes(264, 264, "mma-q32-kv64-w4-k2-v1") == 32 * 544 + 32 * 128 + 32 * 16 + 3 * 64 * 192);
  // The output leaves by way of all of it.
  CHECK(bytes(8, 512, "mma-q64-kv64-w8-k1-v1") == 64 * 1024);
}

TEST_CASE("what large heads do not have is refused by its name") {
  Problem problem = problem_of(512, 64);
  problem.e4m3 = true;
  CHECK(why_no_default(problem) == "head_dim: must be at most 256 for keys and values of e4m3, was 512");
  problem = problem_of(64, 264);
  problem.e4m3 = problem.e4m3_queries = true;
  CHECK(why_no_default(problem, "sm_89") == "head_dim_v: must be at most 256 for keys and values of e4m3, was 264");
}

TEST_CASE("keys in two tensors are the mma family's, in tiles of 16 rows for each four warps, whose heads are packed") {
  Problem problem = problem_of(576, 512);
  problem.k_rotary = true;
  for (const char* architecture : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"}) {
    CAPTURE(architecture);
    const Architecture& target = find_architecture(architecture);
    const bool converts = std::string_view(architecture) >= "sm_89" || target.major > 8;
    for (const bool e4m3 : {false, true}) {
      problem.e4m3 = e4m3;
      if (e4m3 && !converts) {
        CHECK(
            why_no_default(problem, architecture).ends_with("e4m3 beside k_rotary need sm_89 or a later architecture"));
        continue;
      }
      for (const Variant& variant : default_variants(problem, target)) {
        CHECK(std::holds_alternative<MmaVariant>(variant));
        CHECK(splits_kv(variant));
      }
      CHECK(legal_variants(problem, target).size() >= 4);
      problem.dropout = true;
      CHECK_NOTHROW(default_variants(problem, target));
      problem.dropout = false;
    }
  }
  problem.e4m3 = true;
  CHECK(why_illegal(problem, parse_variant(kPlain), sm_90a()) ==
        "variant: family must be mma beside k_rotary, was hopper");
  CHECK(why_illegal(problem, parse_variant("mma-q32-kv64-w4-k2-v1"), sm_90a()) ==
        "variant: block_q must be 16 rows for each four warps beside k_rotary, was 32");
  CHECK(why_illegal(problem, parse_variant("mma-q32-kv64-w8-k2-v1"), find_architecture("sm_80")) ==
        "variant: architecture must be sm_89 or a later one for keys and values of e4m3, was sm_80");
}

TEST_CASE("pieces of e4m3 have twice the columns, and rotary columns pieces of their own") {
  Problem problem = problem_of(576, 512);
  problem.k_rotary = true;
  const auto bytes = [&](const char* variant) { return make_plan(problem, parse_variant(variant)).smem_bytes; };
  CHECK(bytes("mma-q32-kv64-w8-k2-v1") == 32 * 1152 + 32 * 128 + 32 * 16 + 3 * 16384);
  problem.e4m3 = true;
  CHECK(bytes("mma-q32-kv64-w8-k2-v1") == 32 * 1152 + 32 * 128 + 32 * 16 + 3 * 16384);
  problem.head_dim = 272, problem.head_dim_v = 16;  // rotary columns are most of them: four pieces of 64
  CHECK(bytes("mma-q16-kv128-w4-k2-v1") == 16 * 544 + 16 * 256 + 16 * 16 + 3 * 128 * 64 * 2);
}

TEST_CASE("values that are the first columns of keys, in their memory, are found out to be") {
  const HostTensor q(DType::bf16, {1, 3, 4, 576}), k(DType::bf16, {1, 90, 1, 576}), other(DType::bf16, {1, 90, 1, 512});
  const auto is_latent = [&](const Tensor& keys, const Tensor& v) {
    return runtime::validate_inputs(q.view(), keys, v, {}).problem.latent;
  };
  const auto columns = [](Tensor rows, std::int64_t count) {
    rows.shape[3] = count;
    return rows;
  };
  CHECK(is_latent(k.view(), columns(k.view(), 512)));
  CHECK(is_latent(k.view(), columns(k.view(), 128)));
  CHECK_FALSE(is_latent(k.view(), columns(k.view(), 120)));  // of no whole pieces
  CHECK_FALSE(is_latent(k.view(), other.view()));
  Tensor moved = columns(k.view(), 512);
  moved.data = static_cast<char*>(moved.data) + 16;
  CHECK_FALSE(is_latent(k.view(), moved));
  Tensor every_other = columns(k.view(), 512), half = k.view();
  every_other.strides[1] *= 2, every_other.shape[1] = half.shape[1] = 45;
  CHECK_FALSE(is_latent(half, every_other));
  const HostTensor usual(DType::bf16, {1, 3, 4, 128});
  CHECK_FALSE(runtime::validate_inputs(usual.view(), usual.view(), usual.view(), {}).problem.latent);

  Problem problem = problem_of(576, 512);
  problem.latent = true;
  CHECK(parse_problem(to_string(problem)) == problem);
  CHECK(to_string(problem) == "fwd-bf16-d576-v512-latent");
  problem.head_dim_v = 136;
  CHECK(
      refusal([&] { validate(problem); }, ErrorCode::invalid_argument) ==
      "latent: must not be true but with head_dim above 256, head_dim_v a multiple of 128 and no larger, without e4m3 "
      "and k_rotary, was so for 576 and 136");
}

TEST_CASE("a stream's values and output end where its columns do") {
  const auto plan_of = [](int head_dim, int head_dim_v) {
    return make_plan(problem_of(head_dim, head_dim_v), parse_variant(kPlain));
  };
  struct Row {
    int head_dim_v, value_columns, value_keys, store_columns;
  };
  for (const Row& row : {Row{512, 64, 16, 64},
                         {384, 64, 16, 64},
                         {320, 64, 16, 32},
                         {264, 64, 16, 16},
                         {256, 64, 32, 64},
                         {128, 64, 64, 64},
                         {32, 16, 64, 16}}) {
    CAPTURE(row.head_dim_v);
    const Plan plan = plan_of(512, row.head_dim_v);
    CHECK(plan.box_columns.q == 64);
    CHECK(plan.box_columns.k == 64);
    CHECK(plan.box_columns.v == row.value_columns);
    CHECK(plan.box_columns.out == row.store_columns);
    CHECK(plan.box_keys_of_values == row.value_keys);
  }
  CHECK(plan_of(512, 512).smem_bytes == 65536 + 2 * 8192 + 2 * 9 * 8192 + 2 * 512 + 1024);
}

TEST_CASE("keys may be split, stand in pages, and be shared by pairs") {
  Problem problem = problem_of(576, 512);
  problem.ragged = problem.paged = true;
  for (const char* parts : {"splitkv", "cl2-single", "cl2-single-splitkv"}) {
    CAPTURE(parts);
    const Variant variant = parse_variant(parts, parse_variant(kPlain));
    CHECK(why_illegal(problem, variant, sm_90a()) == "");
    CHECK(make_plan(problem, variant).smem_bytes <= sm_90a().smem_per_block);
  }
  problem.block_mask = true;
  CHECK(why_illegal(problem, parse_variant("cl2-single", parse_variant(kPlain)), sm_90a()) ==
        "variant: cluster must be 1 with a block mask, was 2");
}

TEST_CASE("worth trying are blocks alone and in pairs, with every scheduler that they may have") {
  for (const bool causal : {false, true}) {
    const Problem problem = problem_of(512, 512, causal);
    int alone = 0, pairs = 0;
    for (const Variant& variant : legal_variants(problem, sm_90a())) {
      if (!std::holds_alternative<HopperVariant>(variant)) continue;
      const HopperVariant& hopper = std::get<HopperVariant>(variant);
      CHECK(hopper.order == order_for(problem));
      (hopper.cluster == 1 ? alone : pairs) += 1;
    }
    CHECK(alone >= 4);
    CHECK(pairs == 3);
  }
}

TEST_CASE("of the mma family tiles of 32 rows, and of 16, which are for split keys") {
  for (const char* architecture : {"sm_80", "sm_89", "sm_90a", "sm_120a"}) {
    CAPTURE(architecture);
    int whole = 0, split = 0;
    for (const Variant& variant : legal_variants(problem_of(576, 512, true), find_architecture(architecture))) {
      if (!std::holds_alternative<MmaVariant>(variant)) continue;
      const MmaVariant& mma = std::get<MmaVariant>(variant);
      CHECK(mma.order == TileOrder::longest_first);
      (mma.split_kv ? split : whole) += 1;
    }
    CHECK(whole >= 2);
    CHECK(split >= 2);
  }
}
