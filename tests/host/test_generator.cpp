// SPDX-License-Identifier: Apache-2.0
// Sources, plans and variants. Nothing here needs NVRTC.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>

#include "flashjit/error.h"
#include "generator/plan.h"
#include "generator/source.h"
#include "generator/variant_space.h"

namespace {

using namespace flashjit;
using namespace flashjit::generator;

Problem problem_of(int head_dim, int head_dim_v, bool causal = false, DType dtype = DType::bf16) {
  Problem problem;
  problem.dtype = dtype, problem.head_dim = head_dim, problem.head_dim_v = head_dim_v, problem.causal = causal;
  return problem;
}

std::string message_of_parse(const std::string& text) {
  try {
    parse_variant(text);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid_argument);
    return error.what();
  }
  return {};
}

const Architecture& hopper() { return find_architecture("sm_90a"); }

}  // namespace

TEST_SUITE_BEGIN("generator");

TEST_CASE("a variant is read from its own spelling, for every legal variant") {
  for (const int head_dim : {40, 64, 128, 256})
    for (const Variant& variant : legal_variants(problem_of(head_dim, head_dim), hopper()))
      CHECK(parse_variant(to_string(variant)) == variant);
}

TEST_CASE("a part of a spelling changes that part of the base only") {
  const Variant base = parse_variant("q128-kv64-w4-k2-v1-c2");
  Variant expected = base;
  expected.block_kv = 32, expected.k_stages = 3;
  CHECK(parse_variant("kv32-k3", base) == expected);
  CHECK(parse_variant("rotate", base).pipeline == Pipeline::rotate);
}

TEST_CASE("what is no part of a variant is named") {
  CHECK(message_of_parse("q128-kw64").find("'kw64'") != std::string::npos);
  CHECK(message_of_parse("").find("''") != std::string::npos);
  CHECK(message_of_parse("q128-").find("''") != std::string::npos);
  CHECK(message_of_parse("q-1").find("'q'") != std::string::npos);
  CHECK(message_of_parse("q99999999999").find("'q99999999999'") != std::string::npos);
  CHECK(message_of_parse("v6x").find("'v6x'") != std::string::npos);
}

TEST_CASE("the ladder adds one idea a step") {
  const Variant v1 = parse_variant("v1"), v2 = parse_variant("v2"), v3 = parse_variant("v3"), v4 = parse_variant("v4"),
                v5 = parse_variant("v5");
  CHECK(parse_variant("swizzle", v1) == v2);
  CHECK(parse_variant("overlap-k2-v2", v2) == v3);
  CHECK(parse_variant("x4", v3) == v4);
  CHECK(parse_variant("v1-k2", v4) == v5);
}

TEST_CASE("variants are ordered and unequal ones have unequal spellings") {
  const std::vector<Variant> variants = legal_variants(problem_of(128, 128), hopper());
  std::set<std::string> spellings;
  for (const Variant& variant : variants) spellings.insert(to_string(variant));
  CHECK(spellings.size() == variants.size());
  const std::set<Variant> ordered(variants.begin(), variants.end());
  CHECK(ordered.size() == variants.size());
}

TEST_CASE("every head dim has a legal default on every architecture, within its shared memory") {
  for (const Architecture& architecture : architectures())
    for (int head_dim = 8; head_dim <= 256; head_dim += 8)
      for (const int head_dim_v : {head_dim, 8, 128, 256})
        for (const bool causal : {false, true})
          for (const LengthRange range : kLengthRanges) {
            const Problem problem = problem_of(head_dim, head_dim_v, causal);
            const Variant variant = default_variant(problem, architecture, range);
            CHECK(why_illegal(problem, variant, architecture) == "");
            CHECK(make_plan(problem, variant).smem_bytes <= architecture.smem_per_block);
          }
}

TEST_CASE("the defaults come first among the legal variants, and nothing is listed twice") {
  const Problem problem = problem_of(128, 128, true);
  const std::vector<Variant> variants = legal_variants(problem, hopper());
  CHECK(variants.front() == default_variant(problem, hopper(), LengthRange::long_kv));
  for (const LengthRange range : kLengthRanges)
    CHECK(std::find(variants.begin(), variants.begin() + 3, default_variant(problem, hopper(), range)) !=
          variants.begin() + 3);
  for (const Variant& variant : variants) CHECK(std::count(variants.begin(), variants.end(), variant) == 1);
}

TEST_CASE("head dims are padded to the next multiple of 16 and no further") {
  const Variant variant = parse_variant("q64-kv32-w4-k1-v1");
  for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
    const Plan plan = make_plan(problem_of(head_dim, 264 - head_dim), variant);
    CHECK(plan.padded_head_dim - head_dim == (head_dim % 16 == 0 ? 0 : 8));
    CHECK(plan.padded_head_dim_v % 16 == 0);
    const int q_and_rings = 2 * ((64 + 32) * plan.padded_head_dim + 32 * plan.padded_head_dim_v);
    const int output = 2 * 64 * plan.padded_head_dim_v;
    CHECK(plan.smem_bytes == std::max(q_and_rings, output));
  }
}

TEST_CASE("an illegal variant is refused with what it must be") {
  const auto why = [](const char* variant, int head_dim, const char* architecture) {
    return why_illegal(problem_of(head_dim, head_dim), parse_variant(variant), find_architecture(architecture));
  };
  CHECK(why("w5", 64, "sm_90a").find("warps must be 4 or 8, was 5") != std::string::npos);
  CHECK(why("q96", 64, "sm_90a").find("block_q must be") != std::string::npos);
  CHECK(why("kv24", 64, "sm_90a").find("block_kv must be a multiple of 16") != std::string::npos);
  CHECK(why("k4", 64, "sm_90a").find("k_stages must be 1 to 3, was 4") != std::string::npos);
  CHECK(why("x3", 64, "sm_90a").find("ldmatrix must be 2 or 4, was 3") != std::string::npos);
  CHECK(why("serial-k2", 64, "sm_90a").find("serial") != std::string::npos);
  CHECK(why("rotate-k1-v1", 64, "sm_90a").find("rotate") != std::string::npos);
  CHECK(why("q128-w8-kv128", 256, "sm_86").find("bytes of shared memory") != std::string::npos);
  CHECK(why("q128-w4-kv128", 128, "sm_90a").find("registers") != std::string::npos);
  CHECK(why("c4", 128, "sm_90a").find("ctas_per_sm") != std::string::npos);
}

TEST_CASE("equal inputs render equal bytes, and every input shows in them") {
  const Problem problem = problem_of(128, 128);
  const Variant variant = default_variant(problem, hopper(), LengthRange::short_kv);
  const std::string text = render_forward(problem, variant, hopper()).text;
  CHECK(render_forward(problem, variant, hopper()).text == text);
  CHECK(render_forward(problem_of(128, 128, true), variant, hopper()).text != text);
  CHECK(render_forward(problem_of(128, 128, false, DType::f16), variant, hopper()).text != text);
  CHECK(render_forward(problem_of(128, 112), variant, hopper()).text != text);
  CHECK(render_forward(problem, parse_variant("kv32", variant), hopper()).text != text);
  CHECK(render_forward(problem, variant, find_architecture("sm_80")).text != text);
}

TEST_CASE("a source is one file: each template once, no include left, lines that point into templates/") {
  const Problem problem = problem_of(64, 64);
  const Source source = render_forward(problem, default_variant(problem, hopper(), LengthRange::long_kv), hopper());
  CHECK(source.text.find("#include") == std::string::npos);
  CHECK(source.text.find("#pragma once") == std::string::npos);
  const std::string first_line = "#line 1 \"templates/tile/shared_tile.cuh\"";
  const std::size_t at = source.text.find(first_line);
  CHECK(at != std::string::npos);
  CHECK(source.text.find(first_line, at + 1) == std::string::npos);
  CHECK(source.text.find(source.entry + "(") != std::string::npos);
}

TEST_CASE("a template that is not there is named") {
  Templates templates = embedded_templates();
  templates.erase("ptx/mma.cuh");
  const Problem problem = problem_of(64, 64);
  CHECK_THROWS_WITH_AS(
      render_forward(problem, default_variant(problem, hopper(), LengthRange::long_kv), hopper(), templates),
      doctest::Contains("ptx/mma.cuh"), Error);
}

TEST_CASE("the grid has a block for each tile of each head, and refuses more than a launch can have") {
  const Variant variant = parse_variant("q128-w4");
  CHECK(grid_size(variant, 2, 3, 1) == 6);
  CHECK(grid_size(variant, 2, 3, 128) == 6);
  CHECK(grid_size(variant, 2, 3, 129) == 12);
  CHECK(grid_size(variant, 0, 3, 129) == 0);
  CHECK_THROWS_AS(grid_size(variant, std::int64_t{1} << 20, std::int64_t{1} << 12, 129), Error);
  CHECK_THROWS_AS(grid_size(variant, std::int64_t{1} << 40, std::int64_t{1} << 40, 129), Error);
}

TEST_CASE("the length range follows the lengths") {
  CHECK(length_range(1, 100000) == LengthRange::few_queries);
  CHECK(length_range(65, 2047) == LengthRange::short_kv);
  CHECK(length_range(65, 2048) == LengthRange::long_kv);
}

TEST_CASE("head dims out of range are refused") {
  for (const int head_dim : {0, -8, 7, 12, 264})
    CHECK_THROWS_WITH_AS(validate(problem_of(head_dim, 64)), doctest::Contains("head_dim: must be a multiple of 8"),
                         Error);
  CHECK_THROWS_WITH_AS(validate(problem_of(64, 4)), doctest::Contains("head_dim_v"), Error);
  CHECK_THROWS_AS(validate(problem_of(64, 64, false, DType::f32)), Error);
}
