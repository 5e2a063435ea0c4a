// SPDX-License-Identifier: Apache-2.0
// The variants that the benchmarks name are legal, so that no run on a GPU ends with one that is not.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cli/bench/bench.h"
#include "generator/variant_space.h"

using namespace flashjit;
using generator::why_illegal;

namespace {

const std::filesystem::path kVariants = std::filesystem::path(FLASHJIT_SOURCE_DIR) / "bench" / "variants";

}  // namespace

TEST_CASE("the variants of the ablation are legal, and no two are the same") {
  const std::vector<Variant> variants = cli::ablation_variants();
  const Problem problem{DType::f16, 128, 128, false};
  for (const Variant& variant : variants) CHECK(why_illegal(problem, variant, find_architecture("sm_90a")) == "");
  CHECK(std::set<Variant>(variants.begin(), variants.end()).size() == variants.size());
}

TEST_CASE("the ablation has each overlap inside a warpgroup with and without turns between them") {
  std::set<std::pair<GemmSoftmax, PingPong>> seen;
  for (const Variant& variant : cli::ablation_variants()) {
    const auto& hopper = std::get<HopperVariant>(variant);
    if (hopper.warp_specialized) seen.insert({hopper.overlap, hopper.ping_pong});
  }
  for (const GemmSoftmax overlap : {GemmSoftmax::serial, GemmSoftmax::two_stage, GemmSoftmax::three_stage})
    for (const PingPong ping_pong : {PingPong::off, PingPong::gemm}) CHECK(seen.count({overlap, ping_pong}) == 1);
}

TEST_CASE("the variants listed for the comparison with peers are legal and in the tile order of their mask") {
  int listed = 0;
  for (const auto& file : std::filesystem::directory_iterator(kVariants)) {
    std::ifstream stream(file.path());
    for (std::string line; std::getline(stream, line);) {
      std::istringstream words(line.substr(0, line.find('#')));
      int head_dim = 0;
      std::string mask, spelling;
      if (!(words >> head_dim >> mask >> spelling)) continue;
      CAPTURE(file.path().string());
      CAPTURE(line);
      const bool causal = mask == "causal";
      const Variant variant = parse_variant(spelling);
      CHECK(why_illegal({DType::bf16, head_dim, head_dim, causal}, variant, find_architecture("sm_90a")) == "");
      const TileOrder order = std::visit([](const auto& of_family) { return of_family.order; }, variant);
      CHECK((order == TileOrder::longest_first) == causal);
      ++listed;
    }
  }
  CHECK(listed > 0);
}
